/* What the forms for byte pixels share: one or two hidden layers in true float32, pixels of range [0, 1] that
   are multiplied as bytes, and a batch of up to ROWS rows whose output layer is split over thread blocks. */
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

/* The class in column e of PACKED_PITCH, or 3 * PACKETS. */
__device__ inline int packed_class(int e) {
    return e % 4 < 3 ? e / 4 * 3 + e % 4 : 3 * PACKETS;
}

/* --- the loss --- */

struct row_loss {
    float gradient; /* dL/dlogit of this lane's class */
    float4 record;  /* in the lane of class 0: the row's entry in row_tally */
    bool finite;
};

/* Softmax cross-entropy of two rows per warp: z is the logit of class c = lane % CLASSES, if the row is valid
   and has such a class. `scale` is 1 / rows of the batch. */
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

/* Sums three values over the lanes of the same packet, lane % PACKETS. */
__device__ inline void reduce_across_lanes(float (&sum)[3]) {
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
        for (int offset = PACKETS; offset < 32; offset *= 2)
            sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], offset);
}

/* The value of class lane % CLASSES, of the three of each packet. */
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

struct row_tally {
    int count, batch; /* images of an epoch and of a step */
    int owners, own;  /* thread blocks that own rows of a batch, and rows of each */
    double *losses;   /* as in fused_network */
    struct tally *tally;
    float4 *rows; /* [steps of an epoch][batch]: sum of exp(z - max), z of the label, max, is it right? */
    double *loss; /* [steps of an epoch][owners]: sums over the rows of an owner */
    int *correct; /* the same */
    unsigned *ticket;

    __device__ int rows_of(int step) const {
        return min(count - step * batch, batch);
    }

    /* Sums the rows of owner f in steps first .. end - 1, one thread per step: after the last step, because
       logarithms in double precision are slow. */
    __device__ void sum_own_rows(int f, int first, int end) const {
        for (size_t step = first + threadIdx.x; step < (size_t)end; step += blockDim.x) {
            const int last = min(rows_of(step), (f + 1) * own);
            double of_step = 0;
            int right = 0;
            for (int r = f * own; r < last; r++) {
                const float4 row = rows[step * batch + r];
                of_step += log((double)row.x) - ((double)row.y - (double)row.z);
                right += row.w != 0;
            }
            loss[step * owners + f] = of_step;
            correct[step * owners + f] = right;
        }
    }

    /* The sum over the block, in a fixed order, in thread 0. */
    template <typename V> __device__ static V sum_over_block(V mine) {
        __shared__ V warps[32];
        for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
        __syncthreads();
        for (int w = 1; threadIdx.x == 0 && w < (int)blockDim.x / 32; w++) mine += warps[w];
        return mine;
    }

    /* Adds these steps to the tally: the last owner that arrives does it. */
    __device__ void add_steps(int first, int end) const {
        if (!last_block(ticket, (unsigned)owners)) return;
        const size_t of_last = rows_of(end - 1);
        double total = 0;
        int right = 0;
        for (size_t step = first + threadIdx.x; step < (size_t)end; step += blockDim.x) {
            double of_step = 0;
            for (int f = 0; f < owners; f++) {
                of_step += __ldcg(loss + step * owners + f);
                right += __ldcg(correct + step * owners + f);
            }
            total += of_step;
            losses[step] = of_step / (double)(step + 1 < (size_t)end ? batch : of_last);
        }
        total = sum_over_block(total);
        right = sum_over_block(right);
        if (threadIdx.x) return;
        tally->correct += right;
        tally->loss_sum += total;
        tally->images += (size_t)(end - first - 1) * batch + of_last;
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

template <int LAYERS> struct byte_pixel_plan {
    int hidden[LAYERS - 1]; /* units */
    enum activation activation[LAYERS - 1];
    int features, classes, batch;
    sgd_update update;
    float *weight[LAYERS], *bias[LAYERS], *weight_velocity[LAYERS], *bias_velocity[LAYERS];
    const uint8_t *images, *labels;
    const uint32_t *order;
    const struct step_scalars *scalars;
    row_tally tally;

    __device__ bool bad_step() const {
        return tally.tally->bad_step;
    }

    /* Whether a form for LAYERS layers and `classes` classes supports the network; then it is copied here. */
    bool take(const fused_network *network, int classes_of_form) {
        const fused_layer *layer = network->layer;
        if (network->depth != LAYERS || network->dtype != GEMM_F32 || network->precision != GEMM_TRUE ||
            network->batch > (size_t)ROWS || layer[LAYERS - 1].out > (size_t)classes_of_form ||
            !packs_fit(network->images, network->features, network->features, PIXELS))
            return false;
        for (int l = 0; l < LAYERS; l++) {
            weight[l] = (float *)layer[l].weight;
            bias[l] = (float *)layer[l].bias;
            weight_velocity[l] = (float *)layer[l].weight_velocity;
            bias_velocity[l] = (float *)layer[l].bias_velocity;
            if (l == LAYERS - 1) continue;
            hidden[l] = (int)layer[l].out;
            activation[l] = layer[l].activation;
        }
        features = (int)network->features;
        classes = (int)layer[LAYERS - 1].out;
        batch = (int)network->batch;
        update = {(float)network->momentum, (float)network->weight_decay, layer[0].weight_velocity != NULL};
        images = network->images;
        labels = network->labels;
        order = network->order;
        scalars = network->scalars;
        tally.count = (int)network->count;
        tally.batch = batch;
        tally.losses = network->losses;
        tally.tally = network->tally;
        return true;
    }

    /* Global memory of the tally: `owners` thread blocks own `own` rows each. */
    void lay_out_tally(memory_layout &layout, int owners, int own) {
        const size_t steps = (tally.count + batch - 1) / batch;
        tally.owners = owners;
        tally.own = own;
        layout.take(&tally.rows, (size_t)tally.count);
        layout.take(&tally.loss, steps * owners);
        layout.take(&tally.correct, steps * owners);
        layout.take(&tally.ticket, 1);
    }
};

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
        double rate;
    };
    char *base;

    __device__ uint32_t *images(int slot) const { /* [ROWS]: the image of each row */
        return reinterpret_cast<uint32_t *>(base) + slot * ROWS;
    }
    __device__ float *rate(int slot) const {
        return reinterpret_cast<float *>(base) + SLOTS * ROWS + slot;
    }

    template <typename P> __device__ entry prefetch(const P &plan, int step, int rows) const {
        entry ahead = {0, 0};
        if ((int)threadIdx.x < rows) ahead.image = plan.order[(size_t)step * plan.batch + threadIdx.x];
        if (threadIdx.x == 0 && rows) ahead.rate = plan.scalars[step].learning_rate;
        return ahead;
    }

    __device__ void store(int slot, entry ahead) const {
        if (threadIdx.x < ROWS) images(slot)[threadIdx.x] = ahead.image;
        if (threadIdx.x == 0) *rate(slot) = (float)ahead.rate;
    }
};

} // namespace persistent

#endif
