/* Two hidden layers, look-ahead: the four warps of the chain that have the tile of W2. See
   two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_WEIGHTS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_WEIGHTS_CUH

#include "kernels/cuda/persistent/two_ahead_chain.cuh"

namespace persistent::two_ahead {

/* The transpose of the tile of W2: columns 16 w + lane / 4 + 8 h of warp w, rows 8 n + 2 (lane % 4) + e are
   weight[4 n + 2 h + e]. */
struct chain_weights : chain_main {
    using chain_main::chain_main;
    typedef float weights[TILE / 2];

    __device__ int weight_warp() const {
        return warp - MAIN_WARPS;
    }
    __device__ float4 &velocity_of(int n) const {
        return memory.velocity[n][self - MAIN_THREADS];
    }

    /* W2 of the step in planes. */
    __device__ void publish(const weights &weight) const {
        uint32_t most = 0;
#pragma unroll
        for (int e = 0; e < TILE / 2; e++) most = max(most, magnitude(weight[e]));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) memory.w2_most[weight_warp()] = most;
        barrier_sync<BARRIER_WEIGHT, WEIGHT_THREADS>();
#pragma unroll
        for (int w = 0; w < WEIGHT_WARPS; w++) most = max(most, memory.w2_most[w]);
        const plane_scale scale(most);
        if (self == MAIN_THREADS) memory.w2_scale = scale;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const float *four = weight + 4 * n;
            const plane_pair upper = planes_of(four[0] * scale.inverse, four[1] * scale.inverse),
                             lower = planes_of(four[2] * scale.inverse, four[3] * scale.inverse);
            stmatrix_x4_trans(w2().at(8 * n + lane % 8, weight_warp() * 2 + lane / 8 % 2) +
                                  lane / 16 * weight_matrix::PLANE,
                              {upper.high, lower.high, upper.low, lower.low});
        }
        wgmma_written();
        barrier_arrive<BARRIER_W2, MAIN_THREADS + WEIGHT_THREADS>();
    }

    /* The transpose of dW2, 64 x 64 over 128, and the update. */
    __device__ void update_w2(int i, float rate, weights &weight) const {
        static const int STEPS = ROWS / 2 / 16; /* float32 adds the sums of 64 rows */
        float sum[2][TILE / 2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t a[STEPS][F16_PLANES][4];
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                dz2().load_transposed(a[k], half * (ROWS / 2) + 16 * k + lane / 16 * 8 + lane % 8,
                                      weight_warp() * 2 + lane / 8 % 2);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < STEPS; k++)
                wgmma_f16x2<true>(sum[half], a[k],
                                  wgmma_plain_transposed(h1_at((half * STEPS + k) * 16, 0), 128, ROWS * 16),
                                  activation_matrix::PLANE, k > 0);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_done(sum[half]);
        }
        if (lane < CLUSTER) cluster_arrive_at(&memory.h1_free, lane);
        const product_scale scaled(memory.dz2_scale[i % 2], memory.h1_scale[i % 2]);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            const float4 v = velocity_of(n);
            float velocity[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                plan.update(rate, scaled(sum[0][4 * n + e] + sum[1][4 * n + e]), weight[4 * n + e],
                            velocity[e]);
            if (plan.update.has_velocity)
                velocity_of(n) = make_float4(velocity[0], velocity[1], velocity[2], velocity[3]);
        }
    }

    template <typename E> __device__ void all_of_w2(weights &weight, E each) const {
        const int thread = opaque(lane), first_row = group * TILE + thread % 4 * 2,
                  first_column = rank * TILE + weight_warp() * 16 + thread / 4;
#pragma unroll
        for (int e = 0; e < TILE / 2; e++) {
            const int row = first_row + e / 4 * 8 + e % 2, column = first_column + e / 2 % 2 * 8;
            if (row < plan.hidden[0] && column < plan.hidden[1])
                each((size_t)row * plan.hidden[1] + column, weight[e], (&velocity_of(e / 4).x)[e % 4]);
        }
    }

    __device__ void run_weights(stage_profile &profile) {
        weights weight;
#pragma unroll
        for (int e = 0; e < TILE / 2; e++) weight[e] = 0;
        all_of_w2(weight, [&](size_t i, float &w, float &v) {
            w = plan.weight[1][i];
            if (plan.update.has_velocity) v = plan.weight_velocity[1][i];
        });
        for (int i = 0; i < steps; i++) {
            publish(weight);
            const float rate = plan.rate_of(first + i);
            forget_addresses();
            profile.stage(0);
            barrier_sync<BARRIER_DZ2, BLOCK_THREADS>();
            profile.stage(1);
            if (memory.bad) break;
            /* the products of the main warps have ended: W2 and the tensor cores are free */
            barrier_sync<BARRIER_W2_FREE, MAIN_THREADS + WEIGHT_THREADS>();
            update_w2(i, rate, weight);
            profile.stage(2);
        }
        all_of_w2(weight, [&](size_t i, float w, float v) { store_weight_twice(plan, 1, false, i, w, v); });
    }
};

} // namespace persistent::two_ahead

#endif
