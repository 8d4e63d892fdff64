/* One hidden layer, look-ahead: the helper warps of the chain. Beside the main warps, which send dZ, they
   update W2 and both biases, sum the losses, send the header of dZ, and copy the Gram matrices. See
   look_ahead.cu. */
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
        const int at_once = shared_matrices(plan);
        const int next = min(i < at_once ? at_once : 2 * max(i, 16), end - first);
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

    /* To the workers, one warp: the scale of dZ, and whether the step is bad. */
    __device__ void send_header(int i, float scale, bool bad) const {
        if (rank < plan.groups && lane == 0)
            send_packet(plan.dz_of(i, rank) + PRODUCT_PACKETS, make_uint4(__float_as_uint(scale), bad, 0, 0),
                        phase_of(i));
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
                const uint4 b = packet_of(i, n, k);
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

    /* H of rows `first` + t and t + 4, units g and g + 8: A of dW2, transposed. */
    __device__ tf32_pair<4> hidden_of(int first) const {
        const float *row = memory.hidden[first + lane_t()] + lane_g(), *row4 = row + 4 * HIDDEN_PITCH;
        return tf32_pair<4>(row[0], row[UNITS], row4[0], row4[UNITS]);
    }

    /* Sums of dW2 and db2 over this warp's rows, dW2 by tensor cores: units are the rows of a product. True
       if a loss is not finite. */
    __device__ bool sum_output_gradient(int i) const {
        static const int COUNT = ROWS / HELPER_WARPS, K = 8;
        const int g = lane_g(), t = lane_t(), first = helper() * COUNT;
        const int column[2] = {class_column(g), g / 2 * 4 + 2 + g % 2}; /* classes 0 to 7, then the others */
        float sum[2][2][4] = {}, bias[2] = {};
        static_assert(COUNT == 4 * K);
        const tf32_pair<4> hidden[COUNT / K] = {hidden_of(first), hidden_of(first + K),
                                                hidden_of(first + 2 * K), hidden_of(first + 3 * K)};
        for (int w = 0; w < COUNT / TILE; w++)
            mbarrier_wait(memory.gradient_full + helper() * (COUNT / TILE) + w, i);
#pragma unroll
        for (int k = 0; k < COUNT / K; k++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float *row = &memory.gradient[first + K * k + t]->x + column[c];
                const float b[2] = {row[0], row[4 * PACKED_PITCH]};
                bias[c] += b[0] + b[1];
                multiply_tf32x3(sum[k % 2][c], hidden[k], tf32_pair<2>(b[0], b[1]));
            }
#pragma unroll
        for (int u = 0; u < UNIT_TILES; u++)
            put_sums(u * UNITS + g, sum[0][0][2 * u] + sum[1][0][2 * u],
                     sum[0][0][2 * u + 1] + sum[1][0][2 * u + 1], sum[0][1][2 * u] + sum[1][1][2 * u]);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            bias[c] += __shfl_xor_sync(0xffffffffu, bias[c], 1);
            bias[c] += __shfl_xor_sync(0xffffffffu, bias[c], 2);
            if (t == 0) memory.sums[helper()][GROUP_UNITS][column[c]] = bias[c];
        }
        return bias[0] != bias[0];
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

    /* Beside dW2, the first warp has W2, the second the biases and the loss, and the last one has G copied,
       and the next labels and rate. */
    enum { WEIGHT_WARP, BIAS_WARP, LAST_HELPER = HELPER_WARPS - 1 };

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
        }
        barrier_arrive<BARRIER_OUTPUT, BLOCK_THREADS>();
        if (helper() == LAST_HELPER) load_gram(first, 1, made);
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
            if (helper() == BIAS_WARP && i > 0) sum_records(step - 1, i - 1);
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
            if (helper() == LAST_HELPER) send_header(i, scale, bad);
            if (helper() == BIAS_WARP) wait_for_dz(i); /* first: if it lags two steps, it misses a phase */
            if (!bad && step + 1 < end) barrier_arrive<BARRIER_OUTPUT, BLOCK_THREADS>();
            profile.stage(4);
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
