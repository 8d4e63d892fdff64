/* Engine fused, the form "one hidden layer, look-ahead": no step waits for a product over the pixels
   (docs/look-ahead.md, depth 1). It improves on one_hidden_split_pixels.cu; `./train` runs it.

   Chain      a cluster of 8 thread blocks for up to 128 hidden units, or 16: 16 units and all rows of the
              batch each. Z1 is a late product, which workers have sent, and a correction, G dZ1 of the step
              before. Then activation, partial logits (exchange 1), the output layer of the owned rows,
              dL/dlogits (exchange 2), and dZ1, which is sent to the workers. Both exchanges go through
              distributed shared memory. A warp begins with G dZ1 of the rows whose dZ1 is there, and sends
              its own rows meanwhile. Helper warps update W2 and the biases, sum the losses, and copy G to
              shared memory two steps ahead.
   Workers    one thread block for the 16 units of a block of the chain and a slice of the pixels: weights in
              registers. With dZ1 of step t they compute the weights of step t + 1, and their product with the
              batch of step t + 2. The slices of these units are in one cluster, and add their products
              through distributed shared memory: the chain receives one product, not one of each slice.
   Makers     the other thread blocks compute G of all steps, faster than the chain needs them. Eight of them
              share each of the first matrices, for which the chain waits.
   Mailboxes  those of the chain's cluster have one buffer: a warp sends the logits of a row after it has read
              the row's gradients, which the owner sent after it had read the row's logits; helpers have read
              all gradients before the main warps send the next logits. Late products and dZ1 are packets in
              global memory that are polled (look_ahead.cuh), in two buffers: a worker sends the product of
              step t + 2 after it has received dZ1 of step t, which the chain sends after it has read the
              product of step t. The chain sends dZ1 of step t after it has the product of step t, which
              workers send after they have read dZ1 of step t - 2. The same order protects the two buffers of
              the workers' mail: that for step t + 2 follows dZ1 of step t, which follows the sums of step t.
   Precision  pixels are float16, exactly; weights, dZ1 and G are two float16 planes, of 22 bits or more, with
              a power-of-two scale. Logits, dL/dH and dW2 are three products of tf32.
              Tensor cores sum up to 128 k of the small products and 64 of the others; float32 adds these.
   Launches   all weights are up to date when a launch ends. The next launch starts from what the late weights
              were, if the network, the order and the rate are as the last one left them: an epoch has the
              same bits however it is cut. Else its first product is that of the weights themselves; so it is
              at each multiple of LONGEST steps, the only steps before which a training may end.
   Bound by   latency: docs/look-ahead.md has the cycles of a step. */
#include "kernels/cuda/persistent/look_ahead_chain.cuh"
#include "kernels/cuda/persistent/look_ahead_worker.cuh"

namespace persistent::look_ahead {

template <int TILES, int OWN>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    look_ahead_steps(const __grid_constant__ plan plan, int first, int end, uint32_t) {
    extern __shared__ float4 shared_memory[];
    if (plan.tally->bad_step) return; /* no update after a bad step */
    const bool resumed = !*(volatile int *)&plan.resume->differs;
    stage_profile profile;
    profile.start();
    if ((int)blockIdx.x < plan.cluster)
        chain(plan, shared_memory, OWN, end, resumed).run(first, profile);
    else if ((int)blockIdx.x < plan.cluster + plan.groups * plan.slices)
        worker<TILES>(plan, shared_memory, end, resumed).run(first, profile);
    else if ((int)blockIdx.x >=
             plan.first_maker) /* makers are in no cluster of workers, which have barriers */
        make_grams(plan, shared_memory, first, end, blockIdx.x - plan.first_maker,
                   gridDim.x - plan.first_maker);
    if (threadIdx.x % MAIN_THREADS == 0 && (blockIdx.x == 0 || (int)blockIdx.x == plan.cluster))
        profile.print(end - first);
}

/* --- on the host --- */

struct form {
    static constexpr const char *NAME = "one hidden layer, look-ahead";
    typedef look_ahead::plan plan;

    static size_t shared_bytes(const plan &plan) {
        const size_t worker_bytes = worker_memory::bytes((plan.packs + plan.slices - 1) / plan.slices),
                     gram_bytes = gram_shared_bytes(plan.packs),
                     most = worker_bytes > gram_bytes ? worker_bytes : gram_bytes;
        return most > sizeof(chain_memory) ? most : sizeof(chain_memory);
    }

    static bool arrange(const tuned_context *context, const fused_network *network, plan *plan, char *why,
                        size_t size) {
        const size_t available = context->shared_bytes;
        if (!takes_range(network, why, size)) return false;
        if (network->concurrent_networks > 1) {
            snprintf(why, size, "it takes one network at a time");
            return false;
        }
        const size_t least = 2 * (CHUNK + 1) * PIXELS; /* of two slices: eight warps add 64 rows each */
        if (!plan->take(network, MAX_CLASSES) || network->features < least ||
            gram_shared_bytes(plan->features / PIXELS) > available) {
            snprintf(
                why, size,
                "it takes one hidden layer in true float32, batches of up to %d, up to %d classes, and "
                "images of a multiple of %d pixels, %zu at least, two batches of which fit in shared memory",
                ROWS, MAX_CLASSES, PIXELS, least);
            return false;
        }
        plan->groups = (plan->hidden[0] + GROUP_UNITS - 1) / GROUP_UNITS;
        plan->packs = plan->features / PIXELS;
        plan->cluster = plan->groups <= 8 ? 8 : 16;
        plan->slices = plan->cluster == 8 ? 8 : 4;
        while (plan->packs / plan->slices <= CHUNK) plan->slices /= 2; /* a worker has more tiles than that */
        plan->tiles = (plan->packs + plan->slices * MAIN_WARPS - 1) / (plan->slices * MAIN_WARPS);
        /* not all SMs have enough neighbours for a cluster */
        const int workers = plan->groups * plan->slices;
        plan->first_maker = plan->cluster + (workers + plan->cluster - 1) / plan->cluster * plan->cluster;
        plan->blocks = (fused_processors(context, network) / plan->cluster - 1) * plan->cluster;
        if (context->major >= 9 && plan->groups <= 16 && plan->tiles <= MAX_TILES &&
            shared_bytes(*plan) <= available && plan->first_maker < plan->blocks)
            return true;
        snprintf(why, size,
                 "%d hidden units and images of %d pixels do not fit on the SMs of this GPU, or it is not of "
                 "compute "
                 "capability 9.0",
                 plan->hidden[0], plan->features);
        return false;
    }

    /* As measured for 784-128-10 and 784-256-10 at batch 128: 3.0 and 4.2 us. */
    static double seconds(const tuned_context *, const fused_network *, const plan &plan) {
        return (plan.cluster == 8 ? 5100 : 7100) / FUSED_CLOCK;
    }

    static void lay_out(const fused_network *, plan *plan, memory_layout &layout) {
        const size_t steps = (plan->count + plan->batch - 1) / plan->batch, groups = plan->groups,
                     workers = groups * plan->slices;
        layout.take(&plan->gram, (steps < LONGEST ? steps : LONGEST) * GRAM_STEP);
        layout.take(&plan->gram_made, steps < LONGEST ? steps : LONGEST);
        layout.take(&plan->dz, 2 * groups * DZ_PACKETS);
        layout.take(&plan->products, 2 * groups * PRODUCT_PACKETS);
        layout.take(&plan->ahead, workers * MAIN_WARPS * MAX_TILES * UNIT_TILES * 32);
        layout.take(&plan->bias_ahead, groups * GROUP_UNITS);
        layout.take(&plan->last_dz, groups * DZ_PACKETS);
        plan->lay_out_state(layout);
        const int own = ROWS / plan->cluster;
        plan->lay_out_sums(layout, (plan->batch + own - 1) / own, own);
    }

    static kernel_launch launch(const plan &plan) {
        static const int FEW = ROWS / 16, MANY = ROWS / 8; /* rows of a block of the chain */
        const void *const kernels[MAX_TILES][2] = {
            {(const void *)look_ahead_steps<1, FEW>, (const void *)look_ahead_steps<1, MANY>},
            {(const void *)look_ahead_steps<2, FEW>, (const void *)look_ahead_steps<2, MANY>}};
        kernel_launch launch = {};
        launch.kernel = kernels[plan.tiles - 1][plan.cluster == 8];
        launch.cluster = plan.cluster;
        launch.blocks = plan.blocks;
        launch.threads = BLOCK_THREADS;
        launch.shared_bytes = shared_bytes(plan);
        launch.prologue = (const void *)prepare_steps;
        launch.prologue_threads = GRAM_THREADS;
        launch.longest = LONGEST;
        return launch;
    }

    static void describe(const plan &plan, char *text, size_t size) {
        snprintf(text, size, "%s, on a cluster of %d and %d workers", NAME, plan.cluster,
                 plan.groups * plan.slices);
    }
};

} // namespace persistent::look_ahead

const fused_form fused_look_ahead = persistent::fused_form_of<persistent::look_ahead::form>();
