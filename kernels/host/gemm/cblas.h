/* A CBLAS library that is loaded at run time: the slots that the backends `cblas` and `openblas` share. Their
   context is a struct cblas. */
#ifndef TESSERA_KERNELS_HOST_GEMM_CBLAS_H
#define TESSERA_KERNELS_HOST_GEMM_CBLAS_H

#include "kernels/gemm.h"

struct cblas;

/* Loads `file`, a path or a name that the dynamic linker searches for; its thread count stays as it is. NULL,
   with the reason in `why`: it cannot be loaded, or has no cblas_sgemm and cblas_dgemm. */
struct cblas *cblas_open(const char *file, char *why, size_t size);

/* Frees the context. The library stays loaded, for its threads may run its code. */
void cblas_close(void *context);

bool cblas_supports(enum gemm_dtype dtype, enum gemm_op op);
enum gemm_status cblas_gemm(void *context, const struct gemm_call *call);

/* Returns the count that the library reports; 1 if it has no function for it. */
int cblas_set_threads(void *context, int threads);
bool cblas_own_threads(void *context);

/* "OpenBLAS 0.3.21, core SkylakeX, OpenMP build, 2 threads": what the library says of itself. */
void cblas_describe(void *context, char *text, size_t size);

#endif
