/* PTX wgmma: a warpgroup, four warps that start at a multiple of four, multiplies asynchronously; A and B are
   in shared memory. Needs compute capability 9.0 and the target sm_90a; elsewhere these functions do nothing.

   Order      wgmma_fence, some wgmma, wgmma_commit; wgmma_wait<N> waits until at most the last N such groups
              are under way. Until then the registers of D belong to the tensor cores: wgmma_done after the
              wait tells the compiler. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_WGMMA_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_WGMMA_CUH

#include <stdint.h>

#include "kernels/cuda/tensor/wgmma_sums.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#    define HAVE_WGMMA
#endif

__device__ inline void wgmma_fence() {
#ifdef HAVE_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#endif
}

__device__ inline void wgmma_commit() {
#ifdef HAVE_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#endif
}

template <int N> __device__ inline void wgmma_wait() {
#ifdef HAVE_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(N) : "memory");
#endif
}

/* After a wait: the sums are there. */
template <int N> __device__ inline void wgmma_done(int (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i]) : : "memory");
}
template <int N> __device__ inline void wgmma_done(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) : : "memory");
}

/* The registers of a thread from here on, for all threads of a warpgroup: a multiple of 8. All have the same
   number when the kernel starts. */
template <int N> __device__ inline void warpgroup_fewer_registers() {
#ifdef HAVE_WGMMA
    asm volatile("setmaxnreg"
                 ".dec.sync.aligned.u32 %0;"
                 :
                 : "n"(N));
#endif
}
template <int N> __device__ inline void warpgroup_more_registers() {
#ifdef HAVE_WGMMA
    asm volatile("setmaxnreg"
                 ".inc.sync.aligned.u32 %0;"
                 :
                 : "n"(N));
#endif
}

/* The value of lane 0, which all lanes have: the compiler then knows that branches on it do not diverge. */
__device__ inline int uniform(int value) {
    return __shfl_sync(0xffffffffu, value, 0);
}

/* Makes what this thread wrote to shared memory visible to wgmma; before a barrier of the block. */
__device__ inline void wgmma_written(void) {
#ifdef HAVE_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

/* An operand with 64 bytes of k for each row of A or column of B, 64 bytes apart: the units of 16 bytes of
   row r are swizzled with r / 2 % 4. `at` is a multiple of 512, plus 32 for the second half of k. */
__device__ inline uint64_t wgmma_swizzle64(const void *at) {
    const uint64_t eight_rows = 512, layout = 2;
    const uint64_t address = (uint32_t)__cvta_generic_to_shared(at);
    return (address >> 4 & 0x3fff) | (uint64_t)1 << 16 | eight_rows >> 4 << 32 | layout << 62;
}

/* The same with 128 bytes of k, 128 bytes apart: unit u of row r is at u ^ r % 8. `at` is a multiple of 1024,
   plus 32 for each further quarter of k. */
__device__ inline uint64_t wgmma_swizzle128(const void *at) {
    const uint64_t eight_rows = 1024, layout = 1;
    const uint64_t address = (uint32_t)__cvta_generic_to_shared(at);
    return (address >> 4 & 0x3fff) | (uint64_t)1 << 16 | eight_rows >> 4 << 32 | layout << 62;
}

/* D += A B, or D = A B unless `adds`: 64 rows of unsigned bytes, 256 columns of signed ones, k = 32. Warp w
   of the group has rows 16 w .. 16 w + 15. d[4 j + 2 h + e]: row lane / 4 + 8 h of them, column 8 j + 2 (lane
   % 4) + e. */
__device__ inline void wgmma_u8s8_n256(int (&d)[128], uint64_t a, uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k32.s32.u8.s8 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, "
                 "%72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, "
                 "%88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, "
                 "%104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, "
                 "%120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, adds; }"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
                   "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
                   "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]),
                   "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]),
                   "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]), "+r"(d[32]), "+r"(d[33]), "+r"(d[34]),
                   "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]),
                   "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]), "+r"(d[48]),
                   "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
                   "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]),
                   "+r"(d[63]), "+r"(d[64]), "+r"(d[65]), "+r"(d[66]), "+r"(d[67]), "+r"(d[68]), "+r"(d[69]),
                   "+r"(d[70]), "+r"(d[71]), "+r"(d[72]), "+r"(d[73]), "+r"(d[74]), "+r"(d[75]), "+r"(d[76]),
                   "+r"(d[77]), "+r"(d[78]), "+r"(d[79]), "+r"(d[80]), "+r"(d[81]), "+r"(d[82]), "+r"(d[83]),
                   "+r"(d[84]), "+r"(d[85]), "+r"(d[86]), "+r"(d[87]), "+r"(d[88]), "+r"(d[89]), "+r"(d[90]),
                   "+r"(d[91]), "+r"(d[92]), "+r"(d[93]), "+r"(d[94]), "+r"(d[95]), "+r"(d[96]), "+r"(d[97]),
                   "+r"(d[98]), "+r"(d[99]), "+r"(d[100]), "+r"(d[101]), "+r"(d[102]), "+r"(d[103]),
                   "+r"(d[104]), "+r"(d[105]), "+r"(d[106]), "+r"(d[107]), "+r"(d[108]), "+r"(d[109]),
                   "+r"(d[110]), "+r"(d[111]), "+r"(d[112]), "+r"(d[113]), "+r"(d[114]), "+r"(d[115]),
                   "+r"(d[116]), "+r"(d[117]), "+r"(d[118]), "+r"(d[119]), "+r"(d[120]), "+r"(d[121]),
                   "+r"(d[122]), "+r"(d[123]), "+r"(d[124]), "+r"(d[125]), "+r"(d[126]), "+r"(d[127])
                 : "l"(a), "l"(b), "r"((unsigned)adds));
#endif
}

/* An operand of 2 bytes with the rows of A or columns of B contiguous: groups of 64 of them, `group` bytes
   apart; of 64 or fewer, `group` is not read. In a group each k has 128 bytes, swizzled as above with k for
   r. `at` is a multiple of 1024, plus 2048 for each further 16 of k, plus 16 for each further 8 rows or
   columns. */
__device__ inline uint64_t wgmma_swizzle128_transposed(const void *at, uint32_t group) {
    const uint64_t eight_of_k = 1024, layout = 1;
    const uint64_t address = (uint32_t)__cvta_generic_to_shared(at);
    return (address >> 4 & 0x3fff) | (uint64_t)(group >> 4) << 16 | eight_of_k >> 4 << 32 | layout << 62;
}

/* The same with 32 rows or columns at most: each k has 64 bytes, swizzled as by wgmma_swizzle64. `at` is a
   multiple of 512, plus 1024 for each further 16 of k, plus 16 for each further 8 rows or columns. */
__device__ inline uint64_t wgmma_swizzle64_transposed(const void *at) {
    const uint64_t eight_of_k = 512, layout = 2;
    const uint64_t address = (uint32_t)__cvta_generic_to_shared(at);
    return (address >> 4 & 0x3fff) | (uint64_t)1 << 16 | eight_of_k >> 4 << 32 | layout << 62;
}

/* The same without a swizzle, in groups of 8 rows or columns, `group` bytes apart: 16 bytes of each k, and
   `eight_of_k` bytes from eight k to the next. `at` is a multiple of 16. */
__device__ inline uint64_t wgmma_plain_transposed(const void *at, uint32_t eight_of_k, uint32_t group) {
    const uint64_t address = (uint32_t)__cvta_generic_to_shared(at);
    return (address >> 4 & 0x3fff) | (uint64_t)(eight_of_k >> 4) << 16 | (uint64_t)(group >> 4) << 32;
}

/* Formats of A and B, both of 4 or 2 bytes. */
enum wgmma_format { WGMMA_F16, WGMMA_BF16, WGMMA_TF32 };

/* D += A B, or D = A B unless `adds`: 64 rows, 128 columns, 32 bytes of k; sums of float32. d[4 j + 2 h + e]
   as above. A_T, B_T: the operand is transposed, which formats of 2 bytes can be. */
template <wgmma_format FORMAT, bool A_T = false, bool B_T = false>
__device__ inline void wgmma_n128(float (&d)[64], uint64_t a, uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
#    define WGMMA_N128(types, transposes)                                                \
        asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %66, 0;\n"                    \
                     "wgmma.mma_async.sync.aligned.m64n128" types " {" WGMMA_TO_63 "}, " \
                     "%64, %65, adds, 1, 1" transposes "; }"                             \
                     : WGMMA_D64                                                         \
                     : "l"(a), "l"(b), "r"((unsigned)adds), "n"(A_T), "n"(B_T))
    static_assert(FORMAT != WGMMA_TF32 || (!A_T && !B_T));
    if constexpr (FORMAT == WGMMA_F16) {
        WGMMA_N128("k16.f32.f16.f16", ", %67, %68");
    } else if constexpr (FORMAT == WGMMA_BF16) {
        WGMMA_N128("k16.f32.bf16.bf16", ", %67, %68");
    } else {
        WGMMA_N128("k8.f32.tf32.tf32", "");
    }
#    undef WGMMA_N128
#endif
}

#endif
