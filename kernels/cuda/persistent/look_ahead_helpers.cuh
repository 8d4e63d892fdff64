/* One hidden layer, look-ahead: the helper warps of the chain. Beside the main warps they update W2 and both
   biases, send dZ to the workers, and copy the Gram matrices. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_HELPERS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_HELPERS_CUH

#include "kernels/cuda/persistent/look_ahead_loss.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"

namespace persistent::look_ahead {

struct chain_helpers : chain_loss {
    using chain_loss::chain_loss;

    __device__ int helper() const { /* this warp */
        return warp - MAIN_WARPS;
    }
    __device__ static void helpers_barrier() {
        barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
    }

    /* --- Gram matrices: that of step i of the launch is in buffer i % 2 --- */

    /* Waits for matrices that `made` does not count, and counts those that follow. Many at once: an acquire
       and a fence take thousands of cycles. */
    __device__ void wait_for_makers(int first, int i, int &made) const {
        if (i < made) return;
        const int next = min(2 * max(i, 16), end - first);
        for (int k = i + lane; k < next; k += 32) wait_for_maker(plan, k);
        __syncwarp();
        asm volatile("fence.proxy.async;" : : : "memory");
        made = next;
    }

    /* One warp calls it for i = 1, 2, ..: all have read the matrix of step i - 2. */
    __device__ void load_gram(int first, int i, int &made) const {
        if (first + i >= end) return;
        wait_for_makers(first, i, made);
        if (lane > 0) return;
        mbarrier_expect_tx(memory.gram_full + i % 2, GRAM_BYTES);
        bulk_copy(memory.gram[i % 2], plan.gram + (size_t)i * GRAM_STEP, GRAM_BYTES,
                  memory.gram_full + i % 2);
    }

    __device__ void wait_for_gram(int i) const { /* i >= 1 */
        mbarrier_wait(memory.gram_full + i % 2, (i - 1) / 2);
    }

    /* --- dZ --- */

    __device__ void wait_for_dz(int i) const { /* of all rows, of step i */
        for (int n = 0; n < MAIN_WARPS / 2; n++) mbarrier_wait(memory.dz_full + n, i + 1);
    }

    static const int SENDERS = 64; /* threads of the last two helper warps */

    __device__ void send_dz(int i, float scale, bool bad) const {
        const uint32_t phase = phase_of(i);
        if (rank >= plan.groups) return;
        uint4 *to = plan.dz_of(i, rank);
#pragma unroll
        for (int k = self % SENDERS; k < PRODUCT_PACKETS; k += SENDERS)
            send_packet(to + k, memory.dz[i % 2][0][k], phase);
        if (self % SENDERS == 0)
            send_packet(to + PRODUCT_PACKETS, make_uint4(__float_as_uint(scale), bad, 0, 0), phase);
    }

    /* --- b1 --- */

    /* Adds the gradient of step i to b1: the sum of dZ over the rows, by tensor cores. One warp. */
    __device__ void update_bias(int i, float rate, float scale) const {
        const uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            float high[2][4] = {}, low[4] = {};
#pragma unroll
            for (int k = 0; k < ROW_TILES; k++) {
                const uint4 b = memory.dz[i % 2][n][k * 32 + lane];
                mma_f16(low, ones, b.z, b.w);
                mma_f16(high[k * 2 / ROW_TILES], ones, b.x, b.y);
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int u = n * UNITS + 2 * lane + e;
                if (lane < UNITS / 2 && unit(u) < plan.hidden[0])
                    plan.update(rate, (low[e] + (high[0][e] + high[1][e])) * scale, memory.bias[u],
                                memory.bias_velocity[u]);
            }
        }
    }

    __device__ void look_ahead_bias(int i, float rate) const {
        __syncwarp();
        if (lane < GROUP_UNITS)
            memory.bias_ahead[i % 2][lane] =
                ahead_of(plan.update, rate, memory.bias[lane], memory.bias_velocity[lane]);
    }

    /* --- W2 --- */

    /* sum = A B of bfloat16 planes, the six products of bf16x3.cuh, in two sums. */
    __device__ static void multiply_planes(float (&sum)[4], const uint32_t (&a)[PLANES][4],
                                           const uint32_t (&b)[PLANES], const uint32_t (&b2)[PLANES]) {
        float small[4] = {};
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] = 0;
#pragma unroll
        for (int order = PLANES - 1; order >= 0; order--)
#pragma unroll
            for (int i = order; i >= 0; i--)
                mma_bf16(order == PLANES - 1 ? small : sum, a[i], b[order - i], b2[order - i]);
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] += small[e];
    }

    /* Sums of dW2 and db2 over this warp's rows, by tensor cores: units are the rows of a product, and pairs
       of k are rows j and j + 4 of the batch. True if a loss is not finite. */
    __device__ bool sum_output_gradient(int i) const {
        static const int TILES = ROW_TILES / HELPER_WARPS;
        const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
        const int g = lane_g(), t = lane_t();
        const int first = helper() * TILES * TILE, r = first + lane / 16 * 8 + lane % 8 / 2 + lane % 2 * 4;
        float sum[2][4] = {}, bias[2][4] = {};
        uint32_t hidden[TILES][PLANES][4];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int p = 0; p < PLANES; p++)
                ldmatrix_x4_trans(hidden[tile][p],
                                  memory.hidden[p][r + tile * TILE] + hidden_chunk(r, lane / 8 % 2));
        for (int tile = 0; tile < TILES; tile++)
            mbarrier_wait(memory.gradient_full + helper() * TILES + tile, i);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float *column =
                    reinterpret_cast<const float *>(memory.gradient[first + tile * TILE + t]) +
                    (c == 0 ? class_column(g) : g / 2 * 4 + 2 + g % 2);
                uint32_t b[PLANES], b2[PLANES];
                float part[4];
                split_into_planes(column[0], column[4 * PACKED_PITCH], b);
                split_into_planes(column[8 * PACKED_PITCH], column[12 * PACKED_PITCH], b2);
                multiply_planes(part, hidden[tile], b, b2);
#pragma unroll
                for (int e = 0; e < 4; e++) sum[c][e] += part[e];
#pragma unroll
                for (int p = PLANES - 1; p >= 0; p--) mma_bf16(bias[c], ones, b[p], b2[p]);
            }
        }
#pragma unroll
        for (int u = 0; u < UNIT_TILES; u++)
            put_sums(u * UNITS + g, sum[0][2 * u], sum[0][2 * u + 1], sum[1][2 * u]);
        if (g == 0) put_sums(GROUP_UNITS, bias[0][0], bias[0][1], bias[1][0]);
        return bias[0][0] != bias[0][0];
    }

    __device__ void put_sums(int u, float first, float second, float third) const {
        float *to = memory.sums[helper()][u] + 4 * lane_t();
        *reinterpret_cast<float2 *>(to) = make_float2(first, second);
        to[2] = third;
    }

    /* W2 in registers of the first helper warp: units 2 g and 2 g + 1, and the classes of packet t. */
    struct output_weights {
        float weight[2][3], velocity[2][3];
    };

    __device__ void load_weights(output_weights &w2) const {
#pragma unroll
        for (int e = 0; e < 6; e++) {
            w2.weight[e / 3][e % 3] = memory.weight[2 * lane_g() + e / 3][4 * lane_t() + e % 3];
            w2.velocity[e / 3][e % 3] = memory.velocity[2 * lane_g() + e / 3][4 * lane_t() + e % 3];
        }
    }

    __device__ void store_velocities(const output_weights &w2) const {
#pragma unroll
        for (int e = 0; e < 6; e++)
            memory.velocity[2 * lane_g() + e / 3][4 * lane_t() + e % 3] = w2.velocity[e / 3][e % 3];
    }

    /* The gradient of unit u, or that of b2, in the classes of packet t. */
    __device__ float3 gradient_of(int u, int t) const {
        float3 sum = {};
#pragma unroll
        for (int s = 0; s < HELPER_WARPS; s++) {
            const float4 part = *reinterpret_cast<const float4 *>(memory.sums[s][u] + 4 * t);
            sum.x += part.x, sum.y += part.y, sum.z += part.z;
        }
        return sum;
    }

    __device__ void update_weights(output_weights &w2, float rate) const {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const float3 sum = gradient_of(2 * lane_g() + u, lane_t());
            const float gradient[3] = {sum.x, sum.y, sum.z};
            const bool exists = unit(2 * lane_g() + u) < plan.hidden[0];
#pragma unroll
            for (int j = 0; j < 3; j++)
                plan.update(rate, exists ? gradient[j] : 0, w2.weight[u][j], w2.velocity[u][j]);
        }
    }

    __device__ void update_output_bias(float rate) const {
        if (lane >= PACKETS) return;
        const float3 sum = gradient_of(GROUP_UNITS, lane);
        const float gradient[3] = {sum.x, sum.y, sum.z};
#pragma unroll
        for (int j = 0; j < 3; j++)
            plan.update(rate, gradient[j], memory.weight[GROUP_UNITS][4 * lane + j],
                        memory.velocity[GROUP_UNITS][4 * lane + j]);
    }

    /* |dL/dH| of a step of `rows` is below 2 / rows of the largest |W2| of the block, and no derivative of an
       activation is above 1.15. */
    __device__ static float bound_of_dz(int rows) {
        return 2.3f / (float)max(rows, 1);
    }

    /* Stores W2, B of the logits, and the scale of dZ of the next step. */
    __device__ void publish(const output_weights &w2, float bound) const {
        uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const tf32_pair<2> w(w2.weight[0][j], w2.weight[1][j]);
            memory.fragments[j / 2 * UNIT_TILES + lane_g() / 4][4 * (2 * lane_t() + j % 2) + lane_g() % 4] =
                make_uint4(w.big[0], w.big[1], w.small[0], w.small[1]);
        }
#pragma unroll
        for (int u = 0; u < 2; u++)
            reinterpret_cast<float4 *>(memory.weight[2 * lane_g() + u])[lane_t()] =
                make_float4(w2.weight[u][0], w2.weight[u][1], w2.weight[u][2], 0);
#pragma unroll
        for (int e = 0; e < 6; e++) most = max(most, magnitude(w2.weight[e / 3][e % 3]));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) memory.dz_scale = plane_scale(magnitude(__uint_as_float(most) * bound));
    }

    /* --- the steps --- */

    __device__ uint32_t owned_image(int step) const {
        const int r = rank * own + lane;
        return lane < own && r < plan.rows_of(step, end) ? plan.order[(size_t)step * plan.batch + r] : 0;
    }

    /* The first warp has W2, the second the biases; the last two send dZ, and the last one has
       G copied, and the next labels and rate. */
    enum { WEIGHT_WARP, BIAS_WARP, FIRST_SENDER, LAST_HELPER };

    __device__ void run_helpers(int first, stage_profile &profile) {
        float rate = plan.rate_of(first);
        int made = 0;
        uint32_t image = owned_image(first + 1);
        output_weights w2;
        if (helper() == WEIGHT_WARP) {
            load_weights(w2);
            publish(w2, bound_of_dz(plan.rows_of(first, end)));
        } else if (helper() == BIAS_WARP) {
            if (lane < GROUP_UNITS)
                memory.bias_ahead[0][lane] =
                    resumed && rank < plan.groups ? plan.bias_ahead[unit(lane)] : memory.bias[lane];
            look_ahead_bias(1, rate);
        } else if (helper() == LAST_HELPER) {
            if (lane < own) memory.label[0][lane] = plan.labels[owned_image(first)];
            if (lane == 0) memory.rate = rate;
            load_gram(first, 1, made);
        }
        barrier_arrive<BARRIER_OUTPUT, BLOCK_THREADS>();
        for (int i = 0; first + i < end; i++) {
            const int step = first + i;
            const float next_rate = plan.rate_of(min(step + 1, end - 1)),
                        bound = bound_of_dz(plan.rows_of(step + 1, end));
            const int label = plan.labels[image];
            image = owned_image(step + 2);
            profile.stage(0);
            barrier_sync<BARRIER_ROWS, BLOCK_THREADS>();
            const float scale = memory.dz_scale.scale;
            profile.stage(1);
            if (helper() == LAST_HELPER) load_gram(first, i + 2, made);
            const bool bad = barrier_or<BARRIER_HELPERS, HELPER_THREADS>(sum_output_gradient(i));
            profile.stage(2);
            if (!bad) {
                if (helper() == WEIGHT_WARP) {
                    update_weights(w2, rate);
                    publish(w2, bound);
                } else if (helper() == BIAS_WARP) {
                    update_output_bias(rate);
                } else if (helper() == LAST_HELPER) {
                    if (lane < own) memory.label[(i + 1) % 2][lane] = label;
                    if (lane == 0) memory.rate = next_rate;
                }
            }
            profile.stage(3);
            if (helper() != WEIGHT_WARP) wait_for_dz(i);
            /* After that wait: a helper that lags two steps behind would miss a phase of dz_full. */
            if (!bad && step + 1 < end) barrier_arrive<BARRIER_OUTPUT, BLOCK_THREADS>();
            profile.stage(4);
            if (helper() >= FIRST_SENDER) send_dz(i, scale, bad);
            if (bad) {
                if (step + 2 < end) wait_for_gram(i + 2); /* no copy may be on its way at the end */
                break;
            }
            if (helper() == BIAS_WARP) {
                update_bias(i, rate, scale);
                look_ahead_bias(i + 2, next_rate);
            }
            rate = next_rate;
            profile.stage(5);
        }
        if (helper() == WEIGHT_WARP) store_velocities(w2);
        helpers_barrier(); /* not needed, but racecheck misses the block's barrier that follows */
    }
};

} // namespace persistent::look_ahead

#endif
