/* Engine fused, the form for one hidden layer on few SMs: weights stay in registers, and only logits travel.

   Split      a block has 8 hidden units, all pixels of a batch, as bytes in shared memory, and its columns of
              W1: the weights in registers, and as digits of a fixed-point number in shared memory, whose
              products with pixels run on the tensor cores (fused_fixed.cuh). fused_resident.cu splits the
              pixels over more blocks: faster where there are enough for one network; here eight networks at
              once take hardly longer than one in this form.
   Step       forward Z = X W1, 128 x 8, H, and their part of the logits of all rows, to the owners of the
              rows (exchange 1) turn a block owns some rows: it adds up their logits, has their loss and
              dL/dlogits, for all to read (exchange 2) backward every block: dZ, 128 x 8, the gradients of its
              part of W2 and of b2, which all have; dW1; the updates
   Exchange   packets of a number and its step (grid.cuh): no barrier, no fence, and one buffer is enough.
              Whoever writes parts of logits has had gradients of the step before from every owner of rows in
              it, who had read all parts by then; and an owner writes gradients when it has parts of this step
              from all blocks, who had read those of the step before.
   Pixels     those of the next step are copied while this one is computed: most images at once, as far as
              there is room, and the rest where others have been used for the last time, which is half way
              through dW1.
   Floor      784-128-10 at batch 128, of 16 blocks, in cycles: forward and backward 800 products of 16 x 8 x
              32 each, at 2 cycles 1600 each; two exchanges of about 1000; 100 KB through the L2 cache a
              block, 1600 at 64 bytes, behind other work. Eight networks at once take 128 SMs and the time of
              one. Measured: see docs/performance.md. */
#include "kernels/cuda/persistent/fused.cuh"
#include "kernels/cuda/persistent/one_hidden_split_units.cuh"
#include "kernels/cuda/persistent/stage_profile.cuh"

/* Steps first .. end - 1; `tag` is that of the first, and of no packet that is there. */
template <bool VELOCITY>
__global__ void __launch_bounds__(THREADS, 1)
    whole_kernel(const __grid_constant__ whole_plan plan, int first, int end, uint32_t tag) {
    extern __shared__ float4 memory[];
    __shared__ uint64_t arrived; /* pixels: a phase for each step */
    whole<VELOCITY> me(plan, reinterpret_cast<char *>(memory));
    if (plan.tally.tally->bad_step) return; /* as every update after a bad step */
    const auto rows_of = [&](int step) { return step < end ? me.rows_of(step) : 0; };
    const auto expect = [&](int rows) {
        if (threadIdx.x == 0) expect_bytes(&arrived, rows * plan.features);
    };

    for (int i = threadIdx.x; i < whole_place::ring_at(plan.packs) / 4; i += THREADS)
        me.template at<float>(0)[i] = 0;
    if (threadIdx.x == 0) open_arrivals(&arrived);
    __syncthreads();
    me.load_weights();
    me.measure_weights();
    for (int i = 0; i < 2; i++) me.keep(i, me.look_up(first + i, rows_of(first + i)));
    __syncthreads();
    expect(rows_of(first));
    me.copy_pixels(&arrived, 0, 0, 0, rows_of(first));
    me.publish();
    await_bytes(&arrived, 0);
    __syncthreads();

    int step = first, now = 0, rows = rows_of(first), next_rows = rows_of(first + 1);
    bool finite = true;
    step_laps laps;
    laps.start();
    for (int base = 0; step < end && finite; step++, tag++) {
        const int after = base + plan.batch, next_base = after < plan.slots ? after : after - plan.slots,
                  early = min(next_rows, plan.slots - plan.batch), next = now < AHEAD - 1 ? now + 1 : 0,
                  rows_after = rows_of(step + 2);
        const float rate = *me.rate_of(now);
        const int label = me.label_of(now, rows, me.warp());
        const whole_rows::order_ahead ahead = me.look_up(step + 2, rows_after);
        laps.lap(0);
        me.forward(base);
        laps.lap(1);
        __syncthreads();
        laps.lap(2);
        me.activate_row(rows, tag);
        laps.lap(3);
        expect(next_rows);
        me.copy_pixels(&arrived, next, next_base, 0, early);
        me.turn(step, now, rows, label, tag);
        laps.lap(4);
        me.keep(next < AHEAD - 1 ? next + 1 : 0, ahead);
        const bool own_finite = me.receive_back(rows, tag);
        laps.lap(5);
        me.sum_back();
        finite = __syncthreads_and(own_finite); /* all blocks alike */
        laps.lap(6);
        if (finite) {
            float gradient[KEPT][4];
            me.split_back();
            __syncthreads();
            laps.lap(7);
            me.template multiply_back<false>(base, rate, gradient);
            __syncthreads();
            laps.lap(8);
            me.copy_pixels(&arrived, next, next_base, early, next_rows);
            me.template multiply_back<true>(base, rate, gradient);
            laps.lap(9);
            me.measure_weights();
            me.update_output(rate);
            __syncthreads();
            laps.lap(10);
            me.publish();
            laps.lap(11);
        } else {
            me.copy_pixels(&arrived, next, next_base, early, next_rows); /* they have been announced */
        }
        await_bytes(&arrived, (unsigned)(step + 1 - first));
        __syncthreads();
        base = next_base, now = next, rows = next_rows, next_rows = rows_after;
        laps.lap(12);
    }
    laps.print("whole", step - first);
    me.store_weights();
    if ((int)blockIdx.x >= plan.tally.owners) return;
    plan.tally.count_own(blockIdx.x, first, step);
    plan.tally.count_up(first, step);
}

/* --- on the host --- */

struct whole_state {
    tuned_context *context;
    fused_network network;
    whole_plan plan;
    void *memory;
    size_t bytes;
    uint32_t tag; /* of the next step */
};

/* How many blocks there are, and how much room for pixels. */
static bool arrange(const tuned_context *context, const fused_network *network, whole_plan *plan, char *why,
                    size_t size) {
    const fused_layer *layer = network->layer;
    if (network->depth != 2 || network->dtype != GEMM_F32 || network->precision != GEMM_TRUE ||
        network->batch > (size_t)ROWS || layer[1].out > (size_t)MOST_CLASSES ||
        network->features > (size_t)(MOST_PACKS * PIXELS) || network->count > (size_t)1 << 30 ||
        !packs_fit(network->images, network->features, network->features, PIXELS)) {
        snprintf(
            why, size,
            "it takes one hidden layer in true float32, batches of up to %d, up to %d classes, and images "
            "of a multiple of %d pixels, %d at most",
            ROWS, MOST_CLASSES, PIXELS, MOST_PACKS * PIXELS);
        return false;
    }
    if (context->major < 9 || layer[0].out > (size_t)(UNITS * fused_processors(context, network))) {
        snprintf(why, size, "%zu hidden units need %zu SMs of compute capability 9.0", layer[0].out,
                 (layer[0].out + UNITS - 1) / UNITS);
        return false;
    }
    plan->groups = (int)((layer[0].out + UNITS - 1) / UNITS);
    plan->own = (int)((network->batch + plan->groups - 1) / plan->groups);
    plan->packs = (int)(network->features / PIXELS);
    const int all = 2 * (int)network->batch,                   /* images of two steps */
        least = all - ROWS / 2 > ROWS ? all - ROWS / 2 : ROWS; /* those of half a step are used up early */
    const size_t fixed = STATIC_SHARED + whole_place::bytes(plan->packs, 0),
                 room = (size_t)context->shared_bytes > fixed
                            ? (context->shared_bytes - fixed) / whole_place::pitch(plan->packs)
                            : 0;
    plan->slots = room < (size_t)all ? (int)room : all > ROWS ? all : ROWS;
    if (room >= (size_t)least) return true;
    snprintf(why, size, "%d images of %zu pixels do not fit in the shared memory of an SM", least,
             network->features);
    return false;
}

static double whole_estimate(const tuned_context *context, const fused_network *network, char *why,
                             size_t size) {
    whole_plan plan = {};
    if (!fused_byte_pixels(network, why, size) || !arrange(context, network, &plan, why, size)) return 0;
    const double cycles = 8300 + 110 * plan.packs + 90 * plan.groups; /* measured */
    return cycles / FUSED_CLOCK;
}

static void whole_close(void *opaque) {
    whole_state *state = (whole_state *)opaque;
    cudaFree(state->memory);
    free(state);
}

static size_t lay_out_memory(const fused_network *network, whole_plan *plan, char *base) {
    size_t used = 0;
    plan->logits =
        (packet_of_3 *)fused_take(base, &used, sizeof *plan->logits * ROWS * plan->groups * PACKETS);
    plan->gradients = (packet_of_3 *)fused_take(base, &used, sizeof *plan->gradients * ROWS * PACKETS);
    const int owners = ((int)network->batch + plan->own - 1) / plan->own;
    plan->tally = lay_out_tally(network, owners, plan->own, base, &used);
    return used;
}

/* The kernel: velocities take registers. */
static const void *kernel_of(const whole_plan *plan) {
    return plan->descend.has_velocity ? (const void *)whole_kernel<true> : (const void *)whole_kernel<false>;
}

static size_t shared_bytes(const whole_plan *plan) {
    return whole_place::bytes(plan->packs, plan->slots);
}

static bool set_up(whole_state *state) {
    const fused_network &network = state->network;
    whole_plan *plan = &state->plan;
    cuda_fault *fault = &state->context->fault;
    plan->take(network);
    plan->hidden = (int)network.layer[0].out;
    plan->count = (int)network.count;
    plan->activation = network.layer[0].activation;
    state->tag = 1;
    state->bytes = lay_out_memory(&network, plan, NULL);
    const bool ready =
        fused_memory(state->context, &state->memory, state->bytes) &&
        CUDA_TRY(fault, cudaFuncSetAttribute(kernel_of(plan), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)shared_bytes(plan)));
    if (ready) lay_out_memory(&network, plan, (char *)state->memory);
    return ready;
}

static void *whole_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    return fused_make_state<whole_state>(context, network, why, size, whole_close, [&](whole_state *state) {
        return arrange(context, network, &state->plan, why, size) && set_up(state);
    });
}

static size_t whole_run(void *opaque, size_t first, size_t count) {
    whole_state *state = (whole_state *)opaque;
    whole_plan *plan = &state->plan;
    int from = (int)first, end = (int)(first + count);
    void *arguments[] = {plan, &from, &end, &state->tag};
    return fused_launch(state, count, [&](cuda_fault *fault) {
        return CUDA_TRY(fault,
                        cudaLaunchCooperativeKernel(kernel_of(plan), dim3(plan->groups), dim3(THREADS),
                                                    arguments, shared_bytes(plan), state->context->stream));
    });
}

static void whole_describe(void *opaque, char *text, size_t size) {
    const whole_state *state = (const whole_state *)opaque;
    snprintf(text, size, "whole images on %d blocks", state->plan.groups);
}

const fused_form fused_whole = {whole_estimate, whole_open,     whole_close,
                                whole_run,      whole_describe, "whole images"};
