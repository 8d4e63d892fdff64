/* Activations on the host: what ops.c and the fused ends of a GEMM (tuned_finish.inc) share. The functions
   themselves are in activation.inc, once for each dtype. */
#ifndef TESSERA_KERNELS_HOST_OPS_ACTIVATION_H
#define TESSERA_KERNELS_HOST_OPS_ACTIVATION_H

#include <math.h>

#include "kernels/gemm.h"

/* glibc has vector versions of these (libmvec, at most 4 ulp off); declared so, loops over them vectorise as
   under -ffast-math, but nothing else changes. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#    if __GLIBC_PREREQ(2, 35)
#        define VECTORISES __attribute__((simd("notinbranch")))
VECTORISES float expf(float);
VECTORISES float tanhf(float);
VECTORISES float erff(float);
VECTORISES double exp(double);
VECTORISES double tanh(double);
VECTORISES double erf(double);
#    endif
#endif

/* Calls `function(activation, ...)` with the activation as a constant, so that each inlined copy
   vectorises. */
#define FOR_ACTIVATION(activation, function, ...)      \
    switch (activation) {                              \
    case ACTIVATION_NONE:                              \
        function(ACTIVATION_NONE, __VA_ARGS__);        \
        break;                                         \
    case ACTIVATION_RELU:                              \
        function(ACTIVATION_RELU, __VA_ARGS__);        \
        break;                                         \
    case ACTIVATION_TANH:                              \
        function(ACTIVATION_TANH, __VA_ARGS__);        \
        break;                                         \
    case ACTIVATION_SCALED_TANH:                       \
        function(ACTIVATION_SCALED_TANH, __VA_ARGS__); \
        break;                                         \
    case ACTIVATION_SIGMOID:                           \
        function(ACTIVATION_SIGMOID, __VA_ARGS__);     \
        break;                                         \
    case ACTIVATION_GELU:                              \
        function(ACTIVATION_GELU, __VA_ARGS__);        \
        break;                                         \
    }

#define INLINE static inline __attribute__((always_inline))

#endif
