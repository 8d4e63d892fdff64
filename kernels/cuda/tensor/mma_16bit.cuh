/* Pairs of 16 bits in a word, and their products: mma_bf16.cuh for both types, T: __nv_bfloat16 or __half.
   Needs compute capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_MMA_16BIT_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_MMA_16BIT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/tensor/mma_bf16.cuh"

template <typename T> constexpr bool IS_HALF = std::is_same_v<T, __half>;

/* Two ones. */
template <typename T> constexpr uint32_t ONES = IS_HALF<T> ? 0x3c003c00 : 0x3f803f80;

template <typename T> __device__ inline uint32_t round_pair_to(float first, float second) {
    if constexpr (!IS_HALF<T>) return round_pair(first, second);
    const __half2 pair = __floats2half2_rn(first, second);
    return *(const uint32_t *)&pair;
}

/* Two gradients: half precision beyond 65504 is 65504, with its sign; NaN stays NaN. */
template <typename T> __device__ inline uint32_t round_gradients_to(float first, float second) {
    if constexpr (!IS_HALF<T>) return round_pair(first, second);
    uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.satfinite.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
#endif
    return pair;
}

template <typename T> __device__ inline float2 floats_of(uint32_t pair) {
    if constexpr (!IS_HALF<T>) return make_float2(first_of(pair), second_of(pair));
    return __half22float2(*(const __half2 *)&pair);
}

/* D += A B, as mma_bf16. */
template <typename T>
__device__ inline void mma_16bit(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                 uint32_t b0, uint32_t b1) {
    if constexpr (!IS_HALF<T>) return mma_bf16(d, a0, a1, a2, a3, b0, b1);
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

template <typename T>
__device__ inline void mma_16bit(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_16bit<T>(d, a[0], a[1], a[2], a[3], b0, b1);
}

#endif
