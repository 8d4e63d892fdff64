/* Tiled: the plan, and the stages of a step except the output layer (tiled_output.cuh). See tiled.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TILED_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TILED_CUH

#include <math.h>

#include "kernels/cuda/persistent/grid.cuh"
#include "kernels/cuda/persistent/persistent.cuh"
#include "kernels/cuda/persistent/tile.cuh"

namespace persistent::tiled {

template <typename P> struct layer_plan {
    typedef typename P::real T;
    int in, out; /* without padding */
    enum activation activation;
    typename P::matrix weight;                   /* [in][out] */
    typename P::matrix input;                    /* [batch][in]; of layer 0 the first of two buffers */
    typename P::matrix output, grad;             /* [batch][out] */
    padded_matrix<T> velocity;                   /* as weight */
    T *pre;                                      /* as output */
    T *bias, *bias_velocity;                     /* [out] */
    padded_matrix<T> user_weight, user_velocity; /* the network's own, without padding */
    T *user_bias, *user_bias_velocity;
};

struct tile_shapes {
    warp_shape forward[FUSED_MAX_LAYERS], back[FUSED_MAX_LAYERS], update;
};

/* 0 when a launch starts. */
struct launch_control {
    unsigned arrived; /* grid_barrier */
    int bad;          /* a loss of this launch is not finite */
};

template <typename P> struct plan : training_plan {
    typedef typename P::real T;
    int depth, padded_batch;
    int blocks, warps; /* of the launch; of a block */
    size_t shared_bytes;
    double cycles;    /* of an SM per step, without barriers */
    bool quads;       /* pixels of an image may be read 4 at a time */
    bool weights_fit; /* of the last layer, in shared memory */
    bool warp_a_row;  /* output layer: blocks have several rows, and each warp computes one */
    bool has_velocity;
    layer_plan<P> layer[FUSED_MAX_LAYERS];
    tile_shapes shapes;
    T momentum, weight_decay;
    size_t input_stride;   /* elements between the two buffers of the batch */
    double *row_loss;      /* [batch] */
    int *row_correct;      /* [batch] */
    uint8_t *batch_labels; /* [2][batch] */
    launch_control *control;
};

/* threadIdx.x, read anew: values derived from it do not occupy registers from step to step. */
__device__ inline int reread_thread_index() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* One thread of a block. */
template <typename P> struct block {
    typedef typename P::real T;
    typedef typename P::matrix matrix;
    static constexpr int W = WIDEST<T>;
    const tiled::plan<P> &plan;
    T *shared;
    unsigned barrier_target;
    int end, current, rows; /* of the launch; this step, and its rows */

    __device__ block(const tiled::plan<P> &plan, void *shared, int end)
        : plan(plan), shared((T *)shared), barrier_target(0), end(end) {}

    __device__ static int padded(int length) {
        return (length + WARP_M - 1) / WARP_M * WARP_M;
    }

    __device__ matrix input_of(int l, int step) const {
        matrix input = plan.layer[l].input;
        if (l == 0) input.skip(step % 2 * plan.input_stride);
        return input;
    }

    __device__ void barrier() {
        grid_barrier(&plan.control->arrived, barrier_target);
    }

    /* N pixels as real numbers. */
    template <int N> __device__ pack<T, N> numbers(pack<uint8_t, N> pixels) const {
        pack<T, N> values;
#pragma unroll
        for (int q = 0; q < N; q++)
            values.value[q] = T(input_scale(plan.range)) * (T(pixels.value[q]) - T(input_offset(plan.range)));
        return values;
    }

    /* The first image that this block gathers: counted from the last block, since the first ones have rows in
       the output layer. */
    __device__ static int first_image() {
        return gridDim.x - 1 - blockIdx.x;
    }

    /* Gathers the images of a step, without the first `skip` of this block: one row per warp, or per block if
       pixels cannot be read 4 at a time. */
    __device__ void gather(int step, int skip) const {
        const matrix to = input_of(0, step);
        const int count = plan.rows_of(step, end), thread = reread_thread_index(),
                  packed = plan.quads ? plan.features : 0, lane = plan.quads ? thread % 32 : thread,
                  row = plan.quads ? thread / 32 : 0, rows_per_pass = plan.quads ? blockDim.x / 32 : 1;
#pragma unroll 1
        for (int r = first_image() + (skip + row) * gridDim.x; r < count; r += rows_per_pass * gridDim.x) {
            const uint8_t *image =
                plan.images + (size_t)__ldg(plan.order + (size_t)step * plan.batch + r) * plan.features;
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

    __device__ uint8_t *labels_of(int step) const {
        return plan.batch_labels + step % 2 * plan.batch;
    }

    /* Gathers the labels of a step: the last block does it, since it has the least work. */
    __device__ void gather_labels(int step) const {
        const int count = plan.rows_of(step, end);
        if (blockIdx.x != gridDim.x - 1) return;
        for (int r = threadIdx.x; r < count; r += blockDim.x)
            labels_of(step)[r] = plan.labels[plan.order[(size_t)step * plan.batch + r]];
    }

    __device__ void forward(int l) const {
        const layer_plan<P> &layer = plan.layer[l];
        block_tiles<P, true, false>(
            0, input_of(l, current), layer.weight, plan.padded_batch, layer.grad.ld, padded(layer.in),
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
    __device__ void backward(int l) const {
        const layer_plan<P> &layer = plan.layer[l], &below = plan.layer[l - 1];
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

    /* SGD (kernels/ops.h) of N neighbours: returns the new weights. */
    template <int N>
    __device__ pack<T, N> sgd_update(T rate, pack<T, N> gradient, const T *weight, T *velocity) const {
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

    /* The update of 32 biases of a layer: their gradients are the column sums of dL/dZ. */
    __device__ void update_bias(const layer_plan<P> &layer, T rate, int first) const {
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
            pack_at<1>(layer.bias + col) = sgd_update(rate, sum, layer.bias + col, layer.bias_velocity + col);
        }
        __syncthreads();
    }

    __device__ void update() const {
        const T rate = T(plan.scalars[current].learning_rate);
        const int blocks = gridDim.x, k = (rows + P::SLAB - 1) / P::SLAB * P::SLAB;
        int tile = 0;
#pragma unroll 1
        for (int l = 0; l < plan.depth; l++) {
            const layer_plan<P> &layer = plan.layer[l];
            tile = block_tiles<P, false, false>(
                tile, input_of(l, current), layer.grad, padded(layer.in), layer.grad.ld, k,
                plan.shapes.update, shared, [&](int i, int j, pack<T, W> sum) {
                    const size_t at = (size_t)i * layer.weight.ld + j;
                    layer.weight.put(i, j,
                                     sgd_update(rate, sum, layer.weight.at + at, layer.velocity.at + at));
                });
        }
        /* counts down to 0: this block's biases */
        int bias_block = ((int)blockIdx.x + blocks - tile % blocks) % blocks;
#pragma unroll 1
        for (int l = 0; l < plan.depth; l++)
#pragma unroll 1
            for (int col = 0; col < plan.layer[l].out; col += 32) {
                if (bias_block == 0) update_bias(plan.layer[l], rate, col);
                bias_block = bias_block == 0 ? blocks - 1 : bias_block - 1;
            }
    }

    /* Adds the step to the tally: the last block does it, since it has the least work. */
    __device__ void add_step(bool bad) const {
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
        plan.losses[current] = loss / rows;
    }

    /* --- weights --- */

    /* Copies rows of `cols` elements between the network's matrix and the padded one. */
    template <typename M>
    __device__ void copy_rows(const M &to, const padded_matrix<T> &from, int count, int cols) const {
        for (int r = blockIdx.x; r < count; r += gridDim.x)
            for (int j = threadIdx.x; j < cols; j += blockDim.x)
                to.put(r, j, pack_at<1>(from.at + (size_t)r * from.ld + j));
    }

    /* Calls copy(padded, network's, rows, columns) for all parameters and velocities. */
    template <typename C> __device__ void all_weights(C copy) const {
        for (int l = 0; l < plan.depth; l++) {
            const layer_plan<P> &layer = plan.layer[l];
            const int in = layer.in, out = layer.out;
            copy(layer.weight, layer.user_weight, in, out);
            copy(padded_matrix<T>{layer.bias, 0}, padded_matrix<T>{layer.user_bias, 0}, 1, out);
            if (!plan.has_velocity) continue;
            copy(layer.velocity, layer.user_velocity, in, out);
            copy(padded_matrix<T>{layer.bias_velocity, 0}, padded_matrix<T>{layer.user_bias_velocity, 0}, 1,
                 out);
        }
    }

    __device__ void load_weights() const {
        all_weights([&](auto padded, auto own, int count, int cols) { copy_rows(padded, own, count, cols); });
    }

    __device__ void store_weights() const {
        all_weights([&](auto padded, auto own, int count, int cols) { copy_rows(own, padded, count, cols); });
    }
};

} // namespace persistent::tiled

#endif
