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
#    define FIVE(t, a, b, c, d, e) "%" t a ", %" t b ", %" t c ", %" t d ", %" t e ", "
#    define TEN(t) FIVE(t, "0", "1", "2", "3", "4") FIVE(t, "5", "6", "7", "8", "9")
#    define TO_29 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN("1") TEN("2")
#    define TO_89 TO_29 TEN("3") TEN("4") TEN("5") TEN("6") TEN("7") TEN("8")
#    define D8(i)                                                                                   \
        "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
            "+f"(d[i + 6]), "+f"(d[i + 7])
#    define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
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
        MULTIPLY(64, TO_29 "%30, %31", 32, 33, 34, 35, 36, D32(0));
    } else if constexpr (N == 128) {
        MULTIPLY(128, TO_29 TEN("3") TEN("4") TEN("5") "%60, %61, %62, %63", 64, 65, 66, 67, 68, D32(0),
                 D32(32));
    } else if constexpr (N == 192) {
        MULTIPLY(192, TO_89 "%90, %91, %92, %93, %94, %95", 96, 97, 98, 99, 100, D32(0), D32(32), D32(64));
    } else {
        MULTIPLY(256, TO_89 TEN("9") TEN("10") TEN("11") "%120, %121, %122, %123, %124, %125, %126, %127",
                 128, 129, 130, 131, 132, D32(0), D32(32), D32(64), D32(96));
    }
#    undef MULTIPLY
#    undef MULTIPLY_OF
#    undef D32
#    undef D8
#    undef TO_89
#    undef TO_29
#    undef TEN
#    undef FIVE
#endif
}

#endif
