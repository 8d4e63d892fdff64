/* Backend `tuned` for avx512bf16 with VDPBF16PS emulated in C: the same packing, loops and micro-tiles on a
   processor without that instruction. */
#ifndef TESSERA_TESTS_TUNED_EMULATED_H
#define TESSERA_TESTS_TUNED_EMULATED_H

#include "kernels/host/tuned/tuned.h"

extern const struct gemm_backend gemm_tuned; /* kernels/host/tuned/tuned.c */

const struct gemm_backend *tuned_emulated_backend(void);

/* Packs `cols` rows of B[n][k], `ldb` elements apart, for a micro-tile `width` floats wide, a multiple of
   tuned_emulated_lanes(): (k + 1) / 2 rows of pairs (kernels/host/tuned/pack.h, pack_transposed). */
size_t tuned_emulated_lanes(void);
void tuned_emulated_pack(size_t k, size_t cols, size_t width, const uint16_t *b, size_t ldb, float *packed);

#endif
