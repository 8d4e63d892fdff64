/* --devices: one command for several GPUs of this host. The process is rank 0, and starts the others. */
#ifndef TESSERA_CMD_TRAIN_DEVICES_H
#define TESSERA_CMD_TRAIN_DEVICES_H

#include "src/comm/launch.h"
#include "src/nn/config.h"

/* Starts a process for each GPU of config->devices but the first, which becomes config->device, and sets the
   environment that launch_find reads. They have the arguments of this process. Does nothing if
   config->devices is "", or for one GPU. */
enum status devices_start(struct config *config, int argc, char **argv);

/* With processes that a launcher has started, the GPU of this one is that of its rank on this host, unless
   --device or --devices chose it. */
void devices_choose(struct config *config, const struct launch *launch);

/* Waits until the processes that were started have ended; ends them after a few seconds. */
void devices_end(void);

#endif
