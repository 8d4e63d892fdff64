/* PTX wgmma of TF32 with float32 sums: 64 rows, 64 or 256 columns, k = 8. As wgmma.cuh; of 16 bits and
   with A in registers: wgmma_registers.cuh. Operands in shared memory have k contiguous. The hardware reads
   the upper 19 bits of a float32: the caller rounds, or the copy engine (TENSOR_TF32). */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_WGMMA_TF32_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_WGMMA_TF32_CUH

#include "kernels/cuda/tensor/wgmma.cuh"

#define MULTIPLY(columns, sums, factors, adds_at, of_d, ...)                                          \
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %" #adds_at ", 0;\n"                           \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k8.f32.tf32.tf32 {" sums "}, " factors \
                 ", adds, 1, 1; }"                                                                    \
                 : of_d                                                                               \
                 : __VA_ARGS__, "l"(b), "r"((unsigned)adds))

/* D += A B, or D = A B unless `adds`. d[4 j + 2 h + e] as in wgmma.cuh. */
__device__ inline void wgmma_tf32(float (&d)[32], uint64_t a, uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    MULTIPLY(64, WGMMA_TO_31, "%32, %33", 34, WGMMA_D32, "l"(a));
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
        MULTIPLY(64, WGMMA_TO_31, "{%32, %33, %34, %35}, %36", 37, WGMMA_D32, "r"(x), "r"(y), "r"(z), "r"(w));
    else
        MULTIPLY(256, WGMMA_TO_127, "{%128, %129, %130, %131}, %132", 133, WGMMA_D128, "r"(x), "r"(y), "r"(z),
                 "r"(w));
#endif
}
#undef MULTIPLY

#endif
