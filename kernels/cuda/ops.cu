/* Element-wise ops on the GPU: the same functions as kernels/host/ops.inc, one pass over memory and one launch each.

   Bound by   small batches: the launch (2 us); large ones: bytes (a pass over 8192 x 2048 float32 is 67 MB, 22 us at 3 TB/s).
   Order      reductions add in one fixed order: threads of a block by a tree, blocks one after another by whichever block finishes
              last. No float atomics: the same input gives the same bits. */
#include "kernels/cuda/ops.cuh"

#include <math.h>

static const unsigned THREADS = 256, WARP = 32, MAX_BLOCKS = 1024, COLUMNS = 32, ROW_THREADS = 8,
                      MAX_CHUNKS = 64;

static unsigned grid_for(size_t elements, size_t per_block) {
    const size_t blocks = (elements + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks < 65535 ? blocks : 65535);
}

static cuda_ops_context *open_context(void *context) {
    return (cuda_ops_context *)context;
}

/* --- batch --- */

/* Four pixels a thread: one 4-byte load, one 16-byte (f64: two) store, where rows start at multiples of four. */
template <typename T, int WIDE>
__global__ void gather_kernel(size_t rows, size_t features, const uint8_t *images, const uint8_t *labels,
                              const uint32_t *index, T *x, uint8_t *y) {
    struct alignas(WIDE * sizeof(T) <= 16 ? WIDE * sizeof(T) : 16) wide {
        T value[WIDE];
    };
    struct alignas(WIDE) pixels {
        uint8_t value[WIDE];
    };
    const T scale = T(1.0 / 255.0);
    for (size_t r = (size_t)blockIdx.x * blockDim.y + threadIdx.y; r < rows;
         r += (size_t)gridDim.x * blockDim.y) {
        const size_t i = index ? index[r] : r;
        const pixels *image = reinterpret_cast<const pixels *>(images + i * features);
        wide *out = reinterpret_cast<wide *>(x + r * features);
        for (size_t j = threadIdx.x; j < features / WIDE; j += blockDim.x) {
            const pixels in = image[j];
            wide converted;
#pragma unroll
            for (int p = 0; p < WIDE; p++) converted.value[p] = scale * T(in.value[p]);
            out[j] = converted;
        }
        if (threadIdx.x == 0) y[r] = labels[i];
    }
}

template <typename T>
static void gather(void *opaque, size_t rows, size_t features, const uint8_t *images, const uint8_t *labels,
                   const uint32_t *index, void *x, uint8_t *y) {
    cuda_ops_context *context = open_context(opaque);
    const dim3 block(128, 2);
    const unsigned grid = grid_for(rows, block.y);
    if (features % 4 == 0 && (uintptr_t)images % 4 == 0) {
        gather_kernel<T, 4>
            <<<grid, block, 0, context->stream>>>(rows, features, images, labels, index, (T *)x, y);
    } else {
        gather_kernel<T, 1>
            <<<grid, block, 0, context->stream>>>(rows, features, images, labels, index, (T *)x, y);
    }
    CUDA_LAUNCHED(&context->fault, "gather_kernel");
}

/* --- bias and activation --- */

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

template <typename T, enum activation A> __device__ inline T activate(T z) {
    switch (A) {
    case ACTIVATION_NONE:
        return z;
    case ACTIVATION_RELU:
        return z < 0 ? T(0) : z; /* this way round, NaN stays NaN */
    case ACTIVATION_TANH:
        return d_tanh(z);
    case ACTIVATION_SCALED_TANH:
        return T(1.7159) * d_tanh(T(2.0 / 3.0) * z);
    case ACTIVATION_SIGMOID:
        return 1 / (1 + d_exp(-z));
    case ACTIVATION_GELU:
        return T(0.5) * z * (1 + d_erf(T(0.70710678118654752440) * z));
    }
    return z;
}

template <typename T, enum activation A> __device__ inline T derivative(T z, T y) {
    switch (A) {
    case ACTIVATION_NONE:
        return 1;
    case ACTIVATION_RELU:
        return y > 0 ? T(1) : T(0);
    case ACTIVATION_TANH:
        return 1 - y * y;
    case ACTIVATION_SCALED_TANH:
        return T(1.7159 * 2.0 / 3.0) - T(2.0 / 3.0 / 1.7159) * y * y;
    case ACTIVATION_SIGMOID:
        return y * (1 - y);
    case ACTIVATION_GELU:
        return T(0.5) * (1 + d_erf(T(0.70710678118654752440) * z)) +
               T(0.39894228040143267794) * z * d_exp(T(-0.5) * z * z);
    }
    return 1;
}

/* Threads x along a row: coalesced, and the bias of a column is read once a thread. */
template <typename T, enum activation A>
__global__ void bias_activation_kernel(size_t rows, size_t cols, const T *bias, T *pre, T *out) {
    for (size_t c = (size_t)blockIdx.x * COLUMNS + threadIdx.x; c < cols; c += (size_t)gridDim.x * COLUMNS) {
        const T b = bias[c];
        for (size_t r = (size_t)blockIdx.y * ROW_THREADS + threadIdx.y; r < rows;
             r += (size_t)gridDim.y * ROW_THREADS) {
            const T z = pre[r * cols + c] + b;
            if (A == ACTIVATION_GELU || pre != out) pre[r * cols + c] = z;
            out[r * cols + c] = activate<T, A>(z);
        }
    }
}

/* Calls `launch<T, A>(...)` for the activation at hand. */
#define FOR_ACTIVATION(activation, launch, ...)         \
    switch (activation) {                               \
    case ACTIVATION_NONE:                               \
        launch<T, ACTIVATION_NONE>(__VA_ARGS__);        \
        break;                                          \
    case ACTIVATION_RELU:                               \
        launch<T, ACTIVATION_RELU>(__VA_ARGS__);        \
        break;                                          \
    case ACTIVATION_TANH:                               \
        launch<T, ACTIVATION_TANH>(__VA_ARGS__);        \
        break;                                          \
    case ACTIVATION_SCALED_TANH:                        \
        launch<T, ACTIVATION_SCALED_TANH>(__VA_ARGS__); \
        break;                                          \
    case ACTIVATION_SIGMOID:                            \
        launch<T, ACTIVATION_SIGMOID>(__VA_ARGS__);     \
        break;                                          \
    case ACTIVATION_GELU:                               \
        launch<T, ACTIVATION_GELU>(__VA_ARGS__);        \
        break;                                          \
    }

template <typename T, enum activation A>
static void launch_bias_activation(cudaStream_t stream, size_t rows, size_t cols, const T *bias, T *pre,
                                   T *out) {
    const dim3 grid(grid_for(cols, COLUMNS), grid_for(rows, 4 * ROW_THREADS));
    bias_activation_kernel<T, A><<<grid, dim3(COLUMNS, ROW_THREADS), 0, stream>>>(rows, cols, bias, pre, out);
}

template <typename T>
static void bias_activation(void *opaque, size_t rows, size_t cols, enum activation activation,
                            const void *bias, void *pre, void *out) {
    cuda_ops_context *context = open_context(opaque);
    FOR_ACTIVATION(activation, launch_bias_activation, context->stream, rows, cols, (const T *)bias, (T *)pre,
                   (T *)out)
    CUDA_LAUNCHED(&context->fault, "bias_activation_kernel");
}

/* --- backward: grad *= act', column sums --- */

/* The block that comes last to a counter, once all others have published what they wrote. */
__device__ static bool last_block(unsigned *ticket, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomicAdd(ticket, 1u) == blocks - 1;
        if (last) *ticket = 0; /* ready for the next launch */
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

/* A block has COLUMNS columns and the rows of chunk blockIdx.y. */
template <typename T, enum activation A>
__global__ void backward_kernel(size_t rows, size_t cols, const T *pre, const T *out, T *grad, T *bias_grad,
                                T *partial, unsigned *tickets) {
    __shared__ T sums[ROW_THREADS][COLUMNS];
    const size_t c = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
    T sum = 0;
    if (c < cols)
        for (size_t r = (size_t)blockIdx.y * ROW_THREADS + threadIdx.y; r < rows;
             r += (size_t)gridDim.y * ROW_THREADS) {
            const size_t i = r * cols + c;
            T g = grad[i];
            if (A != ACTIVATION_NONE) {
                g *= derivative<T, A>(A == ACTIVATION_GELU ? pre[i] : T(0), out[i]);
                grad[i] = g;
            }
            sum += g;
        }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0) {
        for (int t = 1; t < ROW_THREADS; t++) sum += sums[t][threadIdx.x];
        if (c < cols) (gridDim.y == 1 ? bias_grad[c] : partial[blockIdx.y * cols + c]) = sum;
    }
    if (gridDim.y == 1 || !last_block(&tickets[blockIdx.x], gridDim.y)) return;
    if (threadIdx.y == 0 && c < cols) {
        T total = 0;
        for (unsigned chunk = 0; chunk < gridDim.y; chunk++) total += __ldcg(&partial[chunk * cols + c]);
        bias_grad[c] = total;
    }
}

template <typename T, enum activation A>
static void launch_backward(cuda_ops_context *context, size_t rows, size_t cols, const T *pre, const T *out,
                            T *grad, T *bias_grad) {
    const unsigned columns = grid_for(cols, COLUMNS);
    /* chunks of at least 64 rows, enough of them to fill the chip, within the scratch */
    size_t chunks = (rows + 63) / 64;
    if (chunks > MAX_CHUNKS) chunks = MAX_CHUNKS;
    while (chunks > 1 && (chunks * cols * sizeof(T) > cuda_ops_scratch() || columns > CUDA_OPS_TICKETS))
        chunks /= 2;
    backward_kernel<T, A>
        <<<dim3(columns, (unsigned)chunks), dim3(COLUMNS, ROW_THREADS), 0, context->stream>>>(
            rows, cols, pre, out, grad, bias_grad, (T *)context->scratch, context->tickets);
}

template <typename T>
static void bias_activation_backward(void *opaque, size_t rows, size_t cols, enum activation activation,
                                     const void *pre, const void *out, void *grad, void *bias_grad) {
    cuda_ops_context *context = open_context(opaque);
    FOR_ACTIVATION(activation, launch_backward, context, rows, cols, (const T *)pre, (const T *)out,
                   (T *)grad, (T *)bias_grad)
    CUDA_LAUNCHED(&context->fault, "backward_kernel");
}

/* --- loss --- */

struct partial_loss {
    double loss;
    unsigned long long correct;
};

/* First largest of a row, by a warp: the larger value wins, of equals the smaller index. A NaN never wins. */
template <typename T> __device__ void warp_argmax(T &best, unsigned &at) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, best, offset);
        const unsigned other_at = __shfl_xor_sync(0xffffffffu, at, offset);
        if (other > best || (other == best && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
}

template <typename T> __device__ T warp_sum(T value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* One row by one warp. Lane 0 returns the loss. */
template <typename T>
__device__ double row_loss(size_t classes, const T *logits, unsigned label, T scale, T *grad,
                           unsigned long long *correct) {
    const unsigned lane = threadIdx.x;
    T best = T(-INFINITY);
    unsigned at = 0xffffffffu;
    for (unsigned c = lane; c < classes; c += WARP)
        if (logits[c] > best || (logits[c] == best && at == 0xffffffffu)) {
            best = logits[c];
            at = c;
        }
    warp_argmax(best, at);
    T sum = 0;
    for (unsigned c = lane; c < classes; c += WARP) sum += d_exp(logits[c] - best);
    sum = warp_sum(sum);
    if (label >= classes) return (double)NAN;
    if (grad) {
        const T factor = scale / sum;
        for (unsigned c = lane; c < classes; c += WARP)
            grad[c] = d_exp(logits[c] - best) * factor - (c == label ? scale : T(0));
    }
    if (at == label && sum > 0) ++*correct;
    return log((double)sum) - ((double)logits[label] - (double)best);
}

template <typename T>
__global__ void softmax_kernel(size_t rows, size_t classes, const T *logits, const uint8_t *labels, T *grad,
                               double *loss, struct tally *tally, partial_loss *partial, unsigned *ticket) {
    __shared__ partial_loss warps[ROW_THREADS];
    double sum = 0;
    unsigned long long correct = 0;
    const T scale = T(1.0 / (double)rows);
    for (size_t r = (size_t)blockIdx.x * ROW_THREADS + threadIdx.y; r < rows;
         r += (size_t)gridDim.x * ROW_THREADS)
        sum += row_loss(classes, logits + r * classes, labels[r], scale,
                        grad ? grad + r * classes : (T *)NULL, &correct);
    if (threadIdx.x == 0) warps[threadIdx.y] = {sum, correct};
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        for (int w = 1; w < ROW_THREADS; w++) {
            warps[0].loss += warps[w].loss;
            warps[0].correct += warps[w].correct;
        }
        partial[blockIdx.x] = warps[0];
    }
    if (!last_block(ticket, gridDim.x) || threadIdx.y) return;
    double total = 0; /* one warp: lanes take every 32nd block in order, then a tree */
    unsigned long long right = 0;
    for (unsigned b = threadIdx.x; b < gridDim.x; b += WARP) {
        total += __ldcg(&partial[b].loss);
        right += __ldcg(&partial[b].correct);
    }
    total = warp_sum(total);
    right = warp_sum(right);
    if (threadIdx.x) return;
    tally->correct += right;
    tally->loss_sum += total;
    tally->images += rows;
    tally->batches++;
    if (!isfinite(total) && !tally->bad_step) tally->bad_step = tally->batches;
    if (loss) *loss = total / (double)rows;
}

template <typename T>
static void softmax_cross_entropy(void *opaque, size_t rows, size_t classes, const void *logits,
                                  const uint8_t *labels, void *grad, double *loss, struct tally *tally) {
    cuda_ops_context *context = open_context(opaque);
    const unsigned needed = grid_for(rows, ROW_THREADS), blocks = needed < MAX_BLOCKS ? needed : MAX_BLOCKS;
    softmax_kernel<T><<<blocks, dim3(WARP, ROW_THREADS), 0, context->stream>>>(
        rows, classes, (const T *)logits, labels, (T *)grad, loss, tally, (partial_loss *)context->scratch,
        context->tickets);
    CUDA_LAUNCHED(&context->fault, "softmax_kernel");
}

/* --- update --- */

template <typename T>
__global__ void sgd_kernel(size_t count, const double *learning_rate, T momentum, T decay,
                           const struct tally *guard, T *w, const T *g, T *v) {
    if (guard->bad_step) return;
    const T lr = T(*learning_rate);
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS) {
        T step = g[i] + decay * w[i];
        if (v) {
            step = momentum * v[i] + step;
            v[i] = step;
        }
        w[i] -= lr * step;
    }
}

template <typename T>
static void sgd(void *opaque, size_t count, const double *learning_rate, double momentum, double weight_decay,
                const struct tally *guard, void *weights, const void *grad, void *velocity) {
    cuda_ops_context *context = open_context(opaque);
    const unsigned needed = grid_for(count, THREADS),
                   blocks = needed < 4 * MAX_BLOCKS ? needed : 4 * MAX_BLOCKS;
    sgd_kernel<T><<<blocks, THREADS, 0, context->stream>>>(count, learning_rate, (T)momentum, (T)weight_decay,
                                                           guard, (T *)weights, (const T *)grad,
                                                           (T *)velocity);
    CUDA_LAUNCHED(&context->fault, "sgd_kernel");
}

size_t cuda_ops_scratch(void) {
    return (size_t)8 << 20;
}

template <typename T> static const struct ops *table(void) {
    static const struct ops ops = {
        .gather = gather<T>,
        .bias_activation = bias_activation<T>,
        .bias_activation_backward = bias_activation_backward<T>,
        .softmax_cross_entropy = softmax_cross_entropy<T>,
        .sgd = sgd<T>,
    };
    return &ops;
}

const struct ops *cuda_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? table<float>() : table<double>();
}
