/* Fragments of TF32 operands for wgmma with A in registers, which those with k along their rows need. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_TF32_FRAGMENTS_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_TF32_FRAGMENTS_CUH

#include "kernels/cuda/tensor/wgmma_tf32.cuh"

/* 32 rows of k of 64 columns of the operand, in shared memory: two boxes of 32 columns (tensor_map.cuh). */
static const unsigned TRANSPOSED_BOX_BYTES = 32 * 128;

/* The column that row lane / 4 of the 16 of a warp (of four) is; row lane / 4 + 8 is the next column. In this
   order the 16 lanes that read eight bytes at a time, four rows of k by four columns, use all banks. */
static __device__ inline unsigned transposed_row(unsigned warp, unsigned lane) {
    return warp / 2 * 32 + warp % 2 * 8 + lane / 8 % 2 * 16 + lane / 16 * 4 + lane / 4 % 2 * 2;
}

/* The fragments of STEPS steps of k, from step `first` of four on, of the 64 columns from `at` on. */
template <int STEPS>
static __device__ inline void load_transposed(float (&of)[STEPS][4], const char *at, unsigned first = 0) {
    const unsigned lane = threadIdx.x % 32, column = transposed_row(threadIdx.x / 32 % 4, lane);
    const char *const box = at + column / 32 * TRANSPOSED_BOX_BYTES + column % 4 * 4;
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++)
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const unsigned k = lane % 4 + 4 * i;
            const float2 two =
                *(const float2 *)(box + (8 * (first + step) + k) * 128 + ((column % 32 / 4 ^ k) << 4));
            of[step][2 * i] = two.x;
            of[step][2 * i + 1] = two.y;
        }
}

#endif
