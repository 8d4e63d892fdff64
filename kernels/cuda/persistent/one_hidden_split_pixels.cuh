/* One hidden layer, split-K over pixels: the plan, and the stages of a step. See
   one_hidden_split_pixels.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_PIXELS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_PIXELS_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/persistent/byte_pixels.cuh"

namespace persistent::split_pixels {

static const int WARP_UNITS = UNITS / 2; /* in a product */
static const int WARP_PAIRS = WARPS / 2; /* share the k of a product: their sums are added */
static const int PITCH = ROWS + 4;       /* of matrices with a column per row of the batch: conflict-free */
static const int CLASS_PITCH = 20;       /* of matrices with a column per class */
static const int WEIGHTS = (UNITS + 1) * CLASSES; /* of W2 in a block, and b2 */
static const int FINITE = WEIGHTS; /* index of the flag "all losses are finite" behind dW2 and db2 */
static const int OUT_MESSAGE = WEIGHTS + CLASSES; /* dW2, db2, the flag: whole warps */
static const size_t STATIC_SHARED = 512;          /* bytes: sums over a block, and a reserve */

/* F slices of up to 32 N pixels; a block owns OWN rows of the batch. */
template <int F_, int N_> struct pixel_split {
    static constexpr int F = F_, N = N_, OWN = ROWS / F, LONGEST = 32 * N;
    static constexpr int GRADIENT_MESSAGE =
        OWN * UNITS + OUT_MESSAGE; /* packets: dZ of the owned rows first */
};

struct plan : byte_pixel_plan<2> {
    int slices, groups; /* F; groups of units: H */
    int slice;          /* pixels of the longest slice */
    int buffers;        /* of float pixels: 2, or 1 where 2 do not fit */
    ll_packet *mailbox; /* of two steps */
};

/* The mailbox of a step, in packets: partial sums of Z [h][owner][source f][OWN][UNITS], partial logits
   [f][source h][OWN][CLASSES], and gradients [h][source f][GRADIENT_MESSAGE]. */
struct mailbox_layout {
    int logits, gradients, total;
};

template <typename S> __host__ __device__ static mailbox_layout mailbox_layout_of(int groups) {
    const int blocks = S::F * groups;
    return {blocks * ROWS * UNITS, blocks * (ROWS * UNITS + S::OWN * CLASSES),
            blocks * (ROWS * UNITS + S::OWN * CLASSES + S::GRADIENT_MESSAGE)};
}

/* Shared memory, in floats: all but the length of the pixels is known at compile time. */
template <typename S> struct smem_layout {
    static constexpr int align4(int floats) {
        return (floats + 3) / 4 * 4;
    }
    static constexpr int STAGE_PITCH = S::LONGEST / PIXELS | 1; /* of packs */
    static constexpr int DZ = 0, HIDDEN = DZ + UNITS * PITCH, PRE = HIDDEN + S::OWN * UNITS,
                         GRADIENT = PRE + S::OWN * UNITS, OUT_WEIGHT = GRADIENT + S::OWN * CLASS_PITCH,
                         OUT_VELOCITY = OUT_WEIGHT + (UNITS + 1) * CLASS_PITCH,
                         BIAS = OUT_VELOCITY + (UNITS + 1) * CLASS_PITCH, INPUTS = BIAS + 2 * UNITS,
                         LABELS = INPUTS + input_ring<2>::BYTES / 4, WEIGHT = align4(LABELS + 2 * S::OWN),
                         VELOCITY = WEIGHT + S::LONGEST * UNITS, PART = VELOCITY + S::LONGEST * UNITS,
                         STAGE = PART + WARP_PAIRS * UNITS * (S::LONGEST > PITCH ? S::LONGEST : PITCH),
                         PIXELS_AT = STAGE + ROWS * STAGE_PITCH * 4;

    __host__ __device__ static constexpr size_t floats(int slice, int buffers) {
        return (size_t)PIXELS_AT + (size_t)buffers * slice * PITCH;
    }
};

__device__ inline float4 four(const float *at) {
    return *reinterpret_cast<const float4 *>(at);
}

/* One thread of one of the F * H thread blocks. Addresses that do not change from step to step are computed
   once. */
template <typename S> struct block {
    typedef smem_layout<S> at;
    const split_pixels::plan &plan;
    float *shared;
    int f, h;               /* slice, and group of units */
    int first_pack, length; /* of its slice: the first pack, and the number of pixels */
    int to_owner, from_parts, to_logits, from_logits, to_gradients, from_gradients; /* in the mailbox */

    __device__ block(const split_pixels::plan &plan, void *shared)
        : plan(plan), shared((float *)shared), f(blockIdx.x % S::F), h(blockIdx.x / S::F) {
        const mailbox_layout mailbox = mailbox_layout_of<S>(plan.groups);
        const int packs = plan.features / PIXELS, t = threadIdx.x, row = t / UNITS;
        first_pack = packs * f / S::F;
        length = (packs * (f + 1) / S::F - first_pack) * PIXELS;
        to_owner = ((h * S::F + row / S::OWN) * S::F + f) * S::OWN * UNITS + t % (S::OWN * UNITS);
        from_parts = (h * S::F + f) * S::F * S::OWN * UNITS + t;
        to_logits = mailbox.logits + (f * plan.groups + h) * S::OWN * CLASSES + t;
        from_logits = mailbox.logits + f * plan.groups * S::OWN * CLASSES + t;
        to_gradients = mailbox.gradients + (h * S::F + f) * S::GRADIENT_MESSAGE;
        from_gradients = mailbox.gradients + h * S::F * S::GRADIENT_MESSAGE;
    }

    /* Steps alternate between two mailboxes. */
    __device__ ll_packet *mailbox_of(uint32_t tag) const {
        return plan.mailbox + tag % 2 * mailbox_layout_of<S>(plan.groups).total;
    }

    __device__ input_ring<2> inputs() const {
        return {reinterpret_cast<char *>(shared + at::INPUTS)};
    }

    /* --- pixels --- */

    __device__ int *labels_of(int step) const {
        return reinterpret_cast<int *>(shared + at::LABELS) + step % 2 * S::OWN;
    }

    /* Copies the slice of each image, as bytes. After a barrier that makes the order visible. */
    __device__ void copy_bytes(int step, int rows) const {
        constexpr int EACH = THREADS / ROWS; /* threads per row */
        const int row = threadIdx.x / EACH, packs = length / PIXELS;
        if (row >= rows) return;
        const uint8_t *image =
            plan.images + (size_t)inputs().images(step % 2)[row] * plan.features + first_pack * PIXELS;
        uint4 *stage = reinterpret_cast<uint4 *>(shared + at::STAGE) + row * at::STAGE_PITCH;
#pragma unroll 1
        for (int p = threadIdx.x % EACH; p < packs; p += EACH)
            __pipeline_memcpy_async(stage + p, image + p * PIXELS, PIXELS);
    }

    /* The label of owned row threadIdx.x. */
    __device__ int label_of(int step, int rows) const {
        const int row = f * S::OWN + threadIdx.x;
        return threadIdx.x < S::OWN && row < rows ? plan.labels[inputs().images(step % 2)[row]] : 0;
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

    /* Partial sums of Z, sent to the owners of the rows. A warp takes half of the rows and a share of the
       pixels, a lane 4 rows and half of the units: pixels are read from shared memory once. */
    __device__ void forward(const float *pixels, uint32_t tag) const {
        const int warp = threadIdx.x / 32, group = warp / 2, half = threadIdx.x / 16 % 2 * WARP_UNITS;
        const int row = warp % 2 * (ROWS / 2) + threadIdx.x % 16 * 4;
        const float *weight = shared + at::WEIGHT + half;
        float *part = shared + at::PART;
        float sum[WARP_UNITS][4] = {};
#pragma unroll 4
        for (int p = length * group / WARP_PAIRS; p < length * (group + 1) / WARP_PAIRS; p++) {
            const float4 x = four(pixels + p * PITCH + row), w = four(weight + p * UNITS);
            const float of[WARP_UNITS] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int u = 0; u < WARP_UNITS; u++) {
                sum[u][0] += x.x * of[u];
                sum[u][1] += x.y * of[u];
                sum[u][2] += x.z * of[u];
                sum[u][3] += x.w * of[u];
            }
        }
#pragma unroll
        for (int u = 0; u < WARP_UNITS; u++)
            *reinterpret_cast<float4 *>(part + (group * UNITS + half + u) * PITCH + row) =
                make_float4(sum[u][0], sum[u][1], sum[u][2], sum[u][3]);
        __syncthreads();
        const float *mine = part + threadIdx.x % UNITS * PITCH + threadIdx.x / UNITS;
        ll_packet *to = mailbox_of(tag) + to_owner;
        constexpr int STRIDE = THREADS / UNITS; /* rows */
#pragma unroll
        for (int i = 0; i < ROWS / STRIDE; i++) {
            float total = mine[i * STRIDE];
#pragma unroll
            for (int g = 1; g < WARP_PAIRS; g++) total += mine[i * STRIDE + g * UNITS * PITCH];
            ll_send(to + i * STRIDE * S::F * UNITS, total, tag);
        }
    }

    /* H of the owned rows, and the partial logits of this block's units, sent to their owners. */
    __device__ void activate_own(int rows, uint32_t tag) const {
        float *hidden = shared + at::HIDDEN, *pre = shared + at::PRE, *weight = shared + at::OUT_WEIGHT;
        const float *bias = shared + at::BIAS;
        const int o = threadIdx.x;
        if (o < S::OWN * UNITS) {
            float part[S::F], z = 0;
            const ll_packet *from = mailbox_of(tag) + from_parts;
            ll_receive(part, tag, [&](int s) { return from + s * (S::OWN * UNITS); });
#pragma unroll
            for (int s = 0; s < S::F; s++) z += part[s];
            z += bias[o % UNITS];
            pre[o] = z;
            hidden[o] = f * S::OWN + o / UNITS < rows ? activate_compactly(plan.activation[0], z) : 0.0f;
        }
        __syncthreads();
        if (o < S::OWN * CLASSES) {
            const int row = o / CLASSES, c = o % CLASSES;
            float sum = 0;
#pragma unroll
            for (int u = 0; u < UNITS; u++) sum += hidden[row * UNITS + u] * weight[u * CLASS_PITCH + c];
            if (c < plan.classes) ll_send(mailbox_of(tag) + to_logits, sum, tag);
        }
    }

    /* --- output layer --- */

    /* This thread's logit of an owned row, summed over all groups of units. */
    __device__ float logit(uint32_t tag) const {
        static const int CONCURRENT = 16;
        const ll_packet *mailbox = mailbox_of(tag) + from_logits;
        float sum = 0;
        for (int g = 0; g < plan.groups; g += CONCURRENT) {
            float part[CONCURRENT];
            ll_receive(part, tag,
                       [&](int i) { return mailbox + min(g + i, plan.groups - 1) * S::OWN * CLASSES; });
#pragma unroll
            for (int i = 0; i < CONCURRENT; i++)
                if (g + i < plan.groups) sum += part[i];
        }
        return sum + shared[at::OUT_WEIGHT + UNITS * CLASS_PITCH + threadIdx.x % CLASSES];
    }

    /* dL/dlogits of the owned rows; false if the loss of this thread's row is not finite. */
    __device__ bool output_layer(int step, int rows, float scale, uint32_t tag) const {
        const int c = threadIdx.x % CLASSES;
        bool finite = true;
        static_assert(S::OWN * CLASSES <= THREADS && S::OWN * UNITS <= THREADS / 2 && WEIGHTS <= THREADS / 2,
                      "a thread each");
        if (threadIdx.x < S::OWN * CLASSES) { /* whole warps */
            const int row = threadIdx.x / CLASSES, r = f * S::OWN + row;
            const bool valid = r < rows;
            const float z = valid && c < plan.classes ? logit(tag) : 0.0f;
            const row_loss loss = softmax_cross_entropy(z, valid, plan.classes, labels_of(step)[row], scale);
            shared[at::GRADIENT + row * CLASS_PITCH + c] = loss.gradient;
            finite = loss.finite;
            if (h == 0 && c == 0 && valid) /* all groups of units compute the same */
                plan.record(step, r, loss.record);
        }
        return finite;
    }

    /* dZ of the owned rows, and their part of dW2 and db2, sent to all blocks of this group of units. */
    __device__ void send_gradients(bool finite, uint32_t tag) const {
        const float *gradient = shared + at::GRADIENT, *hidden = shared + at::HIDDEN,
                    *weight = shared + at::OUT_WEIGHT;
        ll_packet *to = mailbox_of(tag) + to_gradients;
        if (threadIdx.x < THREADS / 2) {
            const int o = threadIdx.x, row = o / UNITS, u = o % UNITS;
            float sum = 0;
            if (o >= S::OWN * UNITS) return;
#pragma unroll
            for (int c = 0; c < CLASSES; c += 4) {
                const float4 g = four(gradient + row * CLASS_PITCH + c),
                             w = four(weight + u * CLASS_PITCH + c);
                sum += g.x * w.x + g.y * w.y + (g.z * w.z + g.w * w.w);
            }
            ll_send(to + o, sum * derivative_compactly(plan.activation[0], shared[at::PRE + o], hidden[o]),
                    tag);
            if (o == 0) ll_send(to + S::OWN * UNITS + FINITE, finite, tag);
        } else {
            const int o = threadIdx.x - THREADS / 2, u = o / CLASSES, c = o % CLASSES;
            float sum = 0;
            if (o >= WEIGHTS) return;
#pragma unroll
            for (int row = 0; row < S::OWN; row++)
                sum += (u < UNITS ? hidden[row * UNITS + u] : 1.0f) * gradient[row * CLASS_PITCH + c];
            ll_send(to + S::OWN * UNITS + o, sum, tag);
        }
    }

    /* --- backward --- */

    /* Stores dZ of all rows in shared memory, and returns the gradient of weight threadIdx.x of the output
       layer; true if all losses of the batch are finite. */
    __device__ bool receive_gradients(uint32_t tag, float &gradient) const {
        static const int EACH = ROWS * UNITS / THREADS;
        const ll_packet *from = mailbox_of(tag) + from_gradients;
        const auto dz_of = [&](int i) {
            const int o = threadIdx.x + i * THREADS;
            return from + o / (S::OWN * UNITS) * S::GRADIENT_MESSAGE + o % (S::OWN * UNITS);
        };
        const auto store_dz = [&](int i, float value) {
            const int o = threadIdx.x + i * THREADS;
            shared[at::DZ + o % UNITS * PITCH + o / UNITS] = value;
        };
        bool finite = true;
        gradient = 0;
        if (threadIdx.x < OUT_MESSAGE) { /* one wait for all packets of this thread */
            const ll_packet *out = from + S::OWN * UNITS + min((int)threadIdx.x, FINITE);
            float values[EACH + S::F];
            ll_receive(values, tag,
                       [&](int i) { return i < EACH ? dz_of(i) : out + (i - EACH) * S::GRADIENT_MESSAGE; });
#pragma unroll
            for (int i = 0; i < EACH; i++) store_dz(i, values[i]);
#pragma unroll
            for (int s = 0; s < S::F; s++) {
                gradient += values[EACH + s];
                finite &= threadIdx.x < WEIGHTS || values[EACH + s] != 0;
            }
        } else {
            float values[EACH];
            ll_receive(values, tag, dz_of);
#pragma unroll
            for (int i = 0; i < EACH; i++) store_dz(i, values[i]);
        }
        return __syncthreads_and(finite);
    }

    __device__ void update4(float rate, float4 g, float *weight, float *velocity) const {
        float4 w = four(weight), v = four(velocity);
        plan.update(rate, g.x, w.x, v.x);
        plan.update(rate, g.y, w.y, v.y);
        plan.update(rate, g.z, w.z, v.z);
        plan.update(rate, g.w, w.w, v.w);
        if (plan.update.has_velocity) *reinterpret_cast<float4 *>(velocity) = v;
        *reinterpret_cast<float4 *>(weight) = w;
    }

    /* dW1 of the slice and its update: a warp takes half of the units and a share of the rows. */
    __device__ void update_slice(const float *pixels, float rate) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, group = warp / 2;
        const float *dz = shared + at::DZ + half * WARP_UNITS * PITCH;
        float *part = shared + at::PART, sum[S::N][WARP_UNITS] = {};
#pragma unroll
        for (int row = group * (ROWS / WARP_PAIRS); row < (group + 1) * (ROWS / WARP_PAIRS); row += 4) {
            float4 d[WARP_UNITS];
#pragma unroll
            for (int u = 0; u < WARP_UNITS; u++) d[u] = four(dz + u * PITCH + row);
#pragma unroll
            for (int i = 0; i < S::N; i++) {
                const float4 x = four(pixels + min(lane + 32 * i, length - 1) * PITCH + row);
#pragma unroll
                for (int u = 0; u < WARP_UNITS; u++) sum[i][u] += x.x * d[u].x;
#pragma unroll
                for (int u = 0; u < WARP_UNITS; u++) sum[i][u] += x.y * d[u].y;
#pragma unroll
                for (int u = 0; u < WARP_UNITS; u++) sum[i][u] += x.z * d[u].z;
#pragma unroll
                for (int u = 0; u < WARP_UNITS; u++) sum[i][u] += x.w * d[u].w;
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
            for (int g = 1; g < WARP_PAIRS; g++) {
                const float4 more = four(part + (g * 2 * S::LONGEST + e) * 4);
                total.x += more.x;
                total.y += more.y;
                total.z += more.z;
                total.w += more.w;
            }
            const int offset = e % S::LONGEST * UNITS + e / S::LONGEST * 4;
            update4(rate, total, shared + at::WEIGHT + offset, shared + at::VELOCITY + offset);
        }
    }

    /* W2, b2 and b1: all blocks of a group of units have the same copies. */
    __device__ void update_output(float rate, float gradient) const {
        const int warp = threadIdx.x / 32 - (WARPS - UNITS), lane = threadIdx.x % 32,
                  u = threadIdx.x / CLASSES;
        if (warp >= 0) {
            const float4 d = four(shared + at::DZ + warp * PITCH + 4 * lane);
            float sum = d.x + d.y + (d.z + d.w);
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (lane == 0) plan.update(rate, sum, shared[at::BIAS + warp], shared[at::BIAS + UNITS + warp]);
        }
        if (threadIdx.x < WEIGHTS && threadIdx.x % CLASSES < plan.classes &&
            (u == UNITS || UNITS * h + u < plan.hidden[0])) {
            const int offset = u * CLASS_PITCH + threadIdx.x % CLASSES;
            plan.update(rate, gradient, shared[at::OUT_WEIGHT + offset], shared[at::OUT_VELOCITY + offset]);
        }
    }

    /* --- weights --- */

    template <typename E> __device__ void all_weights(E each) const {
        const int pixel = PIXELS * first_pack, unit = UNITS * h, hidden = plan.hidden[0];
        const auto visit = [&](int layer, bool bias, size_t i, int weight, int velocity, bool stores) {
            each(bias ? plan.bias[layer] : plan.weight[layer],
                 bias ? plan.bias_velocity[layer] : plan.weight_velocity[layer], i, shared[weight],
                 shared[velocity], stores);
        };
        for (int e = threadIdx.x; e < length * UNITS; e += THREADS)
            if (unit + e % UNITS < hidden)
                visit(0, false, (size_t)(pixel + e / UNITS) * hidden + unit + e % UNITS, at::WEIGHT + e,
                      at::VELOCITY + e, true);
        for (int e = threadIdx.x; e < UNITS; e += THREADS)
            if (unit + e < hidden)
                visit(0, true, (size_t)(unit + e), at::BIAS + e, at::BIAS + UNITS + e, f == 0);
        for (int e = threadIdx.x; e < (UNITS + 1) * plan.classes; e += THREADS) {
            const int u = e / plan.classes, c = e % plan.classes, offset = u * CLASS_PITCH + c;
            if (u == UNITS || unit + u < hidden)
                visit(1, u == UNITS, u == UNITS ? (size_t)c : (size_t)(unit + u) * plan.classes + c,
                      at::OUT_WEIGHT + offset, at::OUT_VELOCITY + offset, f == 0 && (u < UNITS || h == 0));
        }
    }
};

} // namespace persistent::split_pixels

#endif
