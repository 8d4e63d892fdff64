/* Engine fused, the form "one hidden layer, split over hidden units": weights stay on the chip, and only
   logits and their gradients travel. `./train --ensemble 8` runs it: eight networks train concurrently.

   Split      a thread block has 8 hidden units: its columns of W1 in registers, and again in int8 slices in
              shared memory for the tensor cores; the pixels of two batches, as bytes. It owns some rows of
              the batch, for the output layer. (look_ahead.cu uses more thread blocks and is faster for one
              network.)
   Warps      8 main warps have 16 rows each, from Z1 to dZ1. 8 output warps run the softmax of the owned rows
              and compute dW2 meanwhile. All multiply for dW1, update their share of the weights, and write it
              in slices.
   Exchange   (1) partial logits of all rows, to the owners of the rows; (2) dL/dlogits of the owned rows, to
              all blocks.
   Mailboxes  LL packets (grid.cuh), one buffer each. A block overwrites partial logits only after it has
              received the gradients of the previous step from every owner, sent after the owner had read the
              partial logits. An owner overwrites gradients only after it has received partial logits of this
              step from every block, sent after the block had read the gradients.
   Pixels     the images of the next step are requested while gradients travel. Two blocks, a cluster, copy
              half of the images each, to both. A warp that owns a row has then received partial logits of
              this step from all blocks: they have read the images of the step before, and have those of this
              step. The other warps wait for the gradients.
   Bound by   latency. 784-128-10 at batch 128 on 16 thread blocks, in cycles: forward and backward take 50
              products of m64n32k32 each, at 21 cycles: 1060 each; two exchanges of about 1000; 50 KB of
              pixels through the L2 cache per block, 800 at 64 bytes a cycle, hidden.
              Measured: docs/gpu-engines.md. */
#include "kernels/cuda/persistent/one_hidden_split_units.cuh"

namespace persistent::split_units {

template <bool VELOCITY> struct trainer : block<VELOCITY> {
    typedef split_units::plan plan_type;
    static constexpr int MAX_THREADS = THREADS, SHARED_ALIGNMENT = 16;
    uint64_t *pixels_full; /* mbarrier: a phase per step */
    int end, rows, next_rows;
    int buffer, input_slot; /* of this step, for images and for inputs */
    unsigned phase;
    const bool is_main;

    __device__ trainer(const plan_type &plan, void *shared, int end)
        : block<VELOCITY>(plan, shared), end(end), buffer(0), input_slot(0), phase(0),
          is_main(uniform(warp()) < MAIN_WARPS) {
        __shared__ uint64_t barrier;
        pixels_full = &barrier;
    }

    using block<VELOCITY>::plan, block<VELOCITY>::inputs, block<VELOCITY>::copy_images;

    __device__ void expect_images(int count) const {
        if (threadIdx.x == MAIN_THREADS) mbarrier_expect_tx(pixels_full, count * plan.features);
    }

    __device__ void load(int first, uint32_t) {
        rows = plan.rows_of(first, end), next_rows = plan.rows_of(first + 1, end);
        for (int i = threadIdx.x; i < smem_layout::images(plan.packs) / 4; i += THREADS)
            this->template at<float>(0)[i] = 0;
        if (threadIdx.x == 0) mbarrier_init(pixels_full);
        __syncthreads();
        if (threadIdx.x == 0) *this->template at<uint8_t>(smem_layout::ONE) = 255;
        if (threadIdx.x < PACKED_PITCH && packed_class(threadIdx.x) >= plan.classes)
            this->template at<float>(smem_layout::OUT_WEIGHT)[UNITS * PACKED_PITCH + threadIdx.x] = -INFINITY;
        this->w1.clear();
        this->all_weights(load_weight{VELOCITY});
        for (int i = 0; i < 2; i++)
            inputs().store(i, inputs().prefetch(plan, first + i, plan.rows_of(first + i, end)));
        expect_images(rows);
        cluster_barrier();
        copy_images(pixels_full, 0, 0, rows);
        this->write_all_slices(first);
        mbarrier_wait(pixels_full, phase++);
        __syncthreads();
    }

    typedef typename block<VELOCITY>::columns columns;

    /* Z1, H, logits; with dL/dlogits dZ, in slices. True if this thread's losses are finite. */
    __device__ bool run_main(uint32_t tag, columns (&first)[2], stage_profile &profile) {
        const auto weights = this->load_logit_weights();
        this->forward(buffer, rows);
        barrier_arrive<BARRIER_FORWARD, THREADS>();
        profile.stage(1);
        this->send_logits(weights, rows, tag);
        profile.stage(2);
        if (plan.count) this->find_largest(); /* true: the compiler moves nothing from behind this branch */
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        this->store_hidden();
        this->load_columns(first, buffer);
        profile.stage(3);
        float gradient[2][3];
        barrier_sync<BARRIER_OUTPUT, THREADS>(); /* polls of all blocks delay the packets */
        this->receive_gradients(gradient, this->row(0), rows, tag);
        this->store_gradients(gradient);
        barrier_arrive<BARRIER_GRADIENTS, THREADS>();
        profile.stage(4);
        const bool finite = this->input_gradient(gradient, rows);
        profile.stage(13);
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        this->write_dz_slices();
        profile.stage(5);
        return finite;
    }

    /* The softmax of the owned rows, and dW2; requests the images of the next step. */
    __device__ void run_output(int step, uint32_t tag, columns (&first)[2], stage_profile &profile) {
        const int label = this->label_of(input_slot, rows, warp() - MAIN_WARPS),
                  thread = threadIdx.x - MAIN_THREADS;
        const float mean = 1.0f / (float)rows;
        expect_images(next_rows);
        const auto ahead = inputs().prefetch(plan, step + 2, plan.rows_of(step + 2, end), thread);
        barrier_sync<BARRIER_FORWARD, THREADS>(); /* polling would slow forward down */
        profile.stage(1);
        const bool received = this->output_layer(step, input_slot, rows, label, mean, tag);
        barrier_arrive<BARRIER_OUTPUT, THREADS>();
        profile.stage(2);
        inputs().store((input_slot + 2) % INPUT_SLOTS, ahead, thread);
        this->load_columns(first, buffer);
        this->find_largest();
        profile.stage(3);
        if (!received) barrier_sync<BARRIER_GRADIENTS, THREADS>();
        this->copy_images(pixels_full, (input_slot + 1) % INPUT_SLOTS, buffer ^ 1, next_rows);
        profile.stage(5);
        if (received) barrier_sync<BARRIER_GRADIENTS, THREADS>();
        this->output_gradient();
        profile.stage(4);
    }

    __device__ bool step(int step, uint32_t tag, stage_profile &profile) {
        bool own_finite = true;
        columns first[2];
        profile.stage(0);
        if (is_main)
            own_finite = run_main(tag, first, profile);
        else
            run_output(step, tag, first, profile);
        const bool finite = __syncthreads_and(own_finite); /* the same in all blocks */
        profile.stage(6);
        if (!finite) {
            mbarrier_wait(pixels_full, phase); /* no copy may be pending when the block exits */
            return false;
        }
        float inverse[2];
        this->descend(first, buffer, *inputs().rate(input_slot), inverse);
        profile.stage(7);
        __syncthreads();
        profile.stage(9);
        this->write_w1_slices(EARLY_TILES, inverse);
        profile.stage(10);
        mbarrier_wait(pixels_full, phase++);
        profile.stage(11);
        __syncthreads();
        buffer ^= 1, input_slot = (input_slot + 1) % INPUT_SLOTS, rows = next_rows,
                     next_rows = plan.rows_of(step + 2, end);
        profile.stage(12);
        return true;
    }

    __device__ void finish(int first, int step) {
        this->all_weights(store_weight{VELOCITY});
        this->keep_bounds(step);
        if ((int)blockIdx.x >= plan.owners) return;
        plan.add_to_tally(blockIdx.x, first, step);
    }
};

/* --- on the host --- */

struct form {
    static constexpr const char *NAME = "one hidden layer, split over hidden units";
    typedef split_units::plan plan;

    /* Sets the number of thread blocks, in all and in a cluster, and of packs. */
    static bool arrange(const tuned_context *context, const fused_network *network, plan *plan, char *why,
                        size_t size) {
        const size_t hidden = network->layer[0].out;
        if (!takes_range(network, why, size)) return false;
        const size_t most = by_wgmma::MAX_PACKS * PIXELS;
        if (!plan->take(network, MAX_CLASSES) || network->features > most) {
            snprintf(why, size,
                     "it takes one hidden layer in true float32, batches of up to %d, up to %d classes, and "
                     "images of a multiple of %d pixels, %zu at most",
                     ROWS, MAX_CLASSES, PIXELS, most);
            return false;
        }
        if (context->major < 9 || hidden > (size_t)(UNITS * fused_processors(context, network))) {
            snprintf(why, size, "%zu hidden units need %zu SMs of compute capability 9.0", hidden,
                     (hidden + UNITS - 1) / UNITS);
            return false;
        }
        plan->groups = (int)((hidden + UNITS - 1) / UNITS);
        plan->packs = plan->features / PIXELS;
        plan->pitch = pixel_pitch(plan->packs);
        plan->buffer_bytes = plan->batch * plan->pitch + by_wgmma::BEYOND;
        plan->cluster = plan->groups % 2 ? 1 : 2;
        if (STATIC_SHARED + smem_layout::bytes(*plan) > (size_t)context->shared_bytes) {
            snprintf(why, size,
                     "two batches of %d images of %zu pixels do not fit in the shared memory of an SM",
                     plan->batch, network->features);
            return false;
        }
        if (cuda_compiled_for_wgmma(launch(*plan).kernel)) return true;
        snprintf(why, size, "it was not compiled for this GPU, or the GPU is not of compute capability 9.0");
        return false;
    }

    static double seconds(const tuned_context *, const fused_network *, const plan &plan) {
        return (6800 + 95 * plan.packs + 48 * plan.groups) / FUSED_CLOCK; /* fitted to measured steps */
    }

    static void lay_out(const fused_network *, plan *plan, memory_layout &layout) {
        layout.take(&plan->logits, (size_t)ROWS * plan->groups * PACKETS);
        layout.take(&plan->gradients, (size_t)ROWS * PACKETS);
        layout.take(&plan->kept, (size_t)plan->groups);
        const int own = (plan->batch + plan->groups - 1) / plan->groups; /* the last owner may have fewer */
        plan->lay_out_tally(layout, (plan->batch + own - 1) / own, own);
    }

    static kernel_launch launch(const plan &plan) {
        /* velocities take registers */
        const void *kernel = plan.update.has_velocity ? (const void *)train_steps<trainer<true>>
                                                      : (const void *)train_steps<trainer<false>>;
        kernel_launch launch = {};
        launch.kernel = kernel;
        launch.blocks = plan.groups;
        launch.threads = THREADS;
        launch.cluster = plan.cluster;
        launch.shared_bytes = smem_layout::bytes(plan);
        launch.longest = LONGEST;
        return launch;
    }

    static void describe(const plan &plan, char *text, size_t size) {
        snprintf(text, size, "one hidden layer, split over hidden units, on %d blocks", plan.groups);
    }
};

} // namespace persistent::split_units

const fused_form fused_split_units = persistent::fused_form_of<persistent::split_units::form>();
