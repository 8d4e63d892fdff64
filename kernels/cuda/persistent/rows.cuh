/* What those forms of engine fused have in common in which a block owns rows of the batch: the loss of a row,
   the tally, an update. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ROWS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ROWS_CUH

#include <math.h>

#include "kernels/cuda/persistent/fused.cuh"

static const int ROWS = 128;   /* of a batch, at most */
static const int PIXELS = 16;  /* in one access: a pack */
static const int CLASSES = 16; /* at most: a lane each */

/* --- the loss --- */

struct row_loss {
    float gradient; /* dL/dlogit of this lane's class */
    float4 record;  /* what the row adds to the tally, in the lane of class 0: see row_tally */
    bool finite;
};

/* Softmax cross-entropy of two rows a warp: z is the logit of class c = lane % CLASSES, if the row is `there`
   and has such a class. */
__device__ inline row_loss lose(float z, bool there, int classes, int label, float scale) {
    const int c = threadIdx.x % CLASSES;
    const bool mine = there && c < classes, known = label < classes;
    row_loss loss = {0, {}, true};
    if (!mine) z = -INFINITY;
    float max = z, sum;
#pragma unroll
    for (int offset = CLASSES / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, max, offset);
        max = other > max || max != max ? other : max; /* NaN comes back in the sum */
    }
    const float own = sum = mine ? expf(z - max) : 0;
#pragma unroll
    for (int offset = CLASSES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (mine) loss.gradient = own * (scale / sum) - (c == label ? scale : 0.0f);
    const unsigned largest = __ballot_sync(0xffffffffu, mine && z == max) >> (threadIdx.x & 16) & 0xffffu;
    const int best = __ffs(largest) - 1; /* the first of the largest */
    const float of_label = __shfl_sync(0xffffffffu, z, label % CLASSES, CLASSES);
    if (there && c == 0) {
        loss.finite = known && isfinite(sum) && isfinite(of_label) && isfinite(max);
        loss.record = make_float4(sum, known ? of_label : NAN, max, best == label && sum > 0);
    }
    return loss;
}

/* --- the tally --- */

struct row_tally {
    size_t count; /* images of an epoch */
    int batch;
    int owners, own; /* blocks that have rows of a batch, and how many */
    double *losses;  /* as in fused_network */
    struct tally *tally;
    float4 *rows; /* [steps of an epoch][batch]: sum of exp(z - max), z of the label, max, is it right? */
    double *loss; /* [steps of an epoch][owners], sums over their rows */
    int *correct; /* the same */
    unsigned *ticket;

    __device__ int rows_of(size_t step) const {
        const size_t left = count - step * batch;
        return left < (size_t)batch ? (int)left : batch;
    }

    /* What the rows of owner f added in steps first .. end - 1, a thread a step: logarithms in double
       precision take their time, and have it here. */
    __device__ void count_own(int f, size_t first, size_t end) const {
        for (size_t step = first + threadIdx.x; step < end; step += blockDim.x) {
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

    /* The sum over the block of what its threads have, in a fixed order, to thread 0. */
    template <typename V> __device__ static V sum_over_block(V mine) {
        __shared__ V warps[32];
        for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
        __syncthreads();
        for (int w = 1; threadIdx.x == 0 && w < (int)blockDim.x / 32; w++) mine += warps[w];
        return mine;
    }

    /* The tally of those steps, by the last of the owners that counted. */
    __device__ void count_up(size_t first, size_t end) const {
        if (!last_block(ticket, (unsigned)owners)) return;
        const size_t of_last = rows_of(end - 1);
        double total = 0;
        int right = 0;
        for (size_t step = first + threadIdx.x; step < end; step += blockDim.x) {
            double of_step = 0;
            for (int f = 0; f < owners; f++) {
                of_step += __ldcg(loss + step * owners + f);
                right += __ldcg(correct + step * owners + f);
            }
            total += of_step;
            losses[step] = of_step / (double)(step + 1 < end ? batch : of_last);
        }
        total = sum_over_block(total);
        right = sum_over_block(right);
        if (threadIdx.x) return;
        tally->correct += right;
        tally->loss_sum += total;
        tally->images += (end - first - 1) * batch + of_last;
        tally->batches += end - first;
        if (!isfinite(total) && !tally->bad_step)
            tally->bad_step = tally->batches; /* a bad step is the last one */
    }
};

/* The tally of that network by `owners` of `own` rows each, in pieces of `base`. */
static inline row_tally lay_out_tally(const fused_network *network, int owners, int own, char *base,
                                      size_t *used) {
    const size_t steps = (network->count + network->batch - 1) / network->batch;
    row_tally tally = {};
    tally.count = network->count;
    tally.batch = (int)network->batch;
    tally.owners = owners;
    tally.own = own;
    tally.losses = network->losses;
    tally.tally = network->tally;
    tally.rows = (float4 *)fused_take(base, used, network->count * sizeof *tally.rows);
    tally.loss = (double *)fused_take(base, used, steps * owners * sizeof *tally.loss);
    tally.correct = (int *)fused_take(base, used, steps * owners * sizeof *tally.correct);
    tally.ticket = (unsigned *)fused_take(base, used, sizeof *tally.ticket);
    return tally;
}

/* --- the update --- */

struct descent {
    float momentum, weight_decay;
    bool has_velocity;

    __device__ void operator()(float rate, float gradient, float &weight, float &velocity) const {
        gradient += weight_decay * weight;
        if (has_velocity) velocity = gradient += momentum * velocity;
        weight -= rate * gradient;
    }
};

/* --- the plan --- */

/* What the plan of a form takes from a network of LAYERS as it is. */
template <int LAYERS> struct network_plan {
    int features, classes, batch;
    descent descend;
    float *weight[LAYERS], *bias[LAYERS], *weight_velocity[LAYERS], *bias_velocity[LAYERS];
    const uint8_t *images, *labels;
    const uint32_t *order;
    const struct step_scalars *scalars;
    row_tally tally;

    void take(const fused_network &network) {
        features = (int)network.features;
        classes = (int)network.layer[LAYERS - 1].out;
        batch = (int)network.batch;
        descend = {(float)network.momentum, (float)network.weight_decay,
                   network.layer[0].weight_velocity != NULL};
        for (int l = 0; l < LAYERS; l++) {
            weight[l] = (float *)network.layer[l].weight;
            bias[l] = (float *)network.layer[l].bias;
            weight_velocity[l] = (float *)network.layer[l].weight_velocity;
            bias_velocity[l] = (float *)network.layer[l].bias_velocity;
        }
        images = network.images;
        labels = network.labels;
        order = network.order;
        scalars = network.scalars;
    }
};

#endif
