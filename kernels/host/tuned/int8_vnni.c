/* Integer scores by AVX-512 VNNI: VPDPBUSD adds four products of bytes to each of 16 int32.

   Idea       four features of a point, broadcast, times the four of 16 centres: the vectors of the packed
              centres are used for eight points.
   Bound by   the integer units: 64 multiply-adds an instruction, four times those of float32 FMA; two slices
              take two.
   Improves   ukernel.h on bytes, which are converted to float32
   Run        ./train kmeans --clusters 1000 --kmeans-precision f32, on a CPU without AMX */
#include "kernels/host/tuned/int8.h"

#if defined(__x86_64__)
#    include <immintrin.h>
#    include <string.h>

#    define VNNI __attribute__((target("avx512f,avx512vnni")))

enum { POINTS = 8 /* 16 sums, 2 vectors of centres, 1 broadcast: 19 of 32 registers */ };

static bool vnni_usable(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
}

static void nothing(void) {}

VNNI static void vnni_points(const uint8_t *x, size_t stride, size_t steps, const int8_t *packed,
                             __m512 scale, __m512 scale_high, __m512 bias, float *scores, size_t ld) {
    __m512i high[POINTS], low[POINTS];
    for (int r = 0; r < POINTS; r++) high[r] = low[r] = _mm512_setzero_si512();
    for (size_t k = 0; k < steps * INT8_STEP / 4; k++) {
        const int8_t *at = packed + k / (INT8_STEP / 4) * 2 * INT8_SLICE + k % (INT8_STEP / 4) * INT8_STEP;
        const __m512i h = _mm512_loadu_si512(at), l = _mm512_loadu_si512(at + INT8_SLICE);
#    pragma GCC unroll 8
        for (int r = 0; r < POINTS; r++) {
            int32_t four;
            memcpy(&four, x + (size_t)r * stride + 4 * k, sizeof four);
            const __m512i pixels = _mm512_set1_epi32(four);
            high[r] = _mm512_dpbusd_epi32(high[r], pixels, h);
            low[r] = _mm512_dpbusd_epi32(low[r], pixels, l);
        }
    }
    for (int r = 0; r < POINTS; r++)
        _mm512_storeu_ps(scores + (size_t)r * ld,
                         _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[r]), scale_high,
                                         _mm512_fmadd_ps(_mm512_cvtepi32_ps(low[r]), scale, bias)));
}

VNNI static void vnni_scores(const uint8_t *x, size_t stride, size_t steps, const int8_t *packed, float scale,
                             const float *bias, float *scores, size_t ld) {
    for (size_t r = 0; r < INT8_ROWS; r += POINTS)
        vnni_points(x + r * stride, stride, steps, packed, _mm512_set1_ps(scale), _mm512_set1_ps(256 * scale),
                    _mm512_loadu_ps(bias), scores + r * ld, ld);
}

const struct int8_kernel int8_vnni = {"AVX-512 VNNI", vnni_usable, nothing, nothing, vnni_scores};
#else
static bool vnni_usable(void) {
    return false;
}

const struct int8_kernel int8_vnni = {"AVX-512 VNNI", vnni_usable, 0, 0, 0};
#endif
