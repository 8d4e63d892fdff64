/* PTX wgmma of 16 bits, bfloat16 or half precision, with float32 sums, for tiles of several widths. As
   wgmma.cuh. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_WGMMA_BF16_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_WGMMA_BF16_CUH

#include "kernels/cuda/tensor/mma_16bit.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

/* D += A B, or D = A B unless `adds`: 64 rows, N columns, k = 16. d[4 j + 2 h + e] as in wgmma.cuh. A_T, B_T:
   the rows of A, or the columns of B, are contiguous. */
template <typename T, int N, bool A_T, bool B_T>
__device__ inline void wgmma_16bit(float (&d)[N / 2], uint64_t a, uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
#    define MULTIPLY_OF(type, n, registers, a_at, b_at, adds_at, a_t_at, b_t_at, ...)                   \
        asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %" #adds_at ", 0;\n"                         \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type " {" registers "}, %" #a_at \
                     ", %" #b_at ", adds, 1, 1, %" #a_t_at ", %" #b_t_at "; }"                          \
                     : __VA_ARGS__                                                                      \
                     : "l"(a), "l"(b), "r"((unsigned)adds), "n"(A_T), "n"(B_T))
#    define MULTIPLY(...)                        \
        if constexpr (IS_HALF<T>)                \
            MULTIPLY_OF("f16.f16", __VA_ARGS__); \
        else                                     \
            MULTIPLY_OF("bf16.bf16", __VA_ARGS__)
    static_assert(N == 64 || N == 128 || N == 192 || N == 256);
    if constexpr (N == 64) {
        MULTIPLY(64, WGMMA_TO_31, 32, 33, 34, 35, 36, WGMMA_D32);
    } else if constexpr (N == 128) {
        MULTIPLY(128, WGMMA_TO_63, 64, 65, 66, 67, 68, WGMMA_D64);
    } else if constexpr (N == 192) {
        MULTIPLY(192, WGMMA_TO_95, 96, 97, 98, 99, 100, WGMMA_D96);
    } else {
        MULTIPLY(256, WGMMA_TO_127, 128, 129, 130, 131, 132, WGMMA_D128);
    }
#    undef MULTIPLY
#    undef MULTIPLY_OF
#endif
}

#endif
