/* Engine fused, the form for any network: a step is a list of phases, a phase a list of tiles, and the blocks
   meet between phases.

   Phases     forward, layer after layer but the last: tiles of Y = act(X W + b) turn: a block has a row of
              the batch, or a warp where blocks have several: last layer, loss, and the way back through the
              last layer. Beside it the next batch is gathered. back, layer after layer: tiles of dZ = (dZ'
              W^T) act'(Z) update: tiles of all dW = X^T dZ, each with its SGD in the write-back; biases; the
              tally That is 2 L - 1 meetings a step of L layers (2 of one). Updates come last, so that no
              weight changes while it is read.
   Padding    while the kernel runs, weights are in copies of its own, and these and all that it computes are
              padded with zeros to whole tiles: no bound is looked at inside. (A step is thousands of
              instructions, most of which are not multiply-adds if one lets them; a kernel with bounds took
              twice as long.)
   Precision  tf32 and bf16: tiles on tensor cores (fused_mma.cuh). All that is kept, summed and updated is
              float32, and so is the turn, which is latency and no arithmetic: its rows are one block's each.
   Bound by   small batches: meetings (1.1 us each) and latency. 784-512-512-10 at batch 128: 410 MFLOP a
              step, 7 us at 59 TFLOP/s; about 60 MB through the L2 cache, 12 us; 5 meetings. See
              docs/performance.md.
   Same bits  whenever the same GPU runs it: every sum has one order. */
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/persistent/fused.cuh"
#include "kernels/cuda/persistent/mma.cuh"
#include "kernels/cuda/persistent/tiled.cuh"
#include "kernels/cuda/persistent/turn.cuh"
#include "kernels/cuda/persistent/stage_profile.cuh"

static const int MOST_CLASSES = 128; /* a thread each, of the smallest block */

/* Steps first .. end - 1; it stops after one whose loss is not finite, which changes no weight. */
template <typename P>
__global__ void __launch_bounds__(32 * P::WARPS, 1)
    phases_kernel(const __grid_constant__ phase_plan<P> plan, size_t first, size_t end) {
    extern __shared__ double2 memory[];
    worker<P> me = {plan, reinterpret_cast<typename P::real *>(memory), 0, first, 0};
    const int depth = plan.depth;
    bool bad = false;
    if (plan.tally->bad_step) return; /* as every update after a bad step */
    me.load_weights();
    me.gather(first, 0);
    me.gather_labels(first);
    me.meet_all();
    step_laps laps;
    laps.start();
    for (; me.step < end && !bad; me.step++) {
        me.rows = me.rows_of(me.step);
        for (int l = 0; l < depth - 1; l++) {
            me.forward(l);
            laps.lap(l ? 2 : 0);
            me.meet_all();
            laps.lap(l ? 3 : 1);
        }
        me.turn(me.step + 1 < end);
        laps.lap(4);
        me.meet_all();
        laps.lap(5);
        bad = __ldcg(&plan.control->bad); /* all blocks alike */
        for (int l = depth - 2; l > 0 && !bad; l--) {
            me.back(l);
            laps.lap(6);
            me.meet_all();
            laps.lap(7);
        }
        if (!bad) me.update();
        laps.lap(8);
        me.count_up(bad);
        me.meet_all();
        laps.lap(9);
    }
    laps.print("phases", end - first);
    me.store_weights();
}

/* --- on the host --- */

struct phases_state {
    tuned_context *context;
    fused_network network;
    void *plan;   /* a phase_plan */
    void *memory; /* of the GPU */
    phase_control *control;
    int blocks, warps;
    size_t shared_bytes; /* of a block */
};

/* Calls function<P>() with how this network multiplies. */
template <typename F> static void with_product(const fused_network *network, F function) {
    if (network->dtype == GEMM_F64) return function.template operator()<fma_product<double>>();
    if (network->precision == GEMM_TF32) return function.template operator()<mma_product<tf32>>();
    if (network->precision == GEMM_MIXED_BF16) return function.template operator()<mma_product<bf16>>();
    return function.template operator()<fma_product<float>>();
}

/* 0: not even the smallest block fits. */
template <typename P> static int warps_for(const tuned_context *context) {
    int warps = P::WARPS;
    while (warps * 32 >= MOST_CLASSES && context->shared_bytes < warps * P::SHARED) warps /= 2;
    return warps * 32 >= MOST_CLASSES ? warps : 0;
}

static size_t padded(size_t length) {
    return (length + WARP_M - 1) / WARP_M * WARP_M;
}

/* Columns of a layer's output: the last one is no layer's input. */
static size_t columns_of(const fused_network &network, size_t l) {
    const size_t out = network.layer[l].out;
    return l + 1 < network.depth ? padded(out) : (out + WARP_N - 1) / WARP_N * WARP_N;
}

static size_t tiles_for(size_t m, size_t n, warp_shape shape) {
    return (size_t)tiles_along((int)padded(m), WARP_M << shape.m) *
           (size_t)tiles_along((int)n, WARP_N << shape.n);
}

/* Cycles of an SM for `tiles` tiles over `k`, dealt out to `blocks` blocks: the product over the longest
   share of k, and what it takes to start, add up and write. */
template <typename P> static double cycles_for(size_t tiles, warp_shape shape, size_t k, int blocks) {
    const double rows = WARP_M << shape.m, cols = WARP_N << shape.n, parts = 1 << shape.k;
    const double slabs = ceil((double)k / 16 / parts) * parts;
    return (double)((tiles + blocks - 1) / blocks) *
           (P::cycles(rows, cols, slabs * 16) + 1500 + rows * cols * parts / 16);
}

/* The best shape for `count` products of m[i] x n[i] over k, in one phase. */
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

/* Rows of the batch for a block, at most. */
static size_t rows_of_block(const fused_network &network, int blocks) {
    return (network.batch + blocks - 1) / blocks;
}

/* Shared memory of a block whose warps have a row each. */
template <typename P> static size_t bytes_by_warps(const fused_network &network, int warps) {
    const size_t last = network.depth - 1, in = network.layer[last].in;
    return sizeof(typename P::real) *
           turn_elements<typename P::real>(warps, in, padded(in), columns_of(network, last));
}

/* Does a warp have a row in the turn? */
template <typename P>
static bool warp_a_row(const tuned_context *context, const fused_network &network, int blocks, int warps) {
    return rows_of_block(network, blocks) > 1 &&
           bytes_by_warps<P>(network, warps) <= (size_t)context->shared_bytes;
}

/* Cycles of the turn. */
template <typename P>
static double cycles_of_turn(const tuned_context *context, const fused_network &network, int blocks,
                             int warps) {
    const size_t last = network.depth - 1, rows = rows_of_block(network, blocks);
    const double products = (double)(network.layer[last].in * network.layer[last].out) / 32;
    if (!warp_a_row<P>(context, network, blocks, warps)) return (double)rows * (3000 + 2 * products);
    return ceil((double)rows / warps) *
           (2500 + 6 * products * (double)(rows < (size_t)warps ? rows : warps) / 4);
}

/* Shapes for every phase; returns the cycles of a step, but for meetings. */
template <typename P>
static double shape_phases(const tuned_context *context, const fused_network *network, int blocks, int warps,
                           phase_shapes *shapes) {
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
    return cycles + cycles_of_turn<P>(context, *network, blocks, warps);
}

template <typename T> static void take(phase_matrix<T> *to, char *base, size_t *used, size_t elements) {
    to->at = (T *)fused_take(base, used, elements * sizeof(T));
}

template <typename O> static void take(mixed_matrix<O> *to, char *base, size_t *used, size_t elements) {
    to->at = (float *)fused_take(base, used, elements * sizeof(float));
    to->rounded = (O *)fused_take(base, used, elements * sizeof(O));
}

template <typename P> static size_t lay_out(const phases_state *state, phase_plan<P> *plan, char *base) {
    typedef typename P::real T;
    const fused_network &network = state->network;
    const size_t batch = padded(network.batch);
    size_t used = 0, ld = padded(network.features);
    plan->control = (phase_control *)fused_take(base, &used, sizeof *plan->control);
    plan->input_stride = batch * ld;
    typename P::matrix input;
    take(&input, base, &used, 2 * plan->input_stride);
    input.ld = (int)ld;
    for (size_t l = 0; l < network.depth; l++) {
        const fused_layer &layer = network.layer[l];
        phase_layer<P> &to = plan->layer[l];
        const size_t out = columns_of(network, l), weights = ld * out;
        to.weight.ld = to.velocity.ld = to.output.ld = to.grad.ld = (int)out;
        to.in = (int)layer.in;
        to.out = (int)layer.out;
        to.activation = layer.activation;
        to.user_weight = {(T *)layer.weight, (int)layer.ld};
        to.user_velocity = {(T *)layer.weight_velocity, (int)layer.ld};
        to.user_bias = (T *)layer.bias;
        to.user_bias_velocity = (T *)layer.bias_velocity;
        take(&to.weight, base, &used, weights);
        take(&to.velocity, base, &used, plan->has_velocity ? weights : 0);
        to.bias = (T *)fused_take(base, &used, out * sizeof(T));
        to.bias_velocity = (T *)fused_take(base, &used, out * sizeof(T));
        to.input = input;
        take(&to.output, base, &used, batch * out);
        to.pre = activation_needs_input(layer.activation)
                     ? (T *)fused_take(base, &used, batch * out * sizeof(T))
                     : to.output.at;
        take(&to.grad, base, &used, batch * out);
        input = to.output;
        ld = out;
    }
    plan->row_loss = (double *)fused_take(base, &used, batch * sizeof *plan->row_loss);
    plan->batch_labels = (uint8_t *)fused_take(base, &used, 2 * batch);
    plan->row_correct = (int *)fused_take(base, &used, batch * sizeof *plan->row_correct);
    return used;
}

template <typename P> static bool set_up(phases_state *state) {
    typedef typename P::real T;
    const fused_network &network = state->network;
    cuda_fault *fault = &state->context->fault;
    phase_plan<P> *plan = (phase_plan<P> *)calloc(1, sizeof *plan);
    if (!plan) return false;
    state->plan = plan;
    plan->depth = (int)network.depth;
    plan->batch = (int)network.batch;
    plan->padded_batch = (int)padded(network.batch);
    plan->features = (int)network.features;
    plan->quads = packs_fit(network.images, network.features, network.features, 4);
    plan->has_velocity = network.layer[0].weight_velocity != NULL;
    plan->momentum = (T)network.momentum;
    plan->weight_decay = (T)network.weight_decay;
    plan->range = network.range;
    plan->count = network.count;
    plan->images = network.images;
    plan->labels = network.labels;
    plan->order = network.order;
    plan->scalars = network.scalars;
    plan->losses = network.losses;
    plan->tally = network.tally;
    const fused_layer &last = network.layer[network.depth - 1];
    const size_t turn = sizeof(T) * (3 * 32 * state->warps + padded(last.in) +
                                     last.in * columns_of(network, network.depth - 1)),
                 most = (size_t)state->context->shared_bytes;
    plan->weights_fit = turn <= most;
    plan->warp_a_row = warp_a_row<P>(state->context, network, state->blocks, state->warps);
    state->shared_bytes = (size_t)P::SHARED * state->warps; /* of the tiles, and as much as the turn needs */
    if (plan->weights_fit && turn > state->shared_bytes) state->shared_bytes = turn;
    if (plan->warp_a_row && bytes_by_warps<P>(network, state->warps) > state->shared_bytes)
        state->shared_bytes = bytes_by_warps<P>(network, state->warps);
    shape_phases<P>(state->context, &network, state->blocks, state->warps, &plan->shapes);
    const size_t bytes = lay_out(state, plan, NULL);
    if (!fused_memory(state->context, &state->memory, bytes)) return false;
    lay_out(state, plan, (char *)state->memory);
    state->control = plan->control;
    const void *kernel = (const void *)phases_kernel<P>;
    return CUDA_TRY(fault, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                (int)state->shared_bytes)) &&
           CUDA_TRY(fault, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                cudaSharedmemCarveoutMaxL1)); /* the rest is cache */
}

static const double MEETING = 1.1e-6; /* seconds */

static double phases_estimate(const tuned_context *context, const fused_network *network, char *why,
                              size_t size) {
    phase_shapes shapes;
    if (network->layer[network->depth - 1].out > (size_t)MOST_CLASSES) {
        snprintf(why, size, "it takes up to %d classes", MOST_CLASSES);
        return 0;
    }
    if (network->precision != GEMM_TRUE && context->major < 8) {
        snprintf(why, size, "tf32 and bf16 take tensor cores of compute capability 8.0 and on");
        return 0;
    }
    double cycles = 0;
    with_product(network, [&]<typename P>() {
        const int warps = warps_for<P>(context), blocks = fused_processors(context, network);
        if (warps) cycles = shape_phases<P>(context, network, blocks, warps, &shapes);
        if (!warps)
            snprintf(why, size, "it needs %d bytes of shared memory a block", MOST_CLASSES / 32 * P::SHARED);
    });
    const double slower =
        network->dtype == GEMM_F64 ? 2 : 1.7; /* than the products alone, measured in float32 */
    return cycles > 0 ? slower * cycles / FUSED_CLOCK + MEETING * (double)(2 * network->depth - 1) : 0;
}

static void phases_close(void *opaque) {
    phases_state *state = (phases_state *)opaque;
    cudaFree(state->memory);
    free(state->plan);
    free(state);
}

static void *phases_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    return fused_make_state<phases_state>(context, network, why, size, phases_close,
                                          [&](phases_state *state) {
                                              bool ready = false;
                                              state->blocks = fused_processors(context, network);
                                              with_product(network, [&]<typename P>() {
                                                  state->warps = warps_for<P>(context);
                                                  ready = set_up<P>(state);
                                              });
                                              return ready;
                                          });
}

static size_t phases_run(void *opaque, size_t first, size_t count) {
    phases_state *state = (phases_state *)opaque;
    cuda_fault *fault = &state->context->fault;
    const cudaStream_t stream = state->context->stream;
    const void *kernel = NULL;
    with_product(&state->network, [&]<typename P>() { kernel = (const void *)phases_kernel<P>; });
    size_t end = first + count;
    void *arguments[] = {state->plan, &first, &end};
    const bool ran =
        CUDA_TRY(fault, cudaMemsetAsync(state->control, 0, sizeof *state->control, stream)) &&
        CUDA_TRY(fault, cudaLaunchCooperativeKernel(kernel, dim3(state->blocks), dim3(32 * state->warps),
                                                    arguments, state->shared_bytes, stream));
    return ran ? count : 0;
}

static void phases_describe(void *opaque, char *text, size_t size) {
    const phases_state *state = (const phases_state *)opaque;
    static const char *const cores[] = {"", ", tf32 on tensor cores", ", bf16 on tensor cores"};
    snprintf(text, size, "phases of tiles on %d blocks%s", state->blocks, cores[state->network.precision]);
}

const fused_form fused_phases = {phases_estimate, phases_open,     phases_close,
                                 phases_run,      phases_describe, "phases of tiles"};
