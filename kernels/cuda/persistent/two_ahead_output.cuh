/* Two hidden layers, look-ahead: the rows whose loss a cluster has, from Z2 to dZ2. Half of a main warp has a
   row, and a lane four of its columns. See two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_OUTPUT_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_OUTPUT_CUH

#include "kernels/cuda/persistent/softmax_of_row.cuh"
#include "kernels/cuda/persistent/two_ahead_memory.cuh"

namespace persistent::two_ahead {

struct chain_output : chain_block {
    using chain_block::chain_block;
    typedef float4 output_weights[4][3]; /* of a lane's columns: 12 classes */

    __device__ void load_output_weights(output_weights &w) const {
#pragma unroll
        for (int e = 0; e < 12; e++) w[e / 3][e % 3] = memory.w3[quad()][e];
    }

    /* H2 of this lane's row and columns: the sum over the clusters. */
    __device__ void receive_z2(int i, int rows, float (&h)[4], output_weights &w) const {
        const uint4 *from =
            plan.z2 + blockIdx.x * CLUSTER * PACKETS_EACH + quad() / 4 * 64 + own_row() * 4 + quad() % 4;
        const float4 bias = *reinterpret_cast<const float4 *>(memory.b2 + 4 * quad());
        uint4 packet[CLUSTER];
        receive_packets(packet, packet_phase(i), [&](int s) { return from + s * PACKETS_EACH; });
        h[0] = h[1] = h[2] = h[3] = 0;
#pragma unroll
        for (int s = 0; s < CLUSTER; s++) {
            const float4 part = values_of(packet[s]);
            h[0] += part.x, h[1] += part.y, h[2] += part.z, h[3] += part.w;
        }
        h[0] += bias.x, h[1] += bias.y, h[2] += bias.z, h[3] += bias.w;
        if (plan.activation[1] == ACTIVATION_RELU) {
#pragma unroll
            for (int e = 0; e < 4; e++) h[e] = activate(ACTIVATION_RELU, h[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) h[e] = activate_in_place(plan.activation[1], h[e]);
            load_output_weights(w); /* again: the activation has their registers */
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (group * OWN + own_row() >= rows) h[e] = 0;
        memory.h2[own_row()][quad()] = make_float4(h[0], h[1], h[2], h[3]);
    }

    /* Partial logits of the row, to all blocks of the cluster; lane / 4 % 4 is the packet of the sums. */
    __device__ void send_logits(const float (&h)[4], const output_weights &w) const {
        float sum[12] = {}, half[6], packet[3];
        const bool upper = lane & 8, odd = lane & 4;
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int q = 0; q < 3; q++) {
                sum[4 * q] += h[e] * w[e][q].x;
                sum[4 * q + 1] += h[e] * w[e][q].y;
                sum[4 * q + 2] += h[e] * w[e][q].z;
                sum[4 * q + 3] += h[e] * w[e][q].w;
            }
#pragma unroll
        for (int k = 0; k < 6; k++)
            half[k] =
                (upper ? sum[6 + k] : sum[k]) + __shfl_xor_sync(0xffffffffu, upper ? sum[k] : sum[6 + k], 8);
#pragma unroll
        for (int k = 0; k < 3; k++)
            packet[k] =
                (odd ? half[3 + k] : half[k]) + __shfl_xor_sync(0xffffffffu, odd ? half[k] : half[3 + k], 4);
        add_neighbours(packet);
#pragma unroll
        for (int r = 0; r < 2; r++)
            cluster_send(reinterpret_cast<const uint4 *>(&memory.logits[rank][own_row()][lane / 4 % 4]),
                         lane % 4 * 2 + r, two_ahead::packet_of(packet[0], packet[1], packet[2], 0),
                         memory.logits_full + warp);
    }

    __device__ static void add_neighbours(float (&values)[3]) {
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2)
#pragma unroll
            for (int k = 0; k < 3; k++) values[k] += __shfl_xor_sync(0xffffffffu, values[k], offset);
    }

    /* Softmax cross-entropy of the row: dL/dlogits, 0 in rows beyond the batch. All blocks of the cluster
       compute the same. True if the loss is not finite. */
    __device__ bool output_layer(int i, int rows) const {
        const int packet = lane / 4 % 4, r = group * OWN + own_row(), label = memory.label[i % 2][own_row()];
        const float scale = 1.0f / (float)rows;
        const float4 bias = reinterpret_cast<const float4 *>(memory.b3)[packet];
        mbarrier_wait(memory.logits_full + warp, i);
        if (lane == 0) mbarrier_expect_tx(memory.logits_full + warp, CLUSTER * 2 * PACKETS * 16);
        const float4 first = memory.logits[lane % 4][own_row()][packet],
                     second = memory.logits[4 + lane % 4][own_row()][packet];
        row_of_four_lanes<4> row = {{first.x + second.x, first.y + second.y, first.z + second.z}};
        float gradient[3];
        add_neighbours(row.z);
        row.z[0] += bias.x, row.z[1] += bias.y, row.z[2] += bias.z;
#pragma unroll
        for (int k = 0; k < 3; k++) row.c[k] = 3 * packet + k;
        row.label = label;
        row.classes = plan.classes;
        row.softmax(scale, r < rows, gradient);
        if (lane % 4 == 0)
            memory.gradient[own_row()][packet] = make_float4(gradient[0], gradient[1], gradient[2], 0);
        if (rank == 0) {
            const float4 record = row.record();
            if (lane % 16 == 0) memory.record[i % 2][own_row()] = record;
        }
        __syncwarp();
        return r < rows && row.sum != row.sum;
    }

    /* dZ2 of the lane's row and columns, to the blocks with these columns; NaN if the loss is not finite. */
    __device__ void send_dz2(int i, bool bad, const float (&h)[4], const output_weights &w) const {
        const float inverse = memory.dz2_scale[i % 2].inverse;
        float gradient[12], dz[4];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const float4 three = memory.gradient[own_row()][p];
            gradient[3 * p] = three.x, gradient[3 * p + 1] = three.y, gradient[3 * p + 2] = three.z;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float sum = 0;
#pragma unroll
            for (int q = 0; q < 3; q++)
                sum += gradient[4 * q] * w[e][q].x + gradient[4 * q + 1] * w[e][q].y +
                       gradient[4 * q + 2] * w[e][q].z + gradient[4 * q + 3] * w[e][q].w;
            dz[e] = not_nan(sum * derivative_in_place(plan.activation[1], h[e]));
        }
        memory.dz2_rows[own_row()][quad()] = make_float4(dz[0], dz[1], dz[2], dz[3]);
        const plane_pair first = planes_of(bad ? NAN : dz[0] * inverse, dz[1] * inverse),
                         second = planes_of(dz[2] * inverse, dz[3] * inverse);
        send_packet(plan.dz2 + (rank * (ROWS / 2) + group * (OWN / 2) + warp) * 32 + lane,
                    make_uint4(first.high, second.high, first.low, second.low), packet_phase(i));
    }
};

} // namespace persistent::two_ahead

#endif
