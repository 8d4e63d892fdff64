/* One hidden layer, split over hidden units: the output layer. See one_hidden_split_units_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_OUTPUT_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_OUTPUT_CUH

#include "kernels/cuda/persistent/one_hidden_split_units_plan.cuh"
#include "kernels/cuda/persistent/tf32x3.cuh"

namespace persistent::split_units {

/* Softmax cross-entropy of a row: lane % PACKETS has the three logits of a packet. */
struct packet_loss {
    float z[3], max, sum;

    __device__ static int class_of(int j) {
        return 3 * (lane() % PACKETS) + j;
    }

    /* dL/dlogits, times `scale`; NaN if the loss is not finite. The padding has logits of -infinity. */
    __device__ void differentiate(int label, float scale, float (&gradient)[3]) {
        max = fmaxf(fmaxf(z[0], z[1]), z[2]); /* ignores NaN, which makes the sum NaN */
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
        sum = 0;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const float e = expf(z[j] - max);
            asm volatile("" : : "f"(e)); /* computed in all lanes: no branches */
            gradient[j] = class_of(j) == label && z[j] == -INFINITY ? NAN : e;
            sum += gradient[j];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = __fdividef(scale, sum);
#pragma unroll
        for (int j = 0; j < 3; j++)
            gradient[j] = gradient[j] * factor - (class_of(j) == label ? scale : 0.0f);
    }

    /* The row's entry in row_tally::records. */
    __device__ float4 record(int classes, int label) const {
        float of_label = -INFINITY;
        int best = MAX_CLASSES; /* the first of the largest */
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (class_of(j) == label) of_label = z[j];
            if (class_of(j) < classes && z[j] == max) best = min(best, class_of(j));
        }
#pragma unroll
        for (int offset = 1; offset < PACKETS; offset *= 2) {
            of_label = fmaxf(of_label, __shfl_xor_sync(0xffffffffu, of_label, offset));
            best = min(best, __shfl_xor_sync(0xffffffffu, best, offset));
        }
        return make_float4(sum, of_label, max, best == label && sum > 0);
    }
};

/* The stages of the output warps. */
struct output_stages : block_base {
    using block_base::block_base;

    /* Three logits of a row, summed over all blocks: each lane takes a packet of every eighth block. */
    __device__ void receive_logits(float (&z)[3], int r, uint32_t tag) const {
        static const int CONCURRENT = 2, SOURCES = 32 / PACKETS;
        const int k = lane() % PACKETS;
        const ll_packet3 *parts = plan.logits + r * plan.groups * PACKETS + k;
#pragma unroll
        for (int j = 0; j < 3; j++) z[j] = 0;
        if (3 * k < plan.classes)
            for (int g = lane() / PACKETS; g < plan.groups; g += CONCURRENT * SOURCES) {
                float part[CONCURRENT][3];
                ll_receive(part, tag,
                           [&](int i) { return parts + min(g + i * SOURCES, plan.groups - 1) * PACKETS; });
#pragma unroll
                for (int i = 0; i < CONCURRENT; i++)
                    if (g + i * SOURCES < plan.groups)
#pragma unroll
                        for (int j = 0; j < 3; j++) z[j] += part[i][j];
            }
        __syncwarp();
        reduce_across_lanes(z);
        const float4 bias = at<float4>(smem_layout::OUT_WEIGHT)[UNITS * PACKETS + k];
        z[0] += bias.x, z[1] += bias.y, z[2] += bias.z; /* -infinity in the padding */
    }

    /* dL/dlogits of the rows that this warp owns, sent to all blocks; NaN if the loss of a row is not finite.
       `label` is that of its first row. Returns whether it owns a row. */
    __device__ bool output_layer(int step, int input_slot, int rows, int label, float mean,
                                 uint32_t tag) const {
        const int first = warp() - MAIN_WARPS;
#pragma unroll 1
        for (int i = first; i < plan.own; i += OUTPUT_WARPS) {
            const int r = blockIdx.x * plan.own + i;
            if (r >= rows) break;
            if (i >= OUTPUT_WARPS) label = label_of(input_slot, rows, i);
            packet_loss loss;
            float gradient[3];
            receive_logits(loss.z, r, tag);
            loss.differentiate(label, label < plan.classes ? mean : NAN, gradient);
            if (3 * lane() < plan.classes)
                ll_send(plan.gradients + r * PACKETS + lane(), gradient[0], gradient[1], gradient[2], tag);
            const float4 record = loss.record(plan.classes, label);
            if (lane() == 0) plan.record(step, r, record);
        }
        return first < plan.own && (int)blockIdx.x * plan.own + first < rows;
    }

    /* This warp's part of dW2 and db2, over 16 rows. */
    __device__ void output_gradient() const {
        static const uint32_t ONE[2] = {0x3f800000, 0x3f800000};
        const int g = lane() / 4, first_row = (warp() - MAIN_WARPS) * 16 + lane() % 4;
        const float2 *gradient = at<float2>(smem_layout::GRADIENTS) + first_row * PACKED_PITCH / 2 + g;
        const float *unit = at<float>(smem_layout::HIDDEN) + first_row * UNITS + g;
        float sum[4] = {}, bias[4] = {}; /* classes 2 g, 2 g, 2 g + 1, 2 g + 1 of a packed row */
#pragma unroll
        for (int r = 0; r < 16; r += 8) {
            const float2 first = gradient[r * PACKED_PITCH / 2],
                         second = gradient[(r + 4) * PACKED_PITCH / 2];
            const tf32_pair<4> classes(first.x, first.y, second.x, second.y);
            multiply_tf32x3(sum, classes, tf32_pair<2>(unit[r * UNITS], unit[(r + 4) * UNITS]));
            mma_tf32(bias, classes.small, ONE);
            mma_tf32(bias, classes.big, ONE);
        }
        float2 *to = at<float2>(smem_layout::OUT_SUMS) + (warp() - MAIN_WARPS) * WEIGHTS / 2 + g;
        to[lane_unit() * PACKED_PITCH / 2] = make_float2(sum[0], sum[2]);
        to[(lane_unit() + 1) * PACKED_PITCH / 2] = make_float2(sum[1], sum[3]);
        if (lane() % 4 == 0) to[UNITS * PACKED_PITCH / 2] = make_float2(bias[0], bias[2]);
    }

    /* Updates W2 and b2 (the same in all blocks). After a barrier. */
    __device__ void update_output(float rate) const {
        const int e = (int)threadIdx.x - MAIN_THREADS, u = e / PACKED_PITCH;
        if (e < 0 || e >= WEIGHTS || packed_class(e % PACKED_PITCH) >= plan.classes ||
            (u < UNITS && first_unit() + u >= plan.hidden[0]))
            return;
        const float *sums = at<float>(smem_layout::OUT_SUMS) + e;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < OUTPUT_WARPS; w++) sum += sums[w * WEIGHTS];
        update(rate, sum, at<float>(smem_layout::OUT_WEIGHT)[e], at<float>(smem_layout::OUT_VELOCITY)[e]);
    }
};

} // namespace persistent::split_units

#endif
