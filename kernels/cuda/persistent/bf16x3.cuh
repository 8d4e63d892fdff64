/* Floats as three bfloat16, their planes, for products on the tensor cores with the accuracy of float32.

   A float has 24 bits of significand, a bfloat16 has 8: a float is the sum of its planes. Plane 1 is at most
   2^-8 of the float and plane 2 at most 2^-17. Magnitudes are below 2^127; infinity becomes NaN. Needs
   compute capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_BF16X3_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_BF16X3_CUH

#include "kernels/cuda/tensor/ldmatrix.cuh"
#include "kernels/cuda/tensor/mma_bf16.cuh"

namespace persistent {

static const int PLANES = 3; /* of a float, the largest first */

/* Two floats as three pairs of bfloat16. */
__device__ inline void split_into_planes(float first, float second, uint32_t (&planes)[PLANES]) {
#pragma unroll
    for (int s = 0; s < PLANES; s++) {
        planes[s] = round_pair(first, second);
        first -= first_of(planes[s]);
        second -= second_of(planes[s]);
    }
}

} // namespace persistent

#endif
