/* Engine fused, the form for two hidden layers: weights stay where they are updated, and only activations and
   sums travel.

   Layer 1    a block has 8 units and half of the pixels: its part of W1, in registers and as digits in shared
              memory, and of the batch, as bytes, multiplied in fixed point (fused_pixels.cuh). Its partner on
              the next SM has the other half (partner.cuh).
   Layer 2    a block has a tile of W2, 32 x 64, in shared memory, and with it forward, back, and gradient of
              it, three products of 128 x 32 x 64 on the tensor cores in true float32 (fused_exact.cuh): a
              sixteenth of the sum for H2, an eighth of that for dH1, and all of dW2. Partners have tiles one
              below the other.
   Rows a block adds up Z2 of 8 or 16 rows and 64 columns, works out the loss of its rows, and has dZ2 of
   them.
   Step       Z1 | partners add up their halves | H1 of 32 units to all tiles in their rows | Z2 | partners
              add up | sums to the owners of rows, H2 | parts of logits to those with the same rows, loss |
              dZ2 to all tiles in its columns, half of it to each partner | dH1 | sums to the owners of units,
              dZ1 of half of the rows to each partner | dW1 While sums for dZ1 travel, dW2 is worked out.
              Gradients of W3 and its new weights travel behind all that, and pixels of the next step are
              copied.
   Exchange   packets of three numbers and their step (grid.cuh): no barrier, no fence, and one buffer is
              enough. Whoever writes to a place has had, since it last wrote there, something from each that
              reads there which that one sent later:
                h1      sums for dZ1, from the tiles that read it
                sums    dZ2, from the owners of rows
                logits sums for Z2, which come of H1, this of sums for dZ1 from all tiles, and these of dZ2
                from all owners of rows
                dz2     sums for Z2, from the tiles, and W3, from the others with the same columns
                back    H1, from the owners of units
                W3 gradients: its weights, from those who update them; weights: its gradients, from those who
                use them
              So it is with what partners give each other: halves of Z1 after dZ1, of Z2 after those, dZ2
              after that of the other's rows (see pair_second::partner_sums), and dZ1 after halves of Z1.
   Floor      784-512-512-10 at batch 128, of 128 blocks, in cycles: 400 products of 16 x 8 x 32 each way for
              layer 1 and 768 of 16 x 8 x 16 for each of three of layer 2, at 2 cycles 6200; 50 KB of pixels
              in, 115 KB of packets in and 60 out at 20 bytes a cycle 11,500, behind other work in part; five
              exchanges one after the other of about 1000, and four between partners of about 500. Measured:
              see docs/performance.md. */
#include "kernels/cuda/persistent/fused.cuh"
#include "kernels/cuda/persistent/two_hidden_first.cuh"
#include "kernels/cuda/persistent/two_hidden_rows.cuh"
#include "kernels/cuda/persistent/two_hidden_second.cuh"
#include "kernels/cuda/persistent/stage_profile.cuh"

/* Steps begin .. end - 1; `tag` is that of the first, and of no packet that is there. */
template <int OWN, bool VELOCITY>
__global__ void __launch_bounds__(THREADS, 1)
    pair_kernel(const __grid_constant__ pair_plan plan, int begin, int end, uint32_t tag) {
    extern __shared__ float4 memory[];
    char *shared = reinterpret_cast<char *>(memory);
    pair_first<VELOCITY> layer1(plan, shared);
    pair_second<VELOCITY> layer2(plan, shared);
    pair_rows<OWN, VELOCITY> own(plan, shared);
    const int t = threadIdx.x;
    if (plan.tally.tally->bad_step) return; /* as every update after a bad step */
    for (int i = t; i < place::pixels_at(plan.packs) / 16; i += THREADS) memory[i] = make_float4(0, 0, 0, 0);
    __syncthreads();
    if (t < ARRIVALS) open_arrivals(layer1.arrived((pair_arrival)t));
    layer1.load();
    layer2.load();
    own.load();
    layer1.kept.measure(layer1.largest());
    if (own.has_rows) own.publish(tag);
    const auto rows_of = [&](int step) {
        return step < end ? min(plan.count - step * plan.batch, plan.batch) : 0;
    };
    const auto image_of = [&](int step) {
        return t < rows_of(step) ? plan.order[(size_t)step * plan.batch + t] : 0;
    };
    if (t < ROWS) layer1.images_of(begin)[t] = image_of(begin);
    meet_partner();
    layer1.publish();
    layer1.copy_pixels(begin, rows_of(begin));
    __syncthreads();

    const auto rate_of = [&](int step) { return step < end ? plan.scalars[step].learning_rate : 0; };
    double rate = rate_of(begin);
    bool bad = false;
    int step = begin;
    step_laps laps;
    laps.start();
    for (; step < end && !bad; step++, tag++) {
        const pair_step now = {step, rows_of(step), (unsigned)(step - begin),
                               tag,  (float)rate,   1.0f / (float)rows_of(step)};
        const int label = own.label_of(layer1.images_of(step), now.rows);
        const uint32_t ahead = image_of(step + 1);
        rate = rate_of(step + 1);
        packets_to_come<1> new_weights;
        packets_to_come<3> parts;
        typename pair_rows<OWN, VELOCITY>::gradient_packets gradient;
        float back = 0;
        if (t == 0) layer1.expect_partner();
        await_bytes(layer1.arrived(PIXELS_COME), now.phase);
        laps.lap(0);
        if (own.has_rows) own.look_for_weights(new_weights);
        layer1.forward(step);
        if (t < ROWS) layer1.images_of(step + 1)[t] = ahead;
        __syncthreads();
        laps.lap(1);
        layer1.activate_half(now);
        laps.lap(2);
        if (own.has_rows) own.receive_weights(new_weights, tag);
        layer2.receive_h1(tag);
        __syncthreads();
        laps.lap(3);
        if (layer2.has_tile) layer2.forward(now);
        laps.lap(4);
        if (own.has_rows) {
            own.receive_sums(now);
            __syncthreads();
            laps.lap(5);
            own.turn(now, label);
            __syncthreads();
            laps.lap(6);
            own.send_back(tag);
            __syncthreads();
            own.send_gradients(tag);
            laps.lap(8);
            bad = __syncthreads_or(layer2.receive_dz2(now));
            laps.lap(9);
            if (layer2.has_tile) layer2.back(bad, tag);
            laps.lap(10);
            if (bad) continue; /* all blocks that have work alike; the bad step counts */
            __syncthreads();
        }
        const auto look = [&] {
            if (layer1.has_units) parts.look([&](int i) { return layer1.parts_of_back(i); });
            if (own.has_rows) own.look_for_gradient(gradient);
        };
        if (layer2.has_tile)
            layer2.update(now.rate, look);
        else
            look();
        laps.lap(11);
        bad = __syncthreads_or(layer1.receive_back(parts, tag, back));
        laps.lap(12);
        if (bad) continue;
        layer1.split_back(back);
        layer1.copy_pixels(step + 1, rows_of(step + 1));
        if (layer1.has_units) await_bytes(layer1.arrived(DZ1_COMES), now.phase);
        __syncthreads();
        laps.lap(13);
        if (own.has_rows) own.update(gradient, now);
        layer1.update(now);
        __syncthreads();
        layer1.publish();
        if (own.has_rows && step + 1 < end) own.publish(tag + 1);
        __syncthreads();
        laps.lap(14);
    }
    laps.print("pair", step - begin);
    layer1.store();
    layer2.store();
    own.store();
    if (own.across) return;
    plan.tally.count_own(own.down, begin, step);
    plan.tally.count_up(begin, step);
}

/* --- on the host --- */

struct pair_state {
    tuned_context *context;
    fused_network network;
    pair_plan plan;
    void *memory;
    size_t bytes;
    uint32_t tag; /* of the next step */
};

static int blocks_for(const pair_plan *plan) {
    return ACROSS * plan->downs;
}

static bool arrange(const tuned_context *context, const fused_network *network, pair_plan *plan, char *why,
                    size_t size) {
    const fused_layer *layer = network->layer;
    if (network->depth != 3 || network->dtype != GEMM_F32 || network->precision != GEMM_TRUE ||
        network->batch > (size_t)ROWS || network->features < (size_t)(SLICES * PIXELS) ||
        layer[0].out > (size_t)MOST_UNITS || layer[1].out > (size_t)MOST_UNITS ||
        layer[2].out > (size_t)MOST_CLASSES || activation_needs_input(layer[0].activation) ||
        activation_needs_input(layer[1].activation) || network->count > (size_t)1 << 30 ||
        !packs_fit(network->images, network->features, network->features, PIXELS)) {
        snprintf(why, size,
                 "it takes two hidden layers of up to %d units in true float32, not of GELU, batches of up "
                 "to %d, up to %d classes, and images of a multiple of %d pixels, %d at least",
                 MOST_UNITS, ROWS, MOST_CLASSES, PIXELS, SLICES * PIXELS);
        return false;
    }
    for (int l = 0; l < 2; l++) {
        plan->hidden[l] = (int)layer[l].out;
        plan->activation[l] = layer[l].activation;
    }
    plan->tall = (plan->hidden[0] + 2 * TALL - 1) / (2 * TALL) * 2;
    plan->wide = (plan->hidden[1] + WIDE - 1) / WIDE;
    plan->downs = plan->tall <= ROWS / MOST_OWN ? ROWS / MOST_OWN : ROWS / GROUP;
    plan->packs = ((int)network->features / PIXELS + SLICES - 1) / SLICES;
    const size_t bytes = STATIC_SHARED + place::bytes(plan->packs);
    if (context->major < 9 || blocks_for(plan) > fused_processors(context, network) ||
        bytes > (size_t)context->shared_bytes || MOST_PACKS < plan->packs) {
        snprintf(why, size, "it needs %d SMs of compute capability 9.0 with %zu bytes of shared memory",
                 blocks_for(plan), bytes);
        return false;
    }
    return true;
}

static double pair_estimate(const tuned_context *context, const fused_network *network, char *why,
                            size_t size) {
    pair_plan plan = {};
    if (!fused_byte_pixels(network, why, size) || !arrange(context, network, &plan, why, size)) return 0;
    const double cycles = 26500 + 90 * plan.packs + 290 * plan.wide; /* measured */
    return cycles / FUSED_CLOCK;
}

static void pair_close(void *opaque) {
    pair_state *state = (pair_state *)opaque;
    cudaFree(state->memory);
    free(state);
}

static size_t lay_out(const pair_state *state, pair_plan *plan, char *base) {
    const size_t tall = plan->tall, wide = plan->wide, downs = plan->downs, units = tall * TALL / UNITS;
    size_t used = 0;
    const auto packets = [&](size_t count) {
        return (packet_of_3 *)fused_take(base, &used, count * sizeof(packet_of_3));
    };
    plan->h1 = packets(units * 3 * ROWS);
    plan->sums = packets(wide * (ROWS / GROUP) * (tall / 2) * 3 * POSITIONS);
    plan->logits = packets(ROWS * ACROSS * PACKETS);
    plan->dz2 = packets(wide * CHUNKS * 3 * ROWS);
    plan->back = packets(units * wide * 3 * SLICES * POSITIONS);
    plan->out_sums = packets(wide * WIDE * downs * PACKETS);
    plan->out_bias = packets(wide * downs * PACKETS);
    plan->out_weight = packets(wide * WIDE * PACKETS);
    plan->tally = lay_out_tally(&state->network, plan->downs, ROWS / plan->downs, base, &used);
    return used;
}

template <int OWN> static const void *kernel_of_rows(const pair_plan *plan) {
    return plan->descend.has_velocity ? (const void *)pair_kernel<OWN, true>
                                      : (const void *)pair_kernel<OWN, false>;
}

static const void *kernel_of(const pair_plan *plan) {
    return plan->downs == ROWS / GROUP ? kernel_of_rows<GROUP>(plan) : kernel_of_rows<MOST_OWN>(plan);
}

/* All blocks at once, partners beside each other. */
struct pair_launch {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config;

    pair_launch(const pair_plan *plan, cudaStream_t stream) : attributes(), config() {
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = 2;
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeCooperative;
        attributes[1].val.cooperative = 1;
        config.gridDim = dim3(blocks_for(plan));
        config.blockDim = dim3(THREADS);
        config.dynamicSmemBytes = place::bytes(plan->packs);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
    }
};

/* Whether this GPU can keep them all running: not if SMs have no neighbour, or others have a share of it. */
static bool fits(pair_state *state, char *why, size_t size) {
    const pair_launch launch(&state->plan, state->context->stream);
    int pairs = 0;
    if (!CUDA_TRY(&state->context->fault,
                  cudaOccupancyMaxActiveClusters(&pairs, kernel_of(&state->plan), &launch.config)))
        return false;
    if (2 * pairs >= blocks_for(&state->plan)) return true;
    snprintf(why, size, "it needs %d pairs of SMs at once, and there are %d", blocks_for(&state->plan) / 2,
             pairs);
    return false;
}

static bool set_up(pair_state *state) {
    pair_plan *plan = &state->plan;
    cuda_fault *fault = &state->context->fault;
    plan->take(state->network);
    plan->count = (int)state->network.count;
    state->tag = 1;
    state->bytes = lay_out(state, plan, NULL);
    const bool ready =
        fused_memory(state->context, &state->memory, state->bytes) &&
        CUDA_TRY(fault, cudaFuncSetAttribute(kernel_of(plan), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)place::bytes(plan->packs)));
    if (ready) lay_out(state, plan, (char *)state->memory);
    return ready;
}

static void *pair_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    return fused_make_state<pair_state>(context, network, why, size, pair_close, [&](pair_state *state) {
        return arrange(context, network, &state->plan, why, size) && set_up(state) && fits(state, why, size);
    });
}

static size_t pair_run(void *opaque, size_t first, size_t count) {
    pair_state *state = (pair_state *)opaque;
    pair_plan *plan = &state->plan;
    int from = (int)first, end = (int)(first + count);
    void *arguments[] = {plan, &from, &end, &state->tag};
    return fused_launch(state, count, [&](cuda_fault *fault) {
        const pair_launch launch(plan, state->context->stream);
        return CUDA_TRY(fault, cudaLaunchKernelExC(&launch.config, kernel_of(plan), arguments));
    });
}

static void pair_describe(void *opaque, char *text, size_t size) {
    const pair_state *state = (const pair_state *)opaque;
    snprintf(text, size, "two hidden layers on %d blocks", blocks_for(&state->plan));
}

const fused_form fused_pair = {pair_estimate, pair_open,     pair_close,
                               pair_run,      pair_describe, "two hidden layers"};
