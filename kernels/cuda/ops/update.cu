/* The update of parameters, as kernels/host/ops/update.h: weights, moments, moving average and low-precision
   copy in one launch.

   Bound by   bytes: 12 million weights in float32 with AdamW, an average and a bfloat16 copy are 38 bytes
              each, 0.46 GB: 0.15 ms at 3 TB/s. Small networks: the launch (2 us). */
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/ops.cuh"
#include "kernels/cuda/ops/update_rule.cuh"

static const unsigned THREADS = 256;

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
    update_kernel(size_t count, update_rule<real<T>> rule, arrays<T> at, const struct step_scalars *step,
                  const struct tally *guard) {
    typedef real<T> R;
    if (guard->bad_step) return;
    constexpr bool adam = WITH_SECOND_MOMENT >> METHOD & 1;
    const update_rates<R> rates(METHOD, rule, step);
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * WIDE; i < count;
         i += (size_t)gridDim.x * THREADS * WIDE) {
        pack<R, WIDE> w = pack_at<WIDE>(at.weights + i), g = {}, m = {}, v = {};
        if (METHOD != UPDATE_NONE) g = pack_at<WIDE>(at.grad + i);
        if (METHOD != UPDATE_NONE && at.moment1) m = pack_at<WIDE>(at.moment1 + i);
        if (adam) v = pack_at<WIDE>(at.moment2 + i);
#pragma unroll
        for (int e = 0; e < WIDE; e++)
            update_parameter<METHOD>(rule, rates, g.value[e], w.value[e], m.value[e], v.value[e]);
        if (METHOD != UPDATE_NONE) pack_at<WIDE>(at.weights + i) = w;
        if (METHOD != UPDATE_NONE && at.moment1) pack_at<WIDE>(at.moment1 + i) = m;
        if (adam) pack_at<WIDE>(at.moment2 + i) = v;
        if (at.average) {
            pack<R, WIDE> average = pack_at<WIDE>(at.average + i);
#pragma unroll
            for (int e = 0; e < WIDE; e++)
                average.value[e] = w.value[e] + rates.average_decay * (average.value[e] - w.value[e]);
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
    const update_rule<real<T>> rule(update);
    const arrays<T> at(update);
    if (at.fit(count, WIDE))
        launch_op(context, "update_kernel", update_kernel<T, METHOD, WIDE>,
                  cuda_grid_for(count, THREADS * WIDE), THREADS, count, rule, at, step, guard);
    else
        launch_op(context, "update_kernel", update_kernel<T, METHOD, 1>, cuda_grid_for(count, THREADS),
                  THREADS, count, rule, at, step, guard);
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
INSTANTIATE(__half)
