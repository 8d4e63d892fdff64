/* tuned for AVX-512 with its instruction for bfloat16, VDPBF16PS: two products a lane, added to a float32.

   Bound by    28 of them a step, for 16 loads, are 1792 flops, twice those of tuned_avx512.c. How many start
               in a cycle, one or two, is the processor's: where it is one, this is no faster than float32 but
               for its bytes.
   Arithmetic  the second product of a pair, then the first, each added with one rounding to nearest, whatever
               the mode; numbers below 2^-126, operands and sums, count as zero.
   The rest    float32 and float64 are those of tuned_avx512.c. */
#if defined(__x86_64__)
#    include <immintrin.h>

#    define TARGET "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma"
#    include "kernels/host/tuned/tuned_avx512.inc"
#    define DOT(sum, x, row) \
        ((vector_f32)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(row), (__m512bh)_mm512_set1_ps(x)))
#    define BF16_ONLY
#    include "kernels/host/tuned/tuned_isa.inc"

static bool usable(void) {
    return tuned_avx512.usable() && __builtin_cpu_supports("avx512bf16");
}

const struct tuned_isa tuned_avx512bf16 = {"avx512bf16", usable, .bf16 = &code_bf16, .base = &tuned_avx512};
#endif
