/* Engine fused, the form for two hidden layers: weights stay in registers, and a step is three meetings of the blocks.

   Layer 1    a block has 8 units and half of the pixels: its part of W1 (in registers, and as bfloat16 in shared memory) and of the batch, as
              bytes. Products of pixels run on the tensor cores in true float32 (fused_exact.cuh). The two blocks of the same units
              exchange their sums as packets (grid.cuh).
   Layer 2    a block has a 16 x 32 tile of H2, another of dZ1, and a 64 x 32 tile of W2 to update. W2 is read from copies in global memory:
              columns for H2 while layer 1 is exchanged, rows for dZ1 while the others finish H2.
   Turn       every block works out logits, loss and dZ2 of its 16 rows for itself, from all of their H2.
   Step       forward 1 | meet | forward 2 | the 16 blocks with the same rows meet | turn, back to dZ1 | meet | update 1, 2, 3
              Those who await `weights`, written in the update, do so after forward 1: nobody waits for long.
   Buffers    H1 has two, by step: it is written while others still read that of the step before for their update. All others are written
              after a meeting that follows their last use.
   Floor      784-512-512-10 at batch 128, of 128 blocks, in cycles: layer 1 about 1200 forward and 1200 back on the tensor cores; W2 2048
              multiply-adds each way and 2048 for its gradient; 330 KB through the L2 cache a block at 20 bytes a cycle, half of it behind
              other work; three meetings of 2000. Measured: 60,000, see docs/performance.md. */
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/fused_pair_first.cuh"
#include "kernels/cuda/fused_pair_second.cuh"
#include "kernels/cuda/laps.cuh"

/* Steps first .. end - 1; `tag` is that of the first, and of no packet that is there. */
__global__ void __launch_bounds__(THREADS, 1)
    pair_kernel(const __grid_constant__ pair_plan plan, size_t first, size_t end, uint32_t tag) {
    extern __shared__ float4 memory[];
    float *shared = reinterpret_cast<float *>(memory);
    pair_first one(plan, shared);
    pair_second two(plan, shared);
    pair_control *control = plan.control;
    const unsigned t = threadIdx.x;
    if (plan.tally.tally->bad_step) return; /* as every update after a bad step */
    for (size_t i = t; i < place::bytes(plan.packs) / sizeof *shared; i += THREADS) shared[i] = 0;
    __syncthreads();
    one.load();
    two.load();
    one.publish();
    two.publish();
    arrive(&control->weights.arrived);
    const auto image_of = [&](size_t step) {
        return step < end && (int)t < plan.tally.rows_of(step) ? plan.order[step * plan.batch + t] : 0;
    };
    const auto label_of = [&](size_t step) {
        const int row = two.down * OWN + t / CLASSES;
        return t < OWN * CLASSES ? plan.labels[one.images_of(step)[row]] : 0;
    };
    if (t < ROWS) one.images_of(first)[t] = image_of(first);
    __syncthreads();
    one.copy_pixels(first, plan.tally.rows_of(first));
    __pipeline_commit();
    two.label = label_of(first);

    bool bad = false;
    size_t step = first;
    step_laps laps;
    laps.start();
    for (unsigned n = 1; step < end && !bad; step++, n++, tag++) {
        const int rows = plan.tally.rows_of(step);
        const unsigned met = n * gridDim.x;
        const float rate = (float)plan.scalars[step].learning_rate;
        two.wait_for_copies(0); /* the pixels */
        laps.lap(0);
        one.forward();
        laps.lap(1);
        await(&control->weights.arrived, met);
        laps.lap(2);
        two.fetch_columns();
        one.activate_half(step, tag);
        arrive(&control->first.arrived);
        laps.lap(3);
        const uint32_t ahead = image_of(step + 1);
        await(&control->first.arrived, met);
        laps.lap(4);
        const float h1 = two.own_h1(step);
        two.forward(step);
        laps.lap(5);
        arrive(&control->second[two.down].arrived);
        two.fetch_w3_and_rows();
        if (t < ROWS) one.images_of(step + 1)[t] = ahead;
        await(&control->second[two.down].arrived, met / GROUPS);
        laps.lap(6);
        two.turn(step, rows, h1);
        laps.lap(7);
        arrive(&control->gradients.arrived);
        const int next_label = label_of(step + 1);
        await(&control->gradients.arrived, met);
        laps.lap(8);
        const float2 back = one.read_back();
        bad = __ldcg(&control->bad); /* all blocks alike */
        two.fetch_for_update(step);
        if (bad) continue;
        one.split_back(back);
        __syncthreads();
        laps.lap(9);
        one.update(rate);
        __syncthreads();
        laps.lap(10);
        if (step + 1 < end) one.copy_pixels(step + 1, plan.tally.rows_of(step + 1));
        __pipeline_commit();
        two.wait_for_copies(1);
        laps.lap(11);
        two.update(rate);
        laps.lap(12);
        arrive(&control->weights.arrived);
        two.label = next_label;
        laps.lap(13);
    }
    laps.print("pair", step - first);
    one.store();
    two.store();
    if (two.across) return;
    plan.tally.count_own(two.down, first, step);
    plan.tally.count_up(first, step);
}

/* --- on the host --- */

struct pair_state {
    tuned_context *context;
    fused_network network;
    pair_plan plan;
    void *memory;
    size_t bytes;
    int blocks;
    uint32_t tag; /* of the next step */
};

static int blocks_for(const pair_plan *plan) {
    return GROUPS * (plan->padded[0] > plan->padded[1] ? plan->padded[0] : plan->padded[1]) / COLS;
}

static int packs_for(const fused_network *network) {
    return (int)(network->features / PIXELS + SLICES - 1) / SLICES;
}

static bool arrange(const tuned_context *context, const fused_network *network, pair_plan *plan, char *why,
                    size_t size) {
    const fused_layer *layer = network->layer;
    if (network->depth != 3 || network->dtype != GEMM_F32 || network->precision != GEMM_TRUE ||
        network->batch > (size_t)ROWS || layer[0].out > (size_t)MOST_UNITS ||
        layer[1].out > (size_t)MOST_UNITS || layer[2].out > (size_t)MOST_CLASSES ||
        activation_needs_input(layer[0].activation) || activation_needs_input(layer[1].activation) ||
        !packs_fit(network->images, network->features, network->features, PIXELS)) {
        snprintf(why, size,
                 "it takes two hidden layers of up to %d units in true float32, not of GELU, batches of up "
                 "to %d, up to %d classes, and images of a multiple of %d pixels",
                 MOST_UNITS, ROWS, MOST_CLASSES, PIXELS);
        return false;
    }
    for (int l = 0; l < 2; l++) {
        plan->hidden[l] = (int)layer[l].out;
        plan->padded[l] = (plan->hidden[l] + TALL - 1) / TALL * TALL;
        plan->activation[l] = layer[l].activation;
    }
    plan->packs = packs_for(network);
    if (context->major < 8 || blocks_for(plan) > fused_processors(context, network) ||
        place::bytes(plan->packs) > (size_t)context->shared_bytes || 2 * WARPS < plan->packs) {
        snprintf(why, size, "it needs %d SMs of compute capability 8.0 with %zu bytes of shared memory",
                 blocks_for(plan), place::bytes(plan->packs));
        return false;
    }
    return true;
}

static double pair_estimate(const tuned_context *context, const fused_network *network, char *why,
                            size_t size) {
    pair_plan plan = {};
    if (!fused_byte_pixels(network, why, size) || !arrange(context, network, &plan, why, size)) return 0;
    const double cycles = 110 * plan.packs + 22.0 * (plan.padded[0] + plan.padded[1]) + 31000; /* measured */
    return cycles / FUSED_CLOCK;
}

static void pair_close(void *opaque) {
    pair_state *state = (pair_state *)opaque;
    cudaFree(state->memory);
    free(state);
}

static size_t lay_out(const pair_state *state, pair_plan *plan, char *base) {
    const size_t one = plan->padded[0], two = plan->padded[1];
    size_t used = 0;
    const auto floats = [&](size_t count) { return (float *)fused_take(base, &used, count * sizeof(float)); };
    plan->control = (pair_control *)fused_take(base, &used, sizeof *plan->control);
    plan->box = (packet *)fused_take(base, &used, state->blocks * THREADS * sizeof *plan->box);
    plan->h1_rows = floats(2 * ROWS * PITCH);
    plan->h1_columns = floats(2 * ROWS * one);
    plan->h2_rows = floats(ROWS * PITCH);
    plan->h2_columns = floats(ROWS * two);
    plan->dz1 = floats(ROWS * one);
    plan->dz2 = floats(ROWS * two);
    plan->dlogits = floats(ROWS * CLASSES);
    plan->w2_columns = floats(one * two);
    plan->w2_rows = floats(one * PITCH);
    plan->w3 = floats(MOST_CLASSES * PITCH);
    plan->tally = lay_out_tally(&state->network, GROUPS, OWN, base, &used);
    return used;
}

static bool set_up(pair_state *state) {
    const fused_network &network = state->network;
    pair_plan *plan = &state->plan;
    cuda_fault *fault = &state->context->fault;
    plan->take(network);
    state->blocks = blocks_for(plan);
    state->tag = 1;
    state->bytes = lay_out(state, plan, NULL);
    const bool ready = fused_memory(state->context, &state->memory, state->bytes) &&
                       CUDA_TRY(fault, cudaFuncSetAttribute((const void *)pair_kernel,
                                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                            (int)place::bytes(plan->packs)));
    if (ready) lay_out(state, plan, (char *)state->memory);
    return ready;
}

static void *pair_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    return fused_make_state<pair_state>(context, network, why, size, pair_close, [&](pair_state *state) {
        return arrange(context, network, &state->plan, why, size) && set_up(state);
    });
}

static size_t pair_run(void *opaque, size_t first, size_t count) {
    pair_state *state = (pair_state *)opaque;
    pair_plan *plan = &state->plan;
    cuda_fault *fault = &state->context->fault;
    const cudaStream_t stream = state->context->stream;
    size_t end = first + count;
    void *arguments[] = {plan, &first, &end, &state->tag};
    const bool anew =
        count > UINT32_MAX - state->tag; /* nothing may be there that has one of the tags to come */
    if (anew) state->tag = 1;
    const bool ran =
        CUDA_TRY(fault,
                 cudaMemsetAsync(state->memory, 0, anew ? state->bytes : sizeof *plan->control, stream)) &&
        CUDA_TRY(fault,
                 cudaLaunchCooperativeKernel((const void *)pair_kernel, dim3(state->blocks), dim3(THREADS),
                                             arguments, place::bytes(plan->packs), stream));
    state->tag += (uint32_t)count;
    return ran ? count : 0;
}

static void pair_describe(void *opaque, char *text, size_t size) {
    const pair_state *state = (const pair_state *)opaque;
    snprintf(text, size, "two hidden layers on %d blocks", state->blocks);
}

const fused_form fused_pair = {pair_estimate, pair_open,     pair_close,
                               pair_run,      pair_describe, "two hidden layers"};
