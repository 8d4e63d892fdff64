/* Two hidden layers: how the network is split over thread blocks, and the layout of shared memory. See
   two_hidden_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_PLAN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_PLAN_CUH

#include <float.h>

#include "kernels/cuda/persistent/cluster_dsmem.cuh"
#include "kernels/cuda/persistent/f16x2.cuh"
#include "kernels/cuda/persistent/int8_wgmma.cuh"

namespace persistent::two_hidden {

static const int MAX_UNITS = 512;                                        /* of a hidden layer */
static const int SPLIT_K = 2;                                            /* slices of the pixels: a cluster */
static const int PACKS_PER_WARP = 2, MAX_PACKS = PACKS_PER_WARP * WARPS; /* packs of a slice */
static const int TILE_IN = 32, TILE_OUT = 64;        /* the tile of W2 of a thread block */
static const int CHUNKS = TILE_OUT / UNITS;          /* of 8 columns of it */
static const int ACROSS = TILE_IN / UNITS * SPLIT_K; /* blocks with the weights of TILE_IN units of layer 1 */
static const int GROUP = 8;                          /* rows of the batch whose sums travel together */
/* Groups of 8 values: a tile's part of GROUP rows of Z2, or of half of the rows of dH1 for UNITS units. */
static const int POSITIONS = THREADS / GROUP;
static const int MAX_OWN = 2 * GROUP;           /* rows of the batch that a block owns */
static const int MAX_CLASSES = 3 * PACKETS - 1; /* the last place of four packets holds a bias of layer 2 */
static const int FLAG = PACKED_PITCH - 1;       /* column of dL/dlogits: 1 if the loss is not finite */
static const int DZ1_BYTES = ROWS * UNITS * INT8_SLICES;
static const size_t STATIC_SHARED = 1024; /* bytes: sums over a block, and a reserve */
static const int LONGEST = 512;           /* steps of a launch: 52 MB of gathered images */
static_assert(MAX_UNITS <= ACROSS * TILE_OUT && ROWS * UNITS == SPLIT_K * THREADS && SPLIT_K == 2,
              "blocks and threads for all");

struct plan : byte_pixel_plan<3> {
    int tiles_in, tiles_out; /* of W2 */
    int downs; /* thread blocks along the batch and the rows of W2; ACROSS along the columns of W2 */
    int packs; /* of the longest slice */
    /* The slices of the images, in the order of the launch: [steps][SPLIT_K][batch][pitch]. */
    uint8_t *gathered;
    /* Mailboxes. Those of packets with a phase are zeros when a launch starts. */
    size_t phased_bytes;
    ll_packet4 *h1;  /* [tiles_in TILE_IN / UNITS][2][ROWS] */
    ll_packet4 *z2;  /* sums over 2 TILE_IN: [tiles_out][ROWS / GROUP][tiles_in / 2][2][POSITIONS] */
    ll_packet4 *dz2; /* NaN if a loss is not finite: [tiles_out][CHUNKS][2][ROWS] */
    /* the same; sums over TILE_OUT: [tiles_in TILE_IN / UNITS][tiles_out][2][SPLIT_K][POSITIONS] */
    ll_packet4 *dh1;
    ll_packet3 *logits;   /* sums over TILE_OUT: [ROWS][ACROSS][PACKETS] */
    ll_packet3 *out_sums; /* dW3 and db2, sums over a block's rows: [tiles_out][TILE_OUT][owners][PACKETS] */
    ll_packet3 *out_bias; /* db3, the same: [tiles_out][owners][PACKETS] */
    ll_packet3 *out_weight; /* W3 and b2: [tiles_out][TILE_OUT][PACKETS] */

    __host__ __device__ int blocks() const {
        return ACROSS * downs;
    }
    __host__ __device__ int first_pack(int slice) const {
        return features / PIXELS * slice / SPLIT_K;
    }
    __host__ __device__ size_t slice_bytes() const { /* of a batch */
        return (size_t)batch * pixel_pitch(packs);
    }
    /* Slice `slice` of the batch of step i of the launch. */
    __device__ uint8_t *slice_of(int i, int slice) const {
        return gathered + ((size_t)i * SPLIT_K + slice) * slice_bytes();
    }
};

typedef plane_matrix<ROWS, TILE_IN / UNITS> h1_matrix;
typedef plane_matrix<ROWS, CHUNKS> dz2_matrix;
typedef plane_matrix<TILE_IN, CHUNKS> w2_matrix;

/* mbarriers: the pixels, and what the peer writes to this block by DSMEM. A phase per step. */
enum barrier_id { PIXELS_FULL, Z1_FULL, Z2_FULL, DZ1_FULL, BARRIERS };

/* Largest magnitudes: of H1 and W2 in the tile, and of the output layer's weights in its columns. */
enum largest_id { LARGEST_H1, LARGEST_W2, LARGEST_W3 };

/* Shared memory, in bytes. The slices of W1 and the pixels of two steps come last: their sizes depend on the
   plan. */
struct smem_layout {
    static constexpr int H1 = 0,                        /* TILE_IN columns, in planes; as are dZ2 and W2 */
        DZ2 = H1 + h1_matrix::BYTES,                    /* TILE_OUT columns */
        W2 = DZ2 + dz2_matrix::BYTES,                   /* the tile */
        WEIGHT2 = W2 + w2_matrix::BYTES,                /* the tile as floats: [THREADS] of 16 bytes */
        DZ1 = WEIGHT2 + 4 * TILE_IN * TILE_OUT,         /* in slices (layer1_block::write_dz1_slices) */
        HALVES = DZ1 + DZ1_BYTES,                       /* the peer's part of Z1, then H1: [THREADS] */
        H2 = HALVES + 4 * THREADS,                      /* of owned rows: [MAX_OWN][TILE_OUT] */
        DZ2_ROWS = H2 + 4 * MAX_OWN * TILE_OUT,         /* the same */
        OUT_WEIGHT = DZ2_ROWS + 4 * MAX_OWN * TILE_OUT, /* W3 and b2, swizzled: [TILE_OUT][PACKED_PITCH] */
        DLOGITS = OUT_WEIGHT + 4 * TILE_OUT * PACKED_PITCH, /* [MAX_OWN][PACKED_PITCH] */
        BIAS1 = DLOGITS + 4 * MAX_OWN * PACKED_PITCH,       /* [UNITS], and their velocities */
        BIAS3 = BIAS1 + 4 * 2 * UNITS,                      /* [PACKED_PITCH], and their velocities */
        W1_MAX = BIAS3 + 4 * 2 * PACKED_PITCH,              /* largest |W1| of each unit, as bits */
        DZ1_MAX = W1_MAX + 4 * UNITS, /* largest |dZ1| in each half of the rows: [SPLIT_K][UNITS] */
        LARGEST = DZ1_MAX + 4 * SPLIT_K * UNITS,          /* largest_id: magnitudes, as bits */
        INPUTS = LARGEST + 16,                            /* input_ring */
        BARRIERS_AT = INPUTS + input_ring<2>::BYTES,      /* [BARRIERS] */
        W1 = BARRIERS_AT + (8 * BARRIERS + 15) / 16 * 16; /* in slices, of padded_packs */
    /* The peer's sums of layer 2 use dZ2 while it holds nothing (layer2_block::peer_sums). */
    static constexpr int GRADIENT_SUMS = H2; /* of dW2, [THREADS] of 16 bytes, use H2 and DZ2_ROWS */
    static_assert(GRADIENT_SUMS + THREADS * 16 <= OUT_WEIGHT && W1 % 16 == 0, "aliases fit");

    __host__ __device__ static int pixels(int packs) {
        return W1 + by_wgmma::padded_packs(packs) * by_wgmma::K16_BYTES;
    }
    __host__ __device__ static size_t bytes(int packs) {
        return (size_t)pixels(packs) + 2 * (size_t)ROWS * pixel_pitch(packs) + by_wgmma::BEYOND;
    }
};

/* A step, the same in all threads. */
struct step_info {
    int number, rows;
    unsigned phase;    /* of the mbarriers */
    uint32_t tag;      /* of the packets */
    float rate, scale; /* learning rate; 1 / rows */

    __device__ uint32_t packet_phase() const { /* 1 in the first step of a launch */
        return (phase & 1) ^ 1;
    }
};

/* One thread of a thread block. The two blocks of a cluster, peers, have the same units of layer 1, the same
   columns of W2, and consecutive rows of W2 and of the batch. */
struct block {
    const two_hidden::plan &plan;
    char *shared;
    int rank, down, across;
    bool has_units, has_tile, has_rows; /* of layer 1, of W2, of the batch: the same in both peers */

    __device__ block(const two_hidden::plan &plan, char *shared)
        : plan(plan), shared(shared), rank(blockIdx.x % 2), down(blockIdx.x / (2 * ACROSS) * 2 + rank),
          across(blockIdx.x / 2 % ACROSS) {
        has_units = (int)blockIdx.x / 2 * UNITS < plan.tiles_in * TILE_IN;
        has_rows = across < plan.tiles_out;
        has_tile = has_rows && down < plan.tiles_in;
    }

    template <typename T> __device__ T *at(int offset) const {
        return reinterpret_cast<T *>(shared + offset);
    }
    __device__ uint64_t *barrier(barrier_id which) const {
        return at<uint64_t>(smem_layout::BARRIERS_AT) + which;
    }
    __device__ h1_matrix h1() const {
        return {shared + smem_layout::H1};
    }
    __device__ dz2_matrix dz2() const {
        return {shared + smem_layout::DZ2};
    }
    __device__ uint32_t *largest(largest_id which) const {
        return at<uint32_t>(smem_layout::LARGEST) + which;
    }
    __device__ plane_scale scale_of(largest_id which) const {
        return plane_scale(*largest(which));
    }
    /* That of dZ2: the |dL/dlogits| of a row add up to 2 / rows at most, and no derivative of an activation
       is above 1.15. Finite, though the bound may not be. */
    __device__ plane_scale dz2_scale(const step_info &now) const {
        const float bound = __uint_as_float(*largest(LARGEST_W3)) * 2.3f * now.scale;
        return plane_scale(magnitude(fminf(bound, FLT_MAX)));
    }
    /* Combines the magnitudes of a warp's threads into that of the block. */
    __device__ void find_largest(largest_id which, uint32_t most) const {
        most = __reduce_max_sync(0xffffffffu, most);
        if (lane() == 0) atomicMax(largest(which), most);
    }
    __device__ input_ring<2> inputs() const {
        return {shared + smem_layout::INPUTS};
    }

    /* Announces the bytes that the peer writes to this block in a step. */
    __device__ void expect_peer() const {
        if (has_units) mbarrier_expect_tx(barrier(Z1_FULL), 4 * THREADS);
        if (has_tile) mbarrier_expect_tx(barrier(Z2_FULL), 32 * THREADS);
        if (has_units) mbarrier_expect_tx(barrier(DZ1_FULL), DZ1_BYTES / 2 + 4 * UNITS);
    }
};

} // namespace persistent::two_hidden

#endif
