/* Two hidden layers, look-ahead: the main warps of the chain. See two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_CHAIN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_CHAIN_CUH

#include "kernels/cuda/persistent/two_ahead_output.cuh"

namespace persistent::two_ahead {

struct chain_main : chain_output {
    using chain_output::chain_output;
    typedef float
        tile_values[4]; /* rows g and g + 8 of a warp's 16, units 2 t and 2 t + 1 of the block's 8 */
    typedef float product[TILE / 2]; /* the same rows and TILE columns */

    __device__ int lane_row(int half) const {
        return warp * 16 + lane / 4 + 8 * half;
    }

    /* Values beyond the batch or the layer are 0, and so are the gradients that are made of them. */
    __device__ void clear_padding(int rows, tile_values &values) const {
        const int unit = group * TILE + rank * UNITS + lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (lane_row(e / 2) >= rows || unit + e % 2 >= plan.hidden[0]) values[e] = 0;
    }

    /* --- layer 1 --- */

    /* dH1 of the block's units: the sum of the products of the cluster. */
    __device__ void receive_dh1(int i, tile_values &sum) const {
        mbarrier_wait(memory.dh1_full + warp, i);
        if (lane == 0) mbarrier_expect_tx(memory.dh1_full + warp, sizeof memory.dh1[0]);
#pragma unroll
        for (int e = 0; e < 4; e++) sum[e] = 0;
#pragma unroll
        for (int s = 0; s < CLUSTER; s++) {
            const float4 part = memory.dh1[s][warp][lane];
            sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
        }
    }

    /* dZ1 of step i in planes, in shared memory: [2 planes][ROWS] of 8 units. Returns their scale. */
    __device__ plane_scale store_dz1(int i, const tile_values &dz) const {
        uint32_t most = max(max(magnitude(dz[0]), magnitude(dz[1])), max(magnitude(dz[2]), magnitude(dz[3])));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane == 0) memory.dz1_most[i % 2][warp] = most;
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
#pragma unroll
        for (int w = 0; w < MAIN_WARPS; w++) most = max(most, memory.dz1_most[i % 2][w]);
        const plane_scale scale(most);
        const plane_pair upper = planes_of(dz[0] * scale.inverse, dz[1] * scale.inverse),
                         lower = planes_of(dz[2] * scale.inverse, dz[3] * scale.inverse);
        /* the bit of the phase, in each packet of four units */
        const uint32_t mask = lane % 2 ? ~1u : ~0u;
        stmatrix_x4(dz1_row(i, lane / 16, warp * 16 + lane % 16),
                    {upper.high, lower.high, upper.low & mask, lower.low & mask});
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        return scale;
    }

    __device__ uint4 dz1_packet(int i) const { /* four units of a row, in both planes */
        const uint2 high = *reinterpret_cast<const uint2 *>(dz1_row(i, 0, self / 2) + self % 2 * 8),
                    low = *reinterpret_cast<const uint2 *>(dz1_row(i, 1, self / 2) + self % 2 * 8);
        return make_uint4(high.x, high.y, low.x, low.y);
    }

    /* To the workers. */
    __device__ void send_dz1(int i, uint4 packet, float scale, bool bad) const {
        send_packet(plan.dz1_of(i, group) + rank * PACKETS_EACH + self, packet, phase_of(i));
        if (self == 0)
            send_packet(plan.header_of(i, group) + rank, make_uint4(__float_as_uint(scale), bad, 0, 0),
                        phase_of(i));
    }

    /* The packets of dZ1 of the last step of a launch, as the next launch has it. */
    __device__ uint4 *last_dz1() const {
        return plan.last_dz1 + blockIdx.x * (PACKETS_EACH + 1);
    }

    __device__ void keep_dz1(int i, float scale) const {
        last_dz1()[self] = dz1_packet(i);
        if (self == 0) last_dz1()[PACKETS_EACH].x = __float_as_uint(scale);
    }

    __device__ float resume_dz1() const { /* as that of step -1 */
        const uint4 packet = last_dz1()[self];
        *reinterpret_cast<uint2 *>(dz1_row(1, 0, self / 2) + self % 2 * 8) = make_uint2(packet.x, packet.y);
        *reinterpret_cast<uint2 *>(dz1_row(1, 1, self / 2) + self % 2 * 8) = make_uint2(packet.z, packet.w);
        barrier_sync<BARRIER_MAIN, MAIN_THREADS>();
        return __uint_as_float(last_dz1()[PACKETS_EACH].x);
    }

    /* Plane 0 of the warp's rows of the Gram matrix, which is loaded early; plane 1 has no registers. */
    struct gram_rows {
        uint4 high[ROW_TILES];

        __device__ void load(const uint4 *gram) {
#pragma unroll
            for (int k = 0; k < ROW_TILES; k++) high[k] = gram[k * 64];
        }
    };

    __device__ const uint4 *gram_of_lane() const {
        return memory.gram + warp * ROW_TILES * 64 + lane;
    }

    /* z = factor G dZ1 of step i - 1: three products of planes. */
    __device__ void correct(const gram_rows &gram, int i, float factor, tile_values &z) const {
        float cross[2][4] = {}, sum[2][4] = {}; /* float32 adds the sums of 64 rows */
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, dz1_row(i + 1, lane / 16, k * 16 + lane % 16));
            mma_f16(cross[0], gram_of_lane()[k * 64 + 32], b[0], b[1]);
            mma_f16(cross[1], gram.high[k], b[2], b[3]);
            mma_f16(sum[k * 2 / ROW_TILES], gram.high[k], b[0], b[1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) z[e] = factor * (cross[0][e] + cross[1][e] + sum[0][e] + sum[1][e]);
    }

    /* H1 of this lane, with the late product and the bias. */
    __device__ void activate_tile(int rows, const tile_values &z, tile_values &h) const {
        const float4 late = memory.late[self];
        const float sum[4] = {z[0] + late.x, z[1] + late.y, z[2] + late.z, z[3] + late.w};
        if (plan.activation[0] == ACTIVATION_RELU) {
#pragma unroll
            for (int e = 0; e < 4; e++) h[e] = activate(ACTIVATION_RELU, sum[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) h[e] = activate_in_place(plan.activation[0], sum[e]);
        }
        clear_padding(rows, h);
    }

    /* dZ1 from dH1, in place. */
    __device__ void differentiate_tile(int rows, const tile_values &h, tile_values &dz) const {
#pragma unroll
        for (int e = 0; e < 4; e++) dz[e] *= derivative_in_place(plan.activation[0], h[e]);
        clear_padding(rows, dz);
    }

    /* The scale of H1 in the cluster. */
    __device__ plane_scale exchange_largest(int i, const tile_values &h) const {
        uint32_t most = max(max(magnitude(h[0]), magnitude(h[1])), max(magnitude(h[2]), magnitude(h[3])));
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane < CLUSTER) cluster_send(&memory.h1_most[rank][warp], lane, most, &memory.h1_most_full);
        mbarrier_wait(&memory.h1_most_full, i);
        if (self == 0) mbarrier_expect_tx(&memory.h1_most_full, sizeof memory.h1_most);
        most = max(memory.h1_most[0][lane], memory.h1_most[4][lane]); /* 32 of 64, each */
        const plane_scale scale(__reduce_max_sync(0xffffffffu, most));
        if (self == 0) memory.h1_scale[i % 2] = scale;
        return scale;
    }

    /* H1 in planes, to all blocks of the cluster: 8 units are a chunk of their tiles. */
    __device__ void send_h1(int i, const tile_values &h, plane_scale scale) const {
        uint4 *rows = reinterpret_cast<uint4 *>(memory.late) + warp * 32; /* this warp has read it */
        const plane_pair upper = planes_of(h[0] * scale.inverse, h[1] * scale.inverse),
                         lower = planes_of(h[2] * scale.inverse, h[3] * scale.inverse);
        __syncwarp();
        stmatrix_x4(rows + lane, {upper.high, lower.high, upper.low, lower.low});
        __syncwarp();
        const uint4 row = rows[lane];
        const char *at = h1_at(warp * 16 + lane % 16, rank) + lane / 16 * activation_matrix::PLANE;
        if (i > 0) mbarrier_wait(&memory.h1_free, i - 1);
#pragma unroll
        for (int r = 0; r < CLUSTER; r++)
            cluster_send(reinterpret_cast<const uint4 *>(at), (rank + r) % CLUSTER, row,
                         memory.h1_full + warp);
    }

    /* --- layer 2 --- */

    /* Partial Z2, 128 x 64 over the 64 rows of the tile; a warp's rows are owned by one cluster. */
    __device__ void forward(int i, plane_scale h1_scale) const {
        static const int STEPS = TILE / 16;
        product sum;
        uint32_t a[STEPS][F16_PLANES][4];
        barrier_sync<BARRIER_W2, MAIN_THREADS + WEIGHT_THREADS>();
        const product_scale scaled(h1_scale, memory.w2_scale);
        mbarrier_wait(memory.h1_full + warp, i);
        if (lane == 0) mbarrier_expect_tx(memory.h1_full + warp, 16 * TILE * 4);
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int p = 0; p < F16_PLANES; p++)
                ldmatrix_x4(a[k][p],
                            h1_at(warp * 16 + lane % 16, 2 * k + lane / 16) + p * activation_matrix::PLANE);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            wgmma_f16x2<true>(sum, a[k], wgmma_swizzle128_transposed(w2().base + k * 2048, 16),
                              weight_matrix::PLANE, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_done(sum);
        uint4 *to = plan.z2 + ((warp * CLUSTER + rank) * CLUSTER + group) * PACKETS_EACH;
#pragma unroll
        for (int n = 0; n < TILE / 8; n += 2)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float *four = sum + 4 * n + 2 * half;
                send_packet(to + n / 2 * 64 + half * 32 + lane,
                            packet_of(scaled(four[0]), scaled(four[1]), scaled(four[4]), scaled(four[5])),
                            packet_phase(i));
            }
    }

    /* --- backward --- */

    /* dZ2 of the warp's 16 rows and the columns of the tile, NaN if a loss is not finite. */
    __device__ void receive_dz2(int i) const {
        const uint4 *from = plan.dz2 + (rank * (ROWS / 2) + warp * 8) * 32 + lane;
        uint4 packet[8];
        bool bad = false;
        receive_packets(packet, packet_phase(i), [&](int s) { return from + s * 32; });
#pragma unroll
        for (int s = 0; s < 8; s++) {
            const int row = warp * 16 + 2 * s + lane / 16, chunk = quad() / 4 * 2;
            uint32_t *first = reinterpret_cast<uint32_t *>(dz2().at(row, chunk)) + quad() % 4,
                     *second = reinterpret_cast<uint32_t *>(dz2().at(row, chunk + 1)) + quad() % 4;
            first[0] = packet[s].x;
            second[0] = packet[s].y;
            first[activation_matrix::PLANE / 4] = packet[s].z;
            second[activation_matrix::PLANE / 4] = packet[s].w & ~1u;
            bad |= (packet[s].x & 0x7fff) > 0x7c00;
        }
        if (bad) memory.bad = true;
        wgmma_written(); /* H1 and dZ2 */
        __syncwarp();
    }

    /* Partial dH1, 128 x 64 over the 64 columns of the tile, to the blocks with these units. */
    __device__ void backward(int i) const {
        static const int STEPS = TILE / 16;
        product sum;
        uint32_t a[STEPS][F16_PLANES][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++) dz2().load(a[k], warp * 16 + lane % 16, 2 * k + lane / 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            wgmma_f16x2<false>(sum, a[k], wgmma_swizzle128(w2().base + k * 32), weight_matrix::PLANE, k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_done(sum);
        const product_scale scaled(memory.dz2_scale[i % 2], memory.w2_scale);
        barrier_arrive<BARRIER_W2_FREE, MAIN_THREADS + WEIGHT_THREADS>();
#pragma unroll
        for (int n = 0; n < CLUSTER; n++)
            cluster_send(reinterpret_cast<const uint4 *>(&memory.dh1[rank][warp][lane]), n,
                         two_ahead::packet_of(scaled(sum[4 * n]), scaled(sum[4 * n + 1]),
                                              scaled(sum[4 * n + 2]), scaled(sum[4 * n + 3])),
                         memory.dh1_full + warp);
    }

    /* --- the steps --- */

    __device__ void run_main(stage_profile &profile) {
        tile_values h = {};
        float factor = 0, rate = 0;
        if (resumed) factor = -plan.rate_of(first - 1) * resume_dz1() * (GRAM_SCALE / GRAM_ONE);
        for (int i = 0;; i++) {
            const int rows = plan.rows_of(first + i, first + steps);
            const bool last = i == steps;
            tile_values z = {};
            gram_rows gram;
            forget_addresses();
            const bool corrects = i > 0 ? !last : resumed;
            if (corrects) {
                mbarrier_wait(&memory.gram_full, i - !resumed);
                gram.load(gram_of_lane());
            }
            if (i > 0) {
                tile_values dz;
                receive_dh1(i - 1, dz);
                profile.stage(0);
                differentiate_tile(plan.rows_of(first + i - 1, first + steps), h, dz);
                const plane_scale scale = store_dz1(i - 1, dz);
                const bool bad = memory.bad; /* the step before */
                send_dz1(i - 1, dz1_packet(i - 1), scale.scale, bad);
                factor = -rate * scale.scale * (GRAM_SCALE / GRAM_ONE);
                profile.stage(1);
                if (last) keep_dz1(i - 1, scale.scale);
                if (last || bad) {
                    if (self == 0) memory.done = i;
                    return;
                }
            }
            if (corrects) correct(gram, i, factor, z);
            profile.stage(2);
            forget_addresses();
            const double next_rate = plan.scalars[first + i].learning_rate;
            barrier_sync<BARRIER_LATE, MAIN_THREADS + HELPER_THREADS>();
            activate_tile(rows, z, h);
            profile.stage(3);
            const plane_scale h1_scale = exchange_largest(i, h);
            send_h1(i, h, h1_scale);
            profile.stage(4);
            forget_addresses();
            forward(i, h1_scale);
            forget_addresses();
            profile.stage(5);
            output_weights w;
            float h2[4];
            barrier_sync<BARRIER_W3, MAIN_THREADS + HELPER_THREADS>();
            load_output_weights(w);
            receive_z2(i, rows, h2, w);
            barrier_arrive<BARRIER_Z2, MAIN_THREADS + HELPER_THREADS>();
            profile.stage(6);
            send_logits(h2, w);
            profile.stage(7);
            const bool bad = output_layer(i, rows);
            profile.stage(8);
            forget_addresses();
            send_dz2(i, bad, h2, w);
            barrier_arrive<BARRIER_LOSS, MAIN_THREADS + HELPER_THREADS>();
            profile.stage(9);
            receive_dz2(i);
            profile.stage(10);
            barrier_arrive<BARRIER_DZ2, BLOCK_THREADS>();
            forget_addresses();
            backward(i);
            rate = (float)next_rate;
            profile.stage(11);
        }
    }
};

} // namespace persistent::two_ahead

#endif
