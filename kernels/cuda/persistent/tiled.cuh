/* What a block does in each phase of a step: see fused_phases.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TILED_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TILED_CUH

#include <math.h>

#include "kernels/activation.h"
#include "kernels/cuda/persistent/fused.cuh"
#include "kernels/cuda/persistent/tile.cuh"
#include "kernels/cuda/persistent/grid.cuh"

/* --- what there is to do --- */

template <typename P> struct phase_layer {
    typedef typename P::real T;
    int in, out; /* as they are */
    enum activation activation;
    typename P::matrix weight, input, output,
        grad;                 /* [in][out], [batch][in] (of layer 0 the first of two), [batch][out] */
    phase_matrix<T> velocity; /* as weight */
    T *pre;                   /* as output */
    T *bias, *bias_velocity;  /* [out] */
    phase_matrix<T> user_weight, user_velocity; /* where they come from, and go to */
    T *user_bias, *user_bias_velocity;
};

struct phase_shapes {
    warp_shape forward[FUSED_MAX_LAYERS], back[FUSED_MAX_LAYERS], update;
};

struct phase_control {
    unsigned arrived; /* grid.cuh */
    int bad;          /* a loss of this launch was not finite */
};

template <typename P> struct phase_plan {
    typedef typename P::real T;
    int depth, batch, features;
    int padded_batch;
    bool quads;       /* pixels of an image may be read 4 at once */
    bool weights_fit; /* of the last layer, in shared memory */
    bool warp_a_row;  /* blocks have several rows in the turn */
    bool has_velocity;
    phase_layer<P> layer[FUSED_MAX_LAYERS];
    phase_shapes shapes;
    T momentum, weight_decay;
    enum input_range range;     /* of the pixels */
    size_t count, input_stride; /* elements between the two buffers of the batch */
    const uint8_t *images, *labels;
    const uint32_t *order;
    const struct step_scalars *scalars;
    double *losses, *row_loss; /* row_loss: [batch] */
    int *row_correct;          /* [batch] */
    uint8_t *batch_labels;     /* [2][batch] */
    struct tally *tally;
    phase_control *control;
};

/* threadIdx.x, asked for again: what is made of it is not kept in registers from step to step. */
__device__ inline int thread_now() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* --- the phases --- */

template <typename P> struct worker {
    typedef typename P::real T;
    typedef typename P::matrix matrix;
    static constexpr int W = WIDEST<T>;
    const phase_plan<P> &plan;
    T *shared;
    unsigned awaited;
    size_t step;
    int rows; /* of the batch of this step */

    __device__ int rows_of(size_t which) const {
        const size_t left = plan.count - which * plan.batch;
        return left < (size_t)plan.batch ? (int)left : plan.batch;
    }

    __device__ static int padded(int length) {
        return (length + WARP_M - 1) / WARP_M * WARP_M;
    }

    __device__ matrix input_of(int l, size_t which) const {
        matrix input = plan.layer[l].input;
        if (l == 0) input.skip(which % 2 * plan.input_stride);
        return input;
    }

    __device__ void meet_all() {
        meet(&plan.control->arrived, awaited);
    }

    /* N pixels, as numbers. */
    template <int N> __device__ pack<T, N> numbers(pack<uint8_t, N> pixels) const {
        pack<T, N> values;
#pragma unroll
        for (int q = 0; q < N; q++)
            values.value[q] = T(input_scale(plan.range)) * (T(pixels.value[q]) - T(input_offset(plan.range)));
        return values;
    }

    /* The first of the images that this block gathers: from the last block on, for the first ones have the
       rows of the turn. */
    __device__ static int first_image() {
        return gridDim.x - 1 - blockIdx.x;
    }

    /* The images of a step, `skip` of this block's rows left out: a warp has a row, or the whole block where
       no four pixels can be read at once. */
    __device__ void gather(size_t which, int skip) const {
        const matrix to = input_of(0, which);
        const int count = rows_of(which), thread = thread_now(), packed = plan.quads ? plan.features : 0,
                  lane = plan.quads ? thread % 32 : thread, row = plan.quads ? thread / 32 : 0,
                  rows_at_once = plan.quads ? blockDim.x / 32 : 1;
#pragma unroll 1
        for (int r = first_image() + (skip + row) * gridDim.x; r < count; r += rows_at_once * gridDim.x) {
            const uint8_t *image =
                plan.images + (size_t)__ldg(plan.order + which * plan.batch + r) * plan.features;
#pragma unroll 2
            for (int j = 4 * lane; j < packed; j += 128) {
                const uint32_t four = __ldg(reinterpret_cast<const uint32_t *>(image + j));
                to.put(r, j, numbers(reinterpret_cast<const pack<uint8_t, 4> &>(four)));
            }
#pragma unroll 1
            for (int j = packed + lane; j < plan.features; j += blockDim.x)
                to.put(r, j, numbers(pack_at<1>(image + j)));
        }
    }

    __device__ uint8_t *labels_of(size_t which) const {
        return plan.batch_labels + which % 2 * plan.batch;
    }

    /* The labels of a step: by the last block, which has the least to do. */
    __device__ void gather_labels(size_t which) const {
        const int count = rows_of(which);
        if (blockIdx.x != gridDim.x - 1) return;
        for (int r = threadIdx.x; r < count; r += blockDim.x)
            labels_of(which)[r] = plan.labels[plan.order[which * plan.batch + r]];
    }

    __device__ void forward(int l) const {
        const phase_layer<P> &layer = plan.layer[l];
        block_tiles<P, true, false>(
            0, input_of(l, step), layer.weight, plan.padded_batch, layer.grad.ld, padded(layer.in),
            plan.shapes.forward[l], shared, [&](int i, int j, pack<T, W> z) {
                const pack<T, W> bias = pack_at<W>(layer.bias + j);
#pragma unroll
                for (int q = 0; q < W; q++) z.value[q] += bias.value[q];
                if (layer.pre != layer.output.at) pack_at<W>(layer.pre + (size_t)i * layer.output.ld + j) = z;
#pragma unroll
                for (int q = 0; q < W; q++)
                    z.value[q] = j + q < layer.out ? activate_compactly(layer.activation, z.value[q]) : T(0);
                layer.output.put(i, j, z);
            });
    }

    /* dL/dZ of layer l - 1 from that of layer l. */
    __device__ void back(int l) const {
        const phase_layer<P> &layer = plan.layer[l], &below = plan.layer[l - 1];
        block_tiles<P, true, true>(
            0, layer.grad, layer.weight, plan.padded_batch, below.grad.ld, layer.grad.ld, plan.shapes.back[l],
            shared, [&](int i, int j, pack<T, W> sum) {
                const size_t at = (size_t)i * below.grad.ld + j;
                const pack<T, W> y = pack_at<W>(below.output.at + at), z = pack_at<W>(below.pre + at);
#pragma unroll
                for (int q = 0; q < W; q++)
                    sum.value[q] *= derivative_compactly(below.activation, z.value[q], y.value[q]);
                below.grad.put(i, j, sum);
            });
    }

    /* SGD as kernels/ops.h has it, for N neighbours: what they become. */
    template <int N>
    __device__ pack<T, N> descend(T rate, pack<T, N> gradient, const T *weight, T *velocity) const {
        pack<T, N> w = pack_at<N>(weight), v = {};
        if (plan.has_velocity) v = pack_at<N>(velocity);
#pragma unroll
        for (int q = 0; q < N; q++) {
            gradient.value[q] += plan.weight_decay * w.value[q];
            gradient.value[q] += plan.momentum * v.value[q];
            w.value[q] -= rate * gradient.value[q];
        }
        if (plan.has_velocity) pack_at<N>(velocity) = gradient;
        return w;
    }

    /* 32 columns of a layer's bias: the gradient is the sum of those of dL/dZ. */
    __device__ void update_bias(const phase_layer<P> &layer, T rate, int first) const {
        const int part = threadIdx.x / 32, parts = blockDim.x / 32, col = first + threadIdx.x % 32;
        pack<T, 1> sum = {};
        if (col < layer.out)
#pragma unroll 8
            for (int r = rows * part / parts; r < rows * (part + 1) / parts; r++)
                sum.value[0] += layer.grad.at[(size_t)r * layer.grad.ld + col];
        shared[threadIdx.x] = sum.value[0];
        __syncthreads();
        if (part == 0 && col < layer.out) {
            for (int p = 1; p < parts; p++) sum.value[0] += shared[threadIdx.x + 32 * p];
            pack_at<1>(layer.bias + col) = descend(rate, sum, layer.bias + col, layer.bias_velocity + col);
        }
        __syncthreads();
    }

    __device__ void update() const {
        const T rate = T(plan.scalars[step].learning_rate);
        const int blocks = gridDim.x, k = (rows + P::SLAB - 1) / P::SLAB * P::SLAB;
        int tile = 0;
#pragma unroll 1
        for (int l = 0; l < plan.depth; l++) {
            const phase_layer<P> &layer = plan.layer[l];
            tile = block_tiles<P, false, false>(
                tile, input_of(l, step), layer.grad, padded(layer.in), layer.grad.ld, k, plan.shapes.update,
                shared, [&](int i, int j, pack<T, W> sum) {
                    const size_t at = (size_t)i * layer.weight.ld + j;
                    layer.weight.put(i, j, descend(rate, sum, layer.weight.at + at, layer.velocity.at + at));
                });
        }
        int turn = ((int)blockIdx.x + blocks - tile % blocks) % blocks; /* biases until it is this block's */
#pragma unroll 1
        for (int l = 0; l < plan.depth; l++)
#pragma unroll 1
            for (int col = 0; col < plan.layer[l].out; col += 32) {
                if (turn == 0) update_bias(plan.layer[l], rate, col);
                turn = turn == 0 ? blocks - 1 : turn - 1;
            }
    }

    /* What the batch did: by the last block, which has the least to do in the other phases. */
    __device__ void count_up(bool bad) const {
        if (blockIdx.x != gridDim.x - 1 || threadIdx.x >= 32) return;
        double loss = 0;
        int correct = 0;
        for (int r = threadIdx.x; r < rows; r += 32) {
            loss += plan.row_loss[r];
            correct += plan.row_correct[r];
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            loss += __shfl_xor_sync(0xffffffffu, loss, offset);
            correct += __shfl_xor_sync(0xffffffffu, correct, offset);
        }
        if (threadIdx.x) return;
        plan.tally->loss_sum += loss;
        plan.tally->correct += correct;
        plan.tally->images += rows;
        plan.tally->batches++;
        if (bad && !plan.tally->bad_step) plan.tally->bad_step = plan.tally->batches;
        plan.losses[step] = loss / rows;
    }

    /* Softmax and cross-entropy of the logits z[classes] by one warp: their gradient to `g`, and to a row of
       that matrix. */
    __device__ void loss_of_row(const T *z, T *g, const matrix &gradient, int classes, int label,
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

    /* What a turn keeps in shared memory before the weights: partial sums, logits and their gradients, and a
       row of the input. */
    __device__ T *input_place() const {
        return shared + 3 * blockDim.x;
    }

    /* Copies, all reads at once: it is their latency that costs. */
    __device__ void stage(T *to, const T *from, int count) const {
        for (int e = threadIdx.x * W; e < count; e += blockDim.x * W)
            __pipeline_memcpy_async(to + e, from + e, UNIT);
    }

    /* Row r through the last layer, whose weights are at `weight`, and back. */
    __device__ void turn_row(int r, const T *weight) const {
        const phase_layer<P> &last = plan.layer[plan.depth - 1];
        const int classes = last.out, ld = last.grad.ld, threads = blockDim.x, groups = threads / classes,
                  t = threadIdx.x;
        const matrix from = input_of(plan.depth - 1, step);
        const int label = labels_of(step)[r], c = t % classes;
        const T *input = from.at + (size_t)r * from.ld;
        T *part = shared, *logits = shared + threads, *gradient = logits + threads, sum = 0;
        if (plan.weights_fit) {
            stage(input_place(), input, from.ld);
            input = input_place();
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
        if (t < 32) loss_of_row(logits, gradient, last.grad, classes, label, r);
        __syncthreads();
        if (plan.depth > 1) {
            const phase_layer<P> &below = plan.layer[plan.depth - 2];
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

    /* Rows that a partial batch does not have: nothing comes from them. By `count` threads, of which this is
       one. */
    __device__ void clear_row(int r, int thread, int count) const {
        for (int l = max(plan.depth - 2, 0); l < plan.depth; l++) {
            const matrix &grad = plan.layer[l].grad;
            for (int j = thread; j < grad.ld; j += count) grad.put(r, j, pack<T, 1>{});
        }
    }

    __device__ void turn_by_warps() const; /* fused_turn.cuh */

    /* The turn, and the pixels of the step after it: those of the first row are on their way meanwhile. */
    __device__ void turn(bool another) const {
        const phase_layer<P> &last = plan.layer[plan.depth - 1];
        const int t = 4 * threadIdx.x, next = another ? rows_of(step + 1) : 0;
        const bool ahead =
            plan.quads && !plan.warp_a_row && plan.features <= 4 * (int)blockDim.x && first_image() < next;
        const T *weight = last.weight.at;
        pack<uint8_t, 4> pixels = {};
        if (plan.warp_a_row) turn_by_warps();
        if (plan.weights_fit && !plan.warp_a_row && (int)blockIdx.x < rows) {
            T *const place = input_place() + last.input.ld;
            stage(place, weight, last.in * last.grad.ld);
            weight = place;
        }
        if (ahead && t < plan.features)
            pixels =
                pack_at<4>(plan.images +
                           (size_t)plan.order[(step + 1) * plan.batch + first_image()] * plan.features + t);
#pragma unroll 1
        for (int r = blockIdx.x; r < plan.batch && !plan.warp_a_row; r += gridDim.x) {
            if (r < rows) {
                turn_row(r, weight);
            } else {
                clear_row(r, threadIdx.x, blockDim.x);
            }
        }
        if (!another) return;
        if (ahead && t < plan.features) input_of(0, step + 1).put(first_image(), t, numbers(pixels));
        gather(step + 1, ahead);
        gather_labels(step + 1);
    }

    /* --- before and after --- */

    /* Rows of `cols`, from the matrix of the caller to a padded one or back. */
    template <typename M>
    __device__ void copy_rows(const M &to, const phase_matrix<T> &from, int count, int cols) const {
        for (int r = blockIdx.x; r < count; r += gridDim.x)
            for (int j = threadIdx.x; j < cols; j += blockDim.x)
                to.put(r, j, pack_at<1>(from.at + (size_t)r * from.ld + j));
    }

    __device__ void load_weights() const {
        for (int l = 0; l < plan.depth; l++) {
            const phase_layer<P> &layer = plan.layer[l];
            const int in = layer.in, out = layer.out;
            copy_rows(layer.weight, layer.user_weight, in, out);
            copy_rows(phase_matrix<T>{layer.bias, 0}, {layer.user_bias, 0}, 1, out);
            if (!plan.has_velocity) continue;
            copy_rows(layer.velocity, layer.user_velocity, in, out);
            copy_rows(phase_matrix<T>{layer.bias_velocity, 0}, {layer.user_bias_velocity, 0}, 1, out);
        }
    }

    __device__ void store_weights() const {
        for (int l = 0; l < plan.depth; l++) {
            const phase_layer<P> &layer = plan.layer[l];
            const int in = layer.in, out = layer.out;
            copy_rows(layer.user_weight, layer.weight, in, out);
            copy_rows(phase_matrix<T>{layer.user_bias, 0}, {layer.bias, 0}, 1, out);
            if (!plan.has_velocity) continue;
            copy_rows(layer.user_velocity, layer.velocity, in, out);
            copy_rows(phase_matrix<T>{layer.user_bias_velocity, 0}, {layer.bias_velocity, 0}, 1, out);
        }
    }
};

#endif
