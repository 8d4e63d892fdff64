/* One hidden layer, look-ahead: the plan, the packets, and the fragments of mma.sync that all parts share.
   See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CUH

#include "kernels/cuda/persistent/late_weights.cuh"

namespace persistent::look_ahead {

static const int MAIN_WARPS = 8, MAIN_THREADS = 32 * MAIN_WARPS; /* 16 rows of the batch each */
static const int HELPER_WARPS = 4, HELPER_THREADS = 32 * HELPER_WARPS;
static const int BLOCK_THREADS = MAIN_THREADS + HELPER_THREADS;
static const int TILE = 16;                 /* rows or pixels, k of a product */
static const int ROW_TILES = ROWS / TILE;   /* of a batch */
static const int MAX_TILES = 2;             /* packs of a warp */
static const int MAX_CLASSES = 3 * PACKETS; /* a packet has three */
static const int UNIT_TILES = 2;            /* n of a product: a group of units */
static const int GROUP_UNITS = UNIT_TILES * UNITS;
static const int OUT_ROWS = GROUP_UNITS + 1;                 /* of W2 in a block, and b2 */
static const int GRAM_STEP = 2 * 32 * ROW_TILES * ROW_TILES; /* uint4 of a step */
static const int PRODUCT_PACKETS = UNIT_TILES * MAIN_THREADS;
static const int DZ_PACKETS = PRODUCT_PACKETS + 1; /* the last one is the header */
static const int LONGEST = 1024;                   /* steps of a launch: 64 MB of Gram matrices */
static_assert(ROW_TILES == MAIN_WARPS, "a warp has a tile of rows");

struct plan : late_plan<2> {
    int blocks, first_maker; /* of all; the first of those that make Gram matrices */
    int cluster;             /* thread blocks of the chain, which own ROWS / cluster rows each */
    int groups, slices;      /* of GROUP_UNITS units; of pixels: workers of a group, in one cluster */
    int packs, tiles;        /* of an image; of a warp of a worker, at most */
    uint4 *gram;             /* [steps of a launch][ROW_TILES][ROW_TILES][2 planes][32 lanes] */
    uint32_t *gram_made;     /* [steps of a launch]: the parts of a matrix that are there */
    uint4 *dz;               /* packets: [2][groups][DZ_PACKETS] */
    uint4 *products;         /* packets: [2][groups][UNIT_TILES][MAIN_THREADS] */

    float4 *ahead;     /* late weights: [groups][slices][MAIN_WARPS][MAX_TILES][UNIT_TILES][32 lanes] */
    float *bias_ahead; /* [groups][GROUP_UNITS] */
    uint4 *last_dz;    /* of the last step: [groups][DZ_PACKETS] */

    __device__ int first_pack(int slice) const {
        return packs * slice / slices;
    }
    __device__ uint4 *product_of(int i, int group) const {
        return products + (size_t)(i % 2 * groups + group) * PRODUCT_PACKETS;
    }
    __device__ uint4 *dz_of(int i, int group) const {
        return dz + (size_t)(i % 2 * groups + group) * DZ_PACKETS;
    }
};

/* The two units of this lane and its column in a tile of 16 x 8 results: lane 4 g + t has rows g and g + 8,
   columns 2 t and 2 t + 1. */
__device__ inline int lane_g() {
    return threadIdx.x % 32 / 4;
}
__device__ inline int lane_t() {
    return threadIdx.x % 4;
}

/* --- barriers of some warps of a block --- */

enum { BARRIER_MAIN = 1, BARRIER_ROWS, BARRIER_OUTPUT, BARRIER_DZ, BARRIER_HELPERS, BARRIER_PIXELS };

/* The order of k over pixels: k = 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 are pixels 4 t .. 4 t + 3 of a pack,
   one word. A packet of dZ is B of a product over rows: lane 4 unit + t has rows 2 t and 2 t + 1 of a tile
   in plane 0, then rows 2 t + 8 and 2 t + 9, and the same of plane 1. */

} // namespace persistent::look_ahead

#endif
