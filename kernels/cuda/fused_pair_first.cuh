/* Layer 1 of a network of two hidden layers: pixels and W1, in true float32 on the tensor cores. See fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_PAIR_FIRST_CUH
#define TESSERA_KERNELS_CUDA_FUSED_PAIR_FIRST_CUH

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/fused_pair_plan.cuh"
#include "kernels/cuda/partner.cuh"

/* One thread of a block that has a slice of the pixels and UNITS of layer 1. The weights that a thread updates stay in its registers: of
   4 neighbouring pixels and 2 units, as a product of the tensor cores leaves their gradient. */
struct pair_first : pair_block {
    int slice, units;             /* which */
    int first_pack, length;       /* of the slice, in packs */
    int pitch;                    /* of pixels */
    float weight[8], velocity[8]; /* pixel e, unit u: 2 e + u */

    __device__ pair_first(const pair_plan &plan, char *shared)
        : pair_block(plan, shared), slice(rank), units(blockIdx.x / SLICES * UNITS) {
        const int packs = plan.features / PIXELS;
        first_pack = packs * slice / SLICES;
        length = has_units ? packs * (slice + 1) / SLICES - first_pack : 0;
        pitch = place::pitch(plan.packs);
    }

    __device__ uint2 *parts_of_weight() const {
        return at<uint2>(place::W1);
    }

    /* --- pixels --- */

    __device__ uint8_t *pixels_of(int step) const {
        return at<uint8_t>(place::pixels_at(plan.packs)) + step % 2 * ROWS * pitch;
    }

    __device__ uint32_t *images_of(int step) const {
        return at<uint32_t>(place::IMAGES) + step % 2 * ROWS;
    }

    /* The pixels of a step on their way, after its images and a barrier: by the upper half of the warps, since the instruction takes its time. */
    __device__ void copy_pixels(int step, int rows) const {
        const int row = (int)threadIdx.x / 2 - ROWS;
        if (threadIdx.x == 0) expect_bytes(arrived(PIXELS_COME), rows * length * PIXELS);
        if (length && threadIdx.x % 2 == 0 && row >= 0 && row < rows)
            copy_in_bulk(pixels_of(step) + row * pitch,
                         plan.images + (size_t)images_of(step)[row] * plan.features + first_pack * PIXELS,
                         length * PIXELS, arrived(PIXELS_COME));
    }

    /* --- forward --- */

    /* This block's part of Z = X W1, into SUMS, each over half of the slice. The k of a product: word t of a pack is 2 t, 2 t + 1, 2 t + 8, 2 t + 9. */
    __device__ void forward(int step) const {
        const int g = lane() / 4, t = lane() % 4, row = warp() % 8 * 16 + g, half = warp() / 8;
        const uint8_t *x = pixels_of(step) + row * pitch + 4 * t;
        const uint2 *w = parts_of_weight() + lane();
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
            float part[4] = {};
#pragma unroll
            for (int s = PARTS - 1; s >= 0; s--) {
                const uint2 b = w[(p * PARTS + s) * 32];
                multiply(part, a, b.x, b.y);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] += part[i];
        }
        float *to = at<float>(place::SUMS) + (half * ROWS + row) * UNITS + 2 * t;
        *reinterpret_cast<float2 *>(to) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2 *>(to + 8 * UNITS) = make_float2(sum[2], sum[3]);
    }

    /* Partners add up, a half of the rows each, and send H1 of it. After a barrier. */
    __device__ void activate_half(const pair_step &now) const {
        const int t = threadIdx.x, other = (1 - slice) * THREADS + t, own = slice * THREADS + t,
                  u = t % UNITS;
        const float *sums = at<float>(place::SUMS);
        float *half = at<float>(place::HALVES) + t;
        if (!length) return;
        give(half, __float_as_uint(sums[other] + sums[other + ROWS * UNITS]), arrived(HALVES_COME));
        const float mine = sums[own] + sums[own + ROWS * UNITS];
        await_bytes(arrived(HALVES_COME), now.phase);
        const float z = (mine + *half) * float(1.0 / 255.0) + at<float>(place::BIAS1)[u],
                    h = activate_compactly(plan.activation[0], z);
        *half = h;
        send_of_eight(plan.h1 + units / UNITS * 3 * ROWS + own / UNITS, ROWS, h, 0, now.tag,
                      [](int i) { return i; });
    }

    /* --- backward --- */

    /* dZ1, from the parts of dH1 that come from the tiles of W2: of a half of the rows each, for both partners. True if a loss was bad. */
    __device__ bool receive_back(const pair_step &now) const {
        const int p = lane() % 4, q = lane() / 4, position = warp() * 4 + p;
        if (!length) return false;
        const packet_of_3 *from =
            plan.back +
            ((units / UNITS * plan.wide + min(q, plan.wide - 1)) * 3 * SLICES + slice) * POSITIONS + position;
        float part[3][3], sum[8];
        receive(part, now.tag, [&](int i) { return from + i * SLICES * POSITIONS; });
        __syncwarp(); /* lanes leave one by one */
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = q < plan.wide ? part[i / 3][i % 3] : 0;
        halve<8>(sum, q & 4, 16);
        halve<4>(sum, q & 2, 8);
        halve<2>(sum, q & 1, 4);

        /* this thread's row and unit: see pair_second::back */
        const int row = slice * (ROWS / 2) + position / 32 * 32 + q / 2 * 8 + position % 32 / 4,
                  u = 2 * p + q % 2;
        const float h = at<float>(place::HALVES)[row % (ROWS / 2) * UNITS + u],
                    mine = sum[0] * derivative_compactly(plan.activation[0], h, h),
                    next = __shfl_xor_sync(0xffffffffu, mine, 4);
        if (q % 2 == 0)
            dz1().split_pair_of(row, 0, p, mine, next, [](char *at, uint32_t word) { put(at, word); });
        else
            dz1().split_pair_of(row, 0, p, next, mine,
                                [&](char *at, uint32_t word) { give(at, word, arrived(DZ1_COMES)); });
        await_bytes(arrived(DZ1_COMES), now.phase);
        return part[2][2] != 0;
    }

    /* db1 and its update, by one warp: as the gradient of a pixel that is 1. */
    __device__ void update_bias(float rate) const {
        static const uint32_t ONES = 0x3f803f80, ones[4] = {ONES, ONES, ONES, ONES};
        float sum[4] = {};
        if (warp() != WARPS - 1 || !length) return;
#pragma unroll 1
        for (int k = 0; k < ROWS; k += 32) {
            uint32_t back[PARTS][4];
            float low[4] = {}, high[4] = {};
            dz1().load_transposed(back, k + lane(), 0);
#pragma unroll
            for (int s = PARTS - 1; s >= 0; s--) {
                multiply(low, ones, back[s][0], back[s][1]);
                multiply(high, ones, back[s][2], back[s][3]);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) sum[i] += low[i] + high[i];
        }
        float *bias = at<float>(place::BIAS1) + 2 * lane();
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (lane() < UNITS / 2) plan.descend(rate, sum[i], bias[i], bias[UNITS + i]);
    }

    /* Part of dW1 over 16 rows, of which word N of `back` and the next are dZ1: of this lane's pixels, in pairs. */
    template <int N>
    __device__ void multiply_pixels(float (&low)[4], float (&high)[4], const uint8_t *x,
                                    const uint32_t (&back)[PARTS][4]) const {
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
            multiply(part_of_low, a, back[s][N], back[s][N + 1]);
            multiply(part_of_high, b, back[s][N], back[s][N + 1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] += part_of_low[i];
            high[i] += part_of_high[i];
        }
    }

    /* dW1 and the update: a warp has 32 pixels. Rows g and g + 8 of one product are pixels 4 g and 4 g + 1, of another 4 g + 2 and 4 g + 3.
       After a barrier. */
    __device__ void update(const pair_step &now) {
        const int g = lane() / 4, t = lane() % 4;
        update_bias(now.rate);
        if (2 * warp() >= length) return;
        const uint8_t *x = pixels_of(now.number) + 2 * t * pitch + 2 * PIXELS * warp() + 4 * g;
        float low[4] = {}, high[4] = {};
#pragma unroll 1
        for (int k = 0; k < ROWS; k += 32) {
            uint32_t back[PARTS][4];
            dz1().load_transposed(back, k + lane(), 0);
            multiply_pixels<0>(low, high, x + k * pitch, back);
            multiply_pixels<2>(low, high, x + (k + 16) * pitch, back);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            plan.descend(now.rate, low[i] * float(1.0 / 255.0), weight[i], velocity[i]);
            plan.descend(now.rate, high[i] * float(1.0 / 255.0), weight[i + 4], velocity[i + 4]);
        }
        publish();
    }

    /* --- weights --- */

    /* The pack of a slice whose weights this thread has, of 4 pixels from 4 (lane() / 4 % 4) on. */
    __device__ static int pack() {
        return 2 * warp() + lane() / 16;
    }

    /* The thread's weights as bfloat16, where forward reads them. */
    __device__ void publish() const {
        const int g = lane() / 4, t = lane() % 4;
        if (pack() >= length) return;
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint32_t first[PARTS], second[PARTS];
            split_pair(weight[u], weight[2 + u], first);
            split_pair(weight[4 + u], weight[6 + u], second);
            uint2 *to = parts_of_weight() + pack() * PARTS * 32 + (2 * t + u) * 4 + g % 4;
#pragma unroll
            for (int s = 0; s < PARTS; s++) to[s * 32] = make_uint2(first[s], second[s]);
        }
    }

    /* Calls each(index in W1, index in this thread's registers). */
    template <typename E> __device__ void all_weights(E each) {
        const int g = lane() / 4, t = lane() % 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int pixel = (first_pack + pack()) * PIXELS + g % 4 * 4 + i / 2,
                      unit = units + 2 * t + i % 2;
            if (pack() < length && unit < plan.hidden[0]) each((size_t)pixel * plan.hidden[0] + unit, i);
        }
    }

    /* Whether this thread has a bias, of unit units + threadIdx.x. */
    __device__ bool has_bias() const {
        return threadIdx.x < UNITS && units + (int)threadIdx.x < plan.hidden[0];
    }

    __device__ void load() {
        float *bias = at<float>(place::BIAS1) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < 8; i++) weight[i] = velocity[i] = 0;
        all_weights([&](size_t at, int i) {
            weight[i] = plan.weight[0][at];
            if (plan.descend.has_velocity) velocity[i] = plan.weight_velocity[0][at];
        });
        if (!has_bias()) return;
        bias[0] = plan.bias[0][units + threadIdx.x];
        if (plan.descend.has_velocity) bias[UNITS] = plan.bias_velocity[0][units + threadIdx.x];
    }

    __device__ void store() {
        const float *bias = at<float>(place::BIAS1) + threadIdx.x;
        all_weights([&](size_t at, int i) {
            plan.weight[0][at] = weight[i];
            if (plan.descend.has_velocity) plan.weight_velocity[0][at] = velocity[i];
        });
        if (!has_bias() || slice) return;
        plan.bias[0][units + threadIdx.x] = bias[0];
        if (plan.descend.has_velocity) plan.bias_velocity[0][units + threadIdx.x] = bias[UNITS];
    }
};

#endif
