/* Candidates for the nearest centre by one slice of signed bytes, with AVX-512 VNNI.

   Idea       points run along the lanes, so that the best score of each point stays in a register: four
              vectors of 16 points, four features each, times the four of INT8_TILE centres, broadcast. A
              centre is a candidate if its score is at most `gap` below the best one so far; a second pass
              over these drops those that a later centre beats.
   Bound by   the integer units: 64 multiply-adds an instruction, one instruction a cycle. 24 of them need 10
              loads.
   Improves   int8_vnni.c with half of its instructions
   Run        ./train kmeans --clusters 64 --engine fused, on a CPU without AMX */
#include "kernels/host/tuned/int8.h"

#if defined(__x86_64__)
#    include <immintrin.h>
#    include <math.h>

#    define VNNI __attribute__((target("avx512f,avx512vnni")))

/* gcc keeps the sum in a register. */
#    define IN_REGISTER(x) __asm__("" : "+v"(x))

enum { VECTORS = INT8_GROUP / 16 };

VNNI struct int8_rounded int8_round(size_t count, const float *x, uint8_t *bytes) {
    __m512 most = _mm512_setzero_ps(), squares = most, left = most;
    for (size_t i = 0; i < count; i += 16) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    struct int8_rounded result = {.most = _mm512_reduce_max_ps(most)};
    const bool inside = result.most > 1e-15F && result.most < 1e15F;
    result.step = inside ? result.most / 127 : 0;
    const __m512 step = _mm512_set1_ps(result.step), inverse = _mm512_set1_ps(inside ? 127 / result.most : 0);
    for (size_t i = 0; i < count; i += 16) {
        const __m512 value = _mm512_loadu_ps(x + i);
        const __m512i byte = _mm512_cvt_roundps_epi32(_mm512_mul_ps(value, inverse),
                                                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m512 rounded = _mm512_mul_ps(_mm512_cvtepi32_ps(byte), step),
                     rest = _mm512_sub_ps(value, rounded);
        squares = _mm512_fmadd_ps(rounded, rounded, squares);
        left = _mm512_fmadd_ps(rest, rest, left);
        _mm_storeu_si128((__m128i *)(bytes + i),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(byte, _mm512_set1_epi32(INT8_ZERO))));
    }
    result.squares = _mm512_reduce_add_ps(squares);
    result.left = _mm512_reduce_add_ps(left);
    return result;
}

VNNI float int8_distance(size_t count, const float *x, const float *c) {
    enum { SUMS = 4 };
    __m512 sum[SUMS];
    size_t i = 0;
    for (int v = 0; v < SUMS; v++) sum[v] = _mm512_setzero_ps();
    for (; i + 16 * SUMS <= count; i += 16 * SUMS)
#    pragma GCC unroll 4
        for (size_t v = 0; v < SUMS; v++) {
            const __m512 rest =
                _mm512_sub_ps(_mm512_loadu_ps(x + i + 16 * v), _mm512_loadu_ps(c + i + 16 * v));
            sum[v] = _mm512_fmadd_ps(rest, rest, sum[v]);
        }
    for (; i < count; i += 16) {
        const __mmask16 inside = (__mmask16)(count - i < 16 ? (1U << (count - i)) - 1 : 0xffff);
        const __m512 rest =
            _mm512_sub_ps(_mm512_maskz_loadu_ps(inside, x + i), _mm512_maskz_loadu_ps(inside, c + i));
        sum[0] = _mm512_fmadd_ps(rest, rest, sum[0]);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

VNNI size_t int8_candidates(const struct int8_slice *slice, const int32_t *points, const float *scale,
                            const float *gap, struct int8_ahead ahead, float *scores,
                            struct tuned_survivor *to) {
    __m512 best[VECTORS];
    size_t found = 0, kept = 0;
    for (int v = 0; v < VECTORS; v++) best[v] = _mm512_set1_ps(-INFINITY);
    for (size_t first = 0; first < slice->clusters; first += INT8_TILE) {
        const int32_t *x = points, *c = slice->values + first * slice->words;
        __m512i sum[INT8_TILE][VECTORS];
#    pragma GCC unroll 8
        for (int i = 0; i < INT8_TILE; i++)
#    pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sum[i][v] = _mm512_set1_epi32(slice->start[first + (size_t)i]);
        for (size_t k = 0; k < slice->words; k++, x += INT8_GROUP, c += INT8_TILE) {
            __m512i four[VECTORS];
            _mm_prefetch(ahead.from, _MM_HINT_T1);
            _mm_prefetch(ahead.from + 64, _MM_HINT_T1);
            ahead.from += ahead.from < ahead.end ? 128 : 0;
#    pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) four[v] = _mm512_load_si512(x + 16 * v);
#    pragma GCC unroll 8
            for (int i = 0; i < INT8_TILE; i++) {
                const __m512i centre = _mm512_set1_epi32(c[i]);
#    pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) {
                    sum[i][v] = _mm512_dpbusd_epi32(sum[i][v], four[v], centre);
                    IN_REGISTER(sum[i][v]);
                }
            }
        }
#    pragma GCC unroll 8
        for (int i = 0; i < INT8_TILE; i++) {
            const __m512 bias = _mm512_set1_ps(slice->bias[first + (size_t)i]);
            uint64_t near = 0;
#    pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const __m512 score =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][v]), _mm512_load_ps(scale + 16 * v), bias);
                near |= (uint64_t)_mm512_cmp_ps_mask(score, best[v], _CMP_NLT_UQ) << (16 * v);
                best[v] = _mm512_max_ps(best[v], _mm512_sub_ps(score, _mm512_load_ps(gap + 16 * v)));
                _mm512_store_ps(scores + found * INT8_GROUP + 16 * v, score);
            }
            to[found] = (struct tuned_survivor){near, first + (size_t)i};
            found += near != 0; /* no branch to predict */
        }
    }
    for (size_t n = 0; n < found; n++) {
        uint64_t near = 0;
#    pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            near |= (uint64_t)_mm512_cmp_ps_mask(_mm512_load_ps(scores + n * INT8_GROUP + 16 * v), best[v],
                                                 _CMP_NLT_UQ)
                    << (16 * v);
        to[kept] = (struct tuned_survivor){near & to[n].points, to[n].centre};
        kept += (near & to[n].points) != 0;
    }
    return kept;
}
#else
float int8_distance(size_t count, const float *x, const float *c) {
    (void)count, (void)x, (void)c;
    return 0;
}

struct int8_rounded int8_round(size_t count, const float *x, uint8_t *bytes) {
    (void)count, (void)x, (void)bytes;
    return (struct int8_rounded){0};
}

size_t int8_candidates(const struct int8_slice *slice, const int32_t *points, const float *scale,
                       const float *gap, struct int8_ahead ahead, float *scores, struct tuned_survivor *to) {
    (void)slice, (void)points, (void)scale, (void)gap, (void)ahead, (void)scores, (void)to;
    return 0;
}
#endif
