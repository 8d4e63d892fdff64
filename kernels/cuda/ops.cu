/* Element-wise ops on the GPU: the same functions as kernels/host/ops.inc, one pass over memory and one launch each.

   Here       gather, the update, rounding, and the table. bias.cu and loss.cu have the others.
   Bound by   small batches: the launch (2 us); large ones: bytes. */
#include "kernels/cuda/ops.cuh"

#include "kernels/cuda/element.cuh"

static const unsigned THREADS = 256, MAX_BLOCKS = 4096;

static unsigned grid_for(size_t elements, size_t per_block) {
    const size_t blocks = (elements + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
}

/* WIDE pixels a thread and turn, where rows start at multiples of WIDE. */
template <typename T, int WIDE>
__global__ void gather_kernel(size_t rows, size_t features, const uint8_t *images, const uint8_t *labels,
                              const uint32_t *index, T *x, uint8_t *y) {
    const real<T> scale = real<T>(1.0 / 255.0);
    for (size_t r = (size_t)blockIdx.x * blockDim.y + threadIdx.y; r < rows;
         r += (size_t)gridDim.x * blockDim.y) {
        const size_t i = index ? index[r] : r;
        for (size_t j = threadIdx.x * WIDE; j < features; j += blockDim.x * WIDE) {
            const pack<uint8_t, WIDE> in = pack_at<WIDE>(images + i * features + j);
            pack<T, WIDE> out;
#pragma unroll
            for (int p = 0; p < WIDE; p++) out.value[p] = T(scale * real<T>(in.value[p]));
            pack_at<WIDE>(x + r * features + j) = out;
        }
        if (threadIdx.x == 0) y[r] = labels[i];
    }
}

template <typename T>
static void gather(void *opaque, size_t rows, size_t features, const uint8_t *images, const uint8_t *labels,
                   const uint32_t *index, void *x, uint8_t *y) {
    cuda_ops_context *context = open_ops(opaque);
    const dim3 block(128, 2);
    const unsigned grid = grid_for(rows, block.y);
    if (packs_fit(images, features, features, 4)) {
        gather_kernel<T, 4>
            <<<grid, block, 0, context->stream>>>(rows, features, images, labels, index, (T *)x, y);
    } else {
        gather_kernel<T, 1>
            <<<grid, block, 0, context->stream>>>(rows, features, images, labels, index, (T *)x, y);
    }
    CUDA_LAUNCHED(&context->fault, "gather_kernel");
}

template <typename R, int WIDE>
__global__ void sgd_kernel(size_t count, const double *learning_rate, R momentum, R decay,
                           const struct tally *guard, R *weights, const R *grad, R *velocity) {
    if (guard->bad_step) return;
    const R lr = R(*learning_rate);
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * WIDE; i < count;
         i += (size_t)gridDim.x * THREADS * WIDE) {
        pack<R, WIDE> w = pack_at<WIDE>(weights + i), step = pack_at<WIDE>(grad + i);
#pragma unroll
        for (int e = 0; e < WIDE; e++) step.value[e] += decay * w.value[e];
        if (velocity) {
            const pack<R, WIDE> v = pack_at<WIDE>(velocity + i);
#pragma unroll
            for (int e = 0; e < WIDE; e++) step.value[e] += momentum * v.value[e];
            pack_at<WIDE>(velocity + i) = step;
        }
#pragma unroll
        for (int e = 0; e < WIDE; e++) w.value[e] -= lr * step.value[e];
        pack_at<WIDE>(weights + i) = w;
    }
}

template <typename R>
static void sgd(void *opaque, size_t count, const double *learning_rate, double momentum, double weight_decay,
                const struct tally *guard, void *weights, const void *grad, void *velocity) {
    cuda_ops_context *context = open_ops(opaque);
    R *w = (R *)weights, *v = (R *)velocity;
    const R *g = (const R *)grad;
    constexpr int W = WIDEST<R>;
    if (packs_fit(w, count, 0, W) && packs_fit(g, count, 0, W) && packs_fit(v, count, 0, W)) {
        sgd_kernel<R, W><<<grid_for(count, THREADS * W), THREADS, 0, context->stream>>>(
            count, learning_rate, (R)momentum, (R)weight_decay, guard, w, g, v);
    } else {
        sgd_kernel<R, 1><<<grid_for(count, THREADS), THREADS, 0, context->stream>>>(
            count, learning_rate, (R)momentum, (R)weight_decay, guard, w, g, v);
    }
    CUDA_LAUNCHED(&context->fault, "sgd_kernel");
}

template <typename T> __global__ void round_kernel(size_t count, const real<T> *values, T *rounded) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS)
        rounded[i] = T(values[i]);
}

template <typename T>
static void round_to_storage(void *opaque, size_t count, const void *values, void *rounded) {
    cuda_ops_context *context = open_ops(opaque);
    round_kernel<T><<<grid_for(count, THREADS), THREADS, 0, context->stream>>>(count, (const real<T> *)values,
                                                                               (T *)rounded);
    CUDA_LAUNCHED(&context->fault, "round_kernel");
}

template <typename T> static const struct ops *table(void) {
    static const struct ops ops = {
        .gather = gather<T>,
        .bias_activation = cuda_bias_activation<T>,
        .bias_activation_backward = cuda_bias_activation_backward<T>,
        .softmax_cross_entropy = cuda_softmax_cross_entropy<T>,
        .sgd = sgd<real<T>>,
        .round = round_to_storage<T>,
        .augment = cuda_augment,
    };
    return &ops;
}

const struct ops *cuda_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? table<float>() : dtype == GEMM_F64 ? table<double>() : table<__nv_bfloat16>();
}
