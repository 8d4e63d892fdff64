/* Integer scores by AMX: TDPBUSD multiplies 16 x 64 bytes by 64 x 16 bytes, added to 16 x 16 int32.

   Idea       two tiles of points, two slices of the centres: four products for four tile loads. Points are
              read in place, a tile row from each of 16 rows: unconverted pixels, a quarter of the bytes of
              float32.
   Bound by   the tile unit: 1,024 multiply-adds a cycle, 32 times those of float32 FMA; two slices take two.
              The centres stream from the L2 cache: 2 KB for 64 cycles.
   Improves   int8_vnni.c
   Run        ./train kmeans --clusters 1000 --engine fused */
#include "kernels/host/tuned/int8.h"

#if defined(__x86_64__) && defined(__linux__)
#    include <cpuid.h>
#    include <immintrin.h>
#    include <sys/syscall.h>
#    include <unistd.h>

#    define AMX __attribute__((target("amx-tile,amx-int8,avx512f")))

enum { ASK_PERMISSION = 0x1023, TILE_DATA = 18 }; /* arch_prctl: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
enum { CPUID_AMX_TILE = 24, CPUID_AMX_INT8 = 25, TILE = 16 };

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Linux saves the tiles of a process that asked for it. */
static bool amx_usable(void) {
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    return (edx >> CPUID_AMX_TILE & 1) && (edx >> CPUID_AMX_INT8 & 1) && __builtin_cpu_supports("avx512f") &&
           syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

/* Static: to gcc 12 LDTILECFG reads the first bytes of its operand alone, and stores to others are dropped.
   */
static const struct tile_config eight_tiles = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

AMX static void amx_begin(void) {
    _tile_loadconfig(&eight_tiles);
}

AMX static void amx_end(void) {
    _tile_release();
}

/* One row of 16 scores. */
AMX static inline void combine(const int32_t *high, const int32_t *low, __m512 scale, __m512 scale_high,
                               __m512 bias, float *scores) {
    const __m512 h = _mm512_cvtepi32_ps(_mm512_loadu_si512(high)),
                 l = _mm512_cvtepi32_ps(_mm512_loadu_si512(low));
    _mm512_storeu_ps(scores, _mm512_fmadd_ps(h, scale_high, _mm512_fmadd_ps(l, scale, bias)));
}

AMX static void amx_scores(const uint8_t *x, size_t stride, size_t steps, const int8_t *packed, float scale,
                           const float *bias, float *scores, size_t ld) {
    int32_t sums[4][TILE][INT8_COLUMNS] __attribute__((aligned(64)));
    const uint8_t *below = x + TILE * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t s = 0; s < steps; s++) {
        _tile_loadd(4, x + s * INT8_STEP, stride);
        _tile_loadd(6, packed + (2 * s) * INT8_SLICE, INT8_STEP);
        _tile_loadd(5, below + s * INT8_STEP, stride);
        _tile_loadd(7, packed + (2 * s + 1) * INT8_SLICE, INT8_STEP);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums[0], INT8_STEP);
    _tile_stored(1, sums[1], INT8_STEP);
    _tile_stored(2, sums[2], INT8_STEP);
    _tile_stored(3, sums[3], INT8_STEP);
    const __m512 one = _mm512_set1_ps(scale), high = _mm512_set1_ps(256 * scale), add = _mm512_loadu_ps(bias);
    for (size_t r = 0; r < TILE; r++) {
        combine(sums[0][r], sums[1][r], one, high, add, scores + r * ld);
        combine(sums[2][r], sums[3][r], one, high, add, scores + (TILE + r) * ld);
    }
}

const struct int8_kernel int8_amx = {"AMX int8", amx_usable, amx_begin, amx_end, amx_scores};
#else
static bool amx_usable(void) {
    return false;
}

const struct int8_kernel int8_amx = {"AMX int8", amx_usable, 0, 0, 0};
#endif
