/* exp, tanh, erf and sqrt by the type of their argument, float or double: C on the host and CUDA device code
   can then share a formula. FMA is for the host alone. */
#ifndef TESSERA_KERNELS_REAL_H
#define TESSERA_KERNELS_REAL_H

#include <math.h>

#ifdef __CUDACC__
#    define INLINE __device__ static inline
#    define EXP(x) exp(x)
#    define TANH(x) tanh(x)
#    define ERF(x) erf(x)
#    define SQRT(x) sqrt(x)
#else
#    define INLINE static inline __attribute__((always_inline))
#    define EXP(x) _Generic((x), float : expf, double : exp)(x)
#    define TANH(x) _Generic((x), float : tanhf, double : tanh)(x)
#    define ERF(x) _Generic((x), float : erff, double : erf)(x)
#    define SQRT(x) _Generic((x), float : sqrtf, double : sqrt)(x)
#    define FMA(x, y, z) _Generic((z), float : fmaf, double : fma)(x, y, z)

/* glibc has vector versions of these (libmvec, error at most 4 ulp). With this attribute gcc vectorises loops
   over them as under -ffast-math, and changes nothing else. */
#    if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#        if __GLIBC_PREREQ(2, 35)
#            define VECTORISES __attribute__((simd("notinbranch")))
VECTORISES float expf(float);
VECTORISES float tanhf(float);
VECTORISES float erff(float);
VECTORISES double exp(double);
VECTORISES double tanh(double);
VECTORISES double erf(double);
#        endif
#    endif
#endif

#endif
