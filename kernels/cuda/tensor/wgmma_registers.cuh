/* PTX wgmma of bfloat16 or float16 with A in registers. As wgmma.cuh; of TF32: wgmma_tf32.cuh. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_WGMMA_REGISTERS_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_WGMMA_REGISTERS_CUH

#include "kernels/cuda/tensor/wgmma.cuh"

/* D += A B, or D = A B unless `adds`: 64 rows, 64 or 72 columns, k = 16; A in registers. */
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
template <bool B_BY_K>
__device__ inline void wgmma_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, adds, 1, 1, %38; }"
                 : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)adds), "n"(B_BY_K));
#endif
}

template <bool B_BY_K>
__device__ inline void wgmma_registers(float (&d)[36], const uint32_t (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %41, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35}, {%36, %37, %38, %39}, %40, adds, 1, 1, %42; }"
                 : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28), D4(32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)adds), "n"(B_BY_K));
#endif
}

/* The same of float16, 16, 32 or 64 columns. */
template <bool B_BY_K>
__device__ inline void wgmma_f16_registers(float (&d)[8], const uint32_t (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, adds, 1, 1, %14; }"
                 : D4(0), D4(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)adds), "n"(B_BY_K));
#endif
}

template <bool B_BY_K>
__device__ inline void wgmma_f16_registers(float (&d)[16], const uint32_t (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, adds, 1, 1, %22; }"
                 : D4(0), D4(4), D4(8), D4(12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)adds), "n"(B_BY_K));
#endif
}

template <bool B_BY_K>
__device__ inline void wgmma_f16_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, adds, 1, 1, %38; }"
                 : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)adds), "n"(B_BY_K));
#endif
}
#undef D4

#endif
