/* Tiled: the output layer of a step, forward, loss and backward. See tiled.cu.

   One row per block: all threads of the block share it. About 3,000 cycles per row.
   One row per warp:  if blocks have several rows. Forward: lanes lie along the classes, a power of 2 of them,
                      and share k if there are few classes. Backward: lanes lie along k and read 16 bytes of a
                      row of the weights, whose pitch is 16 bytes more than a row (bank conflicts). Bound by
                      latency: about 2,500 cycles for as many rows as there are warps. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TILED_OUTPUT_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TILED_OUTPUT_CUH

#include "kernels/cuda/persistent/tiled.cuh"

namespace persistent::tiled {

/* Elements of shared memory with one row per warp: logits, their gradients and the input row of each warp,
   then the weights. */
template <typename T>
static inline size_t output_smem_elements(size_t warps, size_t in, size_t padded_in, size_t columns) {
    return warps * (2 * columns + padded_in) + in * (columns + WIDEST<T>);
}

template <typename P> struct output_block : block<P> {
    typedef typename P::real T;
    typedef typename P::matrix matrix;
    static constexpr int W = WIDEST<T>;
    using block<P>::plan, block<P>::shared, block<P>::current, block<P>::rows, block<P>::end,
        block<P>::input_of, block<P>::labels_of, block<P>::first_image, block<P>::numbers;

    __device__ output_block(const tiled::plan<P> &plan, void *shared, int end)
        : block<P>(plan, shared, end) {}

    /* Softmax cross-entropy of the logits z[classes] by one warp: stores the gradient in `g` and in row `row`
       of `gradient`. */
    __device__ void softmax_cross_entropy(const T *z, T *g, const matrix &gradient, int classes, int label,
                                          int row) const {
        const int lane = threadIdx.x % 32;
        T max = -INFINITY, sum = 0;
        for (int c = lane; c < classes; c += 32) max = z[c] > max ? z[c] : max;
        for (int offset = 16; offset > 0; offset /= 2) {
            const T other = __shfl_xor_sync(0xffffffffu, max, offset);
            max = other > max ? other : max;
        }
        int best = classes;
        for (int c = lane; c < classes; c += 32) {
            if (z[c] == max) best = min(best, c);
            g[c] = EXP(z[c] - max);
            sum += g[c];
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            best = min(best, __shfl_xor_sync(0xffffffffu, best, offset));
        }
        const T scale = T(1.0 / rows), factor = scale / sum;
        for (int c = lane; c < classes; c += 32) {
            g[c] = g[c] * factor - (c == label ? scale : T(0));
            gradient.put(row, c, pack<T, 1>{g[c]});
        }
        if (lane) return;
        const double loss = label < classes ? log((double)sum) - ((double)z[label] - (double)max) : NAN;
        plan.row_loss[row] = loss;
        plan.row_correct[row] = best == label && sum > 0;
        if (!isfinite(loss)) plan.control->bad = 1;
    }

    /* Zero gradients for a row beyond a partial batch, written by `count` threads. */
    __device__ void clear_row(int r, int thread, int count) const {
        for (int l = max(plan.depth - 2, 0); l < plan.depth; l++) {
            const matrix &grad = plan.layer[l].grad;
            for (int j = thread; j < grad.ld; j += count) grad.put(r, j, pack<T, 1>{});
        }
    }

    /* --- one row per block --- */

    /* Shared memory: partial sums, logits, their gradients, the row of the input, the weights. */
    __device__ T *staged_input() const {
        return shared + 3 * blockDim.x;
    }

    /* Asynchronous, so that the loads overlap. */
    __device__ void copy_async(T *to, const T *from, int count) const {
        for (int e = threadIdx.x * W; e < count; e += blockDim.x * W)
            __pipeline_memcpy_async(to + e, from + e, UNIT);
    }

    /* Forward and backward of row r through the last layer, whose weights are at `weight`. */
    __device__ void output_row(int r, const T *weight) const {
        const layer_plan<P> &last = plan.layer[plan.depth - 1];
        const int classes = last.out, ld = last.grad.ld, threads = blockDim.x, groups = threads / classes,
                  t = threadIdx.x;
        const matrix from = input_of(plan.depth - 1, current);
        const int label = labels_of(current)[r], c = t % classes;
        const T *input = from.at + (size_t)r * from.ld;
        T *part = shared, *logits = shared + threads, *gradient = logits + threads, sum = 0;
        if (plan.weights_fit) {
            copy_async(staged_input(), input, from.ld);
            input = staged_input();
            __pipeline_commit();
            __pipeline_wait_prior(0);
            __syncthreads(); /* for the weights too */
        }
        if (t < groups * classes)
#pragma unroll 4
            for (int k = t / classes; k < last.in; k += groups) sum += input[k] * weight[k * ld + c];
        part[t] = sum;
        __syncthreads();
        if (t < classes) {
#pragma unroll 4
            for (int p = 1; p < groups; p++) sum += part[t + p * classes];
            logits[t] = sum + last.bias[t];
        }
        __syncthreads();
        if (t < 32) softmax_cross_entropy(logits, gradient, last.grad, classes, label, r);
        __syncthreads();
        if (plan.depth > 1) {
            const layer_plan<P> &below = plan.layer[plan.depth - 2];
            const size_t row = (size_t)r * below.grad.ld;
            for (int k = t; k < last.in; k += threads) {
                const T y = below.output.at[row + k], z = below.pre[row + k];
                T value = 0;
#pragma unroll 5
                for (int o = 0; o < classes; o++) value += gradient[o] * weight[k * ld + o];
                below.grad.put(r, k, pack<T, 1>{value * derivative_compactly(below.activation, z, y)});
            }
        }
        __syncthreads(); /* before the next row */
    }

    /* --- one row per warp --- */

    __device__ void output_layer_by_warps() const {
        const layer_plan<P> &last = plan.layer[plan.depth - 1];
        const matrix from = input_of(plan.depth - 1, current);
        const int classes = last.out, ld = last.grad.ld, pitch = ld + W, thread = reread_thread_index(),
                  lane = thread % 32, warp = thread / 32, warps = blockDim.x / 32;
        T *logits = shared + warp * (2 * ld + from.ld), *gradient = logits + ld, *input = gradient + ld,
          *weight = shared + warps * (2 * ld + from.ld);
        int wide = 1;
        while (wide < 32 && wide < classes) wide *= 2;

        for (int e = thread * W; e < last.in * ld; e += blockDim.x * W)
            __pipeline_memcpy_async(weight + e / ld * pitch + e % ld, last.weight.at + e, UNIT);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        for (int c = classes + lane; c < ld; c += 32) gradient[c] = 0; /* the weights of padding are 0 */
        __syncthreads();

#pragma unroll 1
        for (int r = blockIdx.x + warp * gridDim.x; r < plan.batch; r += warps * gridDim.x) {
            if (r >= rows) {
                clear_row(r, lane, 32);
                continue;
            }
#pragma unroll 1
            for (int e = lane * W; e < from.ld; e += 32 * W)
                __pipeline_memcpy_async(input + e, from.at + (size_t)r * from.ld + e, UNIT);
            __pipeline_commit();
            const int label = labels_of(current)[r];
            __pipeline_wait_prior(0);
            __syncwarp();
#pragma unroll 1
            for (int first = 0; first < classes; first += wide) {
                const int c = first + lane % wide;
                T sum = 0;
                if (c < classes)
#pragma unroll 4
                    for (int k = lane / wide; k < last.in; k += 32 / wide)
                        sum += input[k] * weight[k * pitch + c];
                for (int offset = wide; offset < 32; offset *= 2)
                    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                if (lane < wide && c < classes) logits[c] = sum + last.bias[c];
            }
            __syncwarp();
            softmax_cross_entropy(logits, gradient, last.grad, classes, label, r);
            __syncwarp();
            if (plan.depth == 1) continue;
            const layer_plan<P> &below = plan.layer[plan.depth - 2];
            const size_t row = (size_t)r * below.grad.ld;
#pragma unroll 1
            for (int k = lane; k < last.in; k += 32) {
                const T y = input[k], z = below.pre == below.output.at ? y : below.pre[row + k];
                T value = 0;
#pragma unroll 4
                for (int o = 0; o < classes; o += W) {
                    const pack<T, W> some = pack_at<W>(weight + k * pitch + o);
#pragma unroll
                    for (int q = 0; q < W; q++) value += gradient[o + q] * some.value[q];
                }
                below.grad.put(r, k, pack<T, 1>{value * derivative_compactly(below.activation, z, y)});
            }
            __syncwarp(); /* before the next row */
        }
    }

    /* --- the stage --- */

    /* The output layer, and the gathering of the next step's batch: the loads of this block's first image
       overlap the output layer. */
    __device__ void output_layer() const {
        const layer_plan<P> &last = plan.layer[plan.depth - 1];
        const int t = 4 * threadIdx.x, next = plan.rows_of(current + 1, end);
        const bool ahead =
            plan.quads && !plan.warp_a_row && plan.features <= 4 * (int)blockDim.x && first_image() < next;
        const T *weight = last.weight.at;
        pack<uint8_t, 4> pixels = {};
        if (plan.warp_a_row) output_layer_by_warps();
        if (plan.weights_fit && !plan.warp_a_row && (int)blockIdx.x < rows) {
            T *const staged = staged_input() + last.input.ld;
            copy_async(staged, weight, last.in * last.grad.ld);
            weight = staged;
        }
        if (ahead && t < plan.features)
            pixels = pack_at<4>(
                plan.images +
                (size_t)plan.order[(size_t)(current + 1) * plan.batch + first_image()] * plan.features + t);
#pragma unroll 1
        for (int r = blockIdx.x; r < plan.batch && !plan.warp_a_row; r += gridDim.x) {
            if (r < rows) {
                output_row(r, weight);
            } else {
                clear_row(r, threadIdx.x, blockDim.x);
            }
        }
        if (!next) return;
        if (ahead && t < plan.features) input_of(0, current + 1).put(first_image(), t, numbers(pixels));
        this->gather(current + 1, ahead);
        this->gather_labels(current + 1);
    }
};

} // namespace persistent::tiled

#endif
