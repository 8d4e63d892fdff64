/* What a batch adds to the tally. */
#ifndef TESSERA_KERNELS_CUDA_OPS_TALLY_CUH
#define TESSERA_KERNELS_CUDA_OPS_TALLY_CUH

extern "C" {
#include "kernels/ops.h"
}

/* Loss and number of correct rows of a part of the batch. */
struct partial_loss {
    double loss;
    unsigned long long correct;
};

/* One thread: the sums of a batch of so many rows, added to what the tally was. */
__device__ inline void tally_batch(const struct tally before, const partial_loss &total, size_t rows,
                                   double *loss, struct tally *tally, bool counted) {
    if (counted) {
        tally->correct = before.correct + total.correct;
        tally->loss_sum = before.loss_sum + total.loss;
        tally->images = before.images + rows;
        tally->batches = before.batches + 1;
    }
    if (!isfinite(total.loss) && !before.bad_step) tally->bad_step = before.batches + counted;
    if (loss) *loss = total.loss / (double)rows;
}

#endif
