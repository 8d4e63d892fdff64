/* What the own kernels of cuda-tuned do with C while it is in registers. */
#ifndef TESSERA_KERNELS_CUDA_OPS_EPILOGUE_CUH
#define TESSERA_KERNELS_CUDA_OPS_EPILOGUE_CUH

extern "C" {
#include "kernels/gemm.h"
}
#include "kernels/cuda/ops/element.cuh"

#ifdef __CUDACC__
#    include "kernels/activation.h"

/* Calls `function<A>()` with the activation as a constant. */
template <typename F> __device__ void with_activation(enum activation activation, F function) {
#    define ACTIVATION_CASE(with, ID, name, needs_input) \
    case ACTIVATION_##ID:                                \
        return function.template operator()<ACTIVATION_##ID>();
    switch (activation) { ACTIVATIONS(ACTIVATION_CASE, ) }
#    undef ACTIVATION_CASE
}

/* Stores C: alpha, beta and the forward epilogue. */
template <typename C> struct sink {
    typedef real<C> R;
    size_t m, n;
    R alpha, beta;
    C *c, *pre;
    size_t ldc;
    const R *bias;
    enum activation activation;

    explicit sink(const gemm_call &call)
        : m(call.m), n(call.n), alpha((R)call.alpha), beta((R)call.beta), c((C *)call.c), pre(NULL),
          ldc(call.ldc), bias(NULL), activation(ACTIVATION_NONE) {
        if (!call.epilogue) return;
        pre = (C *)call.epilogue->pre;
        bias = (const R *)call.epilogue->bias;
        activation = call.epilogue->activation;
    }

    /* The value for C(i,j) from its sum over k. */
    __device__ R finish(size_t i, size_t j, R sum) const {
        R value = alpha * sum;
        if (beta != 0) value += beta * R(c[i * ldc + j]); /* beta == 0 never reads C */
        if (!bias) return value;                          /* no epilogue */
        value += bias[j];
        if (pre) pre[i * ldc + j] = C(value);
        return activate(activation, value);
    }

    __device__ void store(size_t i, size_t j, R sum) const {
        c[i * ldc + j] = C(finish(i, j, sum));
    }
};

/* The backward epilogue, if the call has one. */
template <typename C> struct slope {
    bool on;
    enum activation activation;
    const C *pre, *output;
    real<C> *column_sums, bias_scale;

    explicit slope(const gemm_call &call)
        : on(call.backward), activation(ACTIVATION_NONE), pre(NULL), output(NULL), column_sums(NULL),
          bias_scale(1) {
        if (!on) return;
        activation = call.backward->activation;
        if (activation_needs_input(activation)) pre = (const C *)call.backward->pre;
        output = (const C *)call.backward->output;
        column_sums = (real<C> *)call.backward->bias_grad;
        bias_scale = (real<C>)gemm_bias_scale(&call);
    }

    /* dL/dZ from dL/dY, Z (if the derivative reads it) and Y. */
    __device__ real<C> scaled(real<C> gradient, real<C> z, real<C> y) const {
        return on ? bounded<C>(gradient * derivative(activation, z, y)) : gradient;
    }

    /* The same for the element at `at`. */
    __device__ real<C> apply(size_t at, real<C> gradient) const {
        if (!on) return gradient;
        return scaled(gradient, pre ? real<C>(pre[at]) : real<C>(0), real<C>(output[at]));
    }
};
#endif

#endif
