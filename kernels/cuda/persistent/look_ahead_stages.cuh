/* One hidden layer, look-ahead: the stages of the chain. A thread block has 16 hidden units and all rows of
   the batch, and owns some rows for the output layer; a warp has 16 rows. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_STAGES_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_STAGES_CUH

#include "kernels/cuda/persistent/look_ahead_gram.cuh"
#include "kernels/cuda/persistent/tf32x3.cuh"
#include "kernels/cuda/tensor/cluster.cuh"
#include "kernels/cuda/tensor/ldmatrix.cuh"

namespace persistent::look_ahead {

static const int MAX_OWN = 2 * MAIN_WARPS;      /* rows of a block of a cluster of 8 */
static const uint32_t EXCHANGE_BYTES = 64 * 16; /* of a warp */
static const uint32_t GRAM_BYTES = GRAM_STEP * 16;
static const int HIDDEN_PITCH = GROUP_UNITS + 8; /* floats: four rows lie in different banks */

struct chain_memory {
    uint4 dz[2][UNIT_TILES][MAIN_THREADS]; /* planes, 8 rows of a unit: packet_of; by step */
    float4 logits[ROWS * PACKETS];         /* mailbox: [blocks][owned rows][PACKETS] */
    float4 gradient[ROWS][PACKETS];        /* mailbox: dL/dlogits */
    float hidden[ROWS][HIDDEN_PITCH];      /* H */
    uint4 fragments[2 * UNIT_TILES][32];   /* of W2, for logit_weights */
    float weight[OUT_ROWS][PACKED_PITCH], velocity[OUT_ROWS][PACKED_PITCH]; /* of W2 and b2 */
    float sums[HELPER_WARPS][OUT_ROWS][PACKED_PITCH + 4];                   /* of dW2 and db2; banks */
    float bias[GROUP_UNITS], bias_velocity[GROUP_UNITS], bias_ahead[2][GROUP_UNITS]; /* of layer 1 */
    int label[2][MAX_OWN];                                                           /* by step */
    float4 record[2][MAX_OWN]; /* by step: sum of exp(z - max), z of the label, max, 1 if correct */
    plane_scale dz_scale;
    float rate; /* of the step */
    int steps;  /* done by this launch */
    bool bad;   /* the last of them */
    uint64_t logits_full[MAIN_WARPS], gradient_full[MAIN_WARPS], gram_full[2];
    uint64_t dz_full[MAIN_WARPS / 2]; /* dZ of the rows of two warps */
    uint4 gram[2][GRAM_STEP];         /* by step */
};

/* A packet of lane t has classes 2 t, 2 t + 1 and 8 + t, and a fourth value, which is 0. Class of column e of
   a packed row; MAX_CLASSES if the column is padding. */
__device__ inline int column_class(int e) {
    return e % 4 < 2 ? e / 4 * 2 + e % 4 : e % 4 == 2 ? 8 + e / 4 : MAX_CLASSES;
}

__device__ inline int class_column(int c) { /* of a class below MAX_CLASSES */
    return c < 8 ? c / 2 * 4 + c % 2 : (c - 8) * 4 + 2;
}

/* The compiler cannot read it again where it is needed: a special register takes 20 cycles. */
__device__ inline int thread_in_register() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

struct chain_stages {
    const look_ahead::plan &plan;
    chain_memory &memory;
    const int rank, own, self, warp, lane; /* own: rows, 8 or 16, a constant of the kernel */
    int end;
    bool resumed;

    __device__ chain_stages(const look_ahead::plan &plan, void *shared, int own, int end, bool resumed)
        : plan(plan), memory(*(chain_memory *)shared), rank(blockIdx.x), own(own), self(thread_in_register()),
          warp(self / 32), lane(self % 32), end(end), resumed(resumed) {}

    __device__ int unit(int u) const { /* unit u of this block, in the layer */
        return rank * GROUP_UNITS + u;
    }
    __device__ int lane_g() const {
        return lane / 4;
    }
    __device__ int lane_t() const {
        return lane % 4;
    }
    __device__ int row(int half) const { /* of this lane, in tile `warp` */
        return warp * TILE + lane_g() + 8 * half;
    }

    typedef float tile_values[UNIT_TILES][4]; /* of 16 rows and the units of the block */

    /* --- layer 1 --- */

    /* A warp multiplies row tiles k ^ first_tile(), k = 0, 1, ..: its own and its neighbour's first, since dZ
       of the others arrives later. Opaque, so that addresses do not occupy registers in the whole step. */
    __device__ int first_tile() const {
        int first = warp / 2 * 2;
        asm volatile("" : "+r"(first));
        return first;
    }

    struct gram_rows { /* in that order */
        uint4 high[ROW_TILES], low[ROW_TILES];

        template <int FIRST, int LAST> __device__ void load(const chain_stages &of, const uint4 *gram) {
            const uint4 *from = gram + of.warp * ROW_TILES * 64 + of.lane;
            const int first = of.first_tile();
#pragma unroll
            for (int k = FIRST; k < LAST; k++) {
                high[k] = from[(k ^ first) * 64];
                low[k] = from[(k ^ first) * 64 + 32];
            }
        }
    };

    /* dZ of this warp's rows is in shared memory. */
    __device__ void announce_dz() const {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(memory.dz_full + warp / 2);
    }

    /* What this lane has of dZ of a tile of rows and 8 units as B of mma.sync, or of a packet. */
    __device__ uint4 packet_of(int i, int n, int tile) const {
        uint32_t words[4];
        ldmatrix_x4(words, &memory.dz[i % 2][n][tile * 32 + lane]);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }

    /* To the workers, dZ of the rows of this warp. */
    __device__ void send_dz(int i) const {
        if (rank >= plan.groups) return;
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++)
            send_packet(plan.dz_of(i, rank) + n * MAIN_THREADS + self, packet_of(i, n, warp), phase_of(i));
    }

    /* The packets of a late product, of this thread's rows and columns. */
    struct late_product {
        uint4 packet[UNIT_TILES];
        const uint4 *from;

        __device__ void load() {
#pragma unroll
            for (int n = 0; n < UNIT_TILES; n++) packet[n] = load_packet(from + n * MAIN_THREADS);
        }

        __device__ void wait(int i) {
            const uint32_t phase = phase_of(i);
            while (!arrived(packet[0], phase) || !arrived(packet[1], phase)) load();
            __syncwarp();
        }
    };

    __device__ late_product request_product(int i) const {
        late_product late;
        late.from = plan.product_of(i, min(rank, plan.groups - 1)) + self;
        late.load();
        return late;
    }

    /* G dZ of step i - 1: three products of planes, the small ones first. While tensor cores multiply, sends
       that dZ, and requests the late product: not earlier, because one that is not there yet has to be
       requested again, another round trip. */
    __device__ void correct(const gram_rows &gram, int i, float factor, tile_values &z,
                            late_product &late) const {
        float cross[UNIT_TILES][2][4] = {}, sum[UNIT_TILES][2][4] = {};
        const int first = first_tile();
#pragma unroll
        for (int k = 0; k < ROW_TILES; k++) {
            if (k == ROW_TILES / 4 && i > 0) send_dz(i - 1);
            if (k == ROW_TILES / 2) late = request_product(i);
            if (k % 2 == 0) mbarrier_wait(memory.dz_full + (k ^ first) / 2, i);
#pragma unroll
            for (int n = 0; n < UNIT_TILES; n++) {
                const uint4 b = packet_of(i + 1, n, k ^ first);
                mma_f16(cross[n][0], gram.low[k], b.x, b.y);
                mma_f16(cross[n][1], gram.high[k], b.z, b.w);
                mma_f16(sum[n][k * 2 / ROW_TILES], gram.high[k], b.x, b.y);
            }
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

    /* Adds the product, and the bias of each column. */
    __device__ void add_product(const late_product &late, int i, tile_values &z) const {
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            const float2 bias =
                reinterpret_cast<const float2 *>(memory.bias_ahead[i % 2] + n * UNITS)[lane_t()];
            z[n][0] += __uint_as_float(late.packet[n].x) + bias.x;
            z[n][1] += __uint_as_float(late.packet[n].y) + bias.y;
            z[n][2] += __uint_as_float(late.packet[n].z) + bias.x;
            z[n][3] += __uint_as_float(late.packet[n].w & ~1u) + bias.y;
        }
    }

    /* --- layer 2 --- */

    /* B of the logits: [classes of a packet's first two values, then of its third][unit tiles], from
       fragments, which helpers have stored. k = t and t + 4 are units 2 t and 2 t + 1. */
    struct logit_weights {
        tf32_pair<2> of[2][UNIT_TILES];

        __device__ explicit logit_weights(const chain_stages &from) {
#pragma unroll
            for (int q = 0; q < 2 * UNIT_TILES; q++) {
                const uint4 words = from.memory.fragments[q][from.lane];
                tf32_pair<2> &w = of[q / UNIT_TILES][q % UNIT_TILES];
                w.big[0] = words.x, w.big[1] = words.y, w.small[0] = words.z, w.small[1] = words.w;
            }
        }
    };

    /* B of the input gradient: k = t and t + 4 are the first two classes of packet t, and k = t of another
       product the third. */
    struct gradient_weights {
        tf32_pair<2> pair[UNIT_TILES];
        tf32_pair<1> third[UNIT_TILES];

        __device__ explicit gradient_weights(const chain_stages &from) {
#pragma unroll
            for (int n = 0; n < UNIT_TILES; n++) {
                const float4 w = reinterpret_cast<const float4 *>(
                    from.memory.weight[n * UNITS + from.lane_g()])[from.lane_t()];
                pair[n] = tf32_pair<2>(w.x, w.y);
                third[n] = tf32_pair<1>(w.z);
            }
        }
    };

    /* Partial logits of this warp's rows, sent to the owners of the rows. */
    __device__ void send_logits(const tile_values &h, const logit_weights &w) const {
        float sum[2][UNIT_TILES][4] = {};
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            const tf32_pair<4> a(h[n][0], h[n][2], h[n][1], h[n][3]);
#pragma unroll
            for (int c = 0; c < 2; c++) multiply_tf32x3(sum[c][n], a, w.of[c][n]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int o = row(half) & (own - 1), owner = row(half) >> (own == 8 ? 3 : 4), e = 2 * half;
            const float4 packet =
                make_float4(sum[0][0][e] + sum[0][1][e], sum[0][0][e + 1] + sum[0][1][e + 1],
                            sum[1][0][e] + sum[1][1][e], 0);
            send(memory.logits + (rank * own + o) * PACKETS + lane_t(), owner, packet,
                 memory.logits_full + (own == 8 ? o : o / 2));
        }
    }

    /* H, for dW2. */
    __device__ void store_hidden(const tile_values &h) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            *reinterpret_cast<float2 *>(memory.hidden[row(i % 2)] + i / 2 * UNITS + 2 * lane_t()) =
                make_float2(h[i / 2][i % 2 * 2], h[i / 2][i % 2 * 2 + 1]);
    }

    __device__ static void send(const float4 *at, int to, float4 packet, const uint64_t *barrier) {
        cluster_send(reinterpret_cast<const uint4 *>(at), to,
                     make_uint4(__float_as_uint(packet.x), __float_as_uint(packet.y),
                                __float_as_uint(packet.z), __float_as_uint(packet.w)),
                     barrier);
    }

    /* dL/dH of this warp's rows, from dL/dlogits. */
    __device__ void input_gradient(const float4 (&g)[2], const gradient_weights &w, tile_values &dh) const {
        const tf32_pair<4> pair(g[0].x, g[1].x, g[0].y, g[1].y);
        const tf32_pair<2> third(g[0].z, g[1].z);
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            float sum[2][4] = {};
            multiply_tf32x3(sum[0], pair, w.pair[n]);
            multiply_tf32x3(sum[1], third, w.third[n]);
#pragma unroll
            for (int e = 0; e < 4; e++) dh[n][e] = sum[0][e] + sum[1][e];
        }
    }

    /* dZ of step i in planes, in shared memory. */
    __device__ void store_planes(int i, const tile_values &dz, float inverse) const {
        const uint32_t mask = lane_g() % 2 ? ~0u : ~0x00010001u; /* the bit of the phase, in each packet */
#pragma unroll
        for (int n = 0; n < UNIT_TILES; n++) {
            const plane_pair first = planes_of(dz[n][0] * inverse, dz[n][1] * inverse),
                             second = planes_of(dz[n][2] * inverse, dz[n][3] * inverse);
            const uint32_t words[4] = {first.high, second.high, first.low, second.low & mask};
            stmatrix_x4_trans(&memory.dz[i % 2][n][self], words);
        }
    }
};

} // namespace persistent::look_ahead

#endif
