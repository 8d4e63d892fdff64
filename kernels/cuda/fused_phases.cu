/* Engine fused, the form for any network: a step is a list of phases, a phase a list of tiles, and the blocks meet between phases.

   Phases     forward, layer after layer but the last: tiles of Y = act(X W + b)
              turn: a block has a row of the batch: last layer, loss, and the way back through the last layer. Beside it the next batch
              is gathered.
              back, layer after layer: tiles of dZ = (dZ' W^T) act'(Z)
              update: tiles of all dW = X^T dZ, each with its SGD in the write-back; biases; the tally
              That is 2 L - 1 meetings a step of L layers (2 of one). Updates come last, so that no weight changes while it is read.
   Padding    while the kernel runs, weights are in copies of its own, and these and all that it computes are padded with zeros to whole
              tiles: no bound is looked at inside. (A step is thousands of instructions, most of which are not multiply-adds if one
              lets them; a kernel with bounds took twice as long.)
   Bound by   small batches: meetings (1.1 us each) and latency. 784-512-512-10 at batch 128: 410 MFLOP a step, 7 us at 59 TFLOP/s;
              about 60 MB through the L2 cache, 12 us; 5 meetings. See docs/performance.md.
   Same bits  whenever the same GPU runs it: every sum has one order. */
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/fused_phases.cuh"
#include "kernels/cuda/laps.cuh"

static const int MOST_CLASSES = 128; /* a thread each, of the smallest block */

/* Steps first .. end - 1; it stops after one whose loss is not finite, which changes no weight. */
template <typename T>
__global__ void __launch_bounds__(32 * MOST_WARPS<T>, 1)
    phases_kernel(const __grid_constant__ phase_plan<T> plan, size_t first, size_t end) {
    extern __shared__ double2 memory[];
    worker<T> me = {plan, reinterpret_cast<T *>(memory), 0, first, 0};
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
};

/* 0: not even the smallest block fits. */
static int warps_for(const tuned_context *context, enum gemm_dtype dtype) {
    int warps = dtype == GEMM_F32 ? MOST_WARPS<float> : MOST_WARPS<double>;
    while (warps * 32 >= MOST_CLASSES && context->shared_bytes < (int)shared_for(warps)) warps /= 2;
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

/* Cycles of an SM for `tiles` tiles over `k`, dealt out to `blocks` blocks: the multiply-adds of the longest share of k, at two thirds of
   the rate, and what it takes to start, add up and write. */
static double cycles_for(size_t tiles, warp_shape shape, size_t k, int blocks) {
    const double area = (double)(WARP_M << shape.m) * (WARP_N << shape.n), parts = 1 << shape.k;
    const double slabs = ceil((double)k / 16 / parts) * parts;
    return (double)((tiles + blocks - 1) / blocks) *
           (1.5 * area * slabs * 16 / 128 + 1500 + area * parts / 16);
}

/* The best shape for `count` products of m[i] x n[i] over k, in one phase. */
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
            const double needed = cycles_for(tiles, shape, k, blocks);
            if (needed < least) {
                least = needed;
                best = shape;
            }
        }
    *cycles += least;
    return best;
}

/* Shapes for every phase; returns the cycles of a step, but for meetings. */
static double shape_phases(const fused_network *network, int blocks, int warps, phase_shapes *shapes) {
    size_t in[FUSED_MAX_LAYERS], out[FUSED_MAX_LAYERS];
    double cycles = 0;
    for (size_t l = 0; l < network->depth; l++) {
        in[l] = network->layer[l].in;
        out[l] = network->layer[l].out;
        if (l + 1 < network->depth)
            shapes->forward[l] = best_shape(1, &network->batch, &out[l], in[l], blocks, warps, &cycles);
        if (l > 0 && l + 1 < network->depth)
            shapes->back[l] = best_shape(1, &network->batch, &in[l], out[l], blocks, warps, &cycles);
    }
    shapes->update = best_shape(network->depth, in, out, network->batch, blocks, warps, &cycles);
    const size_t last = network->depth - 1, rows = (network->batch + blocks - 1) / blocks;
    return cycles + (double)rows * (3000 + 2.0 * (double)(in[last] * out[last]) / 32);
}

template <typename T> static size_t lay_out(const phases_state *state, phase_plan<T> *plan, char *base) {
    const fused_network &network = state->network;
    const size_t batch = padded(network.batch);
    size_t used = 0, ld = padded(network.features);
    plan->control = (phase_control *)fused_take(base, &used, sizeof *plan->control);
    plan->input_stride = batch * ld;
    T *input = (T *)fused_take(base, &used, 2 * plan->input_stride * sizeof(T));
    for (size_t l = 0; l < network.depth; l++) {
        const fused_layer &layer = network.layer[l];
        phase_layer<T> &to = plan->layer[l];
        const size_t out = columns_of(network, l), bytes = batch * out * sizeof(T),
                     weights = ld * out * sizeof(T);
        to.in = (int)layer.in;
        to.out = (int)layer.out;
        to.activation = layer.activation;
        to.user_weight = (T *)layer.weight;
        to.user_velocity = (T *)layer.weight_velocity;
        to.user_bias = (T *)layer.bias;
        to.user_bias_velocity = (T *)layer.bias_velocity;
        to.weight = {(T *)fused_take(base, &used, weights), (int)out};
        to.velocity = {(T *)fused_take(base, &used, plan->has_velocity ? weights : 0), (int)out};
        to.bias = (T *)fused_take(base, &used, out * sizeof(T));
        to.bias_velocity = (T *)fused_take(base, &used, out * sizeof(T));
        to.input = {input, (int)ld};
        to.output = (T *)fused_take(base, &used, bytes);
        to.pre = activation_needs_input(layer.activation) ? (T *)fused_take(base, &used, bytes) : to.output;
        to.grad = {(T *)fused_take(base, &used, bytes), (int)out};
        input = to.output;
        ld = out;
    }
    plan->row_loss = (double *)fused_take(base, &used, batch * sizeof *plan->row_loss);
    plan->batch_labels = (uint8_t *)fused_take(base, &used, 2 * batch);
    plan->row_correct = (int *)fused_take(base, &used, batch * sizeof *plan->row_correct);
    return used;
}

template <typename T> static bool set_up(phases_state *state) {
    const fused_network &network = state->network;
    const cudaStream_t stream = state->context->stream;
    cuda_fault *fault = &state->context->fault;
    phase_plan<T> *plan = (phase_plan<T> *)calloc(1, sizeof *plan);
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
    plan->count = network.count;
    plan->images = network.images;
    plan->labels = network.labels;
    plan->order = network.order;
    plan->rates = network.rates;
    plan->losses = network.losses;
    plan->tally = network.tally;
    const fused_layer &last = network.layer[network.depth - 1];
    const size_t turn =
        3 * 32 * state->warps + padded(last.in) + last.in * columns_of(network, network.depth - 1);
    plan->weights_fit = turn * sizeof(T) <= shared_for(state->warps);
    shape_phases(&network, state->blocks, state->warps, &plan->shapes);
    const size_t bytes = lay_out(state, plan, NULL);
    if (!CUDA_TRY(fault, cudaMalloc(&state->memory, bytes)) ||
        !CUDA_TRY(fault, cudaMemsetAsync(state->memory, 0, bytes, stream)))
        return false;
    lay_out(state, plan, (char *)state->memory);
    state->control = plan->control;
    return CUDA_TRY(fault, cudaStreamSynchronize(stream)) &&
           CUDA_TRY(fault, cudaFuncSetAttribute((const void *)phases_kernel<T>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                (int)shared_for(state->warps)));
}

static const double MEETING = 1.1e-6; /* seconds */

static double phases_estimate(const tuned_context *context, const fused_network *network, char *why,
                              size_t size) {
    phase_shapes shapes;
    if (network->dtype != GEMM_F32 && network->dtype != GEMM_F64) {
        snprintf(why, size, "it has float32 and float64 only");
        return 0;
    }
    if (network->layer[network->depth - 1].out > (size_t)MOST_CLASSES) {
        snprintf(why, size, "it takes up to %d classes", MOST_CLASSES);
        return 0;
    }
    const int warps = warps_for(context, network->dtype);
    if (!warps) {
        snprintf(why, size, "it needs %zu bytes of shared memory a block", shared_for(MOST_CLASSES / 32));
        return 0;
    }
    const double slower = network->dtype == GEMM_F64 ? 2 : 1.7; /* than the arithmetic alone, measured */
    return slower * shape_phases(network, context->processors, warps, &shapes) / FUSED_CLOCK +
           MEETING * (double)(2 * network->depth - 1);
}

static void phases_close(void *opaque) {
    phases_state *state = (phases_state *)opaque;
    cudaFree(state->memory);
    free(state->plan);
    free(state);
}

static void *phases_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    phases_state *state = (phases_state *)calloc(1, sizeof *state);
    if (!state) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    state->context = context;
    state->network = *network;
    state->blocks = context->processors;
    state->warps = warps_for(context, network->dtype);
    if (network->dtype == GEMM_F32 ? set_up<float>(state) : set_up<double>(state)) return state;
    snprintf(why, size, "%s", context->fault.message[0] ? context->fault.message : "out of memory");
    phases_close(state);
    return NULL;
}

static size_t phases_run(void *opaque, size_t first, size_t count) {
    phases_state *state = (phases_state *)opaque;
    cuda_fault *fault = &state->context->fault;
    const cudaStream_t stream = state->context->stream;
    const void *kernel = state->network.dtype == GEMM_F32 ? (const void *)phases_kernel<float>
                                                          : (const void *)phases_kernel<double>;
    size_t end = first + count;
    void *arguments[] = {state->plan, &first, &end};
    const bool ran =
        CUDA_TRY(fault, cudaMemsetAsync(state->control, 0, sizeof *state->control, stream)) &&
        CUDA_TRY(fault, cudaLaunchCooperativeKernel(kernel, dim3(state->blocks), dim3(32 * state->warps),
                                                    arguments, shared_for(state->warps), stream));
    return ran ? count : 0;
}

static void phases_describe(void *opaque, char *text, size_t size) {
    const phases_state *state = (const phases_state *)opaque;
    snprintf(text, size, "phases of tiles on %d blocks", state->blocks);
}

const fused_form fused_phases = {phases_estimate, phases_open, phases_close, phases_run, phases_describe};
