/* Slot `nearest` of backend `tuned` (kernels/nearest.h), and its variants. */
#ifndef TESSERA_KERNELS_HOST_TUNED_NEAREST_H
#define TESSERA_KERNELS_HOST_TUNED_NEAREST_H

#include "kernels/host/tuned/int8.h"
#include "kernels/host/tuned/tuned.h"

extern const struct gemm_nearest tuned_nearest;

enum { SLICE_MOST_FEATURES = 8192 };

/* States of the slot: pixels by integer products (nearest_int8.c); reals with few features (nearest_few.c;
   f64 is NULL for points of float32); pixels or reals by candidates of 8-bit scores (nearest_slice.c: exact
   labels, AVX-512 VNNI, up to SLICE_MOST_FEATURES); pruned by bounds (nearest_pruned.c). NULL: out of
   memory. */
void *tuned_nearest_int8(const struct int8_kernel *kernel, const struct nearest_shape *shape, int threads);
void *tuned_nearest_few(const struct tuned_kernel *f32, const struct tuned_kernel *f64,
                        const struct nearest_shape *shape, int threads);
void *tuned_nearest_slice(const struct tuned_kernel *f32, const struct nearest_shape *shape, int threads);
void *tuned_nearest_pruned(const struct tuned_kernel *f32, const struct nearest_shape *shape, int threads);

#endif
