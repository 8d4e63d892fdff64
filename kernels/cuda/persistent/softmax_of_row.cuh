/* What the forms with look-ahead share in the output layer: softmax and loss of a row in four lanes. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_SOFTMAX_OF_ROW_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_SOFTMAX_OF_ROW_CUH

#include "kernels/cuda/persistent/byte_pixels.cuh"

namespace persistent {

/* A row of the batch of which a lane, and those APART and 2 APART beside it, have three logits each. */
template <int APART> struct row_of_four_lanes {
    float z[3];
    int c[3]; /* their classes */
    int label, classes;
    float most; /* the largest logit of the row */
    float sum;  /* of exp(z - most) over the row; NaN if the loss is not finite */

    template <typename V, typename F> __device__ static V over_lanes(V value, F combine) {
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, APART));
        return combine(value, __shfl_xor_sync(0xffffffffu, value, 2 * APART));
    }

    /* Softmax cross-entropy: dL/dlogits times `scale`, NaN if the loss is not finite, 0 if the row is none of
       the batch. z of classes that there are not becomes -inf. */
    __device__ void softmax(float scale, bool valid, float (&gradient)[3]) {
        const bool known = label < classes;
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (c[k] >= classes) z[k] = -INFINITY;
        most = over_lanes(fmaxf(fmaxf(z[0], z[1]), z[2]), fmaxf); /* ignores NaN, which makes the sum NaN */
        sum = 0;
#pragma unroll
        for (int k = 0; k < 3; k++) { /* absolute errors, about 1e-7, are small: the sum is at least 1 */
            gradient[k] = __expf(z[k] - most); /* 0 if there is no such class */
            if (!known || (c[k] == label && !isfinite(z[k]))) gradient[k] = NAN;
            sum += gradient[k];
        }
        sum = over_lanes(sum, [](float a, float b) { return a + b; });
        const float factor = __fdividef(scale, sum); /* the sum is 1 to 12, or NaN */
#pragma unroll
        for (int k = 0; k < 3; k++) {
            gradient[k] = gradient[k] * factor - (c[k] == label ? scale : 0.0f);
            if (!valid) gradient[k] = 0;
        }
    }

    /* After it: the row's entry in row_tally::records. */
    __device__ float4 record() const {
        float of_label = -INFINITY;
        int best = 3 * PACKETS; /* the first of the largest */
#pragma unroll
        for (int k = 0; k < 3; k++) {
            if (c[k] == label) of_label = z[k];
            if (c[k] < classes && z[k] == most) best = min(best, c[k]);
        }
        of_label = over_lanes(of_label, fmaxf);
        best = over_lanes(best, [](int a, int b) { return min(a, b); });
        return make_float4(sum, of_label, most, best == label && sum > 0);
    }
};

} // namespace persistent

#endif
