/* The arithmetic of part_values and count_batch, shared by the host and CUDA (kernels/ops.h). */
#ifndef TESSERA_KERNELS_PARTS_H
#define TESSERA_KERNELS_PARTS_H

#include <math.h>

#include "kernels/ops.h"

HOST_DEVICE struct batch_values values_of_part(const struct tally *part, double stop) {
    struct batch_values values;
    values.loss_sum = part->loss_sum;
    values.correct = (double)part->correct;
    values.images = (double)part->images;
    values.bad = part->bad_step > 0; /* also of attacked images, whose loss is not counted */
    values.stops = stop;
    return values;
}

/* Returns the mean loss. */
HOST_DEVICE double count_values(const struct batch_values *values, struct tally *tally) {
    tally->loss_sum += values->loss_sum;
    tally->correct += (uint64_t)values->correct;
    tally->images += (uint64_t)values->images;
    tally->batches++;
    if ((values->bad > 0 || !isfinite(values->loss_sum)) && !tally->bad_step)
        tally->bad_step = tally->batches;
    return values->loss_sum / values->images;
}

#endif
