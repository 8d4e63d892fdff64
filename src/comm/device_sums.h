/* Sums of tensors that are on a GPU: comm_attach, comm_sum_begin and comm_detach (comm.h). */
#ifndef TESSERA_COMM_DEVICE_SUMS_H
#define TESSERA_COMM_DEVICE_SUMS_H

#include "src/comm/comm.h"

/* Called by comm_close before this rank leaves. `well`: so do all, and none has failed. */
void device_sums_close(struct comm *comm, bool well);
void device_sums_free(struct comm *comm);

#endif
