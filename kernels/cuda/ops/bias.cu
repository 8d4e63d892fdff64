/* Bias and activation, forward and backward: one pass over memory each.

   Bound by   bytes. 8192 x 2048 in float32: forward reads and writes 67 MB, backward reads 134 and writes 67:
              45 and 67 us at 3 TB/s. A thread accesses packs of 16 bytes if rows are aligned and there are
              enough packs to fill the chip, else packs of 8 on the same terms, else single elements. */
#include "kernels/activation.h"
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/ops.cuh"

static const int COLUMNS = 32, ROWS = 8; /* threads of a block: x along a row */
static const int CHUNK = 4 * ROWS;       /* rows of a block in one iteration of the forward pass */
static const size_t FILLS_THE_CHIP = (size_t)1 << 19;

/* Starts with the last rows: the GEMM has just written them, and they are still in the L2 cache. */
__device__ static size_t from_end(size_t rows, size_t r) {
    return rows - 1 - r;
}

static unsigned blocks_along(size_t count, size_t per_block) {
    const size_t blocks = (count + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks < 65535 ? blocks : 65535);
}

/* Calls `function<A>()` with the activation as a constant, so that each kernel holds one formula. */
template <typename F> static void for_activation(enum activation activation, F function) {
#define CALL(with, ID, name, needs_input) \
    case ACTIVATION_##ID:                 \
        return function.template operator()<ACTIVATION_##ID>();
    switch (activation) { ACTIVATIONS(CALL, ) }
#undef CALL
}

/* Does the derivative read the value before the activation? */
template <enum activation A> constexpr bool NEEDS_INPUT = ACTIVATIONS_NEEDING_INPUT >> A & 1;

template <typename T, enum activation A, int WIDE>
__global__ void bias_activation_kernel(size_t rows, size_t cols, const real<T> *bias, T *pre, T *out) {
    const size_t step = (size_t)COLUMNS * WIDE;
    for (size_t c = (blockIdx.x * COLUMNS + threadIdx.x) * (size_t)WIDE; c < cols; c += gridDim.x * step) {
        real<T> b[WIDE];
#pragma unroll
        for (int e = 0; e < WIDE; e++) b[e] = bias[c + e];
        for (size_t chunk = (size_t)blockIdx.y * CHUNK + threadIdx.y; chunk < rows;
             chunk += (size_t)gridDim.y * CHUNK) {
            pack<T, WIDE> z[CHUNK / ROWS]; /* all loads are issued before the first use */
#pragma unroll
            for (int t = 0; t < CHUNK / ROWS; t++)
                if (chunk + t * ROWS < rows)
                    z[t] = pack_at<WIDE>(pre + from_end(rows, chunk + t * ROWS) * cols + c);
#pragma unroll
            for (int t = 0; t < CHUNK / ROWS; t++) {
                if (chunk + t * ROWS >= rows) break;
                const size_t at = from_end(rows, chunk + t * ROWS) * cols + c;
                pack<T, WIDE> y;
#pragma unroll
                for (int e = 0; e < WIDE; e++) {
                    z[t].value[e] = T(real<T>(z[t].value[e]) + b[e]);
                    y.value[e] = T(activate(A, real<T>(z[t].value[e])));
                }
                if (NEEDS_INPUT<A> || pre != out) pack_at<WIDE>(pre + at) = z[t];
                pack_at<WIDE>(out + at) = y;
            }
        }
    }
}

template <typename T, int WIDE>
static void launch_forward(cuda_ops_context *context, size_t rows, size_t cols, enum activation activation,
                           const real<T> *bias, T *pre, T *out) {
    const dim3 grid(blocks_along(cols, COLUMNS * WIDE), blocks_along(rows, CHUNK)), block(COLUMNS, ROWS);
    for_activation(
        activation, [&]<enum activation A>() {
            bias_activation_kernel<T, A, WIDE>
                <<<grid, block, 0, context->stream>>>(rows, cols, bias, pre, out);
        });
    CUDA_LAUNCHED(&context->fault, "bias_activation_kernel");
}

/* Can x, y and z be accessed in packs of WIDE, and are there enough packs to fill the chip? */
template <typename T, int WIDE>
static bool packed(size_t rows, size_t cols, const void *x, const void *y, const void *z) {
    return rows * cols >= FILLS_THE_CHIP * WIDE / WIDEST<T> && packs_fit((const T *)x, cols, cols, WIDE) &&
           packs_fit((const T *)y, cols, cols, WIDE) && packs_fit((const T *)z, cols, cols, WIDE);
}

/* Calls `function<WIDE>()` with the elements of a pack. */
template <typename T, typename F>
static void for_width(size_t rows, size_t cols, const void *x, const void *y, const void *z, F function) {
    if (packed<T, WIDEST<T>>(rows, cols, x, y, z)) return function.template operator()<WIDEST<T>>();
    if (packed<T, WIDEST<T> / 2>(rows, cols, x, y, z)) return function.template operator()<WIDEST<T> / 2>();
    return function.template operator()<1>();
}

template <typename T>
void cuda_bias_activation(void *opaque, size_t rows, size_t cols, enum activation activation,
                          const void *bias, void *pre, void *out) {
    for_width<T>(rows, cols, pre, out, out, [&]<int WIDE>() {
        launch_forward<T, WIDE>(open_ops(opaque), rows, cols, activation, (const real<T> *)bias, (T *)pre,
                                (T *)out);
    });
}

/* to = alpha sum + beta to; does not read `to` if beta is 0. */
template <typename R> __device__ static void blend(R &to, R alpha, R beta, R sum) {
    to = beta != 0 ? beta * to + alpha * sum : alpha * sum;
}

/* grad *= act', and the column sums. A block owns COLUMNS packs of columns and every gridDim.y-th group of
   ROWS rows. */
template <typename T, enum activation A, int WIDE, int ROWS>
__global__ void __launch_bounds__(COLUMNS *ROWS)
    backward_kernel(size_t rows, size_t cols, const T *pre, const T *out, T *grad, real<T> alpha,
                    real<T> beta, real<T> *bias_grad, cuda_reduction reduction) {
    __shared__ real<T> sums[ROWS][COLUMNS * WIDE];
    const size_t c = (blockIdx.x * COLUMNS + threadIdx.x) * (size_t)WIDE;
    real<T> sum[WIDE] = {};
    if (c < cols)
#pragma unroll 8
        for (size_t r = (size_t)blockIdx.y * ROWS + threadIdx.y; r < rows; r += (size_t)gridDim.y * ROWS) {
            const size_t i = from_end(rows, r) * cols + c;
            pack<T, WIDE> g = pack_at<WIDE>(grad + i), y = {}, z = {};
            if (A != ACTIVATION_NONE) y = pack_at<WIDE>(out + i);
            if (NEEDS_INPUT<A>) z = pack_at<WIDE>(pre + i);
            bool changed = A != ACTIVATION_NONE;
#pragma unroll
            for (int e = 0; e < WIDE; e++) {
                const real<T> slope = derivative(A, real<T>(z.value[e]), real<T>(y.value[e])),
                              before = real<T>(g.value[e]);
                g.value[e] = T(bounded<T>(bounded<T>(before) * slope));
                changed = changed || (std::is_same_v<T, __half> && before != real<T>(g.value[e]));
                sum[e] += real<T>(g.value[e]);
            }
            if (changed) pack_at<WIDE>(grad + i) = g;
        }
#pragma unroll
    for (int e = 0; e < WIDE; e++) sums[threadIdx.y][threadIdx.x * WIDE + e] = sum[e];
    __syncthreads();

    /* one thread a column: the sum of this block; then the last block to finish adds the blocks */
    real<T> *partial = (real<T> *)reduction.scratch;
    const unsigned thread = threadIdx.y * COLUMNS + threadIdx.x, width = COLUMNS * WIDE;
    const size_t column = (size_t)blockIdx.x * width + thread;
    const bool mine = thread < width && column < cols;
    if (mine) {
        real<T> total = sums[0][thread];
        for (int t = 1; t < ROWS; t++) total += sums[t][thread];
        if (gridDim.y == 1) {
            blend(bias_grad[column], alpha, beta, total);
        } else {
            partial[blockIdx.y * cols + column] = total;
        }
    }
    if (gridDim.y == 1 || !last_block(&reduction.tickets[blockIdx.x], gridDim.y) || !mine) return;
    blend(bias_grad[column], alpha, beta, sum_of_chunks(partial + column, gridDim.y, cols));
}

template <typename T, int WIDE>
static void launch_backward(cuda_ops_context *context, size_t rows, size_t cols, enum activation activation,
                            const T *pre, const T *out, T *grad, double alpha, double beta,
                            real<T> *bias_grad) {
    const size_t columns = (cols + COLUMNS * WIDE - 1) / (COLUMNS * WIDE);
    /* 4 rows a thread, because latency dominates; at most 64 blocks a column, within the scratch memory */
    const size_t rows_per_block = WIDE == 1 ? 128 : 32;
    size_t chunks =
        (rows + rows_per_block - 1) / rows_per_block < 64 ? (rows + rows_per_block - 1) / rows_per_block : 64;
    while (chunks > 1 && chunks * cols * sizeof(real<T>) > REDUCTION_BYTES) chunks /= 2;
    if (columns > REDUCTION_GROUPS) chunks = 1;
    /* single elements are for small passes: more threads a column shorten the latency */
    constexpr int TALL = WIDE == 1 ? 32 : ROWS;
    const dim3 grid((unsigned)columns, (unsigned)chunks), block(COLUMNS, TALL);
    for_activation(
        activation, [&]<enum activation A>() {
            backward_kernel<T, A, WIDE, TALL><<<grid, block, 0, context->stream>>>(
                rows, cols, pre, out, grad, (real<T>)alpha, (real<T>)beta, bias_grad, context->reduction);
        });
    CUDA_LAUNCHED(&context->fault, "backward_kernel");
}

template <typename T>
void cuda_bias_activation_backward(void *opaque, size_t rows, size_t cols, enum activation activation,
                                   const void *pre, const void *out, void *grad, double alpha, double beta,
                                   void *bias_grad) {
    for_width<T>(rows, cols, pre, out, grad, [&]<int WIDE>() {
        launch_backward<T, WIDE>(open_ops(opaque), rows, cols, activation, (const T *)pre, (const T *)out,
                                 (T *)grad, alpha, beta, (real<T> *)bias_grad);
    });
}

#define INSTANTIATE(T)                                                                                    \
    template void cuda_bias_activation<T>(void *, size_t, size_t, enum activation, const void *, void *,  \
                                          void *);                                                        \
    template void cuda_bias_activation_backward<T>(void *, size_t, size_t, enum activation, const void *, \
                                                   const void *, void *, double, double, void *);
INSTANTIATE(float)
INSTANTIATE(double)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)
