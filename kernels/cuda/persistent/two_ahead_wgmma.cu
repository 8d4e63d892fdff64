/* Engine fused, the form "two hidden layers, look-ahead": no step waits for a product over the pixels
   (docs/look-ahead.md, depth 1), and sums of layer 1 travel in distributed shared memory. It improves on
   two_hidden_wgmma.cu; `./train --layers 784-512-512-10 --backend cuda-tuned` runs it.

   Chain      eight clusters of eight thread blocks: a block has a tile of W2, 64 x 64; a cluster has the
              tiles of the same rows, which are 64 units of layer 1, 8 of each block, and it has the loss of
              16 rows of the batch. Z1 is a late product, which workers have sent, and a correction, G dZ1
              of the step before. A step: Z1, H1 | to all blocks of the cluster | partial Z2 | to the
              clusters that own the rows: H2, partial logits | to all blocks of the cluster: loss, dZ2 | to
              the blocks with these columns: partial dH1 | to the blocks of the cluster that own the units:
              dZ1. The first, third and last of these five exchanges go through distributed shared memory.
   Warps      eight main warps run the chain; a warp has 16 rows of the batch, and waits for packets of
              these rows alone. Four have the tile of W2 in registers: dW2 and its update. Four helpers
              update the output layer and the biases, add the late products of the slices, sum the losses,
              and copy G to the cluster, an eighth by each block.
   Workers    seven clusters, one for each slice of the pixels: a block has the weights between it and 64
              units, in registers. With dZ1 of step t it computes the weights of step t + 1, and their
              product with the batch of step t + 2.
   Mailboxes  in distributed shared memory have one buffer: a block writes the next H1, logits or dH1 after
              it has received something that depends on what the readers of the last ones have sent after
              reading them. Where dW2 still reads H1, each block says so to the cluster (h1_free). Packets
              of Z2 and dZ2 have one buffer, too: a warp of a reader sends, after it has read its rows,
              those on which the next packets for it depend. dZ1 and late products have two buffers, as in
              look_ahead.cu.
   Precision  pixels are float16, exactly; all other operands of layers 1 and 2 are two float16 planes with
              a power-of-two scale (f16x2.cuh): of the largest magnitude in the cluster for H1, in the block
              for dZ1 and W2. dZ2 has a bound, so that no block waits for a maximum. The output layer is
              float32.
   Launches   as in look_ahead.cu: late_weights.cuh.
   Bound by   latency of exchanges: docs/gpu-engines.md has the cycles of a step. */
#include "kernels/cuda/persistent/two_ahead_gram.cuh"
#include "kernels/cuda/persistent/two_ahead_helpers.cuh"
#include "kernels/cuda/persistent/two_ahead_worker.cuh"

namespace persistent::two_ahead {

__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    two_ahead_steps(const __grid_constant__ plan plan, int first, int end, uint32_t tag) {
    extern __shared__ __align__(1024) float4 shared_memory[];
    if (plan.tally->bad_step) return; /* no update after a bad step */
    const bool resumed = !*(volatile int *)&plan.resume->differs;
    stage_profile profile;
    profile.start();
    if ((int)blockIdx.x < CHAIN)
        chain(plan, shared_memory, first, end, resumed).run(tag, profile);
    else
        worker(plan, shared_memory, first, end, resumed).run(profile);
    if (threadIdx.x % 128 == 0 && (blockIdx.x == 0 || (int)blockIdx.x == CHAIN)) profile.print(end - first);
}

/* --- on the host --- */

struct form {
    static constexpr const char *NAME = "two hidden layers, look-ahead";
    typedef two_ahead::plan plan;

    static const size_t SHARED = sizeof(chain_memory) > sizeof(worker_memory) ? sizeof(chain_memory)
                                                                              : sizeof(worker_memory);

    static const size_t STATIC_SHARED = 1024; /* sums over a block, and a reserve */

    static bool arrange(const tuned_context *context, const fused_network *network, plan *plan, char *why,
                        size_t size) {
        const fused_layer *layer = network->layer;
        if (!takes_range(network, why, size)) return false;
        if (!plan->take(network, MAX_CLASSES) || network->features > (size_t)(SLICES * SLICE_PIXELS) ||
            layer[0].out > (size_t)MAX_UNITS || layer[1].out > (size_t)MAX_UNITS ||
            activation_needs_input(layer[0].activation) || activation_needs_input(layer[1].activation)) {
            snprintf(
                why, size,
                "it takes two hidden layers of up to %d units in true float32, not of GELU, batches of up "
                "to %d, up to %d classes, and images of a multiple of %d pixels, up to %d",
                MAX_UNITS, ROWS, MAX_CLASSES, PIXELS, SLICES * SLICE_PIXELS);
            return false;
        }
        plan->packs = plan->features / PIXELS;
        if (context->major < 9 || BLOCKS > fused_processors(context, network) ||
            STATIC_SHARED + SHARED > (size_t)context->shared_bytes ||
            !cuda_compiled_for_wgmma((const void *)two_ahead_steps)) {
            snprintf(why, size, "it needs %d SMs of compute capability 9.0 with %zu bytes of shared memory",
                     BLOCKS, STATIC_SHARED + SHARED);
            return false;
        }
        return true;
    }

    static double seconds(const tuned_context *, const fused_network *, const plan &) {
        return 18200 / FUSED_CLOCK; /* as measured for 784-512-512-10 at batch 128 */
    }

    static void lay_out(const fused_network *, plan *plan, memory_layout &layout) {
        const size_t all = (plan->count + plan->batch - 1) / plan->batch,
                     steps = all < (size_t)LONGEST ? all : (size_t)LONGEST;
        layout.take(&plan->z2, (size_t)CHAIN * CLUSTER * PACKETS_EACH);
        layout.take(&plan->dz2, (size_t)CLUSTER * ROWS / 2 * 32);
        layout.take(&plan->dz1, (size_t)2 * CHAIN * PACKETS_EACH);
        layout.take(&plan->header, (size_t)2 * CHAIN);
        layout.take(&plan->late, (size_t)2 * CHAIN * SLICES * PACKETS_EACH);
        plan->mail_bytes = layout.used;
        layout.take(&plan->out_sums, (size_t)CHAIN * UNITS * CLUSTER * PACKETS);
        layout.take(&plan->out_bias, (size_t)CLUSTER * CLUSTER * PACKETS);
        layout.take(&plan->out_weight, (size_t)CLUSTER * TILE * PACKETS);
        layout.take(&plan->gathered, steps * SLICES * SLICE_BYTES);
        layout.take(&plan->gram, steps * GRAM_STEP);
        layout.take(&plan->ahead, (size_t)SLICES * CLUSTER * (TILE / 8) * MAIN_THREADS);
        layout.take(&plan->bias_ahead, (size_t)MAX_UNITS);
        layout.take(&plan->last_dz1, (size_t)CHAIN * (PACKETS_EACH + 1));
        plan->lay_out_state(layout);
        plan->lay_out_sums(layout, (plan->batch + OWN - 1) / OWN, OWN);
    }

    static kernel_launch launch(const plan &plan) {
        kernel_launch launch = {};
        launch.kernel = (const void *)two_ahead_steps;
        launch.blocks = BLOCKS;
        launch.threads = BLOCK_THREADS;
        launch.cluster = CLUSTER;
        launch.shared_bytes = SHARED;
        launch.prologue = (const void *)prepare_steps;
        launch.prologue_threads = GRAM_THREADS;
        launch.longest = LONGEST;
        launch.clear = plan.z2;
        launch.clear_bytes = plan.mail_bytes;
        return launch;
    }

    static void describe(const plan &, char *text, size_t size) {
        snprintf(text, size, "%s, on %d clusters and %d of workers", NAME, CHAIN / CLUSTER, SLICES);
    }
};

} // namespace persistent::two_ahead

const fused_form fused_two_ahead = persistent::fused_form_of<persistent::two_ahead::form>();
