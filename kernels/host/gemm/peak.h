/* What the host can do at best, measured now: the roof that a GEMM is held against. */
#ifndef TESSERA_KERNELS_HOST_GEMM_PEAK_H
#define TESSERA_KERNELS_HOST_GEMM_PEAK_H

#include "kernels/gemm.h"

/* Flops a second of `threads` threads that do nothing but independent multiply-adds in registers, at best.
   GEMM_F32 or GEMM_F64. */
double host_peak(enum gemm_dtype dtype, int threads);

/* The same for a millisecond, once: at the clock that the processor has come to by what it did just
   before. */
double host_peak_now(enum gemm_dtype dtype, int threads);

/* Bytes read plus bytes written a second, by `threads` threads that copy `from` to `to`: 64-byte aligned,
   larger than the caches, and best never touched before: each share is filled first by the thread that copies
   it, so that its memory is near. */
double host_copy_rate(void *to, void *from, size_t bytes, int threads);

#endif
