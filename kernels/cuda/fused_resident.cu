/* Engine fused, the form for one hidden layer that fits on the chip: the weights stay in shared memory, and only sums travel.

   Split      a block has 8 hidden units and a slice of the pixels: W1[slice][8], its velocities, and the slice of the batch as float.
              F slices by H groups of units fill the GPU (784-128-10: 8 x 16 blocks, 98 pixels each on average).
   Step       forward   a block's part of Z = X W1, 128 x 8; each of the F blocks of a group of units adds up OWN = 128 / F of
                        the rows (exchange 1), activates them, and has their part of the logits
              turn      the H blocks that own the same rows exchange those parts (2): each has the logits, the loss and
                        dZ of its rows and units, and its rows' part of dW2
              backward  the F blocks of a group exchange dZ and the parts of dW2 (3): each updates its slice of W1, all of them their
                        copy of W2
   Exchange   packets of a number and its step (grid.cuh): no barrier, no fence. The buffers alternate from step to step: whoever writes
              one again has had a packet from all of its readers since.
   Pixels     the next batch is copied to shared memory while this one is computed, and made float during exchange 2.
   Floor      784-128-10 at batch 128, of 128 blocks: forward and backward 800 cycles each at 128 multiply-adds a cycle; three
              exchanges of about 0.5 us. */
#include <cuda_pipeline.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/grid.cuh"

static const int WARPS = 16, THREADS = 32 * WARPS;
static const int UNITS = 8;                  /* of a block */
static const int HALF = UNITS / 2;           /* of a warp */
static const int GROUPS = WARPS / 2;         /* of warps, which share a sum */
static const int ROWS = 128;                 /* of a batch, at most */
static const int PIXELS = 16;                /* in one access: a pack; slices are made of them */
static const int PITCH = ROWS + 4;           /* of what has the batch as its columns: for the banks */
static const int CLASSES = 16, TALL = 17;    /* at most; the pitch of what has classes as its columns */
static const int WEIGHTS = (UNITS + 1) * CLASSES; /* of the output layer in a block: its rows of W2, and the bias */
static const int TAIL = WEIGHTS + CLASSES;   /* of a message of exchange 3, after dZ: dW2, db2, is all finite? */

/* F slices of up to 32 N pixels; OWN rows of the batch for each. */
template <int F_, int N_> struct split {
    static constexpr int F = F_, N = N_, OWN = ROWS / F, LONGEST = 32 * N;
};

struct resident_plan {
    int features, hidden, classes, batch, groups; /* groups of units: H */
    int slice;                                    /* pixels of the longest slice */
    int buffers;                                  /* of float pixels: 2, or 1 where 2 do not fit */
    enum activation activation;
    float momentum, weight_decay;
    float *weight[2], *bias[2], *weight_velocity[2], *bias_velocity[2];
    const uint8_t *images, *labels;
    const uint32_t *order;
    const double *rates;
    double *losses;
    struct tally *tally;
    size_t count;
    packet *parts, *logits, *ways; /* the three exchanges, two buffers each */
    double *loss;                  /* [steps of an epoch][F], sums over rows */
    int *correct;                  /* the same */
    unsigned *ticket;
};

/* Shared memory, in floats from its start. */
struct resident_layout {
    int pixels, weight, velocity, part, back, stage, images, labels, hidden, pre, gradient, out_weight, out_velocity, bias, rows, rates;
    int total, stage_pitch;
};

template <typename S> __host__ __device__ static resident_layout lay_out(int slice, int buffers) {
    resident_layout at;
    int used = 0;
    const auto take = [&used](int floats) {
        const int start = used;
        used += (floats + 3) / 4 * 4;
        return start;
    };
    at.stage_pitch = slice / PIXELS | 1; /* of packs */
    at.pixels = take(buffers * slice * PITCH);
    at.weight = take(slice * UNITS);
    at.velocity = take(slice * UNITS);
    at.part = take(GROUPS * UNITS * (slice > PITCH ? slice : PITCH));
    at.back = take(UNITS * PITCH);
    at.stage = take(ROWS * at.stage_pitch * 4);
    at.images = take(2 * ROWS);
    at.labels = take(2 * S::OWN);
    at.hidden = take(S::OWN * UNITS);
    at.pre = take(S::OWN * UNITS);
    at.gradient = take(S::OWN * TALL);
    at.out_weight = take((UNITS + 1) * TALL);
    at.out_velocity = take((UNITS + 1) * TALL);
    at.bias = take(2 * UNITS);
    at.rows = take(4 * S::OWN);
    at.rates = take(4);
    at.total = used;
    return at;
}

__device__ inline float4 four(const float *at) {
    return *reinterpret_cast<const float4 *>(at);
}

/* One of the F * H blocks. */
template <typename S> struct resident {
    const resident_plan &plan;
    float *shared;
    resident_layout at;
    int f, h;               /* which slice, which group of units */
    int first_pack, length; /* of its pixels, in packs; and how many pixels that are */

    __device__ int rows_of(size_t step) const {
        const size_t left = plan.count - step * plan.batch;
        return left < (size_t)plan.batch ? (int)left : plan.batch;
    }

    /* --- pixels --- */

    __device__ uint32_t *images_of(size_t step) const {
        return reinterpret_cast<uint32_t *>(shared + at.images) + step % 2 * ROWS;
    }

    __device__ int *labels_of(size_t step) const {
        return reinterpret_cast<int *>(shared + at.labels) + step % 2 * S::OWN;
    }

    __device__ double *rate_of(size_t step) const {
        return reinterpret_cast<double *>(shared + at.rates) + step % 2;
    }

    /* Which images a step takes, and its learning rate, on their way to shared memory. */
    __device__ void copy_order(size_t step) const {
        if ((int)threadIdx.x < rows_of(step))
            __pipeline_memcpy_async(images_of(step) + threadIdx.x, plan.order + step * plan.batch + threadIdx.x, 4);
        if (threadIdx.x == 0) __pipeline_memcpy_async(rate_of(step), plan.rates + step, 8);
    }

    /* Their pixels: after their order and a barrier. */
    __device__ void copy_pixels(size_t step) const {
        const int packs = length / PIXELS, rows = rows_of(step);
        const uint32_t *images = images_of(step);
        uint4 *stage = reinterpret_cast<uint4 *>(shared + at.stage);
        for (int e = threadIdx.x; e < rows * packs; e += THREADS) {
            const int row = e / packs, p = e % packs;
            __pipeline_memcpy_async(stage + row * at.stage_pitch + p,
                                    plan.images + (size_t)images[row] * plan.features + (first_pack + p) * PIXELS, PIXELS);
        }
    }

    /* The label of owned row threadIdx.x. */
    __device__ int label_of(size_t step) const {
        const int row = f * S::OWN + threadIdx.x;
        return threadIdx.x < S::OWN && row < rows_of(step) ? plan.labels[images_of(step)[row]] : 0;
    }

    /* The copied bytes as floats, transposed; 0 in rows beyond the batch. After a barrier. */
    __device__ void convert_pixels(int rows, float *pixels) const {
        const int row = threadIdx.x % ROWS;
        const uint4 *stage = reinterpret_cast<const uint4 *>(shared + at.stage) + row * at.stage_pitch;
        const float scale = float(1.0 / 255.0);
        for (int p = threadIdx.x / ROWS; p < length / PIXELS; p += THREADS / ROWS) {
            const uint4 pack = row < rows ? stage[p] : make_uint4(0, 0, 0, 0);
            const uint32_t four[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
            for (int e = 0; e < PIXELS; e++)
                pixels[(p * PIXELS + e) * PITCH + row] =
                    scale * (__uint_as_float(__byte_perm(four[e / 4], 0x4b000000, 0x7440 + e % 4)) - 8388608.0f);
        }
    }

    /* --- forward --- */

    /* This block's part of Z, to the owners of the rows. A warp takes half of the units and a share of the pixels. */
    __device__ void forward(const float *pixels, uint32_t tag) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2 * HALF, group = warp / 2;
        const float *weight = shared + at.weight + half;
        float *part = shared + at.part;
        float sum[HALF][4] = {};
#pragma unroll 7
        for (int p = length * group / GROUPS; p < length * (group + 1) / GROUPS; p++) {
            const float4 x = four(pixels + p * PITCH + 4 * lane), w = four(weight + p * UNITS);
            const float of[HALF] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int u = 0; u < HALF; u++) {
                sum[u][0] += x.x * of[u];
                sum[u][1] += x.y * of[u];
                sum[u][2] += x.z * of[u];
                sum[u][3] += x.w * of[u];
            }
        }
#pragma unroll
        for (int u = 0; u < HALF; u++)
            *reinterpret_cast<float4 *>(part + (group * UNITS + half + u) * PITCH + 4 * lane) =
                make_float4(sum[u][0], sum[u][1], sum[u][2], sum[u][3]);
        __syncthreads();
        packet *box = plan.parts + ((size_t)(tag % 2) * plan.groups + h) * S::F * S::F * S::OWN * UNITS;
#pragma unroll
        for (int i = 0; i < ROWS * UNITS / THREADS; i++) {
            const int o = threadIdx.x + i * THREADS, row = o / UNITS, u = o % UNITS;
            float total = part[u * PITCH + row];
#pragma unroll
            for (int g = 1; g < GROUPS; g++) total += part[(g * UNITS + u) * PITCH + row];
            send(box + ((size_t)(row / S::OWN) * S::F + f) * S::OWN * UNITS + o % (S::OWN * UNITS), total, tag);
        }
    }

    /* The owned rows, activated, and their part of the logits, to those who own the same rows. */
    __device__ void activate_own(int rows, uint32_t tag) const {
        const packet *box = plan.parts + (((size_t)(tag % 2) * plan.groups + h) * S::F + f) * S::F * S::OWN * UNITS;
        float *hidden = shared + at.hidden, *pre = shared + at.pre, *weight = shared + at.out_weight;
        const float *bias = shared + at.bias;
        const int o = threadIdx.x;
        if (o < S::OWN * UNITS) {
            float part[S::F], z = 0;
            receive(part, tag, box + o, S::OWN * UNITS);
#pragma unroll
            for (int s = 0; s < S::F; s++) z += part[s];
            z += bias[o % UNITS];
            pre[o] = z;
            hidden[o] = f * S::OWN + o / UNITS < rows ? activate(plan.activation, z) : 0.0f;
        }
        __syncthreads();
        packet *to = plan.logits + (((size_t)(tag % 2) * S::F + f) * plan.groups + h) * S::OWN * CLASSES;
        if (o < S::OWN * CLASSES) {
            const int row = o / CLASSES, c = o % CLASSES;
            float sum = 0;
#pragma unroll
            for (int u = 0; u < UNITS; u++) sum += hidden[row * UNITS + u] * weight[u * TALL + c];
            if (c < plan.classes) send(to + o, sum, tag);
        }
    }

    /* --- the turn --- */

    /* Logit of class c of an owned row, from the parts of all groups of units. */
    __device__ float logit(int o, uint32_t tag) const {
        static const int AT_ONCE = 16;
        const packet *box = plan.logits + ((size_t)(tag % 2) * S::F + f) * plan.groups * S::OWN * CLASSES + o;
        float sum = 0;
        for (int g = 0; g < plan.groups; g += AT_ONCE) {
            float part[AT_ONCE];
            receive(part, tag, [&](int i) { return box + min(g + i, plan.groups - 1) * S::OWN * CLASSES; });
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (g + i < plan.groups) sum += part[i];
        }
        return sum + shared[at.out_weight + UNITS * TALL + o % CLASSES];
    }

    /* dL/dlogits of the owned rows; true if the losses of this thread's rows are finite. */
    __device__ bool turn(size_t step, int rows, uint32_t tag) const {
        const int c = threadIdx.x % CLASSES;
        bool finite = true;
        static_assert(S::OWN * CLASSES <= THREADS && S::OWN * UNITS <= THREADS / 2 && WEIGHTS <= THREADS / 2, "a thread each");
        if (threadIdx.x < S::OWN * CLASSES) { /* whole warps */
            const int o = threadIdx.x, row = o / CLASSES, r = f * S::OWN + row;
            const bool there = r < rows, mine = there && c < plan.classes;
            const int label = labels_of(step)[row];
            const float z = mine ? logit(o, tag) : -INFINITY;
            float max = z, sum, own;
#pragma unroll
            for (int offset = CLASSES / 2; offset > 0; offset /= 2) {
                const float other = __shfl_xor_sync(0xffffffffu, max, offset);
                max = other > max || max != max ? other : max; /* NaN comes back in the sum */
            }
            sum = own = mine ? expf(z - max) : 0;
            int best = mine && z == max ? c : CLASSES;
#pragma unroll
            for (int offset = CLASSES / 2; offset > 0; offset /= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, offset);
                best = min(best, __shfl_xor_sync(0xffffffffu, best, offset));
            }
            const float of_label = __shfl_sync(0xffffffffu, z, label % CLASSES, CLASSES);
            const float scale = float(1.0 / rows);
            shared[at.gradient + row * TALL + c] = mine ? own * (scale / sum) - (c == label ? scale : 0.0f) : 0.0f;
            if (there && c == 0) {
                const bool known = label < plan.classes;
                finite = known && isfinite(sum) && isfinite(of_label) && isfinite(max);
                *reinterpret_cast<float4 *>(shared + at.rows + 4 * row) =
                    make_float4(sum, known ? of_label : NAN, max, best == label && sum > 0);
            }
        }
        return finite;
    }

    /* What the owned rows add to the tally: by one warp of the first group, for all groups know the same. */
    __device__ void count_own(size_t step, int rows) const {
        const int row = threadIdx.x;
        if (h || row >= 32) return;
        double loss = 0;
        int correct = 0;
        static_assert(S::OWN <= 32, "a lane a row");
        if (row < S::OWN && f * S::OWN + row < rows) {
            const float4 r = four(shared + at.rows + 4 * row);
            loss = log((double)r.x) - ((double)r.y - (double)r.z);
            correct = r.w != 0;
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            loss += __shfl_xor_sync(0xffffffffu, loss, offset);
            correct += __shfl_xor_sync(0xffffffffu, correct, offset);
        }
        if (row) return;
        plan.loss[step * S::F + f] = loss;
        plan.correct[step * S::F + f] = correct;
    }

    /* dZ of the owned rows, and what they add to dW2 and db2, to all slices of this group. */
    __device__ void send_back(bool finite, uint32_t tag) const {
        const float *gradient = shared + at.gradient, *hidden = shared + at.hidden, *weight = shared + at.out_weight;
        packet *to = plan.ways + (((size_t)(tag % 2) * plan.groups + h) * S::F + f) * (S::OWN * UNITS + TAIL);
        if (threadIdx.x < THREADS / 2) {
            const int o = threadIdx.x, row = o / UNITS, u = o % UNITS;
            float sum = 0;
            if (o >= S::OWN * UNITS) return;
#pragma unroll
            for (int c = 0; c < CLASSES; c++) sum += gradient[row * TALL + c] * weight[u * TALL + c];
            send(to + o, sum * derivative(plan.activation, shared[at.pre + o], hidden[o]), tag);
            if (o == 0) send(to + S::OWN * UNITS + WEIGHTS, finite, tag);
        } else {
            const int o = threadIdx.x - THREADS / 2, u = o / CLASSES, c = o % CLASSES;
            float sum = 0;
            if (o >= WEIGHTS) return;
#pragma unroll
            for (int row = 0; row < S::OWN; row++)
                sum += (u < UNITS ? hidden[row * UNITS + u] : 1.0f) * gradient[row * TALL + c];
            send(to + S::OWN * UNITS + o, sum, tag);
        }
    }

    /* --- backward --- */

    __device__ const packet *ways_of(uint32_t tag) const {
        return plan.ways + ((size_t)(tag % 2) * plan.groups + h) * S::F * (S::OWN * UNITS + TAIL);
    }

    /* What comes to update weight threadIdx.x of the output layer. */
    __device__ const packet *output_ways(uint32_t tag) const {
        return ways_of(tag) + S::OWN * UNITS + min((int)threadIdx.x, WEIGHTS - 1);
    }

    /* dZ of all rows, to shared memory; true if every loss of the batch is finite. */
    __device__ bool receive_back(uint32_t tag) const {
        const packet *box = ways_of(tag);
        const int length = S::OWN * UNITS + TAIL;
        static const int EACH = ROWS * UNITS / THREADS;
        float values[EACH];
        receive(values, tag, [&](int i) {
            const int o = threadIdx.x + i * THREADS;
            return box + o / (S::OWN * UNITS) * length + o % (S::OWN * UNITS);
        });
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int o = threadIdx.x + i * THREADS;
            shared[at.back + o % UNITS * PITCH + o / UNITS] = values[i];
        }
        bool finite = true;
        if (threadIdx.x < S::F) {
            float flag[1];
            receive(flag, tag, box + threadIdx.x * length + S::OWN * UNITS + WEIGHTS, 0);
            finite = flag[0] != 0;
        }
        return __syncthreads_and(finite);
    }

    __device__ void descend(float rate, float gradient, float *weight, float *velocity) const {
        gradient += plan.weight_decay * *weight;
        if (plan.weight_velocity[0]) *velocity = gradient += plan.momentum * *velocity;
        *weight -= rate * gradient;
    }

    __device__ void descend4(float rate, float4 g, float *weight, float *velocity) const {
        float4 w = four(weight);
        g.x += plan.weight_decay * w.x;
        g.y += plan.weight_decay * w.y;
        g.z += plan.weight_decay * w.z;
        g.w += plan.weight_decay * w.w;
        if (plan.weight_velocity[0]) {
            const float4 v = four(velocity);
            g.x += plan.momentum * v.x;
            g.y += plan.momentum * v.y;
            g.z += plan.momentum * v.z;
            g.w += plan.momentum * v.w;
            *reinterpret_cast<float4 *>(velocity) = g;
        }
        w.x -= rate * g.x;
        w.y -= rate * g.y;
        w.z -= rate * g.z;
        w.w -= rate * g.w;
        *reinterpret_cast<float4 *>(weight) = w;
    }

    /* dW1 of the slice: a warp takes half of the units and a share of the rows; then its update. */
    __device__ void update_slice(const float *pixels, float rate) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, group = warp / 2;
        const float *back = shared + at.back + half * HALF * PITCH;
        float *part = shared + at.part, sum[S::N][HALF] = {};
#pragma unroll
        for (int row = group * (ROWS / GROUPS); row < (group + 1) * (ROWS / GROUPS); row += 4) {
            float4 d[HALF];
#pragma unroll
            for (int u = 0; u < HALF; u++) d[u] = four(back + u * PITCH + row);
#pragma unroll
            for (int i = 0; i < S::N; i++) {
                const float4 x = four(pixels + min(lane + 32 * i, length - 1) * PITCH + row);
#pragma unroll
                for (int u = 0; u < HALF; u++) sum[i][u] += x.x * d[u].x;
#pragma unroll
                for (int u = 0; u < HALF; u++) sum[i][u] += x.y * d[u].y;
#pragma unroll
                for (int u = 0; u < HALF; u++) sum[i][u] += x.z * d[u].z;
#pragma unroll
                for (int u = 0; u < HALF; u++) sum[i][u] += x.w * d[u].w;
            }
        }
#pragma unroll
        for (int i = 0; i < S::N; i++) {
            const int p = lane + 32 * i;
            if (p < length)
                *reinterpret_cast<float4 *>(part + ((group * 2 + half) * length + p) * 4) =
                    make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        }
        __syncthreads();
        for (int e = threadIdx.x; e < 2 * length; e += THREADS) {
            float4 total = four(part + e * 4);
#pragma unroll
            for (int g = 1; g < GROUPS; g++) {
                const float4 more = four(part + (g * 2 * length + e) * 4);
                total.x += more.x;
                total.y += more.y;
                total.z += more.z;
                total.w += more.w;
            }
            const int offset = e % length * UNITS + e / length * 4;
            descend4(rate, total, shared + at.weight + offset, shared + at.velocity + offset);
        }
    }

    /* The copies of W2 and b2, and b1: the same in all slices. */
    __device__ void update_output(float rate, uint32_t tag) const {
        const int warp = threadIdx.x / 32 - (WARPS - UNITS), lane = threadIdx.x % 32;
        if (warp >= 0) {
            const float4 d = four(shared + at.back + warp * PITCH + 4 * lane);
            float sum = d.x + d.y + (d.z + d.w);
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (lane == 0) descend(rate, sum, shared + at.bias + warp, shared + at.bias + UNITS + warp);
        }
        const int u = threadIdx.x / CLASSES;
        if (threadIdx.x >= WEIGHTS || threadIdx.x % CLASSES >= plan.classes || (u < UNITS && UNITS * h + u >= plan.hidden))
            return;
        float part[S::F], gradient = 0;
        receive(part, tag, output_ways(tag), S::OWN * UNITS + TAIL);
#pragma unroll
        for (int s = 0; s < S::F; s++) gradient += part[s];
        const int offset = u * TALL + threadIdx.x % CLASSES;
        descend(rate, gradient, shared + at.out_weight + offset, shared + at.out_velocity + offset);
    }

    /* --- before and after --- */

    /* Calls each(a number of global memory, its place in shared memory, is it this block's to write back?) for all that is trained. */
    template <typename E> __device__ void all_weights(E each) const {
        const int pixel = PIXELS * first_pack, unit = UNITS * h;
        for (int e = threadIdx.x; e < length * UNITS; e += THREADS)
            if (unit + e % UNITS < plan.hidden)
                each(plan.weight[0], plan.weight_velocity[0], (size_t)(pixel + e / UNITS) * plan.hidden + unit + e % UNITS,
                     at.weight + e, at.velocity + e, true);
        for (int e = threadIdx.x; e < UNITS; e += THREADS)
            if (unit + e < plan.hidden)
                each(plan.bias[0], plan.bias_velocity[0], (size_t)(unit + e), at.bias + e, at.bias + UNITS + e, f == 0);
        for (int e = threadIdx.x; e < UNITS * plan.classes; e += THREADS) {
            const int u = e / plan.classes, c = e % plan.classes;
            if (unit + u < plan.hidden)
                each(plan.weight[1], plan.weight_velocity[1], (size_t)(unit + u) * plan.classes + c,
                     at.out_weight + u * TALL + c, at.out_velocity + u * TALL + c, f == 0);
        }
        for (int c = threadIdx.x; c < plan.classes; c += THREADS)
            each(plan.bias[1], plan.bias_velocity[1], (size_t)c, at.out_weight + UNITS * TALL + c,
                 at.out_velocity + UNITS * TALL + c, f == 0 && h == 0);
    }

    __device__ void load_weights() const {
        all_weights([&](const float *values, const float *velocities, size_t i, int to, int velocity_to, bool) {
            shared[to] = values[i];
            if (velocities) shared[velocity_to] = velocities[i];
        });
    }

    __device__ void store_weights() const {
        all_weights([&](float *values, float *velocities, size_t i, int from, int velocity_from, bool mine) {
            if (!mine) return;
            values[i] = shared[from];
            if (velocities) velocities[i] = shared[velocity_from];
        });
    }
};

/* The tally of steps first .. end - 1, by the last of the F blocks that wrote their parts. */
template <typename S> __device__ void count_up(const resident_plan &plan, size_t first, size_t end) {
    if (!last_block(plan.ticket, S::F) || threadIdx.x) return;
    struct tally tally = *plan.tally;
    for (size_t step = first; step < end; step++) {
        const size_t left = plan.count - step * plan.batch, rows = left < (size_t)plan.batch ? left : plan.batch;
        double loss = 0;
        for (int f = 0; f < S::F; f++) {
            loss += __ldcg(plan.loss + step * S::F + f);
            tally.correct += __ldcg(plan.correct + step * S::F + f);
        }
        tally.loss_sum += loss;
        tally.images += rows;
        tally.batches++;
        if (!isfinite(loss) && !tally.bad_step) tally.bad_step = tally.batches;
        plan.losses[step] = loss / (double)rows;
    }
    *plan.tally = tally;
}

/* Steps first .. end - 1; `tag` is that of the first, and of no packet that is there. */
template <typename S>
__global__ void __launch_bounds__(THREADS, 1)
    resident_kernel(const __grid_constant__ resident_plan plan, size_t first, size_t end, uint32_t tag) {
    extern __shared__ float4 memory[];
    float *shared = reinterpret_cast<float *>(memory);
    const resident_layout at = lay_out<S>(plan.slice, plan.buffers);
    const int f = blockIdx.x % S::F, h = blockIdx.x / S::F, packs = plan.features / PIXELS;
    const resident<S> me = {plan, shared, at, f, h, packs * f / S::F, (packs * (f + 1) / S::F - packs * f / S::F) * PIXELS};
    const auto arrive = [] {
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
    };
    for (int i = threadIdx.x; i < at.total; i += THREADS) shared[i] = 0;
    __syncthreads();
    me.load_weights();
    me.copy_order(first);
    if (first + 1 < end) me.copy_order(first + 1);
    arrive();
    me.copy_pixels(first);
    if (threadIdx.x < S::OWN) me.labels_of(first)[threadIdx.x] = me.label_of(first);
    arrive();
    me.convert_pixels(me.rows_of(first), shared + at.pixels);
    __syncthreads();

    size_t step = first;
    bool finite = true;
    step_laps laps;
    laps.start();
    for (; step < end && finite; step++, tag++) {
        const bool another = step + 1 < end;
        const int rows = me.rows_of(step);
        const float *pixels = shared + at.pixels + (int)((step - first) % plan.buffers) * plan.slice * PITCH;
        float *next = shared + at.pixels + (int)((step + 1 - first) % plan.buffers) * plan.slice * PITCH;
        const float rate = (float)*me.rate_of(step);
        int next_label = 0;
        if (another) {
            me.copy_pixels(step + 1);
            next_label = me.label_of(step + 1);
            if (step + 2 < end) me.copy_order(step + 2); /* in the place of this step's, which is not needed any more */
        }
        laps.lap(0);
        me.forward(pixels, tag);
        laps.lap(1);
        me.activate_own(rows, tag);
        laps.lap(2);
        if (another && plan.buffers == 2) {
            arrive();
            me.convert_pixels(me.rows_of(step + 1), next);
        }
        if (another && threadIdx.x < S::OWN) me.labels_of(step + 1)[threadIdx.x] = next_label;
        laps.lap(3);
        const bool own_finite = me.turn(step, rows, tag);
        laps.lap(4);
        me.send_back(__syncthreads_and(own_finite), tag);
        me.count_own(step, rows); /* while the others' come */
        laps.lap(5);
        finite = me.receive_back(tag);
        laps.lap(6);
        if (finite) {
            me.update_slice(pixels, rate);
            laps.lap(7);
            me.update_output(rate, tag);
            laps.lap(8);
        }
        arrive();
        laps.lap(9);
        if (another && plan.buffers == 1) {
            me.convert_pixels(me.rows_of(step + 1), next);
            __syncthreads();
        }
        laps.lap(10);
    }
    laps.print("resident", step - first);
    me.store_weights();
    if (h == 0) count_up<S>(plan, first, step);
}

/* --- on the host --- */

struct resident_state {
    tuned_context *context;
    fused_network network;
    resident_plan plan;
    void *memory;
    int slices;
    uint32_t tag; /* of the next step */
};

/* Calls function<split<..>>() for that many slices. */
template <typename F> static void with_split(int slices, F function) {
    if (slices == 16) return function.template operator()<split<16, 2>>();
    if (slices == 8) return function.template operator()<split<8, 4>>();
    return function.template operator()<split<4, 7>>();
}

/* Finds the largest number of slices that fits; 0: none does. */
static int choose_split(const tuned_context *context, const fused_network *network, resident_plan *plan) {
    static const int choices[] = {16, 8, 4};
    const int groups = (int)((network->layer[0].out + UNITS - 1) / UNITS), packs = (int)(network->features / PIXELS);
    for (const int slices : choices) {
        bool fits = false;
        if (groups * slices > context->processors) continue;
        plan->groups = groups;
        plan->slice = (packs + slices - 1) / slices * PIXELS;
        for (plan->buffers = 2; plan->buffers > 0 && !fits; plan->buffers -= !fits)
            with_split(slices, [&]<typename S>() {
                const size_t bytes = sizeof(float) * (size_t)lay_out<S>(plan->slice, plan->buffers).total;
                fits = plan->slice <= S::LONGEST && bytes <= (size_t)context->shared_bytes;
            });
        if (fits) return slices;
    }
    return 0;
}

static double resident_estimate(const tuned_context *context, const fused_network *network, char *why, size_t size) {
    resident_plan plan = {};
    if (network->depth != 2 || network->dtype != GEMM_F32 || network->batch > (size_t)ROWS ||
        network->layer[1].out > (size_t)CLASSES || network->layer[0].out > (size_t)UNITS * context->processors ||
        network->features > 4096 || !packs_fit(network->images, network->features, network->features, PIXELS)) {
        snprintf(why, size,
                 "it takes one hidden layer in float32, batches of up to %d, up to %d classes, and images of a multiple of %d pixels",
                 ROWS, CLASSES, PIXELS);
        return 0;
    }
    const int slices = choose_split(context, network, &plan);
    if (!slices) {
        snprintf(why, size, "the hidden layer does not fit on %d SMs", context->processors);
        return 0;
    }
    const double cycles = 1.3 * UNITS * (plan.slice + (plan.slice + 31) / 32 * 32) + 1200;
    return cycles / 1.7e9 + 3 * 0.55e-6;
}

static void resident_close(void *opaque) {
    resident_state *state = (resident_state *)opaque;
    cudaFree(state->memory);
    free(state);
}

/* Hands out pieces of `base`; with NULL it only measures. */
static void *take(char *base, size_t *used, size_t bytes) {
    void *piece = base ? base + *used : NULL;
    *used += (bytes + 255) / 256 * 256;
    return piece;
}

template <typename S> static size_t lay_out_memory(resident_plan *plan, char *base) {
    const size_t steps = (plan->count + plan->batch - 1) / plan->batch, blocks = (size_t)S::F * plan->groups;
    size_t used = 0;
    plan->parts = (packet *)take(base, &used, 2 * blocks * ROWS * UNITS * sizeof(packet));
    plan->logits = (packet *)take(base, &used, 2 * blocks * S::OWN * CLASSES * sizeof(packet));
    plan->ways = (packet *)take(base, &used, 2 * blocks * (S::OWN * UNITS + TAIL) * sizeof(packet));
    plan->loss = (double *)take(base, &used, steps * S::F * sizeof *plan->loss);
    plan->correct = (int *)take(base, &used, steps * S::F * sizeof *plan->correct);
    plan->ticket = (unsigned *)take(base, &used, sizeof *plan->ticket);
    return used;
}

static bool set_up(resident_state *state) {
    const fused_network &network = state->network;
    resident_plan *plan = &state->plan;
    cuda_fault *fault = &state->context->fault;
    const cudaStream_t stream = state->context->stream;
    state->slices = choose_split(state->context, &network, plan);
    plan->features = (int)network.features;
    plan->hidden = (int)network.layer[0].out;
    plan->classes = (int)network.layer[1].out;
    plan->batch = (int)network.batch;
    plan->activation = network.layer[0].activation;
    plan->momentum = (float)network.momentum;
    plan->weight_decay = (float)network.weight_decay;
    for (int l = 0; l < 2; l++) {
        plan->weight[l] = (float *)network.layer[l].weight;
        plan->bias[l] = (float *)network.layer[l].bias;
        plan->weight_velocity[l] = (float *)network.layer[l].weight_velocity;
        plan->bias_velocity[l] = (float *)network.layer[l].bias_velocity;
    }
    plan->images = network.images;
    plan->labels = network.labels;
    plan->order = network.order;
    plan->rates = network.rates;
    plan->losses = network.losses;
    plan->tally = network.tally;
    plan->count = network.count;
    state->tag = 1;
    bool ready = false;
    with_split(state->slices, [&]<typename S>() {
        const size_t bytes = lay_out_memory<S>(plan, NULL), shared = sizeof(float) * (size_t)lay_out<S>(plan->slice, plan->buffers).total;
        ready = CUDA_TRY(fault, cudaMalloc(&state->memory, bytes)) &&
                CUDA_TRY(fault, cudaMemsetAsync(state->memory, 0, bytes, stream)) &&
                CUDA_TRY(fault, cudaStreamSynchronize(stream)) &&
                CUDA_TRY(fault, cudaFuncSetAttribute((const void *)resident_kernel<S>,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        if (ready) lay_out_memory<S>(plan, (char *)state->memory);
    });
    return ready;
}

static void *resident_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    resident_state *state = (resident_state *)calloc(1, sizeof *state);
    if (!state) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    state->context = context;
    state->network = *network;
    if (set_up(state)) return state;
    snprintf(why, size, "%s", context->fault.message);
    resident_close(state);
    return NULL;
}

static size_t resident_run(void *opaque, size_t first, size_t count) {
    resident_state *state = (resident_state *)opaque;
    resident_plan *plan = &state->plan;
    cuda_fault *fault = &state->context->fault;
    size_t end = first + count;
    void *arguments[] = {plan, &first, &end, &state->tag};
    bool ran = false;
    with_split(state->slices, [&]<typename S>() {
        const size_t shared = sizeof(float) * (size_t)lay_out<S>(plan->slice, plan->buffers).total;
        ran = CUDA_TRY(fault, cudaLaunchCooperativeKernel((const void *)resident_kernel<S>, dim3(S::F * plan->groups),
                                                          dim3(THREADS), arguments, shared, state->context->stream));
    });
    state->tag += (uint32_t)count;
    return ran ? count : 0;
}

const fused_form fused_resident = {"resident weights", resident_estimate, resident_open, resident_close, resident_run};
