/* What the forms for byte pixels share: one or two hidden layers in true float32, pixels of range [0, 1] that
   are copied as bytes, and a batch of up to ROWS rows whose output layer is split over thread blocks. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_BYTE_PIXELS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_BYTE_PIXELS_CUH

#include <math.h>

#include "kernels/cuda/persistent/grid.cuh"
#include "kernels/cuda/persistent/persistent.cuh"

namespace persistent {

static const int WARPS = 16, THREADS = 32 * WARPS; /* of a thread block */
static const int ROWS = 128;                       /* of a batch, at most */
static const int PIXELS = 16;                      /* in a pack: one access */
static const int UNITS = 8;                        /* hidden units of a thread block */
static const int CLASSES = 16;                     /* at most: one lane each */

/* Three classes travel in one packet, and lie in shared memory as three floats and a 0. */
static const int PACKETS = 4, PACKED_PITCH = 4 * PACKETS;

__device__ inline int lane() {
    return threadIdx.x % 32;
}

__device__ inline int warp() {
    return threadIdx.x / 32;
}

/* The class in column e of a packed row; 3 * PACKETS if the column is padding. */
__device__ inline int packed_class(int e) {
    return e % 4 < 3 ? e / 4 * 3 + e % 4 : 3 * PACKETS;
}

/* --- the loss --- */

struct row_loss {
    float gradient; /* dL/dlogit of this lane's class */
    float4 record;  /* in the lane of class 0: the row's entry in row_tally::records */
    bool finite;
};

/* Softmax cross-entropy of two rows per warp: z is the logit of class c = lane % CLASSES, if the row is valid
   and c < classes. `scale` is 1 / rows of the batch. */
__device__ inline row_loss softmax_cross_entropy(float z, bool valid, int classes, int label, float scale) {
    const int c = threadIdx.x % CLASSES;
    const bool mine = valid && c < classes, known = label < classes;
    row_loss loss = {0, {}, true};
    if (!mine) z = -INFINITY;
    float max = z, sum;
#pragma unroll
    for (int offset = CLASSES / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, max, offset);
        max = other > max || max != max ? other : max; /* a NaN logit makes the sum NaN */
    }
    const float own = sum = mine ? expf(z - max) : 0;
#pragma unroll
    for (int offset = CLASSES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (mine) loss.gradient = own * (scale / sum) - (c == label ? scale : 0.0f);
    const unsigned largest = __ballot_sync(0xffffffffu, mine && z == max) >> (threadIdx.x & 16) & 0xffffu;
    const int best = __ffs(largest) - 1; /* the first of the largest */
    const float of_label = __shfl_sync(0xffffffffu, z, label % CLASSES, CLASSES);
    if (valid && c == 0) {
        loss.finite = known && isfinite(sum) && isfinite(of_label) && isfinite(max);
        loss.record = make_float4(sum, known ? of_label : NAN, max, best == label && sum > 0);
    }
    return loss;
}

/* NaN as infinity: in a gradient that travels, NaN says that a loss is not finite, and all blocks must agree
   on that. */
__device__ inline float not_nan(float value) {
    return fminf(value, INFINITY);
}

/* Sums three values over the lanes that have the same packet, lane % PACKETS. */
__device__ inline void reduce_across_lanes(float (&sum)[3]) {
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
        for (int offset = PACKETS; offset < 32; offset *= 2)
            sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
}

/* The value of class lane % CLASSES, from a lane that has its packet. */
__device__ inline float value_of_class(const float (&packet)[3]) {
    const int c = threadIdx.x % CLASSES;
    float mine = 0;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        const float value = __shfl_sync(0xffffffffu, packet[j], c / 3, PACKETS);
        if (c % 3 == j) mine = value;
    }
    return mine;
}

/* --- the tally --- */

/* The sum over the block, in a fixed order, in thread 0. */
template <typename V> __device__ V sum_over_block(V mine) {
    __shared__ V warps[32];
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < (int)blockDim.x / 32; w++) mine += warps[w];
    return mine;
}

/* The output layer records each row; a launch adds the records to the tally when it ends. */
struct row_tally : training_plan {
    int owners, own;  /* thread blocks that own rows of a batch, and rows of each */
    float4 *records;  /* [count]: sum of exp(z - max), z of the label, max, 1 if correct */
    double *row_loss; /* [steps of an epoch][owners]: sums over the rows of an owner */
    int *row_correct; /* the same */
    unsigned *ticket;

    void lay_out_tally(memory_layout &layout, int all_owners, int rows_of_owner) {
        layout.take(&records, (size_t)count);
        lay_out_sums(layout, all_owners, rows_of_owner);
    }

    void lay_out_sums(memory_layout &layout, int all_owners, int rows_of_owner) {
        const size_t steps = (count + batch - 1) / batch;
        owners = all_owners;
        own = rows_of_owner;
        layout.take(&row_loss, steps * owners);
        layout.take(&row_correct, steps * owners);
        layout.take(&ticket, 1);
    }

    __device__ void record(int step, int row, float4 values) const {
        records[(size_t)step * batch + row] = values;
    }

    /* Stores the sums of owner f in a step: lane r has the record of its row r, of up to 16. */
    __device__ void store_sums(int f, int step, int end, float4 row) const {
        const bool mine = lane() < own && f * own + lane() < rows_of(step, end);
        double loss = mine ? (double)logf(row.x) - ((double)row.y - (double)row.z) : 0;
        const unsigned correct = __ballot_sync(0xffffffffu, mine && row.w != 0);
#pragma unroll
        for (int offset = 8; offset > 0; offset /= 2) loss += __shfl_xor_sync(0xffffffffu, loss, offset);
        if (lane() > 0 || f >= owners) return;
        row_loss[(size_t)step * owners + f] = loss;
        row_correct[(size_t)step * owners + f] = __popc(correct);
    }

    /* Adds steps first .. end - 1. Owner f sums its rows, one thread per step: after the last step, because
       logarithms in double precision are slow. The last owner that arrives sums over owners and steps. */
    __device__ void add_to_tally(int f, int first, int end) const {
        for (int step = first + threadIdx.x; step < end; step += blockDim.x) {
            const int last = min(rows_of(step, end), (f + 1) * own);
            double of_step = 0;
            int correct = 0;
            for (int r = f * own; r < last; r++) {
                const float4 row = records[(size_t)step * batch + r];
                of_step += log((double)row.x) - ((double)row.y - (double)row.z);
                correct += row.w != 0;
            }
            row_loss[(size_t)step * owners + f] = of_step;
            row_correct[(size_t)step * owners + f] = correct;
        }
        add_sums_to_tally(first, end);
    }

    /* The same from the sums of each owner, which the caller has stored. */
    __device__ void add_sums_to_tally(int first, int end) const {
        if (!last_block(ticket, (unsigned)owners)) return;
        double total = 0;
        int correct = 0;
        for (int step = first + threadIdx.x; step < end; step += blockDim.x) {
            double of_step = 0;
#pragma unroll 8
            for (int o = 0; o < owners; o++) {
                of_step += __ldcg(row_loss + (size_t)step * owners + o);
                correct += __ldcg(row_correct + (size_t)step * owners + o);
            }
            total += of_step;
            losses[step] = of_step / (double)rows_of(step, end);
        }
        total = sum_over_block(total);
        correct = sum_over_block(correct);
        if (threadIdx.x) return;
        tally->correct += correct;
        tally->loss_sum += total;
        tally->images += (size_t)(end - first - 1) * batch + rows_of(end - 1, end);
        tally->batches += end - first;
        if (!isfinite(total) && !tally->bad_step)
            tally->bad_step = tally->batches; /* a launch ends with its bad step */
    }
};

/* --- the update --- */

struct sgd_update {
    float momentum, weight_decay;
    bool has_velocity;

    __device__ void operator()(float rate, float gradient, float &weight, float &velocity) const {
        gradient += weight_decay * weight;
        if (has_velocity) velocity = gradient += momentum * velocity;
        weight -= rate * gradient;
    }
};

/* Visitors of all_weights(each), which calls each(weights in global memory, their velocities, index there,
   weight and velocity on the chip, whether this block stores them). */
struct load_weight {
    bool has_velocity;

    __device__ void operator()(const float *weights, const float *velocities, size_t i, float &weight,
                               float &velocity, bool) const {
        weight = weights[i];
        if (has_velocity) velocity = velocities[i];
    }
};

struct store_weight {
    bool has_velocity;

    __device__ void operator()(float *weights, float *velocities, size_t i, float weight, float velocity,
                               bool stores) const {
        if (!stores) return;
        weights[i] = weight;
        if (has_velocity) velocities[i] = velocity;
    }
};

/* --- the plan --- */

template <int LAYERS> struct byte_pixel_plan : row_tally {
    int classes, hidden[LAYERS - 1]; /* units */
    enum activation activation[LAYERS - 1];
    sgd_update update;
    float *weight[LAYERS], *bias[LAYERS], *weight_velocity[LAYERS], *bias_velocity[LAYERS];

    /* Copies the network; false if a form for byte pixels with up to `max_classes` does not support it. */
    bool take(const fused_network *network, int max_classes) {
        const fused_layer *layer = network->layer;
        if (network->depth != LAYERS || network->dtype != GEMM_F32 || network->precision != GEMM_TRUE ||
            network->batch > (size_t)ROWS || layer[LAYERS - 1].out > (size_t)max_classes ||
            !packs_fit(network->images, network->features, network->features, PIXELS))
            return false;
        take_inputs(network);
        for (int l = 0; l < LAYERS; l++) {
            weight[l] = (float *)layer[l].weight;
            bias[l] = (float *)layer[l].bias;
            weight_velocity[l] = (float *)layer[l].weight_velocity;
            bias_velocity[l] = (float *)layer[l].bias_velocity;
            if (l == LAYERS - 1) continue;
            hidden[l] = (int)layer[l].out;
            activation[l] = layer[l].activation;
        }
        classes = (int)layer[LAYERS - 1].out;
        update = {(float)network->momentum, (float)network->weight_decay, layer[0].weight_velocity != NULL};
        return true;
    }
};

/* Forms for byte pixels support range [0, 1] alone. */
static inline bool takes_range(const fused_network *network, char *why, size_t size) {
    if (network->range == INPUT_UNIT) return true;
    snprintf(why, size, "it takes pixels of input-range 0,1");
    return false;
}

/* --- inputs --- */

/* The order of the batch and the learning rate of a step: each thread loads its part ahead of time
   (`prefetch`), and stores it in a ring buffer in shared memory later (`store`), when it has arrived. */
template <int SLOTS> struct input_ring {
    static constexpr int BYTES = (SLOTS * 4 * (ROWS + 1) + 15) / 16 * 16;
    struct entry {
        uint32_t image;
        double rate; /* a conversion would wait for it */
    };
    char *base;

    __device__ uint32_t *images(int slot) const { /* [ROWS]: the image of each row */
        return reinterpret_cast<uint32_t *>(base) + slot * ROWS;
    }
    __device__ float *rate(int slot) const {
        return reinterpret_cast<float *>(base) + SLOTS * ROWS + slot;
    }

    /* `thread` counts from the first one that takes part, of ROWS or more. */
    template <typename P>
    __device__ entry prefetch(const P &plan, int step, int rows, int thread = threadIdx.x) const {
        entry ahead = {0, 0};
        if (thread < rows) ahead.image = plan.order[(size_t)step * plan.batch + thread];
        if (thread == 0 && rows) ahead.rate = plan.scalars[step].learning_rate;
        return ahead;
    }

    __device__ void store(int slot, entry ahead, int thread = threadIdx.x) const {
        if (thread < ROWS) images(slot)[thread] = ahead.image;
        if (thread == 0) *rate(slot) = (float)ahead.rate;
    }
};

} // namespace persistent

#endif
