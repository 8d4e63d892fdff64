/* Pairs of bfloat16 in a word, and PTX mma.sync of them with float32 sums: one warp. Needs compute capability
   8.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_MMA_BF16_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_MMA_BF16_CUH

#include <stdint.h>

/* Two floats rounded to bfloat16, in one word; first_of and second_of return them. */
__device__ inline uint32_t round_pair(float first, float second) {
    uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
#endif
    return pair;
}

__device__ inline float first_of(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

__device__ inline float second_of(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

/* D += A B: 16 rows, 8 columns, k = 16. A word has two neighbours along k. Lane 4 g + t has those from 2 t on
   of rows g and g + 8 of A, then from 2 t + 8 on; of column g of B from 2 t on, then from 2 t + 8 on; and
   columns 2 t and 2 t + 1 of row g of D, then of row g + 8. */
__device__ inline void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
}

#endif
