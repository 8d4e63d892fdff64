/* tuned for AVX-512 with VDPBF16PS: two products of bfloat16 per lane, added to a float32.

   Bound by    FMA: 28 VDPBF16PS a step of k are 1792 flops for 16 loads, twice those of isa_avx512.c. A
               processor that starts one of them a cycle, and not two, gains bytes only.
   Arithmetic  the second product of a pair, then the first, each added with one rounding to nearest, in any
               rounding mode; operands and sums below 2^-126 count as zero.
   Improves    isa_avx512.c, whose float32 and float64 kernels it uses
   Run         ./train --backend tuned --precision bf16 */
#if defined(__x86_64__)
#    define TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma"
#    include "kernels/host/tuned/isa_avx512.h"
#    define DOT(sum, x, row) \
        ((vector_f32)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(row), (__m512bh)_mm512_set1_ps(x)))
#    define BF16_ONLY
#    include "kernels/host/tuned/isa.h"

static bool usable(void) {
    return tuned_avx512.usable() && __builtin_cpu_supports("avx512bf16");
}

const struct tuned_isa tuned_avx512bf16 = {"avx512bf16", usable, .bf16 = &kernel_bf16, .base = &tuned_avx512};
#endif
