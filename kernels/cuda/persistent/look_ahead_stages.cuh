/* One hidden layer, look-ahead: the stages of the chain. A thread block has 8 hidden units and all rows
   of the batch, and owns some rows for the output layer; a warp has 16 rows. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_STAGES_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_STAGES_CUH

#include "kernels/cuda/persistent/look_ahead_gram.cuh"

namespace persistent::look_ahead {

struct chain_memory {
    uint4 dz[MAIN_THREADS];         /* planes, as B of a product over rows */
    float2 hidden[ROWS][UNITS / 2]; /* H */
    float4 gradient[ROWS][PACKETS]; /* dL/dlogits */
    uint4 fragments[3][32];         /* of W2, in bfloat16 planes */
    float weight[OUT_ROWS][PACKED_PITCH], velocity[OUT_ROWS][PACKED_PITCH]; /* of W2 and b2 */
    float sums[HELPER_WARPS][OUT_ROWS][PACKED_PITCH];                       /* of dW2 and db2 */
    float bias[UNITS], bias_velocity[UNITS], bias_ahead[UNITS];             /* of layer 1 */
    float bias_sums[2][MAIN_WARPS][UNITS];                                  /* of db1, by step */
    plane_scale dz_scale[1];
};

/* A packet of lane t has classes 2 t, 2 t + 1 and 8 + t; shared memory has a fourth, which is 0. Class of
   column e of a packed row; MAX_CLASSES if the column is padding. */
__device__ inline int column_class(int e) {
    return e % 4 < 2 ? e / 4 * 2 + e % 4 : e % 4 == 2 ? 8 + e / 4 : MAX_CLASSES;
}

__device__ inline int class_column(int c) { /* of a class below MAX_CLASSES */
    return c < 8 ? c / 2 * 4 + c % 2 : (c - 8) * 4 + 2;
}

struct chain_stages {
    const look_ahead::plan &plan;
    chain_memory &memory;
    const int group, warp, lane;
    int end;
    bool resumed;

    __device__ chain_stages(const look_ahead::plan &plan, void *shared, int end, bool resumed)
        : plan(plan), memory(*(chain_memory *)shared), group(blockIdx.x), warp(threadIdx.x / 32),
          lane(threadIdx.x % 32), end(end), resumed(resumed) {}

    __device__ int row(int half) const { /* of this lane, in tile `warp` */
        return warp * TILE + lane_g() + 8 * half;
    }

    /* --- layer 1 --- */

    struct gram_rows {
        uint4 high[ROW_TILES], low[ROW_TILES];

        template <int FIRST, int LAST> __device__ void load(const uint4 *from) {
#pragma unroll
            for (int k = FIRST; k < LAST; k++) {
                high[k] = __ldcg(from + k * 64);
                low[k] = __ldcg(from + k * 64 + 32);
            }
        }
    };

    __device__ const uint4 *gram_of(int i) const {
        return plan.gram + (size_t)i * GRAM_STEP + warp * ROW_TILES * 64 + lane;
    }

    /* G dZ of the step before, in units of its scale: three products of planes, the small ones first. */
    __device__ void correct(const gram_rows &gram, float (&z)[4], float factor) const {
        float cross[2][4] = {}, sum[2][4] = {};
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++) {
            const uint4 b = memory.dz[k * 32 + lane];
            mma_f16(cross[0], gram.low[k], b.x, b.y);
            mma_f16(cross[1], gram.high[k], b.z, b.w);
            mma_f16(sum[k * 2 / ROW_TILES], gram.high[k], b.x, b.y);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) z[e] += factor * (cross[0][e] + cross[1][e] + sum[0][e] + sum[1][e]);
    }

    /* H of this lane; 0 in rows beyond the batch. One branch for all: few instructions for ReLU. */
    __device__ void activate_tile(int rows, const float (&z)[4], float (&h)[4]) const {
        if (plan.activation[0] == ACTIVATION_RELU) {
#pragma unroll
            for (int e = 0; e < 4; e++) h[e] = activate(ACTIVATION_RELU, z[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) h[e] = activate_called(plan.activation[0], z[e]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (row(e / 2) >= rows) h[e] = 0;
    }

    /* dZ from dL/dH, in place. */
    __device__ void differentiate_tile(int rows, const float (&z)[4], const float (&h)[4],
                                       float (&dz)[4]) const {
        if (plan.activation[0] == ACTIVATION_RELU) {
#pragma unroll
            for (int e = 0; e < 4; e++) dz[e] *= derivative(ACTIVATION_RELU, z[e], h[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) dz[e] *= derivative_called(plan.activation[0], z[e], h[e]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (row(e / 2) >= rows) dz[e] = 0;
    }

    struct product_parts {
        uint4 part[MAX_SLICES];

        template <typename A> __device__ void try_poll(int slices, A at) {
#pragma unroll
            for (int s = 0; s < MAX_SLICES; s++)
                if (s < slices) part[s] = load_packet(at(s));
        }
        /* The sum over the slices. */
        template <typename A> __device__ void wait(int slices, uint32_t phase, A at, float (&z)[4]) {
            bool missing = true;
            while (missing) {
                missing = false;
#pragma unroll
                for (int s = 0; s < MAX_SLICES; s++)
                    if (s < slices && !arrived(part[s], phase)) {
                        part[s] = load_packet(at(s));
                        missing |= !arrived(part[s], phase);
                    }
            }
            __syncwarp();
#pragma unroll
            for (int e = 0; e < 4; e++) z[e] = 0;
#pragma unroll
            for (int s = 0; s < MAX_SLICES; s++)
                if (s < slices) {
                    z[0] += __uint_as_float(part[s].x);
                    z[1] += __uint_as_float(part[s].y);
                    z[2] += __uint_as_float(part[s].z);
                    z[3] += __uint_as_float(part[s].w & ~1u);
                }
        }
    };

    /* --- layer 2 --- */

    /* W2 of this block in bfloat16 planes, as B of both products: pairs of units of a class (twice: the
       classes of a packet's first two values, and of its third), and pairs of classes of a unit (the
       same). */
    struct out_fragments {
        uint32_t of[4][PLANES];

        __device__ void load(const chain_memory &memory) {
            const int lane = threadIdx.x % 32;
#pragma unroll
            for (int q = 0; q < 3; q++) {
                const uint4 words = memory.fragments[q][lane];
                const uint32_t four[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
                for (int e = 0; e < 4; e++) of[(4 * q + e) / PLANES][(4 * q + e) % PLANES] = four[e];
            }
        }
    };

    /* Partial logits of this warp's rows, sent to the owners of the rows. The two halves of k are the same
       eight units with different planes: three mma are the six products of bf16x3.cuh. */
    __device__ void send_logits(const float (&h)[4], const out_fragments &w, int rows, uint32_t tag) const {
        uint32_t first[PLANES], second[PLANES]; /* of rows g and g + 8 */
        float sum[2][4] = {}, small[2][4] = {};
        split_into_planes(h[0], h[1], first);
        split_into_planes(h[2], h[3], second);
        const uint32_t a[4] = {first[0], second[0], first[1], second[1]},
                       a2[4] = {first[0], second[0], first[2], second[2]};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            mma_bf16(small[n], a2, w.of[n][2], w.of[n][0]);
            mma_bf16(sum[n], a, w.of[n][0], w.of[n][0]);
            mma_bf16(small[n], a, w.of[n][1], w.of[n][1]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row(half) < rows)
                ll_send(plan.logits + (row(half) * plan.groups + group) * PACKETS + lane_t(),
                        sum[0][2 * half] + small[0][2 * half], sum[0][2 * half + 1] + small[0][2 * half + 1],
                        sum[1][2 * half] + small[1][2 * half], tag);
    }

    /* dL/dH of this warp's rows, from dL/dlogits. */
    __device__ void input_gradient(const float (&g)[2][3], const out_fragments &w, float (&dh)[4]) const {
        uint32_t pair[2][PLANES], third[2][PLANES];
        float sum[4] = {}, small[4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            split_into_planes(g[half][0], g[half][1], pair[half]);
            split_into_planes(g[half][2], 0, third[half]);
        }
#pragma unroll
        for (int order = PLANES - 1; order >= 0; order--)
#pragma unroll
            for (int i = order; i >= 0; i--) {
                const uint32_t a[4] = {pair[0][i], pair[1][i], third[0][i], third[1][i]};
                mma_bf16(order == PLANES - 1 ? small : sum, a, w.of[2][order - i], w.of[3][order - i]);
            }
#pragma unroll
        for (int e = 0; e < 4; e++) dh[e] = sum[e] + small[e];
    }

    /* --- output layer --- */

    /* Three logits of a row, summed over all groups: each lane takes a packet of every eighth. */
    __device__ void receive_logits(int r, uint32_t tag, float (&z)[3]) const {
        static const int CONCURRENT = 2, SOURCES = 32 / PACKETS;
        const ll_packet3 *parts = plan.logits + r * plan.groups * PACKETS + lane_t();
        const float *bias = memory.weight[UNITS] + 4 * lane_t();
        z[0] = z[1] = z[2] = 0;
        for (int s = lane_g(); s < plan.groups; s += CONCURRENT * SOURCES) {
            float part[CONCURRENT][3];
            ll_receive(part, tag,
                       [&](int i) { return parts + min(s + i * SOURCES, plan.groups - 1) * PACKETS; });
#pragma unroll
            for (int i = 0; i < CONCURRENT; i++)
                if (s + i * SOURCES < plan.groups)
#pragma unroll
                    for (int j = 0; j < 3; j++) z[j] += part[i][j];
        }
        __syncwarp();
        reduce_across_lanes(z);
#pragma unroll
        for (int j = 0; j < 3; j++) z[j] += bias[j];
    }

    /* Softmax cross-entropy of an owned row, four lanes with three classes each (and eight times the same);
       dL/dlogits is sent to all blocks, NaN if the loss is not finite. */
    __device__ void output_layer(int step, int r, int label, float scale, uint32_t tag) const {
        float z[3], gradient[3], sum = 0;
        int c[3];
        receive_logits(r, tag, z);
#pragma unroll
        for (int j = 0; j < 3; j++) {
            c[j] = column_class(4 * lane_t() + j);
            if (c[j] >= plan.classes) z[j] = -INFINITY;
        }
        float max = fmaxf(fmaxf(z[0], z[1]), z[2]); /* ignores NaN, which makes the sum NaN */
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
#pragma unroll
        for (int j = 0; j < 3; j++) {
            gradient[j] = c[j] >= plan.classes ? 0 : expf(z[j] - max);
            if (label >= plan.classes || (c[j] == label && !isfinite(z[j]))) gradient[j] = NAN;
            sum += gradient[j];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = isfinite(sum) ? scale / sum : NAN;
#pragma unroll
        for (int j = 0; j < 3; j++) gradient[j] = gradient[j] * factor - (c[j] == label ? scale : 0.0f);
        if (lane < PACKETS)
            ll_send(plan.gradients + r * PACKETS + lane, gradient[0], gradient[1], gradient[2], tag);
        record(step, r, label, z, c, max, sum);
    }

    __device__ void record(int step, int r, int label, const float (&z)[3], const int (&c)[3], float max,
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
        if (lane == 0) plan.record(step, r, make_float4(sum, of_label, max, best == label && sum > 0));
    }

    /* dL/dlogits of this lane's two rows and three classes, stored for the helpers; true if a loss is not
       finite. */
    __device__ bool receive_gradients(int rows, uint32_t tag, float (&g)[2][3]) const {
        ll_receive(g, tag,
                   [&](int half) { return plan.gradients + min(row(half), rows - 1) * PACKETS + lane_t(); });
        __syncwarp();
        bool bad = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bad |= g[half][0] != g[half][0];
            if (row(half) >= rows) g[half][0] = g[half][1] = g[half][2] = 0;
            memory.gradient[row(half)][lane_t()] = make_float4(g[half][0], g[half][1], g[half][2], 0);
        }
        return bad;
    }

    /* dZ in planes, in shared memory. */
    __device__ void store_planes(const float (&dz)[4], float inverse) const {
        uint32_t *words = reinterpret_cast<uint32_t *>(memory.dz);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const plane_pair pair = planes_of(dz[u] * inverse, dz[2 + u] * inverse);
            uint32_t *to = words + pair_offset(warp, 2 * lane_t() + u, lane_g());
            to[0] = pair.high;
            to[2] = lane_g() < 4 ? pair.low : pair.low & ~1u; /* the bit of the phase */
        }
    }

    __device__ void sum_bias_gradient(int i, const float (&dz)[4]) const {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            float sum = dz[u] + dz[2 + u];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (lane < 4) memory.bias_sums[i % 2][warp][2 * lane + u] = sum;
        }
    }
};

} // namespace persistent::look_ahead

#endif
