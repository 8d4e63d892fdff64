/* The output layer of a training step in one or two kernels, for 16 bits and float32: what a launch needs,
   the softmax of a row with its loss, and which layers a kernel takes. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_OUTPUT_LAYER_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_OUTPUT_LAYER_CUH

#include <math.h>

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/cuda/ops/epilogue.cuh"
#include "kernels/cuda/ops/tally.cuh"

static const unsigned MOST_CLASSES = 16, MOST_UNITS = 1024,
                      MOST_ROWS = 128; /* the last two: of small batches */

/* All that a launch needs. */
template <typename T> struct output {
    const T *x, *w, *read; /* [m][ldx], [units][ldw], [m][ldx]: what the derivative reads */
    T *x_grad;             /* [m][ldx] */
    T *z, *z_grad;         /* [m][ldz], [m][ldz_grad]: logits */
    const float *bias;
    float *w_grad, *bias_grad, *below_grad; /* [units][ldw_grad], [classes], [units] */
    size_t ldx, ldw, ldw_grad, ldz, ldz_grad;
    unsigned m, units, classes, padded; /* padded: units of a thread block, rounded up */
    enum activation activation;
    float alpha, scale; /* of the input gradient; of the logits' gradient: 1 / batch, or more in GEMM_F16 */
    float grad_scale;   /* what gradients of weights and biases are multiplied by: 1, or less in GEMM_F16 */
    float off, on;      /* the target, of other classes and of the label, times `scale` */
    double smoothing;
    const uint8_t *labels;
    double *loss;
    struct tally *tally;
    bool counted, w_early; /* w_early: W may be read before the kernels before this one have ended */
};

/* What the loss of a row is computed from. */
struct __align__(16) row_sums {
    float sum, label; /* of exp(z); z of the label; both less the largest z */
    float rest;       /* sum of z less the largest */
    unsigned correct;
};

/* A logit, its gradient, and the sums of its row. */
template <typename T> struct logit {
    T z, grad;
    row_sums row;
};

/* The sum of 16 lanes, in all of them. */
__device__ inline float sum_of_row(float value) {
#pragma unroll
    for (unsigned lanes = 1; lanes < MOST_CLASSES; lanes *= 2) value += __shfl_xor_sync(~0u, value, lanes);
    return value;
}

/* The softmax of a row, a logit in each of 16 lanes, as add_row in loss.cu. The gradient is 0 outside. */
template <typename T>
__device__ inline logit<T> softmax(const output<T> &p, bool row_inside, float total, unsigned label) {
    const unsigned c = threadIdx.x % MOST_CLASSES;
    const bool inside = c < p.classes;
    const float z = inside ? (float)T(total) : -INFINITY;
    float most = z;
#pragma unroll
    for (unsigned lanes = 1; lanes < MOST_CLASSES; lanes *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
    const float power = inside ? expf(z - most) : 0, sum = sum_of_row(power),
                rest = sum_of_row(inside ? z - most : 0),
                of_label = __shfl_sync(~0u, z - most, (int)label, MOST_CLASSES);
    const unsigned largest = __ballot_sync(~0u, z == most) >> (threadIdx.x & MOST_CLASSES);
    const float factor = p.scale / sum;
    const bool known = label < p.classes;
    const T grad = row_inside && inside && known ? power * factor - (c == label ? p.on : p.off) : 0;
    return {
        T(z), grad, {sum, known ? of_label : NAN, rest, __ffs((int)largest) == (int)label + 1 && sum > 0}};
}

template <typename T>
__device__ inline void store_logit(const output<T> &p, unsigned row, const logit<T> &one) {
    const unsigned c = threadIdx.x % MOST_CLASSES;
    if (row >= p.m || c >= p.classes) return;
    p.z[row * p.ldz + c] = one.z;
    p.z_grad[row * p.ldz_grad + c] = one.grad;
}

template <typename T> __device__ inline partial_loss loss_of(const output<T> &p, const row_sums &row) {
    const double all = log((double)row.sum);
    partial_loss mine = {all - (double)row.label, row.correct};
    if (p.smoothing != 0)
        mine.loss = (1 - p.smoothing) * mine.loss + p.smoothing * (all - (double)row.rest / p.classes);
    return mine;
}

/* The sum over so many lanes, in all of them. */
template <unsigned LANES> __device__ inline void sum_over_lanes(partial_loss &mine) {
#pragma unroll
    for (unsigned lanes = 1; lanes < LANES; lanes *= 2) {
        mine.loss += __shfl_xor_sync(~0u, mine.loss, lanes);
        mine.correct += __shfl_xor_sync(~0u, mine.correct, lanes);
    }
}

/* --- the host --- */

static inline const void *output_layer_reads(const struct gemm_backward &backward) {
    return activation_needs_input(backward.activation) ? backward.pre : backward.output;
}

/* Rows of X, of its gradient and of what the derivative reads are read in packs of 16 bytes. */
template <typename T>
bool output_layer_fits(const struct output_layer *layer, enum gemm_dtype dtype, size_t most_rows,
                       size_t most_units) {
    const struct gemm_call *const forward = layer->logits, *const back = layer->input_gradient;
    const auto packs = [&](const void *memory, size_t ld) {
        return packs_fit(memory, forward->k, ld, (size_t)WIDEST<T>, sizeof(T));
    };
    return forward->dtype == dtype && forward->m <= most_rows && forward->n <= MOST_CLASSES &&
           forward->k <= most_units && forward->alpha == 1 &&
           (layer->gradient->alpha == 1 || dtype == GEMM_F16) && forward->beta == 0 &&
           layer->gradient->beta == 0 && back->beta == 0 &&
           forward->epilogue->activation == ACTIVATION_NONE && !forward->epilogue->pre &&
           (layer->gradient->c_f32 || dtype == GEMM_F32) && forward->lda == back->ldc &&
           packs(forward->a, forward->lda) && packs(output_layer_reads(*back->backward), back->ldc) &&
           packs(back->c, back->ldc);
}

template <typename T> output<T> output_of(const struct output_layer *layer, unsigned padded) {
    const struct gemm_call *const forward = layer->logits, *const back = layer->input_gradient;
    const float scale = (float)(1.0 / ((double)layer->batch * layer->gradient->alpha)),
                off = (float)(layer->smoothing / (double)forward->n) * scale;
    return {.x = (const T *)forward->a,
            .w = (const T *)forward->b,
            .read = (const T *)output_layer_reads(*back->backward),
            .x_grad = (T *)back->c,
            .z = (T *)forward->c,
            .z_grad = (T *)back->a,
            .bias = (const float *)forward->epilogue->bias,
            .w_grad = (float *)layer->gradient->c,
            .bias_grad = (float *)layer->bias_grad,
            .below_grad = (float *)back->backward->bias_grad,
            .ldx = forward->lda,
            .ldw = forward->ldb,
            .ldw_grad = layer->gradient->ldc,
            .ldz = forward->ldc,
            .ldz_grad = back->lda,
            .m = (unsigned)forward->m,
            .units = (unsigned)forward->k,
            .classes = (unsigned)forward->n,
            .padded = padded,
            .activation = back->backward->activation,
            .alpha = (float)back->alpha,
            .scale = scale,
            .grad_scale = (float)layer->gradient->alpha,
            .off = off,
            .on = fmaf((float)(1 - layer->smoothing), scale, off),
            .smoothing = layer->smoothing,
            .labels = layer->labels,
            .loss = layer->loss,
            .tally = layer->tally,
            .counted = layer->counted,
            .w_early = forward->b_complete};
}

#endif
