/* Softmax cross-entropy: one thread a row, loss and gradient in one launch.

   Bound by   latency: 8192 x 10 in float32 is 0.3 MB. A thread passes three times over its row: in registers
              with up to 16 classes, otherwise in the L1 cache. */
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/ops.cuh"
#include "kernels/cuda/ops/tally.cuh"
#include "kernels/real.h"

static const int THREADS = 128, WARPS = THREADS / 32;
static const size_t MAX_BLOCKS = 1024;
static const int FEW_CLASSES = 16;

/* Calls body(c) for each class; FEW: at most 16, in an unrolled loop. */
template <bool FEW, typename F> __device__ void each_class(size_t classes, F body) {
    if constexpr (FEW) {
#pragma unroll
        for (int c = 0; c < FEW_CLASSES; c++)
            if (c < (int)classes) body(c);
    } else {
        for (size_t c = 0; c < classes; c++) body(c);
    }
}

/* One row. The prediction is the first of the largest logits; a row with a NaN is never correct. */
template <bool FEW, typename T>
__device__ void add_row(partial_loss &to, size_t classes, double smoothing, const T *logits, unsigned label,
                        real<T> scale, T *grad) {
    typedef real<T> R;
    R few[FEW_CLASSES], max = R(logits[0]), sum = 0;
    size_t best = 0;
    if (FEW) each_class<FEW>(classes, [&](auto c) { few[c] = R(logits[c]); });
    const auto logit = [&](auto c) { return FEW ? few[c] : R(logits[c]); };
    each_class<FEW>(classes, [&](auto c) {
        if (logit(c) > max) {
            max = logit(c);
            best = (size_t)c;
        }
    });
    each_class<FEW>(classes, [&](auto c) { sum += EXP(logit(c) - max); });
    if (label >= classes) {
        to.loss += (double)NAN;
        return;
    }
    const double loss = log((double)sum) - ((double)R(logits[label]) - (double)max);
    if (smoothing == 0) {
        to.loss += loss;
    } else {
        double all = 0; /* sum of shifted logits */
        each_class<FEW>(classes, [&](auto c) { all += (double)logit(c) - (double)max; });
        to.loss += (1 - smoothing) * loss + smoothing * (log((double)sum) - all / (double)classes);
    }
    to.correct += best == label && sum > 0;
    if (!grad) return;
    const R factor = scale / sum, off = R(smoothing / (double)classes) * scale,
            on = R(1 - smoothing) * scale + off;
    each_class<FEW>(classes, [&](auto c) {
        grad[c] = T(EXP(logit(c) - max) * factor - ((size_t)c == label ? on : off));
    });
}

/* The sum over the block, valid in thread 0. */
__device__ static partial_loss sum_over_block(partial_loss mine) {
    __shared__ partial_loss warps[WARPS];
    for (int offset = 16; offset > 0; offset /= 2) {
        mine.loss += __shfl_xor_sync(0xffffffffu, mine.loss, offset);
        mine.correct += __shfl_xor_sync(0xffffffffu, mine.correct, offset);
    }
    __syncthreads(); /* the previous call may still read `warps` */
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < WARPS; w++) {
        mine.loss += warps[w].loss;
        mine.correct += warps[w].correct;
    }
    return mine;
}

template <bool FEW, typename T>
__global__ void __launch_bounds__(THREADS)
    softmax_kernel(size_t rows, double divisor, size_t classes, double smoothing, const T *logits,
                   const uint8_t *labels, T *grad, double *loss, struct tally *tally, bool counted,
                   cuda_reduction reduction) {
    partial_loss *partial = (partial_loss *)reduction.scratch, total = {0, 0};
    const real<T> scale = real<T>(1.0 / divisor);
    const struct tally before = *tally; /* requested ahead of the rows */
    for (size_t r = (size_t)blockIdx.x * THREADS + threadIdx.x; r < rows; r += (size_t)gridDim.x * THREADS)
        add_row<FEW>(total, classes, smoothing, logits + r * classes, labels[r], scale,
                     grad ? grad + r * classes : (T *)NULL);
    total = sum_over_block(total);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) partial[blockIdx.x] = total;
        if (!last_block(reduction.tickets, gridDim.x)) return;
        total = {0, 0};
        for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS) {
            total.loss += __ldcg(&partial[b].loss);
            total.correct += __ldcg(&partial[b].correct);
        }
        total = sum_over_block(total);
    }
    if (threadIdx.x == 0) tally_batch(before, total, rows, loss, tally, counted);
}

template <typename T>
void cuda_softmax_cross_entropy(void *opaque, size_t rows, double divisor, size_t classes, double smoothing,
                                const void *logits, const uint8_t *labels, void *grad, double *loss,
                                struct tally *tally, bool counted) {
    cuda_ops_context *context = open_ops(opaque);
    const size_t needed = (rows + THREADS - 1) / THREADS;
    const unsigned blocks = needed < 1 ? 1 : needed < MAX_BLOCKS ? (unsigned)needed : (unsigned)MAX_BLOCKS;
    const auto kernel = classes <= (size_t)FEW_CLASSES ? softmax_kernel<true, T> : softmax_kernel<false, T>;
    kernel<<<blocks, THREADS, 0, context->stream>>>(rows, divisor, classes, smoothing, (const T *)logits,
                                                    labels, (T *)grad, loss, tally, counted,
                                                    context->reduction);
    CUDA_LAUNCHED(&context->fault, "softmax_kernel");
}

#define INSTANTIATE(T)                                                                                \
    template void cuda_softmax_cross_entropy<T>(void *, size_t, double, size_t, double, const void *, \
                                                const uint8_t *, void *, double *, struct tally *, bool);
INSTANTIATE(float)
INSTANTIATE(double)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)
