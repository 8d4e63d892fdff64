/* The activations and their derivatives, as kernels/host/ops/ops.inc has them. */
#ifndef TESSERA_KERNELS_CUDA_OPS_ACTIVATION_CUH
#define TESSERA_KERNELS_CUDA_OPS_ACTIVATION_CUH

extern "C" {
#include "kernels/gemm.h"
}

__device__ static inline float d_tanh(float x) {
    return tanhf(x);
}
__device__ static inline double d_tanh(double x) {
    return tanh(x);
}
__device__ static inline float d_exp(float x) {
    return expf(x);
}
__device__ static inline double d_exp(double x) {
    return exp(x);
}
__device__ static inline float d_erf(float x) {
    return erff(x);
}
__device__ static inline double d_erf(double x) {
    return erf(x);
}

template <typename R> __device__ inline R activate(enum activation activation, R z) {
    switch (activation) {
    case ACTIVATION_NONE:
        return z;
    case ACTIVATION_RELU:
        return z < 0 ? R(0) : z; /* this way round, NaN stays NaN */
    case ACTIVATION_TANH:
        return d_tanh(z);
    case ACTIVATION_SCALED_TANH:
        return R(1.7159) * d_tanh(R(2.0 / 3.0) * z);
    case ACTIVATION_SIGMOID:
        return 1 / (1 + d_exp(-z));
    case ACTIVATION_GELU:
        return R(0.5) * z * (1 + d_erf(R(0.70710678118654752440) * z));
    }
    return z;
}

/* act'(z), from y = act(z) where that is enough. */
template <typename R> __device__ inline R derivative(enum activation activation, R z, R y) {
    switch (activation) {
    case ACTIVATION_NONE:
        return 1;
    case ACTIVATION_RELU:
        return y > 0 ? R(1) : R(0);
    case ACTIVATION_TANH:
        return 1 - y * y;
    case ACTIVATION_SCALED_TANH:
        return R(1.7159 * 2.0 / 3.0) - R(2.0 / 3.0 / 1.7159) * y * y;
    case ACTIVATION_SIGMOID:
        return y * (1 - y);
    case ACTIVATION_GELU:
        return R(0.5) * (1 + d_erf(R(0.70710678118654752440) * z)) +
               R(0.39894228040143267794) * z * d_exp(R(-0.5) * z * z);
    }
    return 1;
}

#endif
