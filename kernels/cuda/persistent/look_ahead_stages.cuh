/* One hidden layer, look-ahead: the stages of the chain. A thread block has 16 hidden units and all rows of
   the batch, and owns some rows for the output layer; a warp has 16 rows. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_STAGES_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_STAGES_CUH

#include "kernels/cuda/persistent/look_ahead_gram.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace persistent::look_ahead {

static const int MAX_OWN = 2 * MAIN_WARPS;      /* rows of a block of a cluster of 8 */
static const int W2_PARTS = 4 * UNIT_TILES;     /* fragments of W2 */
static const uint32_t EXCHANGE_BYTES = 64 * 16; /* of a warp */
static const uint32_t GRAM_BYTES = GRAM_STEP * 16;

struct chain_memory {
    uint4 dz[2][UNIT_TILES][MAIN_THREADS];      /* planes, as B of a product over rows; by step */
    float4 late[2][MAIN_THREADS];               /* late products and biases; by step */
    float4 logits[ROWS * PACKETS];              /* mailbox: [blocks][owned rows][PACKETS] */
    float4 gradient[ROWS][PACKETS];             /* mailbox: dL/dlogits */
    uint4 hidden[PLANES][ROWS][UNIT_TILES];     /* H in bfloat16 planes: hidden_chunk */
    uint4 fragments[W2_PARTS * PLANES / 4][32]; /* of W2, in bfloat16 planes */
    float weight[OUT_ROWS][PACKED_PITCH], velocity[OUT_ROWS][PACKED_PITCH];          /* of W2 and b2 */
    float sums[HELPER_WARPS][OUT_ROWS][PACKED_PITCH];                                /* of dW2 and db2 */
    float bias[CHAIN_UNITS], bias_velocity[CHAIN_UNITS], bias_ahead[2][CHAIN_UNITS]; /* of layer 1 */
    int label[2][MAX_OWN];                                                           /* by step */
    uint4 largest[1]; /* |W2|, by helper warp */
    plane_scale dz_scale;
    float rate; /* of the step */
    int steps;  /* done by this launch */
    bool bad;   /* the last of them */
    uint64_t logits_full[MAIN_WARPS], gradient_full[MAIN_WARPS], gram_full[2];
    uint4 gram[2][GRAM_STEP]; /* by step */
};

/* A packet of lane t has classes 2 t, 2 t + 1 and 8 + t, and a fourth value, which is 0. Class of column e of
   a packed row; MAX_CLASSES if the column is padding. */
__device__ inline int column_class(int e) {
    return e % 4 < 2 ? e / 4 * 2 + e % 4 : e % 4 == 2 ? 8 + e / 4 : MAX_CLASSES;
}

__device__ inline int class_column(int c) { /* of a class below MAX_CLASSES */
    return c < 8 ? c / 2 * 4 + c % 2 : (c - 8) * 4 + 2;
}

/* The chunk of 8 units of a row of H: swizzled, so that 8 rows lie in different banks. */
__device__ inline int hidden_chunk(int row, int tile) {
    return tile ^ row / 4 % 2;
}

struct chain_stages {
    const look_ahead::plan &plan;
    chain_memory &memory;
    const int rank, own, warp, lane; /* own: rows, 8 or 16 */
    int end;
    bool resumed;

    __device__ chain_stages(const look_ahead::plan &plan, void *shared, int end, bool resumed)
        : plan(plan), memory(*(chain_memory *)shared), rank(blockIdx.x), own(ROWS / plan.cluster),
          warp(threadIdx.x / 32), lane(threadIdx.x % 32), end(end), resumed(resumed) {}

    __device__ int group(int n) const { /* of unit tile n */
        return rank * UNIT_TILES + n;
    }
    __device__ int row(int half) const { /* of this lane, in tile `warp` */
        return warp * TILE + lane_g() + 8 * half;
    }

    typedef float tile_values[UNIT_TILES][4]; /* of 16 rows and the units of the block */

    /* --- layer 1 --- */

    struct gram_rows {
        uint4 high[ROW_TILES], low[ROW_TILES];

        template <int FIRST, int LAST> __device__ void load(const uint4 *from) {
#pragma unroll
            for (int k = FIRST; k < LAST; k++) {
                high[k] = from[k * 64];
                low[k] = from[k * 64 + 32];
            }
        }
    };

    __device__ int gram_offset() const {
        return warp * ROW_TILES * 64 + lane;
    }

    /* G dZ of the step before: three products of planes, the small ones first. */
    __device__ void correct(const gram_rows &gram, const uint4 (&dz)[UNIT_TILES][MAIN_THREADS], float factor,
                            tile_values &z) const {
        float cross[UNIT_TILES][2][4] = {}, sum[UNIT_TILES][2][4] = {};
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++)
#pragma unroll
            for (int n = 0; n < UNIT_TILES; n++) {
                const uint4 b = dz[n][k * 32 + lane];
                mma_f16(cross[n][0], gram.low[k], b.x, b.y);
                mma_f16(cross[n][1], gram.high[k], b.z, b.w);
                mma_f16(sum[n][k * 2 / ROW_TILES], gram.high[k], b.x, b.y);
            }
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                z[n][e] = factor * (cross[n][0][e] + cross[n][1][e] + sum[n][0][e] + sum[n][1][e]);
    }

    /* H of this lane; 0 in rows beyond the batch. One branch for all: few instructions for ReLU. */
    __device__ void activate_tile(int rows, const tile_values &z, tile_values &h) const {
        if (plan.activation[0] == ACTIVATION_RELU) {
#pragma unroll
            for (int i = 0; i < 4 * UNIT_TILES; i++)
                h[i / 4][i % 4] = activate(ACTIVATION_RELU, z[i / 4][i % 4]);
        } else {
#pragma unroll
            for (int i = 0; i < 4 * UNIT_TILES; i++)
                h[i / 4][i % 4] = activate_called(plan.activation[0], z[i / 4][i % 4]);
        }
        clear_padding(rows, h);
    }

    /* dZ from dL/dH, in place. */
    __device__ void differentiate_tile(int rows, const tile_values &z, const tile_values &h,
                                       tile_values &dz) const {
        if (plan.activation[0] == ACTIVATION_RELU) {
#pragma unroll
            for (int i = 0; i < 4 * UNIT_TILES; i++)
                dz[i / 4][i % 4] *= derivative(ACTIVATION_RELU, z[i / 4][i % 4], h[i / 4][i % 4]);
        } else {
#pragma unroll
            for (int i = 0; i < 4 * UNIT_TILES; i++)
                dz[i / 4][i % 4] *= derivative_called(plan.activation[0], z[i / 4][i % 4], h[i / 4][i % 4]);
        }
        clear_padding(rows, dz);
    }

    __device__ void clear_padding(int rows, tile_values &values) const {
#pragma unroll
        for (int i = 0; i < 4 * UNIT_TILES; i++)
            if (row(i % 4 / 2) >= rows) values[i / 4][i % 4] = 0;
    }

    /* The packets of a late product, of this thread's rows and shares of a unit tile. */
    template <int SHARES> struct product_parts {
        uint4 part[SHARES][MAX_SLICES];
        const uint4 *from;

        __device__ void load(const look_ahead::plan &plan) {
#pragma unroll
            for (int s = 0; s < MAX_SLICES; s++)
                if (s < plan.slices)
#pragma unroll
                    for (int q = 0; q < SHARES; q++)
                        part[q][s] = load_packet(from + s * MAIN_THREADS + q * HELPER_THREADS);
        }

        __device__ void start(const look_ahead::plan &plan, int i, int group, int thread) {
#pragma unroll
            for (int q = 0; q < SHARES * MAX_SLICES; q++)
                part[q % SHARES][q / SHARES] = make_uint4(0, 0, 0, 0);
            from = plan.product_of(i, min(group, plan.groups - 1), 0) + thread;
            load(plan);
        }

        __device__ void wait(const look_ahead::plan &plan, int i) {
            const uint32_t phase = phase_of(i);
            while (true) {
                bool missing = false;
#pragma unroll
                for (int s = 0; s < MAX_SLICES; s++)
                    if (s < plan.slices)
#pragma unroll
                        for (int q = 0; q < SHARES; q++) missing |= !arrived(part[q][s], phase);
                if (!missing) break;
                load(plan);
            }
            __syncwarp();
        }

        __device__ float4 sum(int q, const float *bias_of_tile) const {
            const float2 bias = reinterpret_cast<const float2 *>(bias_of_tile)[lane_t()];
            float4 sum = {};
#pragma unroll
            for (int s = 0; s < MAX_SLICES; s++) { /* slices that do not exist are 0 */
                sum.x += __uint_as_float(part[q][s].x);
                sum.y += __uint_as_float(part[q][s].y);
                sum.z += __uint_as_float(part[q][s].z);
                sum.w += __uint_as_float(part[q][s].w & ~1u);
            }
            return make_float4(sum.x + bias.x, sum.y + bias.y, sum.z + bias.x, sum.w + bias.y);
        }
    };

    /* --- layer 2 --- */

    /* Fragments of W2 from shared memory: parts FIRST .. FIRST + 3 in PLANES planes each. Parts 0 to 3 are B
       of the logits: pairs of units, of both unit tiles, for the classes of a packet's first two values, then
       for those of its third. Parts 4 to 7 are B of the input gradient: pairs of classes, the same two, of
       both unit tiles. */
    template <int FIRST> struct w2_fragments {
        uint32_t of[4][PLANES];

        __device__ explicit w2_fragments(const chain_memory &memory) {
#pragma unroll
            for (int q = 0; q < PLANES; q++) {
                const uint4 words = memory.fragments[FIRST * PLANES / 4 + q][threadIdx.x % 32];
                const uint32_t four[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
                for (int e = 0; e < 4; e++) of[(4 * q + e) / PLANES][(4 * q + e) % PLANES] = four[e];
            }
        }
    };

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

    /* Partial logits of this warp's rows, sent to the owners of the rows; H is stored for dW2. */
    __device__ void send_logits(const tile_values &h) const {
        const w2_fragments<0> w(memory);
        uint32_t a[PLANES][4];
        float sum[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t planes[PLANES];
            split_into_planes(h[i / 2][i % 2 * 2], h[i / 2][i % 2 * 2 + 1], planes);
#pragma unroll
            for (int p = 0; p < PLANES; p++) a[p][i] = planes[p];
        }
#pragma unroll
        for (int c = 0; c < 2; c++) multiply_planes(sum[c], a, w.of[2 * c], w.of[2 * c + 1]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int o = row(half) & (own - 1), owner = row(half) >> (own == 8 ? 3 : 4);
            const float4 packet = make_float4(sum[0][2 * half], sum[0][2 * half + 1], sum[1][2 * half], 0);
            send(memory.logits + (rank * own + o) * PACKETS + lane_t(), owner, packet,
                 memory.logits_full + (own == 8 ? o : o / 2));
        }
#pragma unroll
        for (int p = 0; p < PLANES; p++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                reinterpret_cast<uint32_t *>(memory.hidden[p][row(i % 2)] +
                                             hidden_chunk(row(i % 2), i / 2))[lane_t()] = a[p][i];
    }

    __device__ static void send(const float4 *at, int to, float4 packet, const uint64_t *barrier) {
        cluster_send(reinterpret_cast<const uint4 *>(at), to,
                     make_uint4(__float_as_uint(packet.x), __float_as_uint(packet.y),
                                __float_as_uint(packet.z), __float_as_uint(packet.w)),
                     barrier);
    }

    /* dL/dH of this warp's rows, from dL/dlogits. */
    __device__ void input_gradient(const float4 (&g)[2], const w2_fragments<4> &w, tile_values &dh) const {
        uint32_t a[PLANES][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t pair[PLANES], third[PLANES];
            split_into_planes(g[half].x, g[half].y, pair);
            split_into_planes(g[half].z, 0, third);
#pragma unroll
            for (int p = 0; p < PLANES; p++) a[p][half] = pair[p], a[p][2 + half] = third[p];
        }
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) multiply_planes(dh[n], a, w.of[2 * n], w.of[2 * n + 1]);
    }

    /* --- output layer --- */

    /* Waits for the bytes of a mailbox, and expects those of the next step. */
    __device__ void receive(uint64_t *barrier, int i) const {
        mbarrier_wait(barrier, i);
        if (lane == 0) mbarrier_expect_tx(barrier, EXCHANGE_BYTES);
    }

    /* Softmax cross-entropy of this warp's rows, of the owned ones: one, or two in a cluster of 8, which have
       a half of the warp each. A lane adds logits of two blocks; dL/dlogits is sent to all blocks, NaN if the
       loss is not finite, 0 in rows beyond the batch. */
    __device__ void output_layer(int step, int i, int rows) const {
        const int lanes = own == 8 ? 32 : 16, sources = lanes / PACKETS,
                  source = (lane & (lanes - 1)) / PACKETS, o = own == 8 ? warp : 2 * warp + lane / 16,
                  r = rank * own + o, label = memory.label[i % 2][o];
        const float scale = 1.0f / (float)rows;
        const float4 bias = reinterpret_cast<const float4 *>(memory.weight[CHAIN_UNITS])[lane_t()];
        receive(memory.logits_full + warp, i);
        const float4 first = memory.logits[(source * own + o) * PACKETS + lane_t()],
                     second = memory.logits[((source + sources) * own + o) * PACKETS + lane_t()];
        float z[3] = {first.x + second.x, first.y + second.y, first.z + second.z}, gradient[3], sum = 0;
        for (int offset = PACKETS; offset < lanes; offset *= 2)
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
        for (int j = 0; j < 3; j++) {
            gradient[j] = c[j] >= plan.classes ? 0 : expf(z[j] - max);
            if (label >= plan.classes || (c[j] == label && !isfinite(z[j]))) gradient[j] = NAN;
            sum += gradient[j];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = isfinite(sum) ? scale / sum : NAN;
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
        record(step, r, rows, label, z, c, max, sum);
    }

    __device__ void record(int step, int r, int rows, int label, const float (&z)[3], const int (&c)[3],
                           float max, float sum) const {
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
        if (lane % (own == 8 ? 32 : 16) == 0 && r < rows)
            plan.record(step, r, make_float4(sum, of_label, max, best == label && sum > 0));
    }

    /* dL/dlogits of this lane's two rows and three classes; true if a loss is not finite. */
    __device__ bool receive_gradients(int i, float4 (&g)[2]) const {
        bool bad = false;
        receive(memory.gradient_full + warp, i);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            g[half] = memory.gradient[row(half)][lane_t()];
            bad |= g[half].x != g[half].x;
        }
        return bad;
    }

    /* dZ in planes, in shared memory. */
    __device__ void store_planes(uint4 (&to)[UNIT_TILES][MAIN_THREADS], const tile_values &dz,
                                 float inverse) const {
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++)
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const plane_pair pair = planes_of(dz[n][u] * inverse, dz[n][2 + u] * inverse);
                uint32_t *words =
                    reinterpret_cast<uint32_t *>(to[n]) + pair_offset(warp, 2 * lane_t() + u, lane_g());
                words[0] = pair.high;
                words[2] = lane_g() < 4 ? pair.low : pair.low & ~1u; /* the bit of the phase */
            }
    }
};

} // namespace persistent::look_ahead

#endif
