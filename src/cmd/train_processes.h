/* A training by several processes: meeting the others. */
#ifndef TESSERA_CMD_TRAIN_PROCESSES_H
#define TESSERA_CMD_TRAIN_PROCESSES_H

#include "src/comm/comm.h"
#include "src/nn/config.h"

/* Starts the processes of --devices; opens the communicator that the launcher and the config ask for. From
   then on only rank 0 prints, logs and saves: on the others the config has no files to write. Threads that
   are not given are divided among the processes of this host, and GPUs by their numbers on it. argc and
   argv: of the command. */
enum status processes_join(struct comm *comm, struct config *config, int argc, char **argv);

/* The last call of the command: comm_close, and the end of the processes of --devices. */
enum status processes_leave(struct comm *comm, enum status status);

#endif
