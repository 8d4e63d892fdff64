/* Layer 1 of a network of two hidden layers: pixels and W1, in true float32 on the tensor cores. See fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_PAIR_FIRST_CUH
#define TESSERA_KERNELS_CUDA_FUSED_PAIR_FIRST_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/fused_exact.cuh"
#include "kernels/cuda/fused_pair_plan.cuh"

/* One thread of a block that has a slice of the pixels and UNITS of layer 1. The weights that a thread updates stay in its registers: of
   4 neighbouring pixels and 2 units, as a product of the tensor cores leaves their gradient. */
struct pair_first {
    const pair_plan &plan;
    float *shared;
    int slice, units;       /* which */
    int first_pack, length; /* of the slice, in packs */
    uint8_t *pixels;        /* [ROWS][pitch] of shared memory */
    int pitch;
    float weight[8], velocity[8]; /* pixel e, unit u: 2 e + u */

    __device__ pair_first(const pair_plan &plan, float *shared)
        : plan(plan), shared(shared), slice(blockIdx.x % SLICES), units(blockIdx.x / SLICES * UNITS) {
        const int packs = plan.features / PIXELS;
        first_pack = packs * slice / SLICES;
        length = units < plan.padded[0] ? packs * (slice + 1) / SLICES - first_pack : 0;
        pixels = reinterpret_cast<uint8_t *>(shared + place::WEIGHT1 + plan.packs * PARTS * 64);
        pitch = place::pitch(plan.packs);
    }

    __device__ uint2 *parts_of_weight() const {
        return reinterpret_cast<uint2 *>(shared + place::WEIGHT1);
    }

    __device__ uint32_t *images_of(size_t step) const {
        return reinterpret_cast<uint32_t *>(shared + place::IMAGES) + step % 2 * ROWS;
    }

    /* The pixels of a step on their way, after its images and a barrier. */
    __device__ void copy_pixels(size_t step, int rows) const {
        constexpr int EACH = THREADS / ROWS; /* threads a row */
        const int row = threadIdx.x / EACH;
        if (row >= rows) return;
        const uint8_t *image =
            plan.images + (size_t)images_of(step)[row] * plan.features + first_pack * PIXELS;
#pragma unroll 1
        for (int p = threadIdx.x % EACH; p < length; p += EACH)
            __pipeline_memcpy_async(pixels + row * pitch + p * PIXELS, image + p * PIXELS, PIXELS);
    }

    /* --- forward --- */

    /* This block's part of Z = X W1, into SUMS: [2][ROWS][UNITS], each over half of the slice. The k of a product: word t of a pack is
       2 t, 2 t + 1, 2 t + 8, 2 t + 9. */
    __device__ void forward() const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32,
                  row = warp % 8 * 16 + g, half = warp / 8;
        const uint8_t *x = pixels + row * pitch + 4 * t;
        const uint2 *w = parts_of_weight() + lane;
        float sum[4] = {};
#pragma unroll 4
        for (int p = length * half / 2; p < length * (half + 1) / 2; p++) {
            uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t word = *reinterpret_cast<const uint32_t *>(x + i * 8 * pitch + p * PIXELS);
                a[i] = upper_halves(pixel_of<0>(word), pixel_of<1>(word));
                a[i + 2] = upper_halves(pixel_of<2>(word), pixel_of<3>(word));
            }
            float part[4] =
                {}; /* what the tensor cores add up is not rounded but cut off: they get few sums, the smallest first */
#pragma unroll
            for (int s = PARTS - 1; s >= 0; s--) multiply(part, a, w[(p * PARTS + s) * 32]);
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] += part[i];
        }
        float *to = shared + place::SUMS + (half * ROWS + row) * UNITS + 2 * t;
        *reinterpret_cast<float2 *>(to) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2 *>(to + 8 * UNITS) = make_float2(sum[2], sum[3]);
    }

    /* The two blocks of these units add up, a half of the rows each, and have H1 of it. After a barrier. */
    __device__ void activate_half(size_t step, uint32_t tag) const {
        const int t = threadIdx.x, other = (1 - slice) * THREADS + t, own = slice * THREADS + t,
                  row = own / UNITS, u = t % UNITS;
        static_assert(THREADS * SLICES == ROWS * UNITS, "a sum each");
        const float *sums = shared + place::SUMS;
        if (!length) return;
        float theirs[1];
        send(plan.box + (blockIdx.x ^ 1) * THREADS + t, sums[other] + sums[other + ROWS * UNITS], tag);
        const float mine = sums[own] + sums[own + ROWS * UNITS];
        receive(theirs, tag, plan.box + blockIdx.x * THREADS + t, 0);
        const float z = (mine + theirs[0]) * float(1.0 / 255.0) + shared[place::BIAS1 + u];
        const float h = activate_compactly(plan.activation[0], z);
        const int column = units + u, columns = plan.padded[0];
        plan.h1_rows[(step % 2 * ROWS + row) * PITCH + column] = h;
        plan.h1_columns[(step % 2 * columns + column / TALL * TALL) * ROWS + row * TALL + column % TALL] = h;
    }

    /* --- backward --- */

    /* dZ1 of this thread's two rows and unit. */
    __device__ float2 read_back() const {
        const float *from =
            plan.dz1 + (units / UNITS * ROWS + threadIdx.x / UNITS * 2) * UNITS + threadIdx.x % UNITS;
        return length ? make_float2(__ldcg(from), __ldcg(from + UNITS)) : make_float2(0, 0);
    }

    /* It as bfloat16, in BACK; sums over each warp's rows in SUMS1. k of a product: rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of 16. */
    __device__ void split_back(float2 back) const {
        const int u = threadIdx.x % UNITS, row = threadIdx.x / UNITS * 2, lane = u * 4 + row % 8 / 2;
        uint32_t parts[PARTS];
        split_pair(back.x, back.y, parts);
        uint32_t *to = reinterpret_cast<uint32_t *>(shared + place::BACK) + row / 16 * PARTS * 64 + lane * 2 +
                       row % 16 / 8;
#pragma unroll
        for (int s = 0; s < PARTS; s++) to[s * 64] = parts[s];
        float sum = back.x + back.y;
        sum += __shfl_xor_sync(0xffffffffu, sum, UNITS);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2 * UNITS);
        if (threadIdx.x % 32 < UNITS) shared[place::SUMS1 + threadIdx.x / 32 * UNITS + u] = sum;
    }

    /* dW1 and the update: a warp has 32 pixels. Rows g and g + 8 of one product are pixels 4 g and 4 g + 1, of another 4 g + 2 and 4 g + 3.
       After a barrier. */
    __device__ void update(float rate) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
        if (threadIdx.x < UNITS && length) {
            float gradient = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) gradient += shared[place::SUMS1 + w * UNITS + threadIdx.x];
            plan.descend(rate, gradient, shared[place::BIAS1 + threadIdx.x],
                         shared[place::BIAS1 + UNITS + threadIdx.x]);
        }
        if (2 * warp >= length) return;
        __syncwarp();
        const uint8_t *x = pixels + 2 * t * pitch + 2 * PIXELS * warp + 4 * g;
        const uint2 *back = reinterpret_cast<const uint2 *>(shared + place::BACK) + lane;
        float low[4] = {}, high[4] = {};
#pragma unroll 2
        for (int k = 0; k < ROWS / 16; k++, x += 16 * pitch) {
            uint32_t word[4], a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                word[i] = *reinterpret_cast<const uint32_t *>(x + (i % 2 + i / 2 * 8) * pitch);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t one = word[2 * i], two = word[2 * i + 1];
                a[2 * i] = upper_halves(pixel_of<0>(one), pixel_of<0>(two));
                a[2 * i + 1] = upper_halves(pixel_of<1>(one), pixel_of<1>(two));
                b[2 * i] = upper_halves(pixel_of<2>(one), pixel_of<2>(two));
                b[2 * i + 1] = upper_halves(pixel_of<3>(one), pixel_of<3>(two));
            }
            float part_of_low[4] = {}, part_of_high[4] = {};
#pragma unroll
            for (int s = PARTS - 1; s >= 0; s--) {
                const uint2 d = back[(k * PARTS + s) * 32];
                multiply(part_of_low, a, d);
                multiply(part_of_high, b, d);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                low[i] += part_of_low[i];
                high[i] += part_of_high[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            plan.descend(rate, low[i] * float(1.0 / 255.0), weight[i], velocity[i]);
            plan.descend(rate, high[i] * float(1.0 / 255.0), weight[i + 4], velocity[i + 4]);
        }
        publish();
    }

    /* The thread's weights as bfloat16, where forward reads them. */
    __device__ void publish() const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, pack = threadIdx.x / 32 * 2 + g / 4;
        if (pack >= length) return;
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint32_t first[PARTS], second[PARTS];
            split_pair(weight[u], weight[2 + u], first);
            split_pair(weight[4 + u], weight[6 + u], second);
            uint2 *to = parts_of_weight() + pack * PARTS * 32 + (2 * t + u) * 4 + g % 4;
#pragma unroll
            for (int s = 0; s < PARTS; s++) to[s * 32] = make_uint2(first[s], second[s]);
        }
    }

    /* --- before and after --- */

    /* Calls each(index in W1, index in this thread's registers). */
    template <typename E> __device__ void all_weights(E each) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, pack = threadIdx.x / 32 * 2 + g / 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int pixel = (first_pack + pack) * PIXELS + g % 4 * 4 + i / 2, unit = units + 2 * t + i % 2;
            if (pack < length && unit < plan.hidden[0]) each((size_t)pixel * plan.hidden[0] + unit, i);
        }
    }

    __device__ void load() {
        const int u = threadIdx.x;
#pragma unroll
        for (int i = 0; i < 8; i++) weight[i] = velocity[i] = 0;
        all_weights([&](size_t at, int i) {
            weight[i] = plan.weight[0][at];
            if (plan.descend.has_velocity) velocity[i] = plan.weight_velocity[0][at];
        });
        if (u >= UNITS || units + u >= plan.hidden[0]) return;
        shared[place::BIAS1 + u] = plan.bias[0][units + u];
        if (plan.descend.has_velocity) shared[place::BIAS1 + UNITS + u] = plan.bias_velocity[0][units + u];
    }

    __device__ void store() {
        const int u = threadIdx.x;
        all_weights([&](size_t at, int i) {
            plan.weight[0][at] = weight[i];
            if (plan.descend.has_velocity) plan.weight_velocity[0][at] = velocity[i];
        });
        if (u >= UNITS || units + u >= plan.hidden[0] || slice) return;
        plan.bias[0][units + u] = shared[place::BIAS1 + u];
        if (plan.descend.has_velocity) plan.bias_velocity[0][units + u] = shared[place::BIAS1 + UNITS + u];
    }
};

#endif
