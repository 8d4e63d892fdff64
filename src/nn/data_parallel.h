/* Data-parallel training: each process computes the gradients of its part of every batch, and all apply the
   same update to the same weights, with the sum over the parts.

   With --reduction fixed a batch always has COMM_SHARDS parts, which are summed as one tree: the same bits on
   1, 2 and 4 processes. Otherwise it has a part for each process. */
#ifndef TESSERA_NN_DATA_PARALLEL_H
#define TESSERA_NN_DATA_PARALLEL_H

#include "src/nn/trainer.h"

/* Divides the batches by the communicator of trainer->compute. */
enum status data_parallel_open(struct trainer *trainer);
void data_parallel_close(struct trainer *trainer);

/* One step over all parts: gradients, loss and tally as engine_gradients of the whole batch, and the update.
   Sums of the upper layers begin while the gradients of the lower ones are computed. */
enum status data_parallel_step(struct trainer *trainer, size_t step);

/* STATUS_USAGE, with the same message on all ranks, if a rank has another program version, recipe, data
   set or weights than rank 0. Then connects the devices (comm_attach). */
enum status data_parallel_join(struct trainer *trainer);

/* After the last step: STATUS_FAILED if a rank has other weights than rank 0, because a library's sum was not
   the same on all. */
enum status data_parallel_compare(struct trainer *trainer);

/* Called before the next steps: was any process interrupted, as of the last steps? If this one was, the next
   steps tell the others. */
bool data_parallel_stops(struct trainer *trainer);

#endif
