/* Two hidden layers: layer 1, UNITS units and half of the pixels per thread block. See two_hidden.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_LAYER1_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_LAYER1_CUH

#include "kernels/cuda/persistent/two_hidden_plan.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"

namespace persistent::two_hidden {

/* One thread of a block with a slice of the pixels and UNITS units of layer 1. */
template <bool VELOCITY> struct layer1_block : block {
    sgd_update update;
    int units;              /* the first of its units: peers have the same */
    int first_pack, length; /* of its slice of the pixels, in packs */
    int pitch;              /* of pixels */
    pixel_weights<PACKS_PER_WARP> w1;

    __device__ layer1_block(const two_hidden::plan &plan, char *shared)
        : block(plan, shared), update(plan.update), units(blockIdx.x / SPLIT_K * UNITS) {
        const int packs = plan.features / PIXELS;
        first_pack = packs * rank / SPLIT_K;
        length = has_units ? packs * (rank + 1) / SPLIT_K - first_pack : 0;
        pitch = pixel_pitch(plan.packs);
        update.has_velocity = VELOCITY; /* a constant: velocities take registers */
    }

    __device__ uint4 *slices() const { /* of W1 */
        return at<uint4>(smem_layout::W1);
    }
    __device__ uint32_t *w1_max() const {
        return at<uint32_t>(smem_layout::W1_MAX);
    }
    __device__ uint32_t *dz1_max(int half) const {
        return at<uint32_t>(smem_layout::DZ1_MAX) + half * UNITS;
    }

    /* --- pixels --- */

    __device__ char *pixels_of(int step) const {
        return at<char>(smem_layout::pixels(plan.packs)) + step % 2 * ROWS * pitch;
    }

    /* Copies the slices of a step's images. After a barrier that makes their order visible. The instruction
       is slow, so the first eleven warps share it. Meanwhile the last five update the output layer; if blocks
       own 16 rows, the last nine, of which four do both. */
    __device__ void copy_images(int step, int rows) const {
        static const int EACH = 12; /* rows of a warp */
        const int row = lane() < EACH ? warp() * EACH + lane() : ROWS;
        if (threadIdx.x == 0) mbarrier_expect_tx(barrier(PIXELS_FULL), rows * length * PIXELS);
        if (length && row < rows)
            bulk_copy(pixels_of(step) + row * pitch,
                      plan.images + first_pack * PIXELS +
                          (size_t)inputs().images(step % 2)[row] * plan.features,
                      length * PIXELS, barrier(PIXELS_FULL));
    }

    /* --- forward --- */

    __device__ void forward(int step) const {
        const char *pixels = pixels_of(step);
        if (length)
            forward_pixels([&](int row) { return pixels + row * pitch; }, length, slices(),
                           at<float>(smem_layout::SUMS));
    }

    /* Each peer sums one half of the rows over both slices, and sends their H1. After a barrier. */
    __device__ void activate_half(const step_info &now) const {
        const int t = threadIdx.x, other = (1 - rank) * THREADS + t, own = rank * THREADS + t, u = t % UNITS;
        const float *sums = at<float>(smem_layout::SUMS);
        float *half = at<float>(smem_layout::HALVES) + t, mine = 0, theirs = 0;
        if (!length) return;
        const float scale = slice_scale(w1_max()[u]).scale * float(1.0 / 255.0);
#pragma unroll
        for (int q = 0; q < QUARTERS; q++) {
            theirs += sums[q * ROWS * UNITS + other];
            mine += sums[q * ROWS * UNITS + own];
        }
        st_async(half, __float_as_uint(theirs * scale), barrier(Z1_FULL));
        mbarrier_wait(barrier(Z1_FULL), now.phase);
        const float z = mine * scale + *half + at<float>(smem_layout::BIAS1)[u],
                    h = own / UNITS < now.rows ? activate_compactly(plan.activation[0], z) : 0.0f;
        *half = h;
        ll_send8_from_lanes(plan.h1 + units / UNITS * 2 * ROWS + own / UNITS, ROWS, h, now.packet_phase(),
                            [](int i) { return i; });
    }

    /* --- backward --- */

    /* Which element of dZ1 a thread holds, and the position of its partial sums (layer2_block::backward): its
       lane bits are row % 2, unit / 2 % 2, unit % 2, row / 8 % 2 and row / 16 % 2, so that one warp holds the
       slices of four rows. */
    __device__ static int row_of_eight() {
        return warp() % 4 * 2 + lane() % 2;
    }
    __device__ static int pair_of_units() {
        return warp() / 4 % 2 * 2 + lane() / 2 % 2;
    }
    __device__ static int position() {
        return warp() / 8 * 32 + row_of_eight() * 4 + pair_of_units();
    }
    __device__ static int dz1_row() { /* in its half of the rows */
        return warp() / 8 * 32 + lane() / 8 * 8 + row_of_eight();
    }
    __device__ static int dz1_unit() {
        return 2 * pair_of_units() + lane() / 4 % 2;
    }

    __device__ const ll_packet4 *parts_of_dh1(int i) const {
        return plan.dh1 +
               ((units / UNITS * plan.tiles_out + min(lane() / 4, plan.tiles_out - 1)) * 2 * SPLIT_K +
                i * SPLIT_K + rank) *
                   POSITIONS +
               position();
    }

    /* One element of dZ1 in this block's half of the rows: the sum of the partial dH1 of the tiles of W2.
       True if a loss is not finite. */
    __device__ bool receive_gradients(ll_receiver<2, ll_packet4> &parts, const step_info &now,
                                      float &dz1) const {
        const int q = lane() / 4;
        float sum[8];
        if (!length) return false;
        parts.wait(now.packet_phase(), [&](int i) { return parts_of_dh1(i); });
        __syncwarp(); /* lanes leave the loop one by one */
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = q < plan.tiles_out ? parts.value(i / 4, i % 4) : 0;
        halve<8>(sum, q & 4, 16);
        halve<4>(sum, q & 2, 8);
        halve<2>(sum, q & 1, 4);
        const float h = at<float>(smem_layout::HALVES)[dz1_row() * UNITS + dz1_unit()];
        dz1 = sum[0] * derivative_compactly(plan.activation[0], h, h);
        uint32_t most = magnitude(dz1);
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 8));
        most = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
        if ((lane() & 25) == 0) atomicMax(dz1_max(rank) + dz1_unit(), most);
        return isnan(parts.value(0, 0));
    }

    /* dZ1 in slices, for both peers. The k of a product are rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of 16. After
       a barrier. */
    __device__ void write_dz1_slices(float dz1) const {
        const int which = lane() % 2 + lane() / 8 % 2 * 2; /* of the four rows, and slice */
        uint32_t *most = dz1_max(rank) + threadIdx.x;
        if (!length) return;
        const int value = __float2int_rn(dz1 * slice_scale(dz1_max(rank)[dz1_unit()]).inverse),
                  next = __shfl_xor_sync(0xffffffffu, value, 1),
                  eighth = __shfl_xor_sync(0xffffffffu, value, 8),
                  last = __shfl_xor_sync(0xffffffffu, value, 9);
        const uint4 slices = slices_of(value, next, eighth, last); /* of row i xor `which` */
        const uint32_t mine = which < 2 ? (which ? slices.y : slices.x) : (which == 2 ? slices.z : slices.w),
                       order = which < 2 ? (which ? 0x2301 : 0x3210) : (which == 2 ? 0x1032 : 0x0123),
                       word = __byte_perm(mine, 0, order);
        const int to = (rank * 2 + warp() / 8) * 64 + which / 2 * 32 + dz1_unit() * 4 + row_of_eight() / 2;
        uint32_t *at_word = at<uint32_t>(smem_layout::DZ1) + to * 4 + which % 2 * 2 + lane() / 16;
        *at_word = word;
        st_async(at_word, word, barrier(DZ1_FULL));
        if (threadIdx.x < UNITS) {
            st_async(most, *most, barrier(DZ1_FULL));
            w1_max()[threadIdx.x] = 0; /* for the new weights */
        }
    }

    /* db1 and its update, by one warp: db1 is the gradient of the weight of a pixel of value 1. */
    __device__ void update_bias(float rate) const {
        static const uint32_t ONES = 0x01010101, ones[4] = {ONES, ONES, ONES, ONES};
        float *bias = at<float>(smem_layout::BIAS1) + lane_unit(), gradient[2] = {};
        if (warp() != WARPS - 3) return;
#pragma unroll
        for (int half = 0; half < SPLIT_K; half++) {
            const uint4 *slices = at<uint4>(smem_layout::DZ1) + half * 2 * 64 + lane();
            slice_sums sums;
            sums.add(ones, slices[0], slices[32]);
            sums.add(ones, slices[64], slices[96]);
#pragma unroll
            for (int i = 0; i < 2; i++)
                gradient[i] += sums.total(i) * slice_scale(dz1_max(half)[lane_unit() + i]).scale;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (lane() < UNITS / 2) update(rate, gradient[i], bias[i], bias[UNITS + i]);
    }

    /* dW1, db1 and the updates. After DZ1_FULL and a barrier. */
    __device__ void update_weights(const step_info &now) {
        const char *pixels = pixels_of(now.number);
        const auto slot = [&](int row) { return pixels + row * pitch; };
        const float factor[2] = {float(1.0 / 255.0), float(1.0 / 255.0)};
        float gradient[PACKS_PER_WARP][4];
        if (!length) return;
        update_bias(now.rate);
#pragma unroll
        for (int half = 0; half < SPLIT_K; half++) {
            const float scale[2] = {slice_scale(dz1_max(half)[lane_unit()]).scale,
                                    slice_scale(dz1_max(half)[lane_unit() + 1]).scale};
            if (half)
                w1.weight_gradient<true>(slot, length, at<uint4>(smem_layout::DZ1), scale, factor, update,
                                         now.rate, gradient);
            else
                w1.weight_gradient<false>(slot, length, at<uint4>(smem_layout::DZ1), scale, factor, update,
                                          now.rate, gradient);
        }
        w1.find_max(w1_max());
    }

    /* --- weights --- */

    /* W1 in slices, for forward. After a barrier. */
    __device__ void write_slices() const {
        w1.write_slices(length, w1_max(), slices());
        if (threadIdx.x < UNITS) dz1_max(rank)[threadIdx.x] = 0; /* for the next step */
    }

    template <typename E> __device__ void all_weights(E each) {
        float *bias = at<float>(smem_layout::BIAS1) + threadIdx.x;
        w1.all(length, plan.hidden[0] - units, [&](int pixel, int u, float &weight, float &velocity) {
            each(plan.weight[0], plan.weight_velocity[0],
                 (size_t)(first_pack * PIXELS + pixel) * plan.hidden[0] + units + u, weight, velocity, true);
        });
        if (threadIdx.x < UNITS && units + (int)threadIdx.x < plan.hidden[0])
            each(plan.bias[0], plan.bias_velocity[0], (size_t)(units + threadIdx.x), bias[0], bias[UNITS],
                 rank == 0);
    }

    __device__ void load() {
        w1.clear();
        all_weights(load_weight{VELOCITY});
        w1.find_max(w1_max());
    }

    __device__ void store() {
        all_weights(store_weight{VELOCITY});
    }
};

} // namespace persistent::two_hidden

#endif
