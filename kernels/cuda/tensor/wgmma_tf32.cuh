/* PTX wgmma of TF32 with float32 sums: 64 rows, 64 or 256 columns, k = 8. As wgmma.cuh; of 16 bits and
   with A in registers: wgmma_registers.cuh. Operands in shared memory have k contiguous. The hardware reads
   the upper 19 bits of a float32: the caller rounds, or the copy engine (TENSOR_TF32). */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_WGMMA_TF32_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_WGMMA_TF32_CUH

#include "kernels/cuda/tensor/wgmma.cuh"

/* The registers of D as operands, and their numbers. */
#define D8(i)                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define D128 D32(0), D32(32), D32(64), D32(96)
#define FIVE(t, a, b, c, d, e) "%" t a ", %" t b ", %" t c ", %" t d ", %" t e ", "
#define TEN(t) FIVE(t, "0", "1", "2", "3", "4") FIVE(t, "5", "6", "7", "8", "9")
#define TO_29 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN("1") TEN("2")
#define TO_31 TO_29 "%30, %31"
#define TO_119 TO_29 TEN("3") TEN("4") TEN("5") TEN("6") TEN("7") TEN("8") TEN("9") TEN("10") TEN("11")
#define TO_127 TO_119 "%120, %121, %122, %123, %124, %125, %126, %127"
#define MULTIPLY(columns, sums, factors, adds_at, of_d, ...)                                          \
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %" #adds_at ", 0;\n"                           \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k8.f32.tf32.tf32 {" sums "}, " factors \
                 ", adds, 1, 1; }"                                                                    \
                 : of_d                                                                               \
                 : __VA_ARGS__, "l"(b), "r"((unsigned)adds))

/* D += A B, or D = A B unless `adds`. d[4 j + 2 h + e] as in wgmma.cuh. */
__device__ inline void wgmma_tf32(float (&d)[32], uint64_t a, uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    MULTIPLY(64, TO_31, "%32, %33", 34, D32(0), "l"(a));
#endif
}

/* A in registers: a[2 i + h] has row lane / 4 + 8 h of the 16 of this warp, and k lane % 4 + 4 i. */
template <int COUNT>
__device__ inline void wgmma_tf32(float (&d)[COUNT], const float (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    static_assert(COUNT == 32 || COUNT == 128);
    const unsigned x = __float_as_uint(a[0]), y = __float_as_uint(a[1]), z = __float_as_uint(a[2]),
                   w = __float_as_uint(a[3]);
    if constexpr (COUNT == 32)
        MULTIPLY(64, TO_31, "{%32, %33, %34, %35}, %36", 37, D32(0), "r"(x), "r"(y), "r"(z), "r"(w));
    else
        MULTIPLY(256, TO_127, "{%128, %129, %130, %131}, %132", 133, D128, "r"(x), "r"(y), "r"(z), "r"(w));
#endif
}
#undef MULTIPLY
#undef TO_127
#undef TO_119
#undef TO_31
#undef TO_29
#undef TEN
#undef FIVE
#undef D128
#undef D32
#undef D8

#endif
