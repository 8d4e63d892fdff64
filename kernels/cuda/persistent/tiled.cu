/* Engine fused, the form "tiled", for any network: a step is a sequence of stages separated by grid barriers,
   and a stage is a list of tiles that the thread blocks share. `./train --layers 784-40-30-20-10 --backend
   cuda-tuned` runs it.

   Forward    layer by layer without the last: tiles of Y = act(X W + b).
   Output     last layer, loss, gradients of its input (tiled_output.cuh); the next batch is gathered.
   Backward   layer by layer: tiles of dZ = (dZ' W^T) act'(Z).
   Update     tiles of all dW = X^T dZ, with SGD as the epilogue; biases; tally. It comes last, so that no
              weight changes while it is read.
   Barriers   2 L - 1 per step of L layers (2 if L = 1).
   Padding    the kernel trains padded copies of the weights, and pads all matrices with zeros to whole tiles:
              no loop checks bounds. (With bounds checks a step took twice as long.)
   Precision  tf32 and bf16 use the tensor cores (mma.cuh). Sums, state tensors and the output layer are
              float32.
   Results    the same bits on the same GPU: every sum has one order.
   Bound by   barriers (1.1 us each) and latency, with small batches. 784-512-512-10 at batch 128: 410 MFLOP
              per step, 7 us at 59 TFLOP/s; about 60 MB through the L2 cache, 12 us; 5 barriers. Measured:
              docs/gpu-engines.md. */
#include <math.h>

#include "kernels/cuda/persistent/mma.cuh"
#include "kernels/cuda/persistent/tiled_output.cuh"

namespace persistent::tiled {

static const int MAX_CLASSES = 128; /* one thread each, in the smallest block */

template <typename P> struct trainer : output_block<P> {
    typedef tiled::plan<P> plan_type;
    static constexpr int MAX_THREADS = 32 * P::WARPS, SHARED_ALIGNMENT = 16;
    using block<P>::plan, block<P>::end, block<P>::barrier;

    __device__ trainer(const plan_type &plan, void *shared, int end) : output_block<P>(plan, shared, end) {}

    __device__ void load(int first, uint32_t) {
        this->load_weights();
        this->gather(first, 0);
        this->gather_labels(first);
        barrier();
    }

    __device__ bool step(int step, uint32_t, stage_profile &profile) {
        this->current = step;
        this->rows = plan.rows_of(step, end);
        for (int l = 0; l < plan.depth - 1; l++) {
            this->forward(l);
            profile.stage(l ? 2 : 0);
            barrier();
            profile.stage(l ? 3 : 1);
        }
        this->output_layer();
        profile.stage(4);
        barrier();
        profile.stage(5);
        const bool bad = __ldcg(&plan.control->bad); /* the same in all blocks */
        for (int l = plan.depth - 2; l > 0 && !bad; l--) {
            this->backward(l);
            profile.stage(6);
            barrier();
            profile.stage(7);
        }
        if (!bad) this->update();
        profile.stage(8);
        this->add_step(bad);
        barrier();
        profile.stage(9);
        return !bad;
    }

    __device__ void finish(int, int) const {
        this->store_weights();
    }
};

/* --- the split --- */

/* Calls function<P>() with the product for the precision of this network. */
template <typename F> static void with_product(const fused_network *network, F function) {
    if (network->dtype == GEMM_F64) return function.template operator()<fma_product<double>>();
    if (network->precision == GEMM_TF32) return function.template operator()<mma_product<tf32>>();
    if (network->precision == GEMM_MIXED_BF16) return function.template operator()<mma_product<bf16>>();
    return function.template operator()<fma_product<float>>();
}

/* 0 if not even the smallest block fits. */
template <typename P> static int warps_for(const tuned_context *context) {
    int warps = P::WARPS;
    while (warps * 32 >= MAX_CLASSES && context->shared_bytes < warps * P::SHARED) warps /= 2;
    return warps * 32 >= MAX_CLASSES ? warps : 0;
}

static size_t padded(size_t length) {
    return (length + WARP_M - 1) / WARP_M * WARP_M;
}

/* Columns of a layer's output: that of the last layer is not the input of another. */
static size_t columns_of(const fused_network &network, size_t l) {
    const size_t out = network.layer[l].out;
    return l + 1 < network.depth ? padded(out) : (out + WARP_N - 1) / WARP_N * WARP_N;
}

static size_t tiles_for(size_t m, size_t n, warp_shape shape) {
    return (size_t)tiles_along((int)padded(m), WARP_M << shape.m) *
           (size_t)tiles_along((int)n, WARP_N << shape.n);
}

/* Cycles of an SM for `tiles` tiles over `k` on `blocks` blocks: the product over the longest share of k, and
   the overhead to start, add and write. */
template <typename P> static double cycles_for(size_t tiles, warp_shape shape, size_t k, int blocks) {
    const double rows = WARP_M << shape.m, cols = WARP_N << shape.n, parts = 1 << shape.k;
    const double slabs = ceil((double)k / 16 / parts) * parts;
    return (double)((tiles + blocks - 1) / blocks) *
           (P::cycles(rows, cols, slabs * 16) + 1500 + rows * cols * parts / 16);
}

/* The best shape for `count` products of m[i] x n[i] over k, in one stage. */
template <typename P>
static warp_shape best_shape(size_t count, const size_t *m, const size_t *n, size_t k, int blocks, int warps,
                             double *cycles) {
    int all = 0;
    while (2 << all <= warps) all++;
    warp_shape best = {0, 0, all};
    double least = INFINITY;
    for (int down = 0; down <= all; down++)
        for (int across = down; down + across <= all && across <= down + 1; across++) {
            const warp_shape shape = {down, across, all - down - across};
            size_t tiles = 0;
            for (size_t i = 0; i < count; i++) tiles += tiles_for(m[i], n[i], shape);
            const double needed = cycles_for<P>(tiles, shape, k, blocks);
            if (needed < least) {
                least = needed;
                best = shape;
            }
        }
    *cycles += least;
    return best;
}

/* The most rows of the batch in a block. */
static size_t rows_of_block(const fused_network &network, int blocks) {
    return (network.batch + blocks - 1) / blocks;
}

/* Shared memory of a block whose warps compute one row each. */
template <typename P> static size_t bytes_by_warps(const fused_network &network, int warps) {
    const size_t last = network.depth - 1, in = network.layer[last].in;
    return sizeof(typename P::real) *
           output_smem_elements<typename P::real>(warps, in, padded(in), columns_of(network, last));
}

/* Whether the output layer computes one row per warp. */
template <typename P>
static bool warp_a_row(const tuned_context *context, const fused_network &network, int blocks, int warps) {
    return rows_of_block(network, blocks) > 1 &&
           bytes_by_warps<P>(network, warps) <= (size_t)context->shared_bytes;
}

/* Cycles of the output layer. */
template <typename P>
static double cycles_of_output_layer(const tuned_context *context, const fused_network &network, int blocks,
                                     int warps) {
    const size_t last = network.depth - 1, rows = rows_of_block(network, blocks);
    const double products = (double)(network.layer[last].in * network.layer[last].out) / 32;
    if (!warp_a_row<P>(context, network, blocks, warps)) return (double)rows * (3000 + 2 * products);
    return ceil((double)rows / warps) *
           (2500 + 6 * products * (double)(rows < (size_t)warps ? rows : warps) / 4);
}

/* Shapes for all stages; returns the cycles of a step without grid barriers. */
template <typename P>
static double choose_shapes(const tuned_context *context, const fused_network *network, int blocks, int warps,
                            tile_shapes *shapes) {
    size_t in[FUSED_MAX_LAYERS], out[FUSED_MAX_LAYERS];
    double cycles = 0;
    for (size_t l = 0; l < network->depth; l++) {
        in[l] = network->layer[l].in;
        out[l] = network->layer[l].out;
        if (l + 1 < network->depth)
            shapes->forward[l] = best_shape<P>(1, &network->batch, &out[l], in[l], blocks, warps, &cycles);
        if (l > 0 && l + 1 < network->depth)
            shapes->back[l] = best_shape<P>(1, &network->batch, &in[l], out[l], blocks, warps, &cycles);
    }
    shapes->update = best_shape<P>(network->depth, in, out, network->batch, blocks, warps, &cycles);
    return cycles + cycles_of_output_layer<P>(context, *network, blocks, warps);
}

/* --- on the host --- */

static const double BARRIER_SECONDS = 1.1e-6;

template <typename T> static void take(memory_layout &layout, padded_matrix<T> *to, size_t elements) {
    layout.take(&to->at, elements);
}

template <typename O> static void take(memory_layout &layout, mixed_matrix<O> *to, size_t elements) {
    layout.take(&to->at, elements);
    layout.take(&to->rounded, elements);
}

template <typename P> struct form {
    typedef tiled::plan<P> plan;
    typedef typename P::real T;

    static bool arrange(const tuned_context *context, const fused_network *network, plan *plan, char *why,
                        size_t size) {
        const size_t columns = columns_of(*network, network->depth - 1), most = (size_t)context->shared_bytes;
        const fused_layer &last = network->layer[network->depth - 1];
        const int warps = warps_for<P>(context);
        if (last.out > (size_t)MAX_CLASSES) {
            snprintf(why, size, "it takes up to %d classes", MAX_CLASSES);
            return false;
        }
        if (network->precision != GEMM_TRUE && context->major < 8) {
            snprintf(why, size, "tf32 and bf16 need tensor cores of compute capability 8.0");
            return false;
        }
        if (!warps) {
            snprintf(why, size, "it needs %d bytes of shared memory per block", MAX_CLASSES / 32 * P::SHARED);
            return false;
        }
        plan->blocks = fused_processors(context, network);
        plan->warps = warps;
        plan->depth = (int)network->depth;
        plan->take_inputs(network);
        plan->padded_batch = (int)padded(network->batch);
        plan->quads = packs_fit(network->images, network->features, network->features, 4);
        plan->has_velocity = network->layer[0].weight_velocity != NULL;
        plan->momentum = (T)network->momentum;
        plan->weight_decay = (T)network->weight_decay;
        const size_t by_blocks = sizeof(T) * (3 * 32 * warps + padded(last.in) + last.in * columns),
                     by_warps = bytes_by_warps<P>(*network, warps);
        plan->weights_fit = by_blocks <= most;
        plan->warp_a_row = warp_a_row<P>(context, *network, plan->blocks, warps);
        plan->shared_bytes = (size_t)P::SHARED * warps; /* of the tiles; the output layer may need more */
        if (plan->weights_fit && by_blocks > plan->shared_bytes) plan->shared_bytes = by_blocks;
        if (plan->warp_a_row && by_warps > plan->shared_bytes) plan->shared_bytes = by_warps;
        plan->cycles = choose_shapes<P>(context, network, plan->blocks, warps, &plan->shapes);
        return true;
    }

    static double seconds(const tuned_context *, const fused_network *network, const plan &plan) {
        const double slower = network->dtype == GEMM_F64 ? 2 : 1.7; /* than plan.cycles; measured for f32 */
        return slower * plan.cycles / FUSED_CLOCK + BARRIER_SECONDS * (double)(2 * network->depth - 1);
    }

    static void lay_out(const fused_network *network, plan *plan, memory_layout &layout) {
        const size_t batch = padded(network->batch);
        size_t ld = padded(network->features);
        layout.take(&plan->control, 1);
        plan->input_stride = batch * ld;
        typename P::matrix input;
        take(layout, &input, 2 * plan->input_stride);
        input.ld = (int)ld;
        for (size_t l = 0; l < network->depth; l++) {
            const fused_layer &layer = network->layer[l];
            layer_plan<P> &to = plan->layer[l];
            const size_t out = columns_of(*network, l), weights = ld * out;
            to.weight.ld = to.velocity.ld = to.output.ld = to.grad.ld = (int)out;
            to.in = (int)layer.in;
            to.out = (int)layer.out;
            to.activation = layer.activation;
            to.user_weight = {(T *)layer.weight, (int)layer.ld};
            to.user_velocity = {(T *)layer.weight_velocity, (int)layer.ld};
            to.user_bias = (T *)layer.bias;
            to.user_bias_velocity = (T *)layer.bias_velocity;
            take(layout, &to.weight, weights);
            take(layout, &to.velocity, plan->has_velocity ? weights : 0);
            layout.take(&to.bias, out);
            layout.take(&to.bias_velocity, out);
            to.input = input;
            take(layout, &to.output, batch * out);
            to.pre = to.output.at;
            if (activation_needs_input(layer.activation)) layout.take(&to.pre, batch * out);
            take(layout, &to.grad, batch * out);
            input = to.output;
            ld = out;
        }
        layout.take(&plan->row_loss, batch);
        layout.take(&plan->batch_labels, 2 * batch);
        layout.take(&plan->row_correct, batch);
    }

    static kernel_launch launch(const plan &plan) {
        return {(const void *)train_steps<trainer<P>>,
                plan.blocks,
                32 * plan.warps,
                1,
                plan.shared_bytes,
                true,
                plan.control,
                sizeof *plan.control};
    }

    static void describe(const plan &plan, char *text, size_t size) {
        snprintf(text, size, "tiled on %d blocks%s", plan.blocks, P::DESCRIPTION);
    }
};

static double estimate(const tuned_context *context, const fused_network *network, char *why, size_t size) {
    double seconds = 0;
    with_product(network,
                 [&]<typename P>() { seconds = instance<form<P>>::estimate(context, network, why, size); });
    return seconds;
}

static fused_instance *open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    fused_instance *opened = NULL;
    with_product(network,
                 [&]<typename P>() { opened = instance<form<P>>::open(context, network, why, size); });
    return opened;
}

} // namespace persistent::tiled

const fused_form fused_tiled = {"tiled", persistent::tiled::estimate, persistent::tiled::open};
