/* One hidden layer, look-ahead: the output layer of the rows that a block of the chain owns, and what it
   receives from the other blocks. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_LOSS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_LOSS_CUH

#include "kernels/cuda/persistent/look_ahead_stages.cuh"

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
        const bool known = label < plan.classes;
        const float scale = 1.0f / (float)rows;
        const float4 bias = reinterpret_cast<const float4 *>(memory.weight[GROUP_UNITS])[lane_t()];
        mbarrier_wait(memory.logits_full + warp, i);
        const float4 first = memory.logits[(source * own + o) * PACKETS + lane_t()],
                     second = memory.logits[((source + sources) * own + o) * PACKETS + lane_t()];
        float z[3] = {first.x + second.x, first.y + second.y, first.z + second.z}, gradient[3], sum = 0;
#pragma unroll
        for (int offset = PACKETS; offset < 32; offset *= 2)
            if (offset < lanes)
#pragma unroll
                for (int j = 0; j < 3; j++) z[j] += __shfl_xor_sync(0xffffffffu, z[j], offset);
        z[0] += bias.x, z[1] += bias.y, z[2] += bias.z;
        int c[3];
#pragma unroll
        for (int j = 0; j < 3; j++) {
            c[j] = column_class(4 * lane_t() + j);
            if (c[j] >= plan.classes) z[j] = -INFINITY;
        }
        float max = fmaxf(fmaxf(z[0], z[1]), z[2]); /* ignores NaN, which makes the sum NaN */
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
#pragma unroll
        for (int j = 0; j < 3; j++) { /* absolute errors, about 1e-7, are small: the sum is at least 1 */
            gradient[j] = __expf(z[j] - max); /* 0 if there is no such class */
            if (!known || (c[j] == label && !isfinite(z[j]))) gradient[j] = NAN;
            sum += gradient[j];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = __fdividef(scale, sum); /* the sum is 1 to 12, or NaN */
#pragma unroll
        for (int j = 0; j < 3; j++) {
            gradient[j] = gradient[j] * factor - (c[j] == label ? scale : 0.0f);
            if (r >= rows) gradient[j] = 0;
        }
        const float4 packet = make_float4(gradient[0], gradient[1], gradient[2], 0);
#pragma unroll
        for (int half = 0; half < 2; half++)
            send(&memory.gradient[r][lane_t()], source + half * sources, packet,
                 memory.gradient_full + r / TILE);
        record(memory.record[i % 2][o], label, z, c, max, sum);
    }

    __device__ void record(float4 &to, int label, const float (&z)[3], const int (&c)[3], float max,
                           float sum) const {
        float of_label = -INFINITY;
        int best = MAX_CLASSES; /* the first of the largest */
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (c[j] == label) of_label = z[j];
            if (c[j] < plan.classes && z[j] == max) best = min(best, c[j]);
        }
#pragma unroll
        for (int offset = 1; offset < PACKETS; offset *= 2) {
            of_label = fmaxf(of_label, __shfl_xor_sync(0xffffffffu, of_label, offset));
            best = min(best, __shfl_xor_sync(0xffffffffu, best, offset));
        }
        if (lane % (own == 8 ? 32 : 16) == 0) to = make_float4(sum, of_label, max, best == label && sum > 0);
    }

    /* Stores the sum of the losses of the owned rows, and how many are correct, of step i of the launch. */
    __device__ void sum_records(int step, int i) const {
        const bool mine = lane < own && rank * own + lane < plan.rows_of(step, end);
        const float4 row = memory.record[i % 2][lane % own];
        double loss = mine ? (double)logf(row.x) - ((double)row.y - (double)row.z) : 0;
        const unsigned correct = __ballot_sync(0xffffffffu, mine && row.w != 0);
#pragma unroll
        for (int offset = MAX_OWN / 2; offset > 0; offset /= 2)
            loss += __shfl_xor_sync(0xffffffffu, loss, offset);
        if (lane > 0 || rank >= plan.owners) return;
        plan.row_loss[(size_t)step * plan.owners + rank] = loss;
        plan.row_correct[(size_t)step * plan.owners + rank] = __popc(correct);
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
