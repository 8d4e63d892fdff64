/* Two hidden layers: layer 2, a tile of W2 per thread block. See two_hidden_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_LAYER2_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_LAYER2_CUH

#include "kernels/cuda/persistent/two_hidden_plan.cuh"

namespace persistent::two_hidden {

/* One thread of the block with rows TILE_IN * down and columns TILE_OUT * across of W2. A thread updates four
   weights, where the tensor cores leave their gradients: a warp has 16 x 8 of them. They lie in shared
   memory, as floats and in planes. */
template <bool VELOCITY> struct layer2_block : block {
    sgd_update update;
    float velocity[4];

    __device__ layer2_block(const two_hidden::plan &plan, char *shared)
        : block(plan, shared), update(plan.update) {
        update.has_velocity = VELOCITY;
    }

    __device__ w2_matrix w2() const {
        return {shared + smem_layout::W2};
    }

    /* --- exchange --- */

    /* Eight values of this thread's row of the batch. */
    __device__ static void receive_eight(float (&values)[8], const ll_packet4 *from, uint32_t phase) {
        ll_receiver<2, ll_packet4> parts;
        const auto packet = [&](int i) { return from + threadIdx.x % ROWS + i * ROWS; };
        parts.try_poll(packet);
        parts.wait(phase, packet);
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = parts.value(i / 4, i % 4);
    }

    /* TILE_IN columns of H1: a thread receives a row of one block of layer 1. */
    __device__ void receive_h1(const step_info &now) const {
        static_assert(ROWS * TILE_IN == UNITS * THREADS, "eight each");
        const int chunk = threadIdx.x / ROWS;
        float eight[8];
        if (!has_tile) return;
        receive_eight(eight, plan.h1 + (down * (TILE_IN / UNITS) + chunk) * 2 * ROWS, now.packet_phase());
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) most = max(most, magnitude(eight[i]));
        __syncwarp(); /* lanes leave the loop one by one */
        find_largest(LARGEST_H1, most);
        __syncthreads();
        h1().split(threadIdx.x % ROWS, chunk, eight, scale_of(LARGEST_H1).inverse);
        wgmma_written(); /* and W2 in planes */
    }

    /* TILE_OUT columns of dZ2. True if a loss is not finite. */
    __device__ bool receive_dz2(const step_info &now) const {
        static_assert(ROWS * TILE_OUT == 2 * UNITS * THREADS, "sixteen each");
        const int row = threadIdx.x % ROWS, chunk = threadIdx.x / ROWS;
        const auto packet = [&](int i) {
            return plan.dz2 + (across * CHUNKS + chunk) * 2 * ROWS + (i % 2 + i / 2 * CHUNKS) * ROWS + row;
        };
        ll_receiver<4, ll_packet4> parts;
        parts.try_poll(packet);
        parts.wait(now.packet_phase(), packet);
        __syncwarp(); /* lanes leave the loop one by one */
        const float inverse = dz2_scale(now).inverse;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float eight[8];
#pragma unroll
            for (int i = 0; i < 8; i++) eight[i] = parts.value(2 * half + i / 4, i % 4);
            dz2().split(row, chunk + half * (CHUNKS / 2), eight, inverse);
        }
        return isnan(parts.value(0, 0));
    }

    /* --- products by wgmma: A from registers --- */

    /* Where the peer writes half i of this thread's eight sums: in dZ2, which is received later. */
    __device__ float4 *peer_sums(int i) const {
        return at<float4>(smem_layout::DZ2) + i * THREADS + threadIdx.x;
    }

    /* Partial Z2 over the rows of the tile, 128 x 64 over 32: a warp has 16 rows and half of the columns.
       Each peer adds both parts for half of the rows, and sends them to the owners of the rows. */
    __device__ void forward(const step_info &now) const {
        static const int STEPS = TILE_IN / 16;
        const int m = warp() % 8, half = warp() / 8;
        float sum[16];
        uint32_t a[STEPS][F16_PLANES][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++) h1().load(a[k], 16 * m + lane() % 16, 2 * k + lane() / 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            wgmma_f16x2<true>(sum, a[k], wgmma_swizzle128_transposed(w2().base + k * 2048 + half * 64, 16),
                              w2_matrix::PLANE, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_done(sum);
        const product_scale scaled(scale_of(LARGEST_H1), scale_of(LARGEST_W2));
        float eight[8], theirs[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float first = sum[i / 2 * 4 + i % 2],
                        second = sum[i / 2 * 4 + 2 + i % 2]; /* rows g, g + 8 */
            eight[i] = scaled(rank ? second : first);
            theirs[i] = scaled(rank ? first : second);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            st_async(peer_sums(i),
                     make_uint4(__float_as_uint(theirs[4 * i]), __float_as_uint(theirs[4 * i + 1]),
                                __float_as_uint(theirs[4 * i + 2]), __float_as_uint(theirs[4 * i + 3])),
                     barrier(Z2_FULL));
        mbarrier_wait(barrier(Z2_FULL), now.phase);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 more = *peer_sums(i);
            eight[4 * i] += more.x;
            eight[4 * i + 1] += more.y;
            eight[4 * i + 2] += more.z;
            eight[4 * i + 3] += more.w;
        }
        ll_send8(plan.z2 +
                     ((across * (ROWS / GROUP) + 2 * m + rank) * (plan.tiles_in / 2) + down / 2) * 2 *
                         POSITIONS +
                     half * 32 + lane(),
                 POSITIONS, eight, now.packet_phase());
    }

    /* Partial dH1 over the columns of the tile, 128 x 32 over 64, sent to the blocks with these units: a warp
       has 16 rows and 16 units. */
    __device__ void backward(bool bad, const step_info &now) const {
        static const int STEPS = TILE_OUT / 16;
        const int m = warp() % 8, half = warp() / 8;
        float sum[8];
        uint32_t a[STEPS][F16_PLANES][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++) dz2().load(a[k], 16 * m + lane() % 16, 2 * k + lane() / 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            wgmma_f16x2<false>(sum, a[k], wgmma_swizzle128(w2().base + half * 2048 + k * 32),
                               w2_matrix::PLANE, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_done(sum);
        const product_scale scaled(dz2_scale(now), scale_of(LARGEST_W2));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float four[4];
#pragma unroll
            for (int i = 0; i < 4; i++) four[i] = bad ? NAN : not_nan(scaled(sum[4 * n + i]));
            ll_send(plan.dh1 +
                        ((down * (TILE_IN / UNITS) + 2 * half + n) * plan.tiles_out + across) * 2 * ROWS +
                        m % 2 * SPLIT_K * POSITIONS + m / 2 * 32 + lane(),
                    four[0], four[1], four[2], four[3], now.packet_phase());
        }
    }

    /* The transpose of dW2, 64 x 32 over 128, and its update: a warp has 16 columns of W2 and 16 rows,
       over half of the batch, and hands half of it to the warp with the rest of the batch. Calls
       try_poll() after the products. After a barrier: backward reads W2. */
    template <typename L> __device__ void update_weights(const step_info &now, L try_poll) {
        static const int STEPS = ROWS / 2 / 16;
        const int m = warp() % 4, n = warp() / 4 % 2, half = warp() / 8, first = half * (ROWS / 2);
        float sum[8];
        uint32_t a[STEPS][F16_PLANES][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            dz2().load_transposed(a[k], first + 16 * k + lane() / 16 * 8 + lane() % 8,
                                  2 * m + lane() / 8 % 2);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            wgmma_f16x2<true>(sum, a[k],
                              wgmma_swizzle64_transposed(h1().base + (first + 16 * k) * 64 + n * 32),
                              h1_matrix::PLANE, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_done(sum);
        try_poll();
        if (threadIdx.x == 0) *largest(LARGEST_W2) = 0;
        const product_scale scaled(dz2_scale(now), scale_of(LARGEST_H1));
        float4 *sums = at<float4>(smem_layout::GRADIENT_SUMS);
        float gradient[4];
#pragma unroll
        for (int i = 0; i < 4; i++) gradient[i] = half ? sum[4 + i] : sum[i];
        sums[threadIdx.x] =
            half ? make_float4(sum[0], sum[1], sum[2], sum[3]) : make_float4(sum[4], sum[5], sum[6], sum[7]);
        __syncthreads();
        const float4 more = sums[threadIdx.x ^ (THREADS / 2)];
        gradient[0] += more.x;
        gradient[1] += more.y;
        gradient[2] += more.z;
        gradient[3] += more.w;
        float weight[4];
        read(weight);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (is_weight(i)) update(now.rate, scaled(gradient[i]), weight[i], velocity[i]);
        write(weight);
    }

    /* --- weights --- */

    /* The positions of this thread's weights in the tile. */
    __device__ static int row_of_weight(int i) {
        return warp() / 4 % 2 * 16 + warp() / 8 * 8 + lane() % 4 * 2 + i % 2;
    }
    __device__ static int column_of_weight(int i) {
        return warp() % 4 * 16 + i / 2 * 8 + lane() / 4;
    }

    __device__ int index_of_weight(int i) const {
        return (down * TILE_IN + row_of_weight(i)) * plan.hidden[1] + across * TILE_OUT + column_of_weight(i);
    }

    __device__ bool is_weight(int i) const {
        return down * TILE_IN + row_of_weight(i) < plan.hidden[0] &&
               across * TILE_OUT + column_of_weight(i) < plan.hidden[1];
    }

    __device__ float4 *weights() const {
        return at<float4>(smem_layout::WEIGHT2) + threadIdx.x;
    }

    __device__ void read(float (&weight)[4]) const {
        const float4 four = *weights();
        weight[0] = four.x, weight[1] = four.y, weight[2] = four.z, weight[3] = four.w;
    }

    __device__ void write(const float (&weight)[4]) const {
        uint32_t most = 0;
        *weights() = make_float4(weight[0], weight[1], weight[2], weight[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) most = max(most, magnitude(weight[i]));
        find_largest(LARGEST_W2, most);
    }

    /* This thread's weights in planes. After a barrier. */
    __device__ void write_planes() const {
        const float inverse = scale_of(LARGEST_W2).inverse;
        const int row = warp() / 4 % 2 * 16 + warp() / 8 * 8 + lane() % 8,
                  chunk = warp() % 4 * 2 + lane() / 8 % 2;
        float weight[4];
        if (!has_tile) return;
        read(weight);
        const plane_pair first = planes_of(weight[0] * inverse, weight[1] * inverse),
                         second = planes_of(weight[2] * inverse, weight[3] * inverse);
        stmatrix_x4_trans(w2().at(row, chunk) + lane() / 16 * w2_matrix::PLANE,
                          {first.high, second.high, first.low, second.low});
    }

    template <typename E> __device__ void all_weights(float (&weight)[4], E each) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (is_weight(i))
                each(plan.weight[1], plan.weight_velocity[1], (size_t)index_of_weight(i), weight[i],
                     velocity[i], true);
    }

    __device__ void load() {
        float weight[4] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) velocity[i] = 0;
        all_weights(weight, load_weight{VELOCITY});
        write(weight);
    }

    __device__ void store() {
        float weight[4];
        read(weight);
        all_weights(weight, store_weight{VELOCITY});
    }
};

} // namespace persistent::two_hidden

#endif
