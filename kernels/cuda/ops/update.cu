/* The update of parameters, as kernels/host/ops/update.h: weights, moments, moving average and low-precision
   copy in one launch.

   Bound by   bytes: 12 million weights in float32 with AdamW, an average and a bfloat16 copy are 38 bytes
              each, 0.46 GB: 0.15 ms at 3 TB/s. Small networks: the launch (2 us). */
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/ops.cuh"
#include "kernels/real.h"

static const unsigned THREADS = 256;

/* The constants of a rule in the type of the arithmetic. Those of a step are in device memory. */
template <typename R> struct rule {
    bool nesterov;
    R momentum, decay, beta1, beta2, rest1, rest2, epsilon;
    const double *clip;
    double decay_exact; /* adamw multiplies it by the learning rate */

    explicit rule(const struct update &update)
        : nesterov(update.nesterov), momentum((R)update.momentum), decay((R)update.weight_decay),
          beta1((R)update.beta1), beta2((R)update.beta2), rest1((R)(1 - update.beta1)),
          rest2((R)(1 - update.beta2)), epsilon((R)update.epsilon), clip(update.clip),
          decay_exact(update.weight_decay) {}
};

/* The arrays; all except the weights may be NULL. */
template <typename T> struct arrays {
    real<T> *weights;
    const real<T> *grad;
    real<T> *moment1, *moment2, *average;
    T *rounded;

    explicit arrays(const struct update &update)
        : weights((real<T> *)update.weights), grad((const real<T> *)update.grad),
          moment1((real<T> *)update.moment1), moment2((real<T> *)update.moment2),
          average((real<T> *)update.average), rounded((T *)update.rounded) {}

    bool fit(size_t count, int width) const {
        return packs_fit(weights, count, 0, width) && packs_fit(grad, count, 0, width) &&
               packs_fit(moment1, count, 0, width) && packs_fit(moment2, count, 0, width) &&
               packs_fit(average, count, 0, width) && packs_fit(rounded, count, 0, width);
    }
};

template <typename T, enum update_method METHOD, int WIDE>
__global__ void __launch_bounds__(THREADS)
    update_kernel(size_t count, rule<real<T>> rule, arrays<T> at, const struct step_scalars *step,
                  const struct tally *guard) {
    typedef real<T> R;
    if (guard->bad_step) return;
    constexpr bool adam = WITH_SECOND_MOMENT >> METHOD & 1;
    const R rate = R(adam ? step->adam_rate : step->learning_rate), root = R(step->adam_root),
            average_decay = R(step->average_decay), clip = rule.clip ? R(*rule.clip) : R(1),
            shrink = R(step->learning_rate * rule.decay_exact);
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * WIDE; i < count;
         i += (size_t)gridDim.x * THREADS * WIDE) {
        pack<R, WIDE> w = pack_at<WIDE>(at.weights + i), g = {}, m = {}, v = {};
        if (METHOD != UPDATE_NONE) g = pack_at<WIDE>(at.grad + i);
        if (METHOD != UPDATE_NONE && at.moment1) m = pack_at<WIDE>(at.moment1 + i);
        if (adam) v = pack_at<WIDE>(at.moment2 + i);
#pragma unroll
        for (int e = 0; e < WIDE; e++) {
            R d = clip * g.value[e];
            if (METHOD == UPDATE_ADAMW) {
                w.value[e] -= shrink * w.value[e];
            } else {
                d += rule.decay * w.value[e];
            }
            if (adam) {
                m.value[e] = rule.beta1 * m.value[e] + rule.rest1 * d;
                v.value[e] = rule.beta2 * v.value[e] + rule.rest2 * d * d;
                w.value[e] -= rate * m.value[e] / (root * SQRT(v.value[e]) + rule.epsilon);
            } else if (METHOD == UPDATE_SGD) {
                if (at.moment1) {
                    m.value[e] = rule.momentum * m.value[e] + d;
                    d = rule.nesterov ? d + rule.momentum * m.value[e] : m.value[e];
                }
                w.value[e] -= rate * d;
            }
        }
        if (METHOD != UPDATE_NONE) pack_at<WIDE>(at.weights + i) = w;
        if (METHOD != UPDATE_NONE && at.moment1) pack_at<WIDE>(at.moment1 + i) = m;
        if (adam) pack_at<WIDE>(at.moment2 + i) = v;
        if (at.average) {
            pack<R, WIDE> average = pack_at<WIDE>(at.average + i);
#pragma unroll
            for (int e = 0; e < WIDE; e++)
                average.value[e] = w.value[e] + average_decay * (average.value[e] - w.value[e]);
            pack_at<WIDE>(at.average + i) = average;
        }
        if (at.rounded) {
            pack<T, WIDE> rounded;
#pragma unroll
            for (int e = 0; e < WIDE; e++) rounded.value[e] = T(w.value[e]);
            pack_at<WIDE>(at.rounded + i) = rounded;
        }
    }
}

template <typename T, enum update_method METHOD>
static void launch(cuda_ops_context *context, size_t count, const struct update &update,
                   const struct step_scalars *step, const struct tally *guard) {
    constexpr int WIDE = WIDEST<real<T>>;
    const rule<real<T>> rule(update);
    const arrays<T> at(update);
    if (at.fit(count, WIDE)) {
        update_kernel<T, METHOD, WIDE><<<cuda_grid_for(count, THREADS * WIDE), THREADS, 0, context->stream>>>(
            count, rule, at, step, guard);
    } else {
        update_kernel<T, METHOD, 1>
            <<<cuda_grid_for(count, THREADS), THREADS, 0, context->stream>>>(count, rule, at, step, guard);
    }
    CUDA_LAUNCHED(&context->fault, "update_kernel");
}

template <typename T>
void cuda_update(void *opaque, size_t count, const struct update *update, const struct step_scalars *step,
                 const struct tally *guard) {
    cuda_ops_context *context = open_ops(opaque);
#define LAUNCH(with, ID, name, second_moment) \
    case UPDATE_##ID:                         \
        return launch<T, UPDATE_##ID>(context, count, *update, step, guard);
    switch (update->method) { OPTIMIZERS(LAUNCH, ) LAUNCH(, NONE, "", 0) }
#undef LAUNCH
}

#define INSTANTIATE(T)                                                                               \
    template void cuda_update<T>(void *, size_t, const struct update *, const struct step_scalars *, \
                                 const struct tally *);
INSTANTIATE(float)
INSTANTIATE(double)
INSTANTIATE(__nv_bfloat16)
