/* Backend `tuned` for avx512bf16 with VDPBF16PS emulated in C: the same packing, loops and micro-tiles on a
   processor without that instruction. */
#ifndef TESSERA_TESTS_TUNED_EMULATED_H
#define TESSERA_TESTS_TUNED_EMULATED_H

#include "kernels/host/tuned/tuned.h"

extern const struct gemm_backend gemm_tuned; /* kernels/host/tuned/tuned.c */

const struct gemm_backend *tuned_emulated_backend(void);

#endif
