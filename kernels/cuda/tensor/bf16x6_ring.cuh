/* The float32 GEMM by six bf16 products: the roles of the warps, their shared memory and registers, the two
   ring buffers, and the tiles of a thread block. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16X6_RING_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16X6_RING_CUH

#include <type_traits>

#include "kernels/cuda/tensor/bf16x6_update.cuh"

namespace bf16x6 {

static const unsigned THREADS = CONSUMERS + 2 * GROUP;
static const unsigned PRODUCER = THREADS / 32 - 1; /* a warp, the last one */
static const unsigned WARPS = CONSUMERS / 32;      /* of consumers */
static const unsigned MOST_STAGES = 3, MOST_PLANE_STAGES = 4;
static const unsigned BARRIERS = 3 * MOST_STAGES + 2 * MOST_PLANE_STAGES + 2 + WARPS * WEIGHT_BOXES;
static const unsigned WARP_SUMS_AT = 512, AREAS_AT = 3072;
static_assert(BARRIERS * sizeof(uint64_t) <= WARP_SUMS_AT &&
              WARP_SUMS_AT + WARPS * BF16X6_WIDE * sizeof(float) <= AREAS_AT);

/* The variants of the kernel. PLANES: of an operand. A_T: A is transposed (TN). B_BY_K: memory has a row of
   B for each k (NN, TN); otherwise one for each column of op(B) (NT). ARRAYS: how many a weight gradient
   updates. W: columns of a tile. */
template <unsigned PLANES_, bool A_T_, bool B_BY_K_, int ARRAYS_, unsigned W_> struct variant {
    static constexpr bool A_T = A_T_, B_BY_K = B_BY_K_;
    static constexpr int ARRAYS = ARRAYS_;
    static constexpr unsigned PLANES = PLANES_, W = W_;

    /* Of a thread, two warpgroups of consumers and two others: together 512. */
    static constexpr bool MORE = A_T || W > BF16X6_COLUMNS;
    static constexpr int CONSUMER_REGISTERS = MORE ? 208 : 200, OTHER_REGISTERS = MORE ? 48 : 56;

    /* Warps that split B: a warpgroup, and if tiles are wide all but the one that copies. */
    static constexpr unsigned SPLITTERS = W > BF16X6_COLUMNS ? 7 : 4;

    /* Stages of the two ring buffers. A weight gradient keeps A in registers if it can: then the planes are
       what it waits for. */
    static constexpr unsigned STAGES = MORE ? 2 : 3, PLANE_STAGES = A_T && ARRAYS < 2 ? 4 : 2;

    /* Shared memory: barriers, sums of warps, an area of each warp of the consumers, planes of B, stages.
       With k along its columns, B is copied in boxes of 32 columns. */
    static constexpr unsigned A_BYTES = BF16X6_ROWS * K * 4, B_COLUMNS = B_BY_K ? (W + 31) / 32 * 32 : W,
                              B_BYTES = B_COLUMNS * K * 4, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr unsigned PLANES_BYTES = PLANES * PLANE_BYTES<W>,
                              PLANES_AT = AREAS_AT + WARPS * AREA_BYTES<ARRAYS, W>,
                              STAGES_AT = PLANES_AT + PLANE_STAGES * PLANES_BYTES,
                              SHARED_BYTES = STAGES_AT + STAGES * STAGE_BYTES;
    static_assert(STAGES_AT % 1024 == 0 && SHARED_BYTES <= 227 << 10);
};

/* The place of a use of a ring buffer of DEPTH stages. */
template <unsigned DEPTH> struct ring_place {
    unsigned stage = 0, round = 0;

    __device__ void next() {
        if (++stage == DEPTH) stage = 0, round++;
    }
};

/* The barriers of the ring buffers: a stage was written; all warps have read it. */
struct barriers {
    uint64_t *a_full, *b_full, *empty, *split, *multiplied, *received,
        *weights; /* weights: [WARPS][WEIGHT_BOXES] */

    __device__ explicit barriers(char *shared)
        : a_full((uint64_t *)shared), b_full(a_full + MOST_STAGES), empty(b_full + MOST_STAGES),
          split(empty + MOST_STAGES), multiplied(split + MOST_PLANE_STAGES),
          received(multiplied + MOST_PLANE_STAGES), weights(received + 2) {}

    __device__ void open(unsigned splitters) const {
        for (unsigned i = 0; i < MOST_STAGES; i++) {
            mbarrier_init(a_full + i);
            mbarrier_init(b_full + i);
            mbarrier_init(empty + i, CONSUMERS / 32 + splitters);
        }
        for (unsigned i = 0; i < MOST_PLANE_STAGES; i++) {
            mbarrier_init(split + i, splitters);
            mbarrier_init(multiplied + i, CONSUMERS / 32);
        }
        for (unsigned i = 0; i < WARPS * WEIGHT_BOXES; i++) mbarrier_init(weights + i);
        mbarrier_init(received);
    }
};

/* All lanes of a warp: it has read, or written, a stage. */
static __device__ void warp_arrives(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

/* A launch has one product, or several weight gradients: its product `number`, its tiles, tile i of them. */
__device__ inline const bf16x6_product &product_of(const bf16x6_product &only, unsigned) {
    return only;
}
__device__ inline const bf16x6_gradient &product_of(const bf16x6_gradients &all, unsigned number) {
    return all.list[number];
}
__device__ inline unsigned tiles_of(const bf16x6_product &p) {
    return p.rows * p.columns;
}
__device__ inline unsigned tiles_of(const bf16x6_gradients &all) {
    return all.tiles;
}
__device__ inline tile_place place_of(const bf16x6_product &p, unsigned i) {
    const unsigned row = i / p.columns;
    return {row, i - row * p.columns};
}
__device__ inline gradient_place place_of(const bf16x6_gradients &all, unsigned i) {
    unsigned number = 0;
#pragma unroll
    for (unsigned other = 1; other < BF16X6_MOST_GRADIENTS; other++) number += i >= all.first[other];
    i -= all.first[number];
    const unsigned columns = all.list[number].columns, row = i / columns;
    return {row, i - row * columns, number};
}

/* The tiles of a block, and its part of their k. In a weight gradient (A_T) a block has tiles that are beside
   each other, and keeps the fragments of A in registers if k has only two stages. */
template <bool A_T, typename P> struct schedule {
    const P &p;
    unsigned first, end; /* stages of k */

    __device__ schedule(const P &launch, const cluster_place &own)
        : p(launch), first(p.stage[own.part]), end(p.stage[own.part + 1]) {}

    __device__ bool keeps_a() const {
        return A_T && end - first <= 2;
    }

    /* Calls body(tile, does it read A?) of each tile. */
    template <typename F> __device__ void each(F body) const {
        const unsigned turn = cluster_index(), tiles = tiles_of(p);
        if constexpr (A_T) {
            const unsigned least = tiles / p.clusters, more = tiles - least * p.clusters;
            unsigned left = least + (turn < more);
            if (!left) return;
            auto tile = place_of(p, turn * least + (turn < more ? turn : more));
            for (bool reads_a = true; left; left--) {
                body(tile, reads_a);
                const auto &product = product_of(p, tile.number);
                const bool ends = ++tile.column == product.columns;
                if (ends) tile.column = 0, tile.row++;
                if constexpr (std::is_same_v<P, bf16x6_gradients>)
                    if (tile.row == product.rows) tile.row = 0, tile.number++;
                reads_a = ends || !keeps_a();
            }
        } else {
            for (unsigned i = turn; i < tiles; i += p.clusters) {
                const unsigned column = p.rows == 1 ? i : i / p.rows;
                body(tile_place{i - column * p.rows, column}, true);
            }
        }
    }
};

} // namespace bf16x6

#endif
