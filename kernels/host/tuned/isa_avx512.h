/* Vectors and micro-tile of AVX-512: 32 registers of 16 float32 or 8 float64. Included before isa.h. */
#include <immintrin.h>

#define BYTES 64
#define MAX_f32(x, y) _mm512_max_ps((__m512)(x), (__m512)(y))
#define MAX_f64(x, y) _mm512_max_pd((__m512d)(x), (__m512d)(y))
#define MIN_f32(x, y) _mm512_min_ps((__m512)(x), (__m512)(y))
#define MIN_f64(x, y) _mm512_min_pd((__m512d)(x), (__m512d)(y))
#define FMA_f32(x, y, z) _mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(z))
#define FMA_f64(x, y, z) _mm512_fmadd_pd((__m512d)(x), (__m512d)(y), (__m512d)(z))
#define NOT_BELOW_f32(x, y) ((uint64_t)_mm512_cmp_ps_mask((__m512)(x), (__m512)(y), _CMP_NLT_UQ))
#define NOT_BELOW_f64(x, y) ((uint64_t)_mm512_cmp_pd_mask((__m512d)(x), (__m512d)(y), _CMP_NLT_UQ))
#define LANES_F32 16
#define LANES_F64 8
#define MR 14
#define FOR_MR(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14)
