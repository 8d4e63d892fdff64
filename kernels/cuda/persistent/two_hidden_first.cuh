/* Layer 1 of a network of two hidden layers: UNITS of it, and half of the pixels. See fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_FIRST_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_FIRST_CUH

#include "kernels/activation.h"
#include "kernels/cuda/tensor/bulk_copy.cuh"
#include "kernels/cuda/persistent/two_hidden_plan.cuh"
#include "kernels/cuda/persistent/cluster_dsmem.cuh"

/* One thread of a block that has a slice of the pixels and UNITS of layer 1. */
template <bool VELOCITY> struct pair_first : pair_block {
    descent descend;
    int units;              /* which: partners have the same */
    int first_pack, length; /* of its slice of the pixels, in packs */
    int pitch;              /* of pixels */
    pixel_weights<KEPT> kept;

    __device__ pair_first(const pair_plan &plan, char *shared)
        : pair_block(plan, shared), descend(plan.descend), units(blockIdx.x / SLICES * UNITS) {
        const int packs = plan.features / PIXELS;
        first_pack = packs * rank / SLICES;
        length = has_units ? packs * (rank + 1) / SLICES - first_pack : 0;
        pitch = place::pitch(plan.packs);
        descend.has_velocity = VELOCITY; /* known to the compiler: velocities take registers */
    }

    __device__ uint4 *digits() const { /* of W1 */
        return at<uint4>(place::W1);
    }
    __device__ uint32_t *largest() const {
        return at<uint32_t>(place::LARGEST);
    }
    __device__ uint32_t *largest_back(int half) const {
        return at<uint32_t>(place::BACK_LARGEST) + half * UNITS;
    }

    /* --- pixels --- */

    __device__ char *pixels_of(int step) const {
        return at<char>(place::pixels_at(plan.packs)) + step % 2 * ROWS * pitch;
    }

    __device__ uint32_t *images_of(int step) const {
        return at<uint32_t>(place::IMAGES) + step % 2 * ROWS;
    }

    /* The pixels of a step on their way, after its images and a barrier: by the upper half of the warps,
       since the instruction takes its time. */
    __device__ void copy_pixels(int step, int rows) const {
        const int row = (int)threadIdx.x / 2 - ROWS;
        if (threadIdx.x == 0) expect_bytes(arrived(PIXELS_COME), rows * length * PIXELS);
        if (length && threadIdx.x % 2 == 0 && row >= 0 && row < rows)
            copy_in_bulk(pixels_of(step) + row * pitch,
                         plan.images + (size_t)images_of(step)[row] * plan.features + first_pack * PIXELS,
                         length * PIXELS, arrived(PIXELS_COME));
    }

    /* --- forward --- */

    __device__ void forward(int step) const {
        const char *pixels = pixels_of(step);
        if (length)
            multiply_pixels([&](int row) { return pixels + row * pitch; }, length, digits(),
                            at<float>(place::SUMS));
    }

    /* Partners add up, a half of the rows each, and send H1 of it. After a barrier. */
    __device__ void activate_half(const pair_step &now) const {
        const int t = threadIdx.x, other = (1 - rank) * THREADS + t, own = rank * THREADS + t, u = t % UNITS;
        const float *sums = at<float>(place::SUMS);
        float *half = at<float>(place::HALVES) + t, mine = 0, theirs = 0;
        if (!length) return;
        const float quantum = fixed_scale(largest()[u]).quantum * float(1.0 / 255.0);
#pragma unroll
        for (int q = 0; q < QUARTERS; q++) {
            theirs += sums[q * ROWS * UNITS + other];
            mine += sums[q * ROWS * UNITS + own];
        }
        give(half, __float_as_uint(theirs * quantum), arrived(HALVES_COME));
        await_bytes(arrived(HALVES_COME), now.phase);
        const float z = mine * quantum + *half + at<float>(place::BIAS1)[u],
                    h = own / UNITS < now.rows ? activate_compactly(plan.activation[0], z) : 0.0f;
        *half = h;
        send_of_eight(plan.h1 + units / UNITS * 3 * ROWS + own / UNITS, ROWS, h, 0, now.tag,
                      [](int i) { return i; });
    }

    /* --- backward --- */

    /* This thread's place among sums that come (see pair_second::back): its lane bits are row % 2, unit / 2 %
       2, unit % 2, row / 8 % 2 and row / 16 % 2 of its element of dZ1, for the digits of four rows to be in
       one warp. */
    __device__ static int row_of_eight() {
        return warp() % 4 * 2 + lane() % 2;
    }
    __device__ static int pair_of_units() {
        return warp() / 4 % 2 * 2 + lane() / 2 % 2;
    }
    __device__ static int position() {
        return warp() / 8 * 32 + row_of_eight() * 4 + pair_of_units();
    }
    __device__ static int back_row() { /* of its half of the rows */
        return warp() / 8 * 32 + lane() / 8 * 8 + row_of_eight();
    }
    __device__ static int back_unit() {
        return 2 * pair_of_units() + lane() / 4 % 2;
    }

    __device__ const packet_of_3 *parts_of_back(int i) const {
        return plan.back +
               ((units / UNITS * plan.wide + min(lane() / 4, plan.wide - 1)) * 3 * SLICES + i * SLICES +
                rank) *
                   POSITIONS +
               position();
    }

    /* An element of dZ1, of this block's half of the rows, from the parts of dH1 that come from the tiles of
       W2. True if a loss was bad. */
    __device__ bool receive_back(packets_to_come<3> &parts, uint32_t tag, float &back) const {
        const int q = lane() / 4;
        float sum[8];
        if (!length) return false;
        parts.wait(tag, [&](int i) { return parts_of_back(i); });
        __syncwarp(); /* lanes leave one by one */
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = q < plan.wide ? parts.value(i / 3, i % 3) : 0;
        halve<8>(sum, q & 4, 16);
        halve<4>(sum, q & 2, 8);
        halve<2>(sum, q & 1, 4);
        const float h = at<float>(place::HALVES)[back_row() * UNITS + back_unit()];
        back = sum[0] * derivative_compactly(plan.activation[0], h, h);
        uint32_t most = magnitude(back);
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 8));
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
        if ((lane() & 25) == 0) atomicMax(largest_back(rank) + back_unit(), most);
        return parts.value(2, 2) != 0;
    }

    /* dZ1 in digits, for both partners. k of a product: rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of 16. After a
       barrier. */
    __device__ void split_back(float back) const {
        const int which = lane() % 2 + lane() / 8 % 2 * 2; /* of the four rows, and digit */
        uint32_t *most = largest_back(rank) + threadIdx.x;
        if (!length) return;
        const int value = __float2int_rn(back * fixed_scale(largest_back(rank)[back_unit()]).of),
                  next = __shfl_xor_sync(0xffffffffu, value, 1),
                  below = __shfl_xor_sync(0xffffffffu, value, 8),
                  last = __shfl_xor_sync(0xffffffffu, value, 9);
        const uint4 digits = digits_of(value, next, below, last); /* of row i xor `which` */
        const uint32_t mine = which < 2 ? (which ? digits.y : digits.x) : (which == 2 ? digits.z : digits.w),
                       order = which < 2 ? (which ? 0x2301 : 0x3210) : (which == 2 ? 0x1032 : 0x0123),
                       word = __byte_perm(mine, 0, order);
        const int to = (rank * 2 + warp() / 8) * 64 + which / 2 * 32 + back_unit() * 4 + row_of_eight() / 2;
        uint32_t *at_word = at<uint32_t>(place::DZ1) + to * 4 + which % 2 * 2 + lane() / 16;
        *at_word = word;
        give(at_word, word, arrived(DZ1_COMES));
        if (threadIdx.x < UNITS) {
            give(most, *most, arrived(DZ1_COMES));
            largest()[threadIdx.x] = 0; /* for the next */
        }
    }

    /* db1 and its update, by one warp: as the gradient of a pixel that is 1. */
    __device__ void update_bias(float rate) const {
        static const uint32_t ONES = 0x01010101, ones[4] = {ONES, ONES, ONES, ONES};
        float *bias = at<float>(place::BIAS1) + own_units(), gradient[2] = {};
        if (warp() != WARPS - 3) return;
#pragma unroll
        for (int half = 0; half < SLICES; half++) {
            const uint4 *digits = at<uint4>(place::DZ1) + half * 2 * 64 + lane();
            short_digit_sums sums;
            sums.add(ones, digits[0], digits[32]);
            sums.add(ones, digits[64], digits[96]);
#pragma unroll
            for (int i = 0; i < 2; i++)
                gradient[i] += sums.total(i) * fixed_scale(largest_back(half)[own_units() + i]).quantum;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (lane() < UNITS / 2) descend(rate, gradient[i], bias[i], bias[UNITS + i]);
    }

    /* dW1, db1 and the updates. After a barrier, when dZ1 is there. */
    __device__ void update(const pair_step &now) {
        const char *pixels = pixels_of(now.number);
        const auto slot = [&](int row) { return pixels + row * pitch; };
        const float factor[2] = {float(1.0 / 255.0), float(1.0 / 255.0)};
        float gradient[KEPT][4];
        if (!length) return;
        update_bias(now.rate);
#pragma unroll
        for (int half = 0; half < SLICES; half++) {
            const float quantum[2] = {fixed_scale(largest_back(half)[own_units()]).quantum,
                                      fixed_scale(largest_back(half)[own_units() + 1]).quantum};
            if (half)
                kept.multiply_back<true>(slot, length, at<uint4>(place::DZ1), quantum, factor, descend,
                                         now.rate, gradient);
            else
                kept.multiply_back<false>(slot, length, at<uint4>(place::DZ1), quantum, factor, descend,
                                          now.rate, gradient);
        }
        kept.measure(largest());
    }

    /* --- weights --- */

    /* In digits, where forward reads them. After a barrier. */
    __device__ void publish() const {
        kept.publish(length, largest(), digits());
        if (threadIdx.x < UNITS) largest_back(rank)[threadIdx.x] = 0; /* for the next step */
    }

    /* Calls each(index in W1, value, velocity). */
    template <typename E> __device__ void all_weights(E each) {
        kept.all(length, plan.hidden[0] - units, [&](int pixel, int u, int i) {
            each((size_t)(first_pack * PIXELS + pixel) * plan.hidden[0] + units + u,
                 kept.weight[i / 4][i % 4], kept.velocity[i / 4][i % 4]);
        });
    }

    /* Whether this thread has a bias, of unit units + threadIdx.x. */
    __device__ bool has_bias() const {
        return threadIdx.x < UNITS && units + (int)threadIdx.x < plan.hidden[0];
    }

    __device__ void load() {
        float *bias = at<float>(place::BIAS1) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < 4 * KEPT; i++) kept.weight[i / 4][i % 4] = kept.velocity[i / 4][i % 4] = 0;
        all_weights([&](size_t i, float &value, float &velocity) {
            value = plan.weight[0][i];
            if (VELOCITY) velocity = plan.weight_velocity[0][i];
        });
        if (!has_bias()) return;
        bias[0] = plan.bias[0][units + threadIdx.x];
        if (VELOCITY) bias[UNITS] = plan.bias_velocity[0][units + threadIdx.x];
    }

    __device__ void store() {
        const float *bias = at<float>(place::BIAS1) + threadIdx.x;
        all_weights([&](size_t i, float value, float velocity) {
            plan.weight[0][i] = value;
            if (VELOCITY) plan.weight_velocity[0][i] = velocity;
        });
        if (!has_bias() || rank) return;
        plan.bias[0][units + threadIdx.x] = bias[0];
        if (VELOCITY) plan.bias_velocity[0][units + threadIdx.x] = bias[UNITS];
    }
};

#endif
