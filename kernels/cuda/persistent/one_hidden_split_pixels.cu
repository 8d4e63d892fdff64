/* Engine fused, the form for one hidden layer that fits on the chip: the weights stay in shared memory, and
   only sums travel. (Where that is estimated faster: fused_whole.cu.)

   Split      a block has 8 hidden units and a slice of the pixels: W1[slice][8], its velocities, and the
              slice of the batch as float. F slices by H groups of units fill the GPU (784-128-10: 8 x 16
              blocks, 98 pixels each on average).
   Step       forward   a block's part of Z = X W1, 128 x 8; each of the F blocks of a group of units adds up
                        OWN = 128 / F of the rows (exchange 1), activates them, and has their part of the
                        logits
              turn      the H blocks that own the same rows exchange those parts (2): each has the logits, the
                        loss and dZ of its rows and units, and its rows' part of dW2
              backward  the F blocks of a group exchange dZ and the parts of dW2 (3): each updates its slice
                        of W1, all of them their copy of W2
   Exchange   packets of a number and its step (grid.cuh): no barrier, no fence. The buffers alternate from
              step to step: whoever writes one again has had a packet from all of its readers since. (In
              exchange 2 only from those who own rows of the batch. So a launch must end with a partial batch,
              as it does: that is the last of an epoch.)
   Pixels the next batch is copied to shared memory while this one is computed, and made float during exchange
   2.
   Floor      784-128-10 at batch 128, of 128 blocks: forward and backward 800 cycles each at 128
              multiply-adds a cycle; three exchanges of about 0.5 us. */
#include "kernels/cuda/persistent/fused.cuh"
#include "kernels/cuda/persistent/one_hidden_split_pixels.cuh"
#include "kernels/cuda/persistent/stage_profile.cuh"

/* Steps first .. end - 1; `tag` is that of the first, and of no packet that is there. */
template <typename S>
__global__ void __launch_bounds__(THREADS, 1)
    resident_kernel(const __grid_constant__ resident_plan plan, size_t first, size_t end, uint32_t tag) {
    extern __shared__ float4 memory[];
    float *shared = reinterpret_cast<float *>(memory);
    const resident<S> me(plan, shared);
    if (plan.tally.tally->bad_step) return; /* as every update after a bad step */
    const auto arrive = [] {
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
    };
    for (int i = threadIdx.x; i < (int)place<S>::floats(plan.slice, plan.buffers); i += THREADS)
        shared[i] = 0;
    __syncthreads();
    me.load_weights();
    me.keep(first, me.look_up(first, me.rows_of(first)));
    if (first + 1 < end) me.keep(first + 1, me.look_up(first + 1, me.rows_of(first + 1)));
    __syncthreads();
    me.copy_pixels(first, me.rows_of(first));
    if (threadIdx.x < S::OWN) me.labels_of(first)[threadIdx.x] = me.label_of(first, me.rows_of(first));
    arrive();
    float *pixels = shared + place<S>::PIXELS_AT, *next = pixels + (plan.buffers - 1) * plan.slice * PITCH;
    me.convert_pixels(me.rows_of(first), pixels);
    __syncthreads();
    me.copy_pixels(first + 1, first + 1 < end ? me.rows_of(first + 1) : 0);

    const float full = float(1.0 / plan.batch);
    size_t step = first;
    bool finite = true;
    step_laps laps;
    laps.start();
    for (; step < end && finite; step++, tag++) {
        const bool another = step + 1 < end;
        const int rows = me.rows_of(step), next_rows = another ? me.rows_of(step + 1) : 0,
                  rows_after = step + 2 < end ? me.rows_of(step + 2) : 0;
        const float rate = (float)*me.rate_of(step);
        const int next_label = another ? me.label_of(step + 1, next_rows) : 0;
        const typename resident<S>::order_ahead ahead = me.look_up(step + 2, rows_after);
        laps.lap(0);
        me.forward(pixels, tag);
        laps.lap(1);
        me.activate_own(rows, tag);
        laps.lap(2);
        me.keep(step + 2, ahead); /* in the place of this step's */
        arrive();
        if (plan.buffers == 2) me.convert_pixels(next_rows, next); /* while the others' parts come */
        if (threadIdx.x < S::OWN) me.labels_of(step + 1)[threadIdx.x] = next_label;
        laps.lap(3);
        const bool own_finite = me.turn(step, rows, rows == plan.batch ? full : float(1.0 / rows), tag);
        laps.lap(4);
        me.send_back(__syncthreads_and(own_finite), tag);
        laps.lap(5);
        float gradient;
        finite = me.receive_back(tag, gradient);
        laps.lap(6);
        if (finite) {
            me.update_slice(pixels, rate);
            laps.lap(7);
            me.update_output(rate, gradient);
            if (plan.buffers == 2) me.copy_pixels(step + 2, rows_after);
            laps.lap(8);
        }
        __syncthreads();
        laps.lap(9);
        if (plan.buffers == 1) {
            me.convert_pixels(next_rows, next);
            __syncthreads();
            me.copy_pixels(step + 2, rows_after);
        }
        float *const used = pixels;
        pixels = next;
        next = used;
        laps.lap(10);
    }
    laps.print("resident", step - first);
    me.store_weights();
    if (me.h) return;
    plan.tally.count_own(me.f, first, step);
    plan.tally.count_up(first, step);
}

/* --- on the host --- */

struct resident_state {
    tuned_context *context;
    fused_network network;
    resident_plan plan;
    void *memory;
    size_t bytes;
    int slices;
    uint32_t tag; /* of the next step */
};

/* Calls function<split<..>>() for that many slices. */
template <typename F> static void with_split(int slices, F function) {
    if (slices == 16) return function.template operator()<split<16, 2>>();
    if (slices == 8) return function.template operator()<split<8, 4>>();
    return function.template operator()<split<4, 7>>();
}

/* Finds the largest number of slices that fits; 0: none does. */
static int choose_split(const tuned_context *context, const fused_network *network, resident_plan *plan) {
    static const int choices[] = {16, 8, 4};
    const int groups = (int)((network->layer[0].out + UNITS - 1) / UNITS),
              packs = (int)(network->features / PIXELS), processors = fused_processors(context, network);
    for (const int slices : choices) {
        if (groups * slices > processors || packs < slices) continue;
        plan->groups = groups;
        plan->slice = (packs + slices - 1) / slices * PIXELS;
        plan->buffers = 0;
        with_split(slices, [&]<typename S>() {
            for (int buffers = 1; buffers <= 2 && plan->slice <= S::LONGEST; buffers++)
                if (sizeof(float) * place<S>::floats(plan->slice, buffers) + STATIC_SHARED <=
                    (size_t)context->shared_bytes)
                    plan->buffers = buffers;
        });
        if (plan->buffers) return slices;
    }
    return 0;
}

static double resident_estimate(const tuned_context *context, const fused_network *network, char *why,
                                size_t size) {
    resident_plan plan = {};
    if (!fused_byte_pixels(network, why, size)) return 0;
    if (network->depth != 2 || network->dtype != GEMM_F32 || network->precision != GEMM_TRUE ||
        network->batch > (size_t)ROWS || network->layer[1].out > (size_t)CLASSES ||
        network->layer[0].out > (size_t)UNITS * context->processors ||
        !packs_fit(network->images, network->features, network->features, PIXELS)) {
        snprintf(
            why, size,
            "it takes one hidden layer in true float32, batches of up to %d, up to %d classes, and images of "
            "a multiple of %d pixels",
            ROWS, CLASSES, PIXELS);
        return 0;
    }
    const int slices = choose_split(context, network, &plan);
    if (!slices) {
        snprintf(why, size, "%zu hidden units for %zu pixels do not fit in the shared memory of %d SMs",
                 network->layer[0].out, network->features, fused_processors(context, network));
        return 0;
    }
    const double cycles = 4000 + 64 * plan.slice; /* measured */
    return cycles / FUSED_CLOCK;
}

static void resident_close(void *opaque) {
    resident_state *state = (resident_state *)opaque;
    cudaFree(state->memory);
    free(state);
}

template <typename S>
static size_t lay_out_memory(const fused_network *network, resident_plan *plan, char *base) {
    size_t used = 0;
    plan->box =
        (packet *)fused_take(base, &used, 2 * sizeof(packet) * (size_t)lay_out_box<S>(plan->groups).total);
    plan->tally = lay_out_tally(network, S::F, S::OWN, base, &used);
    return used;
}

static bool set_up(resident_state *state) {
    const fused_network &network = state->network;
    resident_plan *plan = &state->plan;
    cuda_fault *fault = &state->context->fault;
    state->slices = choose_split(state->context, &network, plan);
    plan->take(network);
    plan->hidden = (int)network.layer[0].out;
    plan->activation = network.layer[0].activation;
    state->tag = 1;
    bool ready = false;
    with_split(state->slices, [&]<typename S>() {
        const size_t bytes = state->bytes = lay_out_memory<S>(&network, plan, NULL),
                     shared = sizeof(float) * place<S>::floats(plan->slice, plan->buffers);
        ready =
            fused_memory(state->context, &state->memory, bytes) &&
            CUDA_TRY(fault, cudaFuncSetAttribute((const void *)resident_kernel<S>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        if (ready) lay_out_memory<S>(&network, plan, (char *)state->memory);
    });
    return ready;
}

static void *resident_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    return fused_make_state<resident_state>(context, network, why, size, resident_close,
                                            [&](resident_state *state) { return set_up(state); });
}

static size_t resident_run(void *opaque, size_t first, size_t count) {
    resident_state *state = (resident_state *)opaque;
    resident_plan *plan = &state->plan;
    size_t end = first + count;
    void *arguments[] = {plan, &first, &end, &state->tag};
    return fused_launch(state, count, [&](cuda_fault *fault) {
        bool ran = false;
        with_split(state->slices, [&]<typename S>() {
            const size_t shared = sizeof(float) * place<S>::floats(plan->slice, plan->buffers);
            ran = CUDA_TRY(fault, cudaLaunchCooperativeKernel((const void *)resident_kernel<S>,
                                                              dim3(S::F * plan->groups), dim3(THREADS),
                                                              arguments, shared, state->context->stream));
        });
        return ran;
    });
}

static void resident_describe(void *opaque, char *text, size_t size) {
    const resident_state *state = (const resident_state *)opaque;
    snprintf(text, size, "resident weights on %d x %d blocks", state->plan.groups, state->slices);
}

const fused_form fused_resident = {resident_estimate, resident_open,     resident_close,
                                   resident_run,      resident_describe, "resident weights"};
