/* Two hidden layers, look-ahead: the plan and what all parts share. See two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_CUH

#include <float.h>

#include "kernels/cuda/persistent/late_weights.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace persistent::two_ahead {

static const int CLUSTER = 8;                /* thread blocks of a cluster */
static const int TILE = 64;                  /* rows and columns of W2 that a block has */
static const int MAX_UNITS = CLUSTER * TILE; /* of a hidden layer */
static const int CHAIN = CLUSTER * CLUSTER;  /* blocks with a tile of W2 */
static const int SLICES = 7;                 /* of the pixels, each with a cluster of workers */
static const int BLOCKS = CHAIN + SLICES * CLUSTER;
static const int SLICE_PACKS = 7, SLICE_PIXELS = SLICE_PACKS * PIXELS;
static const int SLICE_BYTES = ROWS * SLICE_PIXELS; /* of a batch */
static const int OWN = ROWS / CLUSTER;              /* rows of the batch whose loss a cluster computes */
static const int MAX_CLASSES = 3 * PACKETS - 1; /* the last place of four packets holds a bias of layer 2 */
static const int LONGEST = 512; /* steps of a launch: 32 MB of Gram matrices, 51 MB of images */

/* Warps of a block of the chain; a worker has as many threads. */
static const int MAIN_WARPS = 8, MAIN_THREADS = 32 * MAIN_WARPS; /* 16 rows of the batch each */
static const int WEIGHT_WARPS = 4, WEIGHT_THREADS = 32 * WEIGHT_WARPS;
static const int HELPER_WARPS = 4, HELPER_THREADS = 32 * HELPER_WARPS;
static const int BLOCK_THREADS = MAIN_THREADS + WEIGHT_THREADS + HELPER_THREADS; /* a power of two */

static const int ROW_TILES = ROWS / 16;                           /* of a batch */
static const int GRAM_STEP = 2 * 32 * ROW_TILES * ROW_TILES;      /* uint4 of a Gram matrix */
static const int GRAM_ONE = 255 * 255;                            /* the bias' input, 255 / 255 */
static const float GRAM_SCALE = 2048, GRAM_INVERSE = 1 / 2048.0f; /* sums reach 2^26, float16 2^16 */
static const int PACKETS_EACH = ROWS * TILE / 4 / CLUSTER;        /* of four values: an eighth of 128 x 64 */

typedef plane_matrix<ROWS, TILE / UNITS> activation_matrix; /* H1, dZ2 or dZ1 of TILE units, in planes */
typedef plane_matrix<TILE, TILE / UNITS> weight_matrix;     /* a tile of W2, in planes */

/* Barriers of some warps of a block. */
enum {
    BARRIER_MAIN = 1, /* the main warps */
    BARRIER_DZ2,      /* dZ2 of all rows is there: for the other warps */
    BARRIER_W2_FREE,  /* the main warps have read W2 */
    BARRIER_W2,       /* W2 of the next step is there */
    BARRIER_LATE,     /* a late product is there */
    BARRIER_WEIGHT,   /* the weight warps */
    BARRIER_Z2,       /* the main warps have received Z2 */
    BARRIER_LOSS,     /* dL/dlogits of the owned rows, H2 and dZ2 of them, are there: for the helpers */
    BARRIER_W3,       /* W3 of the next step is there */
    BARRIER_HELPERS,  /* the helpers */
    BARRIER_END,      /* the main warps have ended: for the helpers */
    BARRIER_PIXELS    /* of a worker: pixels and late weights are there */
};

struct plan : late_plan<3> {
    int packs; /* of an image */
    /* Of each step of the launch: its images, [SLICES][ROWS][SLICE_PIXELS], and the Gram matrix of its batch
       with the one before, [ROW_TILES][ROW_TILES][2 planes][32 lanes]. */
    uint8_t *gathered;
    uint4 *gram;
    /* Packets of four values with a phase; zeros when a launch starts. */
    size_t mail_bytes;
    uint4 *z2;     /* [CHAIN][CLUSTER senders][PACKETS_EACH] */
    uint4 *dz2;    /* in planes: [columns of W2 / TILE][ROWS / 2][32] */
    uint4 *dz1;    /* in planes: [2][units / TILE][CLUSTER][PACKETS_EACH] */
    uint4 *header; /* the scale of dZ1, and whether the step is bad: [2][CHAIN] */
    uint4 *late;   /* late products: [2][CHAIN][SLICES][PACKETS_EACH] */
    /* Packets with a tag. */
    ll_packet3 *out_sums;   /* dW3 and db2, sums over OWN rows: [CHAIN][UNITS][CLUSTER senders][PACKETS] */
    ll_packet3 *out_bias;   /* db3, the same: [columns / TILE][CLUSTER][PACKETS] */
    ll_packet3 *out_weight; /* W3 and b2: [columns / TILE][TILE][PACKETS] */

    float4 *ahead;     /* late weights: [SLICES][CLUSTER][TILE / 8][MAIN_THREADS] */
    float *bias_ahead; /* [MAX_UNITS] */
    uint4 *last_dz1;   /* of the last step: [CHAIN][PACKETS_EACH + 1] */

    __device__ int first_pack(int slice) const {
        return packs * slice / SLICES;
    }
    /* Of step i of the launch. */
    __device__ uint8_t *slice_of(int i, int slice) const {
        return gathered + ((size_t)i * SLICES + slice) * SLICE_BYTES;
    }
    __device__ uint4 *dz1_of(int i, int group) const {
        return dz1 + (size_t)(i % 2 * CLUSTER + group) * CLUSTER * PACKETS_EACH;
    }
    __device__ uint4 *header_of(int i, int group) const {
        return header + i % 2 * CHAIN + group * CLUSTER;
    }
    __device__ uint4 *late_of(int i, int block) const {
        return late + (size_t)(i % 2 * CHAIN + block) * SLICES * PACKETS_EACH;
    }
};

/* Hides the value from the optimiser, so that addresses are computed again and not kept in registers. */
__device__ inline int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

/* The compiler cannot read it again where it is needed: a special register takes 20 cycles. */
__device__ inline int thread_in_register() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Waits for N packets, at(0) to at(N - 1): polls all that are missing in one pass. */
template <int N, typename A>
__device__ inline void receive_packets(uint4 (&packet)[N], uint32_t phase, A at) {
    bool missing;
#pragma unroll
    for (int i = 0; i < N; i++) packet[i] = load_packet(at(i));
    do {
        missing = false;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!arrived(packet[i], phase)) packet[i] = load_packet(at(i));
#pragma unroll
        for (int i = 0; i < N; i++) missing |= !arrived(packet[i], phase);
    } while (missing);
    __syncwarp(); /* lanes leave the loop one by one */
}

__device__ inline uint4 packet_of(float first, float second, float third, float fourth) {
    return make_uint4(__float_as_uint(first), __float_as_uint(second), __float_as_uint(third),
                      __float_as_uint(fourth));
}

__device__ inline float4 values_of(uint4 packet) {
    return make_float4(__uint_as_float(packet.x), __uint_as_float(packet.y), __uint_as_float(packet.z),
                       __uint_as_float(packet.w & ~1u));
}

} // namespace persistent::two_ahead

#endif
