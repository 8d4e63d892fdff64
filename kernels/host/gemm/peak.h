/* The measured peak of the host, in flops and in bytes: the roof in the roofline model of a GEMM. */
#ifndef TESSERA_KERNELS_HOST_GEMM_PEAK_H
#define TESSERA_KERNELS_HOST_GEMM_PEAK_H

#include "kernels/gemm.h"

/* Flops a second of `threads` threads that run independent FMAs in registers; the best of up to 20 runs,
   fewer if it no longer rises. GEMM_F32 or GEMM_F64. */
double host_peak(enum gemm_dtype dtype, int threads);

/* The same in one run of a millisecond, at the processor's present clock frequency. */
double host_peak_now(enum gemm_dtype dtype, int threads);

/* Bytes read plus bytes written a second when `threads` threads copy `from` to `to`. Both are 64-byte aligned
   and larger than the caches. If they were never written before, first touch places each thread's slice on
   its own NUMA node. */
double host_copy_rate(void *to, void *from, size_t bytes, int threads);

#endif
