/* Engine fused, the form "one hidden layer, split over hidden units": weights stay on the chip, and only
   logits and their gradients travel. `./train --config configs/fast-gpu.cfg` runs it.

   Split      a thread block has 8 hidden units: its columns of W1 in registers, and again in int8 slices in
              shared memory for the tensor cores; all pixels of the batch, as bytes. It owns some rows of the
              batch, for the output layer. (one_hidden_split_pixels.cu uses more thread blocks and is faster
              for one network; in this form eight concurrent networks take about as long as one.)
   Exchange   (1) partial logits of all rows, to the owners of the rows; (2) dL/dlogits of the owned rows, to
              all blocks.
   Mailboxes  LL packets (grid.cuh), one buffer each. A block overwrites partial logits only after it has
              received the gradients of the previous step from every owner, sent after the owner had read the
              partial logits. An owner overwrites gradients only after it has received partial logits of this
              step from every block, sent after the block had read the gradients.
   Pixels     the images of the next step are copied while this step computes: first into the free slots, the
              rest after the first half of dW1 into the slots whose images only that half still needed.
   Bound by   latency. 784-128-10 at batch 128 on 16 thread blocks, in cycles: forward and backward 800
              products of m16n8k32 each, at 2 cycles: 1600 each; two exchanges of about 1000; 100 KB of pixels
              through the L2 cache per block, 1600 at 64 bytes a cycle, hidden.
              Measured: docs/gpu-engines.md. */
#include "kernels/cuda/persistent/one_hidden_split_units.cuh"

namespace persistent::split_units {

template <bool VELOCITY> struct trainer : block<VELOCITY> {
    typedef split_units::plan plan_type;
    static constexpr int MAX_THREADS = THREADS;
    uint64_t *pixels_full; /* mbarrier: a phase per step */
    int end, rows, next_rows;
    int base, input_slot; /* of this step, in the rings of images and of inputs */
    unsigned phase;

    __device__ trainer(const plan_type &plan, void *shared, int end)
        : block<VELOCITY>(plan, shared), end(end), base(0), input_slot(0), phase(0) {
        __shared__ uint64_t barrier;
        pixels_full = &barrier;
    }

    using block<VELOCITY>::plan, block<VELOCITY>::inputs, block<VELOCITY>::copy_images;

    __device__ void expect_images(int count) const {
        if (threadIdx.x == 0) mbarrier_expect_tx(pixels_full, count * plan.features);
    }

    __device__ void load(int first, uint32_t) {
        rows = plan.rows_of(first, end), next_rows = plan.rows_of(first + 1, end);
        for (int i = threadIdx.x; i < smem_layout::images(plan.packs) / 4; i += THREADS)
            this->template at<float>(0)[i] = 0;
        if (threadIdx.x == 0) mbarrier_init(pixels_full);
        __syncthreads();
        this->w1.clear();
        this->all_weights(load_weight{VELOCITY});
        this->find_w1_max();
        for (int i = 0; i < 2; i++)
            inputs().store(i, inputs().prefetch(plan, first + i, plan.rows_of(first + i, end)));
        __syncthreads();
        expect_images(rows);
        copy_images(pixels_full, 0, 0, 0, rows);
        this->write_w1_slices();
        mbarrier_wait(pixels_full, phase++);
        __syncthreads();
    }

    __device__ bool step(int step, uint32_t tag, stage_profile &profile) {
        const int after = base + plan.batch, next_base = after < plan.slots ? after : after - plan.slots,
                  free_slots = min(next_rows, plan.slots - plan.batch),
                  next_slot = input_slot < INPUT_SLOTS - 1 ? input_slot + 1 : 0,
                  rows_after = plan.rows_of(step + 2, end);
        const float rate = *inputs().rate(input_slot);
        const int label = this->label_of(input_slot, rows, warp());
        const auto ahead = inputs().prefetch(plan, step + 2, rows_after);
        profile.stage(0);
        this->forward(base);
        profile.stage(1);
        __syncthreads();
        profile.stage(2);
        this->activate_row(rows, tag);
        profile.stage(3);
        expect_images(next_rows);
        copy_images(pixels_full, next_slot, next_base, 0, free_slots);
        this->output_layer(step, input_slot, rows, label, tag);
        profile.stage(4);
        inputs().store(next_slot < INPUT_SLOTS - 1 ? next_slot + 1 : 0, ahead);
        const bool own_finite = this->receive_gradients(rows, tag);
        profile.stage(5);
        this->reduce_gradients();
        const bool finite = __syncthreads_and(own_finite); /* the same in all blocks */
        profile.stage(6);
        if (finite) {
            float gradient[PACKS_PER_WARP][4];
            this->write_dz_slices();
            __syncthreads();
            profile.stage(7);
            this->template weight_gradient<false>(base, rate, gradient);
            __syncthreads();
            profile.stage(8);
            copy_images(pixels_full, next_slot, next_base, free_slots, next_rows);
            this->template weight_gradient<true>(base, rate, gradient);
            profile.stage(9);
            this->find_w1_max();
            this->update_output(rate);
            __syncthreads();
            profile.stage(10);
            this->write_w1_slices();
            profile.stage(11);
        } else {
            copy_images(pixels_full, next_slot, next_base, free_slots, next_rows); /* they are expected */
        }
        mbarrier_wait(pixels_full, phase++);
        __syncthreads();
        base = next_base, input_slot = next_slot, rows = next_rows, next_rows = rows_after;
        profile.stage(12);
        return finite;
    }

    __device__ void finish(int first, int step) {
        this->all_weights(store_weight{VELOCITY});
        if ((int)blockIdx.x >= plan.owners) return;
        plan.add_to_tally(blockIdx.x, first, step);
    }
};

/* --- on the host --- */

struct form {
    static constexpr const char *NAME = "one hidden layer, split over hidden units";
    typedef split_units::plan plan;

    /* Sets the number of thread blocks, and the slots for images. */
    static bool arrange(const tuned_context *context, const fused_network *network, plan *plan, char *why,
                        size_t size) {
        const size_t hidden = network->layer[0].out;
        if (!takes_range(network, why, size)) return false;
        if (!plan->take(network, MAX_CLASSES) || network->features > (size_t)(MAX_PACKS * PIXELS)) {
            snprintf(why, size,
                     "it takes one hidden layer in true float32, batches of up to %d, up to %d classes, and "
                     "images of a multiple of %d pixels, %d at most",
                     ROWS, MAX_CLASSES, PIXELS, MAX_PACKS * PIXELS);
            return false;
        }
        if (context->major < 9 || hidden > (size_t)(UNITS * fused_processors(context, network))) {
            snprintf(why, size, "%zu hidden units need %zu SMs of compute capability 9.0", hidden,
                     (hidden + UNITS - 1) / UNITS);
            return false;
        }
        plan->groups = (int)((hidden + UNITS - 1) / UNITS);
        plan->packs = plan->features / PIXELS;
        const int two_steps = 2 * plan->batch, early = ROWS / 2; /* images; slots reused after half of dW1 */
        const int least = two_steps - early > ROWS ? two_steps - early : ROWS;
        const size_t fixed = STATIC_SHARED + smem_layout::bytes(plan->packs, 0),
                     room = (size_t)context->shared_bytes > fixed
                                ? (context->shared_bytes - fixed) / pixel_pitch(plan->packs)
                                : 0;
        plan->slots = room < (size_t)two_steps ? (int)room : two_steps > ROWS ? two_steps : ROWS;
        if (room >= (size_t)least) return true;
        snprintf(why, size, "%d images of %zu pixels do not fit in the shared memory of an SM", least,
                 network->features);
        return false;
    }

    static double seconds(const tuned_context *, const fused_network *, const plan &plan) {
        return (8300 + 110 * plan.packs + 90 * plan.groups) / FUSED_CLOCK; /* fitted to measured steps */
    }

    static void lay_out(const fused_network *, plan *plan, memory_layout &layout) {
        layout.take(&plan->logits, (size_t)ROWS * plan->groups * PACKETS);
        layout.take(&plan->gradients, (size_t)ROWS * PACKETS);
        const int own = (plan->batch + plan->groups - 1) / plan->groups; /* the last owner may have fewer */
        plan->lay_out_tally(layout, (plan->batch + own - 1) / own, own);
    }

    static kernel_launch launch(const plan &plan) {
        /* velocities take registers */
        const void *kernel = plan.update.has_velocity ? (const void *)train_steps<trainer<true>>
                                                      : (const void *)train_steps<trainer<false>>;
        return {kernel, plan.groups, THREADS, 1, smem_layout::bytes(plan.packs, plan.slots)};
    }

    static void describe(const plan &plan, char *text, size_t size) {
        snprintf(text, size, "one hidden layer, split over hidden units, on %d blocks", plan.groups);
    }
};

} // namespace persistent::split_units

const fused_form fused_split_units = persistent::fused_form_of<persistent::split_units::form>();
