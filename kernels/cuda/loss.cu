/* Softmax and cross-entropy: a warp a row, every row read once, the loss and its gradient in one launch.

   Bound by   launch latency: 8192 x 10 in float32 is 0.3 MB. */
#include <math.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ops.cuh"

static const unsigned WARP = 32, ROWS = 8, MAX_BLOCKS = 1024;

struct partial_loss {
    double loss;
    unsigned long long correct;
};

/* First largest of a row, by a warp: the larger value wins, of equals the smaller index. A NaN never wins. */
template <typename R> __device__ void warp_argmax(R &best, unsigned &at) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const R other = __shfl_xor_sync(0xffffffffu, best, offset);
        const unsigned other_at = __shfl_xor_sync(0xffffffffu, at, offset);
        if (other > best || (other == best && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
}

template <typename R> __device__ R warp_sum(R value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* One row by one warp. Every lane returns the loss. */
template <typename T>
__device__ double row_loss(size_t classes, const T *logits, unsigned label, real<T> scale, T *grad,
                           unsigned long long *correct) {
    typedef real<T> R;
    const unsigned lane = threadIdx.x;
    R best = R(-INFINITY);
    unsigned at = 0xffffffffu;
    for (unsigned c = lane; c < classes; c += WARP)
        if (R(logits[c]) > best || (R(logits[c]) == best && at == 0xffffffffu)) {
            best = R(logits[c]);
            at = c;
        }
    warp_argmax(best, at);
    R sum = 0;
    for (unsigned c = lane; c < classes; c += WARP) sum += d_exp(R(logits[c]) - best);
    sum = warp_sum(sum);
    if (label >= classes) return (double)NAN;
    if (grad) {
        const R factor = scale / sum;
        for (unsigned c = lane; c < classes; c += WARP)
            grad[c] = T(d_exp(R(logits[c]) - best) * factor - (c == label ? scale : R(0)));
    }
    if (at == label && sum > 0) ++*correct;
    return log((double)sum) - ((double)R(logits[label]) - (double)best);
}

template <typename T>
__global__ void softmax_kernel(size_t rows, size_t classes, const T *logits, const uint8_t *labels, T *grad,
                               double *loss, struct tally *tally, cuda_reduction reduction) {
    __shared__ partial_loss warps[ROWS];
    partial_loss *partial = (partial_loss *)reduction.scratch;
    double sum = 0;
    unsigned long long correct = 0;
    const real<T> scale = real<T>(1.0 / (double)rows);
    for (size_t r = (size_t)blockIdx.x * ROWS + threadIdx.y; r < rows; r += (size_t)gridDim.x * ROWS)
        sum += row_loss(classes, logits + r * classes, labels[r], scale,
                        grad ? grad + r * classes : (T *)NULL, &correct);
    if (threadIdx.x == 0) warps[threadIdx.y] = {sum, correct};
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        for (int w = 1; w < ROWS; w++) {
            warps[0].loss += warps[w].loss;
            warps[0].correct += warps[w].correct;
        }
        partial[blockIdx.x] = warps[0];
    }
    if (!last_block(reduction.tickets, gridDim.x) || threadIdx.y) return;
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
void cuda_softmax_cross_entropy(void *opaque, size_t rows, size_t classes, const void *logits,
                                const uint8_t *labels, void *grad, double *loss, struct tally *tally) {
    cuda_ops_context *context = open_ops(opaque);
    const size_t needed = (rows + ROWS - 1) / ROWS;
    const unsigned blocks = needed < 1 ? 1 : needed < MAX_BLOCKS ? (unsigned)needed : MAX_BLOCKS;
    softmax_kernel<T><<<blocks, dim3(WARP, ROWS), 0, context->stream>>>(
        rows, classes, (const T *)logits, labels, (T *)grad, loss, tally, context->reduction);
    CUDA_LAUNCHED(&context->fault, "softmax_kernel");
}

#define INSTANTIATE(T)                                                                                 \
    template void cuda_softmax_cross_entropy<T>(void *, size_t, size_t, const void *, const uint8_t *, \
                                                void *, double *, struct tally *);
INSTANTIATE(float)
INSTANTIATE(double)
INSTANTIATE(__nv_bfloat16)
