/* What a block does in each part of a step: see fused_resident.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_PIXELS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_PIXELS_CUH

#include <cuda_pipeline.h>
#include <math.h>

#include "kernels/activation.h"
#include "kernels/cuda/persistent/one_hidden_split_pixels_plan.cuh"

__device__ inline float4 four(const float *at) {
    return *reinterpret_cast<const float4 *>(at);
}

/* One thread of one of the F * H blocks. What a step takes is instructions, not arithmetic alone: whatever
   stays the same from step to step is worked out once. */
template <typename S> struct resident {
    typedef place<S> at;
    const resident_plan &plan;
    float *shared;
    int f, h;               /* which slice, which group of units */
    int first_pack, length; /* of its pixels, in packs; and how many pixels that are */
    int to_owner, from_parts, to_logits, from_logits, to_ways,
        from_ways; /* where this thread sends to and receives from */

    static constexpr int WAY = S::OWN * UNITS + TAIL; /* packets of a message of exchange 3 */

    __device__ resident(const resident_plan &plan, float *shared)
        : plan(plan), shared(shared), f(blockIdx.x % S::F), h(blockIdx.x / S::F) {
        const box_layout box = lay_out_box<S>(plan.groups);
        const int packs = plan.features / PIXELS, t = threadIdx.x, row = t / UNITS;
        first_pack = packs * f / S::F;
        length = (packs * (f + 1) / S::F - first_pack) * PIXELS;
        to_owner = ((h * S::F + row / S::OWN) * S::F + f) * S::OWN * UNITS + t % (S::OWN * UNITS);
        from_parts = (h * S::F + f) * S::F * S::OWN * UNITS + t;
        to_logits = box.logits + (f * plan.groups + h) * S::OWN * CLASSES + t;
        from_logits = box.logits + f * plan.groups * S::OWN * CLASSES + t;
        to_ways = box.ways + (h * S::F + f) * WAY;
        from_ways = box.ways + h * S::F * WAY;
    }

    /* The messages of a step. */
    __device__ packet *box_of(uint32_t tag) const {
        return plan.box + tag % 2 * lay_out_box<S>(plan.groups).total;
    }

    __device__ int rows_of(size_t step) const {
        return plan.tally.rows_of(step);
    }

    /* --- pixels --- */

    __device__ uint32_t *images_of(size_t step) const {
        return reinterpret_cast<uint32_t *>(shared + at::IMAGES) + step % 2 * ROWS;
    }

    __device__ int *labels_of(size_t step) const {
        return reinterpret_cast<int *>(shared + at::LABELS) + step % 2 * S::OWN;
    }

    __device__ double *rate_of(size_t step) const {
        return reinterpret_cast<double *>(shared + at::RATES) + step % 2;
    }

    /* Which image is row threadIdx.x of a step, and its learning rate: to be kept in shared memory a step
       later. */
    struct order_ahead {
        uint32_t image;
        double rate;
    };

    __device__ order_ahead look_up(size_t step, int rows) const {
        order_ahead ahead = {0, 0};
        if ((int)threadIdx.x < rows) ahead.image = plan.order[step * plan.batch + threadIdx.x];
        if (threadIdx.x == 0 && rows) ahead.rate = plan.scalars[step].learning_rate;
        return ahead;
    }

    __device__ void keep(size_t step, order_ahead ahead) const {
        if (threadIdx.x < ROWS) images_of(step)[threadIdx.x] = ahead.image;
        if (threadIdx.x == 0) *rate_of(step) = ahead.rate;
    }

    /* Their pixels: after their order and a barrier. */
    __device__ void copy_pixels(size_t step, int rows) const {
        constexpr int EACH = THREADS / ROWS; /* threads a row */
        const int row = threadIdx.x / EACH, packs = length / PIXELS;
        if (row >= rows) return;
        const uint8_t *image =
            plan.images + (size_t)images_of(step)[row] * plan.features + first_pack * PIXELS;
        uint4 *stage = reinterpret_cast<uint4 *>(shared + at::STAGE) + row * at::STAGE_PITCH;
#pragma unroll 1
        for (int p = threadIdx.x % EACH; p < packs; p += EACH)
            __pipeline_memcpy_async(stage + p, image + p * PIXELS, PIXELS);
    }

    /* The label of owned row threadIdx.x. */
    __device__ int label_of(size_t step, int rows) const {
        const int row = f * S::OWN + threadIdx.x;
        return threadIdx.x < S::OWN && row < rows ? plan.labels[images_of(step)[row]] : 0;
    }

    /* The copied bytes as floats, transposed; 0 in rows beyond the batch. After a barrier. */
    __device__ void convert_pixels(int rows, float *pixels) const {
        const int row = threadIdx.x % ROWS;
        const uint4 *stage = reinterpret_cast<const uint4 *>(shared + at::STAGE) + row * at::STAGE_PITCH;
        const float scale = float(1.0 / 255.0);
#pragma unroll 1
        for (int p = threadIdx.x / ROWS; p < length / PIXELS; p += THREADS / ROWS) {
            const uint4 pack = row < rows ? stage[p] : make_uint4(0, 0, 0, 0);
            const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
            for (int e = 0; e < PIXELS; e++)
                pixels[(p * PIXELS + e) * PITCH + row] =
                    scale *
                    (__uint_as_float(__byte_perm(words[e / 4], 0x4b000000, 0x7440 + e % 4)) - 8388608.0f);
        }
    }

    /* --- forward --- */

    /* This block's part of Z, to the owners of the rows. A warp takes half of the rows and a share of the
       pixels, a lane 4 rows and half of the units: the pixels are read from shared memory once. */
    __device__ void forward(const float *pixels, uint32_t tag) const {
        const int warp = threadIdx.x / 32, group = warp / 2, half = threadIdx.x / 16 % 2 * HALF;
        const int row = warp % 2 * (ROWS / 2) + threadIdx.x % 16 * 4;
        const float *weight = shared + at::WEIGHT + half;
        float *part = shared + at::PART;
        float sum[HALF][4] = {};
#pragma unroll 4
        for (int p = length * group / GROUPS; p < length * (group + 1) / GROUPS; p++) {
            const float4 x = four(pixels + p * PITCH + row), w = four(weight + p * UNITS);
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
            *reinterpret_cast<float4 *>(part + (group * UNITS + half + u) * PITCH + row) =
                make_float4(sum[u][0], sum[u][1], sum[u][2], sum[u][3]);
        __syncthreads();
        const float *mine = part + threadIdx.x % UNITS * PITCH + threadIdx.x / UNITS;
        packet *to = box_of(tag) + to_owner;
        constexpr int STRIDE = THREADS / UNITS; /* rows */
#pragma unroll
        for (int i = 0; i < ROWS / STRIDE; i++) {
            float total = mine[i * STRIDE];
#pragma unroll
            for (int g = 1; g < GROUPS; g++) total += mine[i * STRIDE + g * UNITS * PITCH];
            send(to + i * STRIDE * S::F * UNITS, total, tag);
        }
    }

    /* The owned rows, activated, and their part of the logits, to those who own the same rows. */
    __device__ void activate_own(int rows, uint32_t tag) const {
        float *hidden = shared + at::HIDDEN, *pre = shared + at::PRE, *weight = shared + at::OUT_WEIGHT;
        const float *bias = shared + at::BIAS;
        const int o = threadIdx.x;
        if (o < S::OWN * UNITS) {
            float part[S::F], z = 0;
            receive(part, tag, box_of(tag) + from_parts, S::OWN * UNITS);
#pragma unroll
            for (int s = 0; s < S::F; s++) z += part[s];
            z += bias[o % UNITS];
            pre[o] = z;
            hidden[o] = f * S::OWN + o / UNITS < rows ? activate_compactly(plan.activation, z) : 0.0f;
        }
        __syncthreads();
        if (o < S::OWN * CLASSES) {
            const int row = o / CLASSES, c = o % CLASSES;
            float sum = 0;
#pragma unroll
            for (int u = 0; u < UNITS; u++) sum += hidden[row * UNITS + u] * weight[u * TALL + c];
            if (c < plan.classes) send(box_of(tag) + to_logits, sum, tag);
        }
    }

    /* --- the turn --- */

    /* This thread's logit of an owned row, from the parts of all groups of units. */
    __device__ float logit(uint32_t tag) const {
        static const int AT_ONCE = 16;
        const packet *box = box_of(tag) + from_logits;
        float sum = 0;
        for (int g = 0; g < plan.groups; g += AT_ONCE) {
            float part[AT_ONCE];
            receive(part, tag, [&](int i) { return box + min(g + i, plan.groups - 1) * S::OWN * CLASSES; });
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (g + i < plan.groups) sum += part[i];
        }
        return sum + shared[at::OUT_WEIGHT + UNITS * TALL + threadIdx.x % CLASSES];
    }

    /* dL/dlogits of the owned rows; true if the losses of this thread's rows are finite. */
    __device__ bool turn(size_t step, int rows, float scale, uint32_t tag) const {
        const int c = threadIdx.x % CLASSES;
        bool finite = true;
        static_assert(S::OWN * CLASSES <= THREADS && S::OWN * UNITS <= THREADS / 2 && WEIGHTS <= THREADS / 2,
                      "a thread each");
        if (threadIdx.x < S::OWN * CLASSES) { /* whole warps */
            const int row = threadIdx.x / CLASSES, r = f * S::OWN + row;
            const bool there = r < rows;
            const float z = there && c < plan.classes ? logit(tag) : 0.0f;
            const row_loss loss = lose(z, there, plan.classes, labels_of(step)[row], scale);
            shared[at::GRADIENT + row * TALL + c] = loss.gradient;
            finite = loss.finite;
            if (h == 0 && c == 0 && there) /* all groups of units know the same */
                plan.tally.rows[step * plan.batch + r] = loss.record;
        }
        return finite;
    }

    /* dZ of the owned rows, and what they add to dW2 and db2, to all slices of this group. */
    __device__ void send_back(bool finite, uint32_t tag) const {
        const float *gradient = shared + at::GRADIENT, *hidden = shared + at::HIDDEN,
                    *weight = shared + at::OUT_WEIGHT;
        packet *to = box_of(tag) + to_ways;
        if (threadIdx.x < THREADS / 2) {
            const int o = threadIdx.x, row = o / UNITS, u = o % UNITS;
            float sum = 0;
            if (o >= S::OWN * UNITS) return;
#pragma unroll
            for (int c = 0; c < CLASSES; c += 4) {
                const float4 g = four(gradient + row * TALL + c), w = four(weight + u * TALL + c);
                sum += g.x * w.x + g.y * w.y + (g.z * w.z + g.w * w.w);
            }
            send(to + o, sum * derivative_compactly(plan.activation, shared[at::PRE + o], hidden[o]), tag);
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
        return box_of(tag) + from_ways;
    }

    /* dZ of all rows, to shared memory, and the gradient of weight threadIdx.x of the output layer; true if
       every loss of the batch is finite. */
    __device__ bool receive_back(uint32_t tag, float &gradient) const {
        static const int EACH = ROWS * UNITS / THREADS;
        const packet *box = ways_of(tag);
        const auto back = [&](int i) {
            const int o = threadIdx.x + i * THREADS;
            return box + o / (S::OWN * UNITS) * WAY + o % (S::OWN * UNITS);
        };
        const auto keep = [&](int i, float value) {
            const int o = threadIdx.x + i * THREADS;
            shared[at::BACK + o % UNITS * PITCH + o / UNITS] = value;
        };
        bool finite = true;
        gradient = 0;
        if (threadIdx.x < TAIL) { /* all that this thread waits for at once; the flag is behind the weights */
            const packet *tail = box + S::OWN * UNITS + min((int)threadIdx.x, WEIGHTS);
            float values[EACH + S::F];
            receive(values, tag, [&](int i) { return i < EACH ? back(i) : tail + (i - EACH) * WAY; });
#pragma unroll
            for (int i = 0; i < EACH; i++) keep(i, values[i]);
#pragma unroll
            for (int s = 0; s < S::F; s++) {
                gradient += values[EACH + s];
                finite &= threadIdx.x < WEIGHTS || values[EACH + s] != 0;
            }
        } else {
            float values[EACH];
            receive(values, tag, back);
#pragma unroll
            for (int i = 0; i < EACH; i++) keep(i, values[i]);
        }
        return __syncthreads_and(finite);
    }

    __device__ void descend4(float rate, float4 g, float *weight, float *velocity) const {
        float4 w = four(weight), v = four(velocity);
        plan.descend(rate, g.x, w.x, v.x);
        plan.descend(rate, g.y, w.y, v.y);
        plan.descend(rate, g.z, w.z, v.z);
        plan.descend(rate, g.w, w.w, v.w);
        if (plan.descend.has_velocity) *reinterpret_cast<float4 *>(velocity) = v;
        *reinterpret_cast<float4 *>(weight) = w;
    }

    /* dW1 of the slice: a warp takes half of the units and a share of the rows; then its update. */
    __device__ void update_slice(const float *pixels, float rate) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, group = warp / 2;
        const float *back = shared + at::BACK + half * HALF * PITCH;
        float *part = shared + at::PART, sum[S::N][HALF] = {};
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
                *reinterpret_cast<float4 *>(part + ((group * 2 + half) * S::LONGEST + p) * 4) =
                    make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        }
        __syncthreads();
        for (int e = threadIdx.x; e < 2 * S::LONGEST; e += THREADS) {
            if (e % S::LONGEST >= length) continue;
            float4 total = four(part + e * 4);
#pragma unroll
            for (int g = 1; g < GROUPS; g++) {
                const float4 more = four(part + (g * 2 * S::LONGEST + e) * 4);
                total.x += more.x;
                total.y += more.y;
                total.z += more.z;
                total.w += more.w;
            }
            const int offset = e % S::LONGEST * UNITS + e / S::LONGEST * 4;
            descend4(rate, total, shared + at::WEIGHT + offset, shared + at::VELOCITY + offset);
        }
    }

    /* The copies of W2 and b2, and b1: the same in all slices. */
    __device__ void update_output(float rate, float gradient) const {
        const int warp = threadIdx.x / 32 - (WARPS - UNITS), lane = threadIdx.x % 32,
                  u = threadIdx.x / CLASSES;
        if (warp >= 0) {
            const float4 d = four(shared + at::BACK + warp * PITCH + 4 * lane);
            float sum = d.x + d.y + (d.z + d.w);
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (lane == 0) plan.descend(rate, sum, shared[at::BIAS + warp], shared[at::BIAS + UNITS + warp]);
        }
        if (threadIdx.x < WEIGHTS && threadIdx.x % CLASSES < plan.classes &&
            (u == UNITS || UNITS * h + u < plan.hidden)) {
            const int offset = u * TALL + threadIdx.x % CLASSES;
            plan.descend(rate, gradient, shared[at::OUT_WEIGHT + offset], shared[at::OUT_VELOCITY + offset]);
        }
    }

    /* --- before and after --- */

    /* Calls each(a number of global memory, its place in shared memory, is it this block's to write back?)
       for all that is trained. */
    template <typename E> __device__ void all_weights(E each) const {
        const int pixel = PIXELS * first_pack, unit = UNITS * h;
        for (int e = threadIdx.x; e < length * UNITS; e += THREADS)
            if (unit + e % UNITS < plan.hidden)
                each(plan.weight[0], plan.weight_velocity[0],
                     (size_t)(pixel + e / UNITS) * plan.hidden + unit + e % UNITS, at::WEIGHT + e,
                     at::VELOCITY + e, true);
        for (int e = threadIdx.x; e < UNITS; e += THREADS)
            if (unit + e < plan.hidden)
                each(plan.bias[0], plan.bias_velocity[0], (size_t)(unit + e), at::BIAS + e,
                     at::BIAS + UNITS + e, f == 0);
        for (int e = threadIdx.x; e < UNITS * plan.classes; e += THREADS) {
            const int u = e / plan.classes, c = e % plan.classes;
            if (unit + u < plan.hidden)
                each(plan.weight[1], plan.weight_velocity[1], (size_t)(unit + u) * plan.classes + c,
                     at::OUT_WEIGHT + u * TALL + c, at::OUT_VELOCITY + u * TALL + c, f == 0);
        }
        for (int c = threadIdx.x; c < plan.classes; c += THREADS)
            each(plan.bias[1], plan.bias_velocity[1], (size_t)c, at::OUT_WEIGHT + UNITS * TALL + c,
                 at::OUT_VELOCITY + UNITS * TALL + c, f == 0 && h == 0);
    }

    __device__ void load_weights() const {
        all_weights(
            [&](const float *values, const float *velocities, size_t i, int to, int velocity_to, bool) {
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

#endif
