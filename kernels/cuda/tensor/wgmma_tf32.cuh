/* PTX wgmma of TF32 with float32 sums: 64 rows, 64 columns, k = 8. As wgmma.cuh; of 16 bits and with A in
   registers: wgmma_registers.cuh. Operands in shared memory have k contiguous. The hardware reads the upper
   19 bits of a float32: the caller rounds, or the copy engine (TENSOR_TF32). */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_WGMMA_TF32_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_WGMMA_TF32_CUH

#include "kernels/cuda/tensor/wgmma.cuh"

/* The 32 registers of D as operands, and their numbers. */
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D32 D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28)
#define TO_31                                                                 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

/* D += A B, or D = A B unless `adds`. d[4 j + 2 h + e] as in wgmma.cuh. */
__device__ inline void wgmma_tf32(float (&d)[32], uint64_t a, uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 " TO_31 "%32, %33, adds, 1, 1; }"
                 : D32
                 : "l"(a), "l"(b), "r"((unsigned)adds));
#endif
}

/* A in registers: a[2 i + h] has row lane / 4 + 8 h of the 16 of this warp, and k lane % 4 + 4 i. */
__device__ inline void wgmma_tf32(float (&d)[32], const float (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 " TO_31
                 "{%32, %33, %34, %35}, %36, adds, 1, 1; }"
                 : D32
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "l"(b), "r"((unsigned)adds));
#endif
}
#undef TO_31
#undef D32
#undef D4

#endif
