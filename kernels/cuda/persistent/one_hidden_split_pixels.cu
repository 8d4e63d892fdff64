/* Engine fused, the form "one hidden layer, split-K over pixels": weights stay in shared memory, and only
   sums travel. `./train --config configs/validation.cfg --backend cuda-tuned` runs it.
   (one_hidden_split_units_wgmma.cu needs an eighth of the SMs.)

   Split      a thread block has 8 hidden units and a slice of the pixels: W1[slice][8], its velocities, and
              the slice of the batch as float. F slices by H groups of units fill the GPU (784-128-10: 8 x 16
              blocks, 98 pixels each on average). A block owns 128 / F rows of its group of units.
   Exchange   (1) partial sums of Z, to the F owners of rows in the same group of units; (2) partial logits,
              to the H owners of the same rows, each of which computes the loss; (3) dZ and the rows' part of
              dW2, to the F blocks of the group: each updates its slice of W1, and all of them their copy of
              W2.
   Mailboxes  LL packets (grid.cuh); steps alternate between two mailboxes. Before a block writes to a mailbox
              again, it has received a packet from each reader that was sent after the read. In exchange 2
              this holds only for owners of valid rows: a partial batch must be the last step of a launch, and
              it is, since it is the last of an epoch.
   Pixels     the next batch is copied to shared memory while this one computes, and converted to float during
              exchange 2.
   Bound by   latency. 784-128-10 at batch 128 on 128 thread blocks: forward and backward 800 cycles each at
              128 multiply-adds a cycle, and three exchanges of about 0.6 us.
              Measured: docs/gpu-engines.md. */
#include "kernels/cuda/persistent/one_hidden_split_pixels.cuh"

namespace persistent::split_pixels {

template <typename S> struct trainer : block<S> {
    typedef split_pixels::plan plan_type;
    static constexpr int MAX_THREADS = THREADS, SHARED_ALIGNMENT = 16;
    float *pixels, *next_pixels; /* of this step and the next one; the same if there is one buffer */
    int end;

    using block<S>::plan, block<S>::shared, block<S>::inputs, block<S>::labels_of;

    __device__ trainer(const plan_type &plan, void *shared, int end) : block<S>(plan, shared), end(end) {
        pixels = this->shared + smem_layout<S>::PIXELS_AT;
        next_pixels = pixels + (plan.buffers - 1) * plan.slice * PITCH;
    }

    __device__ static void wait_for_copies() {
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
    }

    __device__ void load(int first, uint32_t) {
        const int rows = plan.rows_of(first, end);
        for (int i = threadIdx.x; i < (int)smem_layout<S>::floats(plan.slice, plan.buffers); i += THREADS)
            shared[i] = 0;
        __syncthreads();
        this->all_weights(load_weight{plan.update.has_velocity});
        for (int step = first; step < first + 2; step++)
            inputs().store(step % 2, inputs().prefetch(plan, step, plan.rows_of(step, end)));
        __syncthreads();
        this->copy_bytes(first, rows);
        if (threadIdx.x < S::OWN) labels_of(first)[threadIdx.x] = this->label_of(first, rows);
        wait_for_copies();
        this->convert_pixels(rows, pixels);
        __syncthreads();
        this->copy_bytes(first + 1, plan.rows_of(first + 1, end));
    }

    __device__ bool step(int step, uint32_t tag, stage_profile &profile) {
        const int rows = plan.rows_of(step, end), next_rows = plan.rows_of(step + 1, end),
                  rows_after = plan.rows_of(step + 2, end);
        const float rate = *inputs().rate(step % 2);
        const int next_label = this->label_of(step + 1, next_rows);
        const auto ahead = inputs().prefetch(plan, step + 2, rows_after);
        profile.stage(0);
        this->forward(pixels, tag);
        profile.stage(1);
        this->activate_own(rows, tag);
        profile.stage(2);
        inputs().store(step % 2, ahead); /* the inputs of this step have been read */
        wait_for_copies();
        if (plan.buffers == 2) this->convert_pixels(next_rows, next_pixels); /* during exchange 2 */
        if (threadIdx.x < S::OWN) labels_of(step + 1)[threadIdx.x] = next_label;
        profile.stage(3);
        const bool own_finite = this->output_layer(step, rows, 1.0f / (float)rows, tag);
        profile.stage(4);
        this->send_gradients(__syncthreads_and(own_finite), tag);
        profile.stage(5);
        float gradient;
        const bool finite = this->receive_gradients(tag, gradient);
        profile.stage(6);
        if (finite) {
            this->update_slice(pixels, rate);
            profile.stage(7);
            this->update_output(rate, gradient);
            if (plan.buffers == 2) this->copy_bytes(step + 2, rows_after);
            profile.stage(8);
        }
        __syncthreads();
        profile.stage(9);
        if (plan.buffers == 1) {
            this->convert_pixels(next_rows, next_pixels);
            __syncthreads();
            this->copy_bytes(step + 2, rows_after);
        }
        float *const used = pixels;
        pixels = next_pixels;
        next_pixels = used;
        profile.stage(10);
        return finite;
    }

    __device__ void finish(int first, int step) const {
        this->all_weights(store_weight{plan.update.has_velocity});
        if (this->h) return;
        plan.add_to_tally(this->f, first, step);
    }
};

/* --- on the host --- */

/* Calls function<pixel_split<..>>() for this number of slices. */
template <typename F> static void with_split(int slices, F function) {
    if (slices == 16) return function.template operator()<pixel_split<16, 2>>();
    if (slices == 8) return function.template operator()<pixel_split<8, 4>>();
    return function.template operator()<pixel_split<4, 7>>();
}

struct form {
    static constexpr const char *NAME = "one hidden layer, split-K over pixels";
    typedef split_pixels::plan plan;

    /* Sets the largest number of slices that fits. */
    static bool arrange(const tuned_context *context, const fused_network *network, plan *plan, char *why,
                        size_t size) {
        const int processors = fused_processors(context, network);
        if (!takes_range(network, why, size)) return false;
        if (!plan->take(network, CLASSES) || network->layer[0].out > (size_t)UNITS * context->processors) {
            snprintf(why, size,
                     "it takes one hidden layer in true float32, batches of up to %d, up to %d classes, and "
                     "images of a multiple of %d pixels",
                     ROWS, CLASSES, PIXELS);
            return false;
        }
        const int packs = plan->features / PIXELS;
        plan->groups = (plan->hidden[0] + UNITS - 1) / UNITS;
        for (plan->slices = 16; plan->slices >= 4; plan->slices /= 2) {
            if (plan->groups * plan->slices > processors || packs < plan->slices) continue;
            plan->slice = (packs + plan->slices - 1) / plan->slices * PIXELS;
            with_split(plan->slices, [&]<typename S>() {
                for (int buffers = 1; buffers <= 2 && plan->slice <= S::LONGEST; buffers++)
                    if (sizeof(float) * smem_layout<S>::floats(plan->slice, buffers) + STATIC_SHARED <=
                        (size_t)context->shared_bytes)
                        plan->buffers = buffers;
            });
            if (plan->buffers) return true;
        }
        snprintf(why, size, "%zu hidden units for %zu pixels do not fit in the shared memory of %d SMs",
                 network->layer[0].out, network->features, processors);
        return false;
    }

    static double seconds(const tuned_context *, const fused_network *, const plan &plan) {
        return (4000 + 64 * plan.slice) / FUSED_CLOCK; /* fitted to measured steps */
    }

    static void lay_out(const fused_network *, plan *plan, memory_layout &layout) {
        with_split(plan->slices, [&]<typename S>() {
            layout.take(&plan->mailbox, 2 * (size_t)mailbox_layout_of<S>(plan->groups).total);
            plan->lay_out_tally(layout, S::F, S::OWN);
        });
    }

    static kernel_launch launch(const plan &plan) {
        kernel_launch launch = {NULL, plan.slices * plan.groups, THREADS, 1};
        with_split(plan.slices, [&]<typename S>() {
            launch.kernel = (const void *)train_steps<trainer<S>>;
            launch.shared_bytes = sizeof(float) * smem_layout<S>::floats(plan.slice, plan.buffers);
        });
        return launch;
    }

    static void describe(const plan &plan, char *text, size_t size) {
        snprintf(text, size, "one hidden layer, split-K over pixels, on %d x %d blocks", plan.groups,
                 plan.slices);
    }
};

} // namespace persistent::split_pixels

const fused_form fused_split_pixels = persistent::fused_form_of<persistent::split_pixels::form>();
