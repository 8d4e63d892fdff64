/* A training by several processes: meeting and leaving the others. */
#ifndef TESSERA_CMD_TRAIN_PROCESSES_H
#define TESSERA_CMD_TRAIN_PROCESSES_H

#include "src/comm/comm.h"
#include "src/nn/config.h"

/* Opens the communicator that the launcher and the config ask for. From then on only rank 0 prints, logs and
   saves: on the others the config has no files to write. Threads that are not given are divided among the
   processes of this host. */
enum status processes_join(struct comm *comm, struct config *config);

/* The last call: comm_close. */
enum status processes_leave(struct comm *comm, enum status status);

#endif
