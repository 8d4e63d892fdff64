/* Two hidden layers, look-ahead: the helpers, four warps of the chain. They have the output layer, the biases
   and the sums of the losses, add late products, and copy Gram matrices. See two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_HELPERS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_HELPERS_CUH

#include "kernels/cuda/persistent/two_ahead_weights.cuh"

namespace persistent::two_ahead {

struct chain : chain_weights {
    using chain_weights::chain_weights;

    __device__ int helper() const { /* this thread */
        return self - MAIN_THREADS - WEIGHT_THREADS;
    }
    __device__ int helper_warp() const {
        return helper() / 32;
    }

    /* The output layer: each warp has two of the block's 8 rows of W3, with their bias of layer 2 as the last
       class; three values in each of the first PACKETS lanes. */
    struct output_rows {
        float weight[2][3], velocity[2][3];
    };

    __device__ int owned_column(int u) const { /* of W2, in the tile */
        return group * UNITS + helper_warp() * 2 + u;
    }

    /* --- Gram matrices: each block copies an eighth to all blocks of the cluster --- */

    __device__ void copy_gram(int i) const { /* all have read that of step i - 1 */
        static const int PART = GRAM_STEP / CLUSTER;
        if (helper() || i >= steps) return;
        mbarrier_expect_tx(&memory.gram_full, sizeof memory.gram);
        bulk_copy_to_cluster(memory.gram + rank * PART, plan.gram + (size_t)i * GRAM_STEP + rank * PART,
                             PART * sizeof *memory.gram, &memory.gram_full, (1 << CLUSTER) - 1);
    }

    /* --- layer 1 --- */

    /* The late product for step i: the sum over the slices, and the bias. Two places of a thread. */
    __device__ void receive_late(int i) const {
        static const int EACH = PACKETS_EACH / HELPER_THREADS;
        const uint4 *from = plan.late_of(i, blockIdx.x) + helper();
        uint4 packet[SLICES * EACH];
        receive_packets(packet, phase_of(i),
                        [&](int k) { return from + k / EACH * PACKETS_EACH + k % EACH * HELPER_THREADS; });
        const float2 bias = *reinterpret_cast<const float2 *>(memory.b1_ahead[i % 2] + lane % 4 * 2);
#pragma unroll
        for (int q = 0; q < EACH; q++) {
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int s = 0; s < SLICES; s++) {
                const float4 part = values_of(packet[s * EACH + q]);
                sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
            }
            memory.late[q * HELPER_THREADS + helper()] =
                make_float4(sum.x + bias.x, sum.y + bias.y, sum.z + bias.x, sum.w + bias.y);
        }
        barrier_arrive<BARRIER_LATE, MAIN_THREADS + HELPER_THREADS>();
    }

    /* Adds the gradient of step i to b1: the sum of dZ1 over the rows, by tensor cores. One warp. */
    __device__ void update_b1(int i, float rate) const {
        const uint32_t ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
        float high[2][4] = {}, low[4] = {};
        uint32_t most = 0;
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, dz1_row(i, lane / 16, k * 16 + lane % 16));
            mma_f16(low, ones, b[2], b[3]);
            mma_f16(high[k * 2 / ROW_TILES], ones, b[0], b[1]);
            most = max(most, memory.dz1_most[i % 2][k]);
        }
        const float scale = plane_scale(most).scale;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int u = 2 * lane + e;
            if (lane < UNITS / 2 && unit(u) < plan.hidden[0])
                plan.update(rate, (low[e] + (high[0][e] + high[1][e])) * scale, memory.b1[u],
                            memory.b1_velocity[u]);
        }
        __syncwarp();
    }

    __device__ int unit(int u) const { /* unit u of the block, of layer 1 */
        return group * TILE + rank * UNITS + u;
    }

    __device__ void look_ahead_b1(int i, float rate) const {
        if (lane < UNITS)
            memory.b1_ahead[i % 2][lane] =
                ahead_of(plan.update, rate, memory.b1[lane], memory.b1_velocity[lane]);
    }

    /* --- output layer --- */

    /* The owned rows' part of dW3, db2 and db3, to the blocks that update them: two packets of a thread. */
    __device__ void send_gradients(uint32_t tag) const {
        const int packet = helper() % PACKETS;
#pragma unroll
        for (int q = 0; q < TILE * PACKETS / HELPER_THREADS; q++) {
            const int position = helper() / PACKETS + q * (HELPER_THREADS / PACKETS),
                      column = column_of(position / 4, position % 4);
            float sum[3] = {}, bias = 0;
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                const float h = (&memory.h2[r][0].x)[position];
                const float4 gradient = memory.gradient[r][packet];
                sum[0] += h * gradient.x;
                sum[1] += h * gradient.y;
                sum[2] += h * gradient.z;
                if (packet == PACKETS - 1) bias += (&memory.dz2_rows[r][0].x)[position];
            }
            if (packet == PACKETS - 1) sum[2] = bias;
            ll_send(plan.out_sums +
                        (((column / UNITS * CLUSTER + rank) * UNITS + column % UNITS) * CLUSTER + group) *
                            PACKETS +
                        packet,
                    sum[0], sum[1], sum[2], tag);
        }
        if (helper() >= PACKETS) return;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            const float4 gradient = memory.gradient[r][packet];
            sum.x += gradient.x, sum.y += gradient.y, sum.z += gradient.z;
        }
        ll_send(plan.out_bias + (rank * CLUSTER + group) * PACKETS + packet, sum.x, sum.y, sum.z, tag);
    }

    /* A lane has the packet of one sender. Rows 0 and 1 are those of W3; row 2 is b3, of the first warp. */
    __device__ void update_output(uint32_t tag, float rate, output_rows &rows) const {
        ll_receiver<3> parts = {};
        const auto at = [&](int u) {
            return (u < 2 ? plan.out_sums + (blockIdx.x * UNITS + helper_warp() * 2 + u) * CLUSTER * PACKETS
                          : plan.out_bias + rank * CLUSTER * PACKETS) +
                   lane;
        };
        parts.try_poll(at);
        parts.wait(tag, at);
        __syncwarp();
#pragma unroll
        for (int u = 0; u < 3; u++) {
            float sum[3] = {parts.value(u, 0), parts.value(u, 1), parts.value(u, 2)};
            reduce_across_lanes(sum);
#pragma unroll
            for (int k = 0; k < 3; k++) {
                const int c = 3 * lane + k;
                if (lane >= PACKETS) continue;
                if (u < 2 && (c < plan.classes || c == MAX_CLASSES) &&
                    rank * TILE + owned_column(u) < plan.hidden[1])
                    plan.update(rate, sum[k], rows.weight[u][k], rows.velocity[u][k]);
                if (u == 2 && helper_warp() == 0 && c < plan.classes)
                    plan.update(rate, sum[k], memory.b3[4 * lane + k], memory.b3_velocity[4 * lane + k]);
            }
        }
    }

    __device__ void send_weights(uint32_t tag, const output_rows &rows) const {
#pragma unroll
        for (int u = 0; u < 2; u++)
            if (lane < PACKETS)
                ll_send(plan.out_weight + (rank * TILE + owned_column(u)) * PACKETS + lane, rows.weight[u][0],
                        rows.weight[u][1], rows.weight[u][2], tag);
    }

    /* W3 and b2 for step i, and the scale of its dZ2: the |dL/dlogits| of a row add up to 2 / rows at most,
       and no derivative of an activation is above 1.15. */
    __device__ void receive_weights(int i, uint32_t tag) const {
        static const int EACH = TILE * PACKETS / HELPER_THREADS;
        const int packet = helper() % PACKETS, rows = plan.rows_of(first + i, first + steps);
        ll_receiver<EACH> parts = {};
        uint32_t most = 0;
        const auto at = [&](int q) {
            return plan.out_weight + rank * TILE * PACKETS + q * HELPER_THREADS + helper();
        };
        parts.try_poll(at);
        parts.wait(tag, at);
        __syncwarp();
#pragma unroll
        for (int q = 0; q < EACH; q++) {
            const int position = position_of(helper() / PACKETS + q * (HELPER_THREADS / PACKETS));
            float *to = &memory.w3[position / 4][position % 4 * 3].x + 3 * packet;
#pragma unroll
            for (int k = 0; k < 3; k++) {
                const bool bias = k == 2 && packet == PACKETS - 1;
                if (bias) memory.b2[position] = parts.value(q, k);
                to[k] = bias ? 0 : parts.value(q, k);
                if (!bias) most = max(most, magnitude(parts.value(q, k)));
            }
        }
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) memory.w3_most[helper_warp()] = most;
        barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
        if (helper() == 0) {
#pragma unroll
            for (int w = 0; w < HELPER_WARPS; w++) most = max(most, memory.w3_most[w]);
            const float bound = __uint_as_float(most) * 2.3f / (float)rows;
            memory.dz2_scale[i % 2] = plane_scale(magnitude(fminf(bound, FLT_MAX)));
        }
        barrier_arrive<BARRIER_W3, MAIN_THREADS + HELPER_THREADS>();
    }

    /* --- the loss --- */

    __device__ int owned_label(int i) const {
        const int r = group * OWN + lane % OWN, step = first + i;
        return r < plan.rows_of(step, first + steps) ? plan.labels[plan.order[(size_t)step * plan.batch + r]]
                                                     : 0;
    }

    /* Stores the sum of the losses of the owned rows of step i, and how many are correct. One warp. */
    __device__ void sum_records(int i) const {
        if (rank == 0) plan.store_sums(group, first + i, first + steps, memory.record[i % 2][lane % OWN]);
    }

    __device__ bool has_losses() const {
        return rank == 0 && group < plan.owners;
    }

    /* --- the steps --- */

    enum { BIAS_WARP = 2, LOSS_WARP }; /* of the helpers */

    template <typename E> __device__ void all_of_output(output_rows &rows, E each) const {
        if (lane < PACKETS)
#pragma unroll
            for (int e = 0; e < 6; e++) {
                const int column = rank * TILE + owned_column(e / 3), c = 3 * opaque(lane) + e % 3;
                if (column >= plan.hidden[1]) continue;
                if (c < plan.classes)
                    each(2, false, (size_t)column * plan.classes + c, rows.weight[e / 3][e % 3],
                         rows.velocity[e / 3][e % 3], true);
                if (c == MAX_CLASSES)
                    each(1, true, (size_t)column, rows.weight[e / 3][e % 3], rows.velocity[e / 3][e % 3],
                         true);
            }
        const int c = helper();
        if (c < plan.classes)
            each(2, true, (size_t)c, memory.b3[c / 3 * 4 + c % 3], memory.b3_velocity[c / 3 * 4 + c % 3],
                 blockIdx.x == 0);
        if (c < UNITS && unit(c) < plan.hidden[0])
            each(0, true, (size_t)unit(c), memory.b1[c], memory.b1_velocity[c], true);
    }

    /* The rest of the last step, the weights, and what the next launch needs to go on. */
    __device__ void finish(output_rows &rows) const {
        barrier_sync<BARRIER_END, MAIN_THREADS + HELPER_THREADS>();
        const int done = memory.done, last = done - 1;
        if (helper_warp() == BIAS_WARP && !memory.bad) update_b1(last, plan.rate_of(first + last));
        if (helper_warp() == LOSS_WARP) sum_records(last);
        barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
        all_of_output(rows, [&](int layer, bool bias, size_t i, float w, float v, bool stores) {
            if (stores) store_weight_twice(plan, layer, bias, i, w, v);
        });
        if (helper() < UNITS) plan.bias_ahead[unit(helper())] = memory.b1_ahead[done % 2][helper()];
    }

    __device__ void run_helpers(uint32_t tag, stage_profile &profile) {
        float rate = plan.rate_of(first);
        output_rows rows = {};
        all_of_output(rows, [&](int layer, bool bias, size_t i, float &w, float &v, bool) {
            w = plan.state_of(layer, bias)[i];
            if (plan.update.has_velocity) v = plan.state_of(layer, 2 + bias)[i];
        });
        barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
        if (helper_warp() == BIAS_WARP) {
            if (lane < UNITS)
                memory.b1_ahead[0][lane] = resumed ? plan.bias_ahead[unit(lane)] : memory.b1[lane];
            look_ahead_b1(1, rate);
        } else if (helper_warp() == LOSS_WARP) {
            if (lane < OWN) memory.label[0][lane] = owned_label(0);
        }
        barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
        if (resumed) copy_gram(0);
        send_weights(tag, rows);
        receive_late(0);
        receive_weights(0, tag);
        for (int i = 0; i < steps; i++, tag++) {
            const float next_rate = plan.rate_of(first + min(i + 1, steps - 1));
            forget_addresses();
            const int label = helper_warp() == LOSS_WARP ? owned_label(i + 1) : 0;
            profile.stage(0);
            barrier_sync<BARRIER_Z2, MAIN_THREADS + HELPER_THREADS>();
            profile.stage(1);
            if (helper_warp() == BIAS_WARP && i > 0) {
                update_b1(i - 1, plan.rate_of(first + i - 1));
                look_ahead_b1(i + 1, rate);
            }
            barrier_sync<BARRIER_HELPERS, HELPER_THREADS>();
            if (i + 1 < steps) receive_late(i + 1); /* while the main warps do not poll packets */
            if (helper_warp() == LOSS_WARP && i > 0) sum_records(i - 1);
            profile.stage(2);
            barrier_sync<BARRIER_LOSS, MAIN_THREADS + HELPER_THREADS>();
            copy_gram(i + 1);
            send_gradients(tag);
            forget_addresses();
            profile.stage(3);
            barrier_sync<BARRIER_DZ2, BLOCK_THREADS>();
            if (memory.bad) {
                if (i + 1 < steps)
                    mbarrier_wait(&memory.gram_full, i + !!resumed); /* no copy is on its way */
                break;
            }
            forget_addresses();
            update_output(tag, rate, rows);
            profile.stage(4);
            if (i + 1 < steps) {
                if (helper_warp() == LOSS_WARP && lane < OWN) memory.label[(i + 1) % 2][lane] = label;
                send_weights(tag + 1, rows);
                receive_weights(i + 1, tag + 1);
            }
            rate = next_rate;
            profile.stage(5);
        }
        finish(rows);
    }

    __device__ void initialise() const {
        for (int i = self; i < (int)(sizeof(chain_memory) / 4); i += BLOCK_THREADS)
            reinterpret_cast<uint32_t *>(&memory)[i] = 0;
        __syncthreads();
        if (self == 0) {
            for (int w = 0; w < MAIN_WARPS; w++) {
                mbarrier_init(memory.dh1_full + w);
                mbarrier_init(memory.h1_full + w);
                mbarrier_init(memory.logits_full + w);
                mbarrier_expect_tx(memory.dh1_full + w, sizeof memory.dh1[0]);
                mbarrier_expect_tx(memory.h1_full + w, 16 * TILE * 4);
                mbarrier_expect_tx(memory.logits_full + w, CLUSTER * 2 * PACKETS * 16);
            }
            mbarrier_init(&memory.h1_most_full);
            mbarrier_expect_tx(&memory.h1_most_full, sizeof memory.h1_most);
            mbarrier_init(&memory.gram_full);
            mbarrier_init(&memory.h1_free, CLUSTER * WEIGHT_WARPS);
        }
        __syncthreads();
        cluster_barrier();
    }

    __device__ void run(uint32_t tag, stage_profile &profile) {
        initialise();
        if (warp < MAIN_WARPS) {
            warpgroup_more_registers<136>();
            run_main(profile);
            barrier_arrive<BARRIER_END, MAIN_THREADS + HELPER_THREADS>();
            warpgroup_fewer_registers<128>();
        } else if (warp < MAIN_WARPS + WEIGHT_WARPS) {
            warpgroup_more_registers<144>();
            run_weights(profile);
            warpgroup_fewer_registers<128>();
        } else {
            warpgroup_fewer_registers<96>();
            run_helpers(tag, profile);
            warpgroup_more_registers<128>();
        }
        __syncthreads();
        if (blockIdx.x == 0) plan.keep_order(first + memory.done, memory.bad);
        if (has_losses()) plan.add_sums_to_tally(first, first + memory.done);
        __syncwarp();
        cluster_barrier(); /* the shared memory of a block must outlive its mail */
    }
};

} // namespace persistent::two_ahead

#endif
