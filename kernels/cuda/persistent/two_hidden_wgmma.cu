/* Engine fused, the form "two hidden layers": weights stay on the chip, and only activations and sums travel.
   two_ahead_wgmma.cu improves on it; this one runs images of more than 784 pixels, or on fewer than 120 SMs.

   Layer 1    a thread block has 8 units and half of the pixels: its part of W1 in registers and in int8
              slices, and its part of the batch as bytes (int8_wgmma.cuh), which a kernel before each launch
              has gathered. Its peer in the cluster has the other half.
   Layer 2    a block has a tile of W2, 32 x 64, in shared memory, and computes with it three products of 128
              x 32 x 64 in true float32 on the tensor cores (f16x2.cuh): a sixteenth of the sum for Z2, an
              eighth of that for dH1, and all of dW2. The tiles of peers are one below the other. H1 and W2
              have a scale for each tile; that of dZ2 is a bound, so that no block waits for a maximum.
   Rows       a block sums Z2 of 8 or 16 rows and 64 columns, and computes the loss and dZ2 of its rows.
   Step       Z1 | peers add halves | H1, to the tiles in the rows of these units | Z2 | peers add | to the
              owners of the rows: H2, partial logits | to owners of the same rows: loss, dZ2 | to the tiles in
              these columns | dH1 | to the owners of the units: dZ1, half of the rows to each peer | dW1. dW2
              is computed while dH1 travels; gradients and weights of the output layer travel behind other
              work, and the pixels of the next step are copied.
   Exchange   LL packets in one buffer each (docs/gpu-engines.md says why one is enough), and DSMEM.
   Bound by   instructions, latency and the L2 cache, 784-512-512-10 at batch 128 on 128 thread blocks: tensor
              cores need 2000 cycles of 26,000. docs/gpu-engines.md has the cycles of the stages. */
#include "kernels/cuda/persistent/two_hidden_layer1.cuh"
#include "kernels/cuda/persistent/two_hidden_layer2.cuh"
#include "kernels/cuda/persistent/two_hidden_output.cuh"

namespace persistent::two_hidden {

template <int OWN, bool VELOCITY> struct trainer {
    typedef two_hidden::plan plan_type;
    static constexpr int MAX_THREADS = THREADS, SHARED_ALIGNMENT = 1024;
    const plan_type &plan;
    layer1_block<VELOCITY> layer1;
    layer2_block<VELOCITY> layer2;
    output_block<OWN, VELOCITY> output;
    int end;
    unsigned phase; /* of the mbarriers: the number of the step in the launch */

    __device__ trainer(const plan_type &plan, void *shared, int end)
        : plan(plan), layer1(plan, (char *)shared), layer2(plan, (char *)shared),
          output(plan, (char *)shared), end(end), phase(0) {}

    __device__ void load(int first, uint32_t tag) {
        const auto inputs = layer1.inputs();
        for (int i = threadIdx.x; i < smem_layout::pixels(plan.packs) / 16; i += THREADS)
            layer1.template at<float4>(0)[i] = make_float4(0, 0, 0, 0);
        __syncthreads();
        if (threadIdx.x < BARRIERS) mbarrier_init(layer1.barrier((barrier_id)threadIdx.x));
        layer1.load();
        layer2.load();
        output.load();
        if (output.has_rows) output.send_weights(tag);
        inputs.store(first % 2, inputs.prefetch(plan, first, plan.rows_of(first, end)));
        cluster_barrier();
        layer1.write_slices();
        layer1.copy_images(first, 0);
        __syncthreads();
    }

    __device__ bool step(int step, uint32_t tag, stage_profile &profile) {
        const auto inputs = layer1.inputs();
        const int rows = plan.rows_of(step, end);
        const step_info now = {step, rows, phase, tag, *inputs.rate(step % 2), 1.0f / (float)rows};
        const int label = output.label_of(inputs.images(step % 2), rows);
        const auto ahead = inputs.prefetch(plan, step + 1, plan.rows_of(step + 1, end));
        ll_receiver<1> new_weights;
        ll_receiver<2, ll_packet4> dh1;
        typename output_block<OWN, VELOCITY>::gradient_packets gradient;
        float dz1 = 0;
        bool bad = false;
        phase++;
        if (threadIdx.x == 0) layer1.expect_peer();
        if (output.has_rows) output.try_poll_weights(new_weights);
        layer1.forward(now);
        inputs.store((step + 1) % 2, ahead);
        profile.stage(1);
        layer2.write_planes();
        profile.stage(2);
        layer2.receive_h1(now);
        __syncthreads();
        profile.stage(3);
        if (layer2.has_tile) layer2.forward(now);
        profile.stage(4);
        if (output.has_rows) {
            output.receive_weights(new_weights, tag);
            __syncthreads();
            output.receive_z2(now);
            __syncthreads();
            profile.stage(5);
            output.output_layer(now, label);
            __syncthreads();
            profile.stage(6);
            output.send_dz2(now);
            __syncthreads();
            output.send_gradients(tag);
            profile.stage(8);
            bad = __syncthreads_or(layer2.receive_dz2(now));
            profile.stage(9);
            if (layer2.has_tile) layer2.backward(bad, now);
            profile.stage(10);
            if (bad) return false; /* the same in all blocks that have work */
            __syncthreads();
        }
        const auto try_poll = [&] {
            if (layer1.has_units) dh1.try_poll([&](int i) { return layer1.parts_of_dh1(i); });
            if (output.has_rows) output.try_poll_gradient(gradient);
        };
        if (layer2.has_tile)
            layer2.update_weights(now, try_poll);
        else
            try_poll();
        profile.stage(11);
        bad = __syncthreads_or(layer1.receive_gradients(dh1, now, dz1));
        profile.stage(12);
        if (bad) return false;
        layer1.write_dz1_slices(dz1);
        if (threadIdx.x == 0) *layer2.largest(LARGEST_H1) = *layer2.largest(LARGEST_W3) = 0;
        if (step + 1 < end) layer1.copy_images(step + 1, (int)phase);
        if (output.has_rows) output.update_weights(gradient, now);
        if (layer1.has_units) {
            mbarrier_wait(layer1.barrier(DZ1_FULL), now.phase);
            wgmma_written(); /* slices of both peers */
        }
        __syncthreads();
        profile.stage(13);
        layer1.update_weights(now);
        __syncthreads();
        layer1.write_slices();
        if (output.has_rows && step + 1 < end) output.send_weights(tag + 1);
        __syncthreads();
        profile.stage(14);
        return true;
    }

    __device__ void finish(int first, int step) {
        layer1.store();
        layer2.store();
        output.store();
        if (output.across) return;
        plan.add_to_tally(output.down, first, step);
    }
};

/* --- on the host --- */

struct form {
    static constexpr const char *NAME = "two hidden layers";
    typedef two_hidden::plan plan;

    static bool arrange(const tuned_context *context, const fused_network *network, plan *plan, char *why,
                        size_t size) {
        const fused_layer *layer = network->layer;
        if (!takes_range(network, why, size)) return false;
        if (!plan->take(network, MAX_CLASSES) || network->features < (size_t)(SPLIT_K * PIXELS) ||
            layer[0].out > (size_t)MAX_UNITS || layer[1].out > (size_t)MAX_UNITS ||
            activation_needs_input(layer[0].activation) || activation_needs_input(layer[1].activation)) {
            snprintf(
                why, size,
                "it takes two hidden layers of up to %d units in true float32, not of GELU, batches of up "
                "to %d, up to %d classes, and images of a multiple of %d pixels, %d at least",
                MAX_UNITS, ROWS, MAX_CLASSES, PIXELS, SPLIT_K * PIXELS);
            return false;
        }
        plan->tiles_in = (plan->hidden[0] + 2 * TILE_IN - 1) / (2 * TILE_IN) * 2;
        plan->tiles_out = (plan->hidden[1] + TILE_OUT - 1) / TILE_OUT;
        plan->downs = plan->tiles_in <= ROWS / MAX_OWN ? ROWS / MAX_OWN : ROWS / GROUP;
        plan->packs = (plan->features / PIXELS + SPLIT_K - 1) / SPLIT_K;
        const size_t bytes = STATIC_SHARED + smem_layout::bytes(plan->packs);
        if (context->major < 9 || plan->blocks() > fused_processors(context, network) ||
            bytes > (size_t)context->shared_bytes || MAX_PACKS < plan->packs ||
            !cuda_compiled_for_wgmma(launch(*plan).kernel)) {
            snprintf(why, size, "it needs %d SMs of compute capability 9.0 with %zu bytes of shared memory",
                     plan->blocks(), bytes);
            return false;
        }
        return true;
    }

    static double seconds(const tuned_context *, const fused_network *, const plan &plan) {
        return (20200 + 90 * plan.packs + 290 * plan.tiles_out) / FUSED_CLOCK; /* fitted to measured steps */
    }

    static void lay_out(const fused_network *, plan *plan, memory_layout &layout) {
        const size_t in = plan->tiles_in, out = plan->tiles_out, owners = plan->downs,
                     groups = in * TILE_IN / UNITS, steps = (plan->count + plan->batch - 1) / plan->batch;
        layout.take(&plan->h1, groups * 2 * ROWS);
        layout.take(&plan->z2, out * (ROWS / GROUP) * (in / 2) * 2 * POSITIONS);
        layout.take(&plan->dz2, out * CHUNKS * 2 * ROWS);
        layout.take(&plan->dh1, groups * out * 2 * SPLIT_K * POSITIONS);
        plan->phased_bytes = layout.used;
        layout.take(&plan->logits, (size_t)ROWS * ACROSS * PACKETS);
        layout.take(&plan->out_sums, out * TILE_OUT * owners * PACKETS);
        layout.take(&plan->out_bias, out * owners * PACKETS);
        layout.take(&plan->out_weight, out * TILE_OUT * PACKETS);
        layout.take(&plan->gathered, (steps < LONGEST ? steps : LONGEST) * SPLIT_K * plan->slice_bytes());
        plan->lay_out_tally(layout, plan->downs, ROWS / plan->downs);
    }

    template <int OWN> static const void *kernel(const plan &plan) {
        return plan.update.has_velocity ? (const void *)train_steps<trainer<OWN, true>>
                                        : (const void *)train_steps<trainer<OWN, false>>;
    }

    static kernel_launch launch(const plan &plan) {
        kernel_launch launch = {};
        launch.kernel = plan.downs == ROWS / GROUP ? kernel<GROUP>(plan) : kernel<MAX_OWN>(plan);
        launch.blocks = plan.blocks();
        launch.threads = THREADS;
        launch.cluster = 2;
        launch.shared_bytes = smem_layout::bytes(plan.packs);
        launch.prologue = (const void *)gather_batch;
        launch.prologue_threads = GATHER_THREADS;
        launch.longest = LONGEST;
        launch.clear = plan.h1;
        launch.clear_bytes = plan.phased_bytes;
        return launch;
    }

    static void describe(const plan &plan, char *text, size_t size) {
        snprintf(text, size, "two hidden layers on %d blocks", plan.blocks());
    }
};

} // namespace persistent::two_hidden

const fused_form fused_two_hidden = persistent::fused_form_of<persistent::two_hidden::form>();
