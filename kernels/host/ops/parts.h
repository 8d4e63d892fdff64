/* Sums over the parts of a batch, the same for every dtype. */
#ifndef TESSERA_KERNELS_HOST_OPS_PARTS_H
#define TESSERA_KERNELS_HOST_OPS_PARTS_H

#include "kernels/ops.h"

void host_part_values(void *context, const struct tally *part, const double *stop,
                      struct batch_values *values);
void host_count_batch(void *context, const struct batch_values *values, double *loss, struct tally *tally);

#endif
