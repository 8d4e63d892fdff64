/* One hidden layer, split over hidden units: the plan, and the stages of a step. See
   one_hidden_split_units.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_CUH

#include "kernels/cuda/persistent/int8_layer1.cuh"

namespace persistent::split_units {

static const int PACKS_PER_WARP = 4, MAX_PACKS = PACKS_PER_WARP * WARPS; /* packs of an image */
static const int MAX_CLASSES = 3 * PACKETS;
static const int WEIGHTS = (UNITS + 1) * PACKED_PITCH; /* of W2 in a block, and b2 */
static const int INPUT_SLOTS = 3;
static const size_t STATIC_SHARED = 1024; /* bytes: sums over a block, the mbarrier, and a reserve */

struct plan : byte_pixel_plan<2> {
    int groups;            /* of units: thread blocks */
    int packs;             /* of an image */
    int slots;             /* of the ring of images */
    ll_packet3 *logits;    /* partial sums: [ROWS][groups][PACKETS] */
    ll_packet3 *gradients; /* dL/dlogits: [ROWS][PACKETS] */
};

/* Shared memory, in bytes. The slices of W1 and the ring of images come last: their sizes depend on the plan.
   A slot of the ring holds an image; a step uses `batch` consecutive slots, the next step the following. */
struct smem_layout {
    static constexpr int SUMS = 0,                           /* of Z: [QUARTERS][ROWS][UNITS] */
        HIDDEN = SUMS + 4 * QUARTERS * ROWS * UNITS,         /* [ROWS][UNITS] */
        GRADIENT = HIDDEN + 4 * ROWS * UNITS,                /* [ROWS][PACKED_PITCH] */
        DZ_SLICES = GRADIENT + 4 * ROWS * PACKED_PITCH,      /* [ROWS / 32][2][32 lanes] of 16 bytes */
        OUT_WEIGHT = DZ_SLICES + ROWS / 32 * 2 * 32 * 16,    /* [WEIGHTS] */
        OUT_VELOCITY = OUT_WEIGHT + 4 * WEIGHTS,             /* [WEIGHTS] */
        OUT_SUMS = OUT_VELOCITY + 4 * WEIGHTS,               /* of dW2 and db2: [WARPS][WEIGHTS] */
        BIAS = OUT_SUMS + 4 * WARPS * WEIGHTS,               /* [UNITS], and their velocities */
        BIAS_SUMS = BIAS + 4 * 2 * UNITS,                    /* of db1: [WARPS][UNITS] */
        W1_MAX = BIAS_SUMS + 4 * WARPS * UNITS,              /* largest |W1| of each unit, as bits */
        DZ_MAX = W1_MAX + 4 * UNITS,                         /* largest |dZ| of each unit, as bits */
        INPUTS = DZ_MAX + 4 * UNITS,                         /* input_ring */
        W1_SLICES = INPUTS + input_ring<INPUT_SLOTS>::BYTES; /* [pairs of packs][2][32 lanes] of 16 bytes */
    static_assert(BIAS % 16 == 0 && W1_SLICES % 16 == 0, "aligned");

    __host__ __device__ static int images(int packs) {
        return W1_SLICES + (packs + 1) / 2 * 2 * 32 * 16;
    }
    __host__ __device__ static size_t bytes(int packs, int slots) {
        return (size_t)images(packs) + (size_t)slots * pixel_pitch(packs);
    }
};

/* One thread of the block whose hidden units start at UNITS * blockIdx.x. In the stages between two products
   it holds row threadIdx.x / 4 of the batch and two of the units. */
template <bool VELOCITY> struct block {
    const split_units::plan &plan;
    char *shared;
    sgd_update update;
    pixel_weights<PACKS_PER_WARP> w1;
    float hidden[2], pre[2], dz[2]; /* H, Z, dZ of this thread's row and units */

    __device__ block(const split_units::plan &plan, void *shared)
        : plan(plan),
          shared((char *)shared), update{plan.update.momentum, plan.update.weight_decay, VELOCITY} {}

    __device__ static int row() {
        return threadIdx.x / 4;
    }
    __device__ static int quad() { /* this thread among the four of its row */
        return threadIdx.x % 4;
    }
    __device__ int first_unit() const {
        return UNITS * blockIdx.x;
    }
    template <typename T> __device__ T *at(int offset) const {
        return reinterpret_cast<T *>(shared + offset);
    }
    __device__ uint32_t *w1_max() const {
        return at<uint32_t>(smem_layout::W1_MAX);
    }
    __device__ uint32_t *dz_max() const {
        return at<uint32_t>(smem_layout::DZ_MAX);
    }
    __device__ input_ring<INPUT_SLOTS> inputs() const {
        return {shared + smem_layout::INPUTS};
    }

    /* --- pixels --- */

    /* Row `row` of the step whose first image is in slot `base`; beyond the batch, its last row. */
    __device__ char *slot(int base, int row) const {
        const int s = base + min(row, plan.batch - 1);
        return shared + smem_layout::images(plan.packs) +
               (s < plan.slots ? s : s - plan.slots) * pixel_pitch(plan.packs);
    }

    __device__ void copy_images(uint64_t *barrier, int input_slot, int base, int first, int end) const {
        copy_pixels([&](int row) { return slot(base, row); }, plan.images, plan.features,
                    inputs().images(input_slot), first, end, plan.features, barrier);
    }

    /* The label of a row that this block owns. */
    __device__ int label_of(int input_slot, int rows, int own_row) const {
        const int r = blockIdx.x * plan.own + own_row;
        return own_row < plan.own && r < rows ? plan.labels[inputs().images(input_slot)[r]] : 0;
    }

    /* --- forward --- */

    /* Z = X W1, as sums over quarters of the pixels. */
    __device__ void forward(int base) const {
        forward_pixels([&](int row) { return slot(base, row); }, plan.packs,
                       at<uint4>(smem_layout::W1_SLICES), at<float>(smem_layout::SUMS));
    }

    /* H of this thread's row and units, and the block's partial sums of three logits of the row, sent to the
       owner of the row. After a barrier. */
    __device__ void activate_row(int rows, uint32_t tag) {
        const float *sums = at<float>(smem_layout::SUMS) + 2 * threadIdx.x,
                    *bias = at<float>(smem_layout::BIAS) + lane_unit();
        const slice_scale scale(w1_max()[lane_unit()]), scale2(w1_max()[lane_unit() + 1]);
        float2 sum = {0, 0};
#pragma unroll
        for (int q = 0; q < QUARTERS; q++) {
            const float2 part = *reinterpret_cast<const float2 *>(sums + q * ROWS * UNITS);
            sum.x += part.x;
            sum.y += part.y;
        }
        pre[0] = sum.x * (scale.scale * float(1.0 / 255.0)) + bias[0];
        pre[1] = sum.y * (scale2.scale * float(1.0 / 255.0)) + bias[1];
#pragma unroll
        for (int i = 0; i < 2; i++)
            hidden[i] = row() < rows ? activate_compactly(plan.activation[0], pre[i]) : 0.0f;
        at<float2>(smem_layout::HIDDEN)[threadIdx.x] = make_float2(hidden[0], hidden[1]);

        const float4 *weight = at<float4>(smem_layout::OUT_WEIGHT) + quad();
        float part[3] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const float h = __shfl_sync(0xffffffffu, hidden[u % 2], u / 2, 4);
            const float4 w = weight[u * PACKETS];
            part[0] += h * w.x;
            part[1] += h * w.y;
            part[2] += h * w.z;
        }
        if (row() < rows && 3 * quad() < plan.classes)
            ll_send(plan.logits + (row() * plan.groups + blockIdx.x) * PACKETS + quad(), part[0], part[1],
                    part[2], tag);
    }

    /* --- output layer --- */

    /* This lane's logit of a row, summed over all blocks: each lane takes a packet of every eighth block. */
    __device__ float logit(int r, uint32_t tag) const {
        static const int CONCURRENT = 2, SOURCES = 32 / PACKETS;
        const int k = lane() % PACKETS, c = lane() % CLASSES;
        const ll_packet3 *parts = plan.logits + r * plan.groups * PACKETS + k;
        float sum[3] = {};
        if (3 * k < plan.classes)
            for (int g = lane() / PACKETS; g < plan.groups; g += CONCURRENT * SOURCES) {
                float part[CONCURRENT][3];
                ll_receive(part, tag,
                           [&](int i) { return parts + min(g + i * SOURCES, plan.groups - 1) * PACKETS; });
#pragma unroll
                for (int i = 0; i < CONCURRENT; i++)
                    if (g + i * SOURCES < plan.groups)
#pragma unroll
                        for (int j = 0; j < 3; j++) sum[j] += part[i][j];
            }
        __syncwarp();
        reduce_across_lanes(sum);
        const int bias = UNITS * PACKED_PITCH + min(c / 3, PACKETS - 1) * 4 + c % 3;
        return value_of_class(sum) + at<float>(smem_layout::OUT_WEIGHT)[bias];
    }

    /* dL/dlogits of the rows that this block owns, sent to all blocks; NaN if the loss of a row is not
       finite. `label` is that of owned row warp(). */
    __device__ void output_layer(int step, int input_slot, int rows, int label, uint32_t tag) const {
        const float scale = 1.0f / (float)rows;
#pragma unroll 1
        for (int i = warp(); i < plan.own; i += WARPS) {
            const int r = blockIdx.x * plan.own + i;
            if (r >= rows) break;
            const row_loss loss = softmax_cross_entropy(
                logit(r, tag), true, plan.classes, i < WARPS ? label : label_of(input_slot, rows, i), scale);
            const bool finite = __shfl_sync(0xffffffffu, loss.finite, 0);
            float gradient[3];
#pragma unroll
            for (int j = 0; j < 3; j++)
                gradient[j] = __shfl_sync(0xffffffffu, finite ? loss.gradient : NAN, (3 * lane() + j) % 32);
            if (3 * lane() < plan.classes)
                ll_send(plan.gradients + r * PACKETS + lane(), gradient[0], gradient[1], gradient[2], tag);
            if (lane() == 0) plan.record(step, r, loss.record);
        }
    }

    /* --- backward --- */

    /* dZ of this thread's row and units; true if the losses of the row are finite. */
    __device__ bool receive_gradients(int rows, uint32_t tag) {
        float g[1][3] = {};
        if (row() < rows && 3 * quad() < plan.classes)
            ll_receive(g, tag, [&](int) { return plan.gradients + row() * PACKETS + quad(); });
        __syncwarp(); /* lanes leave the loop one by one */
        at<float4>(smem_layout::GRADIENT)[threadIdx.x] = make_float4(g[0][0], g[0][1], g[0][2], 0);

        const float4 *weight = at<float4>(smem_layout::OUT_WEIGHT) + quad();
        float part[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const float4 w = weight[u * PACKETS];
            part[u] = g[0][0] * w.x + g[0][1] * w.y + g[0][2] * w.z;
        }
        halve<8>(part, quad() & 2, 2);
        halve<4>(part, quad() & 1, 1);
#pragma unroll
        for (int u = 0; u < 2; u++)
            dz[u] =
                row() < rows ? part[u] * derivative_compactly(plan.activation[0], pre[u], hidden[u]) : 0.0f;
        return g[0][0] == g[0][0];
    }

    /* The largest |dZ| of each unit, and this warp's part of db1, dW2 and db2: over the 8 rows of its
       threads. */
    __device__ void reduce_gradients() const {
        atomic_column_max(magnitude(dz[0]), magnitude(dz[1]), dz_max());
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float sum = dz[u];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (lane() < 4) at<float>(smem_layout::BIAS_SUMS)[warp() * UNITS + lane_unit() + u] = sum;
        }

        const int c = lane() % PACKED_PITCH, half = lane() / PACKED_PITCH;
        const float *gradient = at<float>(smem_layout::GRADIENT) + warp() * 8 * PACKED_PITCH + c;
        const float4 *h = at<float4>(smem_layout::HIDDEN) + warp() * 8 * UNITS / 4 + half;
        float sum[4] = {}, bias = 0;
        __syncwarp();
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const float g = gradient[r * PACKED_PITCH];
            const float4 of = h[r * UNITS / 4];
            sum[0] += of.x * g;
            sum[1] += of.y * g;
            sum[2] += of.z * g;
            sum[3] += of.w * g;
            bias += g;
        }
        float *part = at<float>(smem_layout::OUT_SUMS) + warp() * WEIGHTS + c;
#pragma unroll
        for (int u = 0; u < 4; u++) part[(4 * half + u) * PACKED_PITCH] = sum[u];
        if (half == 0) part[UNITS * PACKED_PITCH] = bias;
    }

    /* dZ in slices. The k of a product are rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of 16. After a barrier. */
    __device__ void write_dz_slices() const {
        const slice_scale scale(dz_max()[lane_unit()]), scale2(dz_max()[lane_unit() + 1]);
        const int value = __float2int_rn(dz[0] * scale.inverse),
                  value2 = __float2int_rn(dz[1] * scale2.inverse);
        const int odd = row() % 2, theirs = __shfl_xor_sync(0xffffffffu, odd ? value : value2, 4);
        const uint4 slices = odd ? slices_of(theirs, value2, 0, 0) : slices_of(value, theirs, 0, 0);
        const int to = (lane_unit() + odd) * 4 + row() % 8 / 2;
        uint16_t *words = at<uint16_t>(smem_layout::DZ_SLICES) + (row() / 32 * 64 + to) * 8 +
                          row() / 16 % 2 * 2 + row() % 16 / 8;
        words[0] = (uint16_t)slices.x;
        words[4] = (uint16_t)slices.y;
        words[32 * 8] = (uint16_t)slices.z;
        words[32 * 8 + 4] = (uint16_t)slices.w;
        if (threadIdx.x < UNITS) w1_max()[threadIdx.x] = 0; /* for the new weights */
    }

    /* dW1 over the rows of the first half of the batch; with LAST, the rest of dW1 and the update. */
    template <bool LAST>
    __device__ void weight_gradient(int base, float rate, float (&gradient)[PACKS_PER_WARP][4]) {
        const float one[2] = {1, 1}, /* both halves have the same scale */
            factor[2] = {slice_scale(dz_max()[lane_unit()]).scale * float(1.0 / 255.0),
                         slice_scale(dz_max()[lane_unit() + 1]).scale * float(1.0 / 255.0)};
        w1.template weight_gradient<LAST>([&](int row) { return slot(base, row); }, plan.packs,
                                          at<uint4>(smem_layout::DZ_SLICES), one, factor, update, rate,
                                          gradient);
    }

    /* --- weights --- */

    /* Updates W2, b2 (the same in all blocks) and b1. After a barrier. */
    __device__ void update_output(float rate) const {
        const int e = threadIdx.x, u = e / PACKED_PITCH;
        if (e < WEIGHTS) {
            if (packed_class(e % PACKED_PITCH) >= plan.classes ||
                (u < UNITS && first_unit() + u >= plan.hidden[0]))
                return;
            const float *sums = at<float>(smem_layout::OUT_SUMS) + e;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w * WEIGHTS];
            update(rate, sum, at<float>(smem_layout::OUT_WEIGHT)[e], at<float>(smem_layout::OUT_VELOCITY)[e]);
        } else if (e - THREADS / 2 >= 0 && e - THREADS / 2 < UNITS) {
            float *bias = at<float>(smem_layout::BIAS) + e - THREADS / 2, sum = 0;
            const float *sums = at<float>(smem_layout::BIAS_SUMS) + e - THREADS / 2;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w * UNITS];
            update(rate, sum, bias[0], bias[UNITS]);
        }
    }

    __device__ void find_w1_max() const {
        w1.find_max(w1_max());
    }

    /* W1 in slices, for forward. After a barrier. */
    __device__ void write_w1_slices() const {
        w1.write_slices(plan.packs, w1_max(), at<uint4>(smem_layout::W1_SLICES));
        if (threadIdx.x < UNITS) dz_max()[threadIdx.x] = 0; /* for the next step */
    }

    template <typename E> __device__ void all_weights(E each) {
        const int unit = first_unit();
        float *out = at<float>(smem_layout::OUT_WEIGHT), *bias = at<float>(smem_layout::BIAS);
        w1.all(plan.packs, plan.hidden[0] - unit, [&](int pixel, int u, float &weight, float &velocity) {
            each(plan.weight[0], plan.weight_velocity[0], (size_t)pixel * plan.hidden[0] + unit + u, weight,
                 velocity, true);
        });
        const int e = threadIdx.x, u = e / PACKED_PITCH, c = packed_class(e % PACKED_PITCH);
        if (e < UNITS && unit + e < plan.hidden[0])
            each(plan.bias[0], plan.bias_velocity[0], (size_t)(unit + e), bias[e], bias[UNITS + e], true);
        if (e < WEIGHTS && c < plan.classes) {
            float &velocity = at<float>(smem_layout::OUT_VELOCITY)[e];
            if (u == UNITS)
                each(plan.bias[1], plan.bias_velocity[1], (size_t)c, out[e], velocity, blockIdx.x == 0);
            else if (unit + u < plan.hidden[0])
                each(plan.weight[1], plan.weight_velocity[1], (size_t)(unit + u) * plan.classes + c, out[e],
                     velocity, true);
        }
    }
};

} // namespace persistent::split_units

#endif
