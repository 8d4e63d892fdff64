/* One hidden layer, look-ahead: the output layer of the rows that a block of the chain owns, and what it
   receives from the other blocks. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_LOSS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_LOSS_CUH

#include "kernels/cuda/persistent/look_ahead_stages.cuh"
#include "kernels/cuda/persistent/softmax_of_row.cuh"

namespace persistent::look_ahead {

struct chain_loss : chain_stages {
    using chain_stages::chain_stages;

    /* Expects the bytes of a mailbox in this step, some of which may have arrived. Those of the step before
       have all arrived: this warp has waited for them. Off the critical path: the warp waits for packets. */
    __device__ void expect_now(uint64_t *barrier) const {
        if (lane == 0) mbarrier_expect_tx(barrier, EXCHANGE_BYTES);
    }

    /* Softmax cross-entropy of this warp's rows, of the owned ones: one, or two in a cluster of 8, which have
       a half of the warp each. A lane adds logits of two blocks; dL/dlogits is sent to all blocks, NaN if the
       loss is not finite, 0 in rows beyond the batch. */
    __device__ void output_layer(int i, int rows) const {
        const int lanes = own == 8 ? 32 : 16, sources = lanes / PACKETS,
                  source = (lane & (lanes - 1)) / PACKETS, o = own == 8 ? warp : 2 * warp + lane / 16,
                  r = rank * own + o, label = memory.label[i % 2][o];
        const float scale = 1.0f / (float)rows;
        const float4 bias = reinterpret_cast<const float4 *>(memory.weight[GROUP_UNITS])[lane_t()];
        mbarrier_wait(memory.logits_full + warp, i);
        const float4 first = memory.logits[(source * own + o) * PACKETS + lane_t()],
                     second = memory.logits[((source + sources) * own + o) * PACKETS + lane_t()];
        row_of_four_lanes<1> row = {{first.x + second.x, first.y + second.y, first.z + second.z}};
        float gradient[3];
#pragma unroll
        for (int offset = PACKETS; offset < 32; offset *= 2)
            if (offset < lanes)
#pragma unroll
                for (int j = 0; j < 3; j++) row.z[j] += __shfl_xor_sync(0xffffffffu, row.z[j], offset);
        row.z[0] += bias.x, row.z[1] += bias.y, row.z[2] += bias.z;
#pragma unroll
        for (int j = 0; j < 3; j++) row.c[j] = column_class(4 * lane_t() + j);
        row.label = label;
        row.classes = plan.classes;
        row.softmax(scale, r < rows, gradient);
        const float4 packet = make_float4(gradient[0], gradient[1], gradient[2], 0);
#pragma unroll
        for (int half = 0; half < 2; half++)
            send(&memory.gradient[r][lane_t()], source + half * sources, packet,
                 memory.gradient_full + r / TILE);
        const float4 record = row.record();
        if (lane % lanes == 0) memory.record[i % 2][o] = record;
    }

    /* Stores the sum of the losses of the owned rows, and how many are correct, of step i of the launch. */
    __device__ void sum_records(int step, int i) const {
        plan.store_sums(rank, step, end, memory.record[i % 2][lane % own]);
    }

    /* dL/dlogits of this lane's two rows and three classes; true if a loss is not finite. */
    __device__ bool receive_gradients(int i, float4 (&g)[2]) const {
        bool bad = false;
        mbarrier_wait(memory.gradient_full + warp, i);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            g[half] = memory.gradient[row(half)][lane_t()];
            bad |= g[half].x != g[half].x;
        }
        return bad;
    }
};

} // namespace persistent::look_ahead

#endif
