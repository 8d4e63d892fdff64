/* tuned for AVX2 with FMA: 16 registers of 8 float32 or 4 float64. */
#if defined(__x86_64__)
#    include <immintrin.h>

#    define TARGET "avx2,fma"
#    define MAX_f32(x, y) _mm256_max_ps((__m256)(x), (__m256)(y))
#    define MAX_f64(x, y) _mm256_max_pd((__m256d)(x), (__m256d)(y))
#    define MIN_f32(x, y) _mm256_min_ps((__m256)(x), (__m256)(y))
#    define MIN_f64(x, y) _mm256_min_pd((__m256d)(x), (__m256d)(y))
#    define FMA_f32(x, y, z) _mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(z))
#    define FMA_f64(x, y, z) _mm256_fmadd_pd((__m256d)(x), (__m256d)(y), (__m256d)(z))
#    define MASK_OF(movemask, x) ((uint64_t)(unsigned)movemask(x))
#    define NOT_BELOW_f32(x, y) \
        MASK_OF(_mm256_movemask_ps, _mm256_cmp_ps((__m256)(x), (__m256)(y), _CMP_NLT_UQ))
#    define NOT_BELOW_f64(x, y) \
        MASK_OF(_mm256_movemask_pd, _mm256_cmp_pd((__m256d)(x), (__m256d)(y), _CMP_NLT_UQ))
#    define BYTES 32
#    define LANES_F32 8
#    define LANES_F64 4
#    define MR 6
#    define FOR_MR(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)
#    include "kernels/host/tuned/isa.h"

static bool usable(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const struct tuned_isa tuned_avx2 = {"avx2", usable, &kernel_f32, &kernel_f64, &kernel_bf16, NULL};
#endif
