/* The float32 GEMM by six bf16 products: the roles of the warps, their shared memory and registers, the two
   ring buffers, and the tiles of a thread block. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16X6_RING_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16X6_RING_CUH

#include "kernels/cuda/tensor/bf16x6_store.cuh"

namespace bf16x6 {

static const unsigned THREADS = CONSUMERS + 2 * GROUP;
static const unsigned SPLITTER = 2, PRODUCER = 3; /* warpgroups */

/* Of a thread: of two warpgroups of consumers and one of each other role, together 512. */
template <bool A_T> constexpr int CONSUMER_REGISTERS = A_T ? 208 : 200;
template <bool A_T> constexpr int SPLITTER_REGISTERS = A_T ? 64 : 72;
template <bool A_T> constexpr int PRODUCER_REGISTERS = A_T ? 32 : 40;

static const unsigned STAGES = 3, PLANE_STAGES = 2;
static const unsigned A_BYTES = BF16X6_ROWS * K * 4, STAGE_BYTES = A_BYTES + BF16X6_COLUMNS * K * 4;
static const unsigned PLANES_AT = STAGES * STAGE_BYTES, SLOTS_AT = PLANES_AT + PLANE_STAGES * PLANES_BYTES,
                      WARP_SUMS_AT = SLOTS_AT + SLOTS * CONSUMERS * 16,
                      BARRIERS_AT = WARP_SUMS_AT + 8 * BF16X6_COLUMNS * 4,
                      BARRIERS = 2 * STAGES + 2 * PLANE_STAGES + 1,
                      SHARED_BYTES = BARRIERS_AT + (BARRIERS + 1) * sizeof(uint64_t);
static_assert(SHARED_BYTES <= 227 << 10);

/* The place of a use of a ring buffer of DEPTH stages. */
template <unsigned DEPTH> struct ring_place {
    unsigned stage = 0, round = 0;

    __device__ void next() {
        if (++stage == DEPTH) stage = 0, round++;
    }
};

/* The barriers of the two ring buffers: a stage was written; all warps have read it. */
struct barriers {
    uint64_t *full, *empty, *split, *multiplied, *received;

    __device__ explicit barriers(char *shared)
        : full((uint64_t *)(shared + BARRIERS_AT)), empty(full + STAGES), split(empty + STAGES),
          multiplied(split + PLANE_STAGES), received(multiplied + PLANE_STAGES) {}

    __device__ void open() const {
        for (unsigned i = 0; i < STAGES; i++) {
            mbarrier_init(full + i);
            mbarrier_init(empty + i, (CONSUMERS + GROUP) / 32);
        }
        for (unsigned i = 0; i < PLANE_STAGES; i++) {
            mbarrier_init(split + i, GROUP / 32);
            mbarrier_init(multiplied + i, CONSUMERS / 32);
        }
        mbarrier_init(received);
    }
};

/* All lanes of a warp: it has read, or written, a stage. */
static __device__ void warp_arrives(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

/* The tiles of a block, and its part of their k. In a weight gradient (A_T) a block has tiles that are beside
   each other, and keeps the fragments of A in registers if k has only two stages. */
template <bool A_T> struct schedule {
    unsigned rows, columns, first, end; /* first, end: stages of k */

    __device__ schedule(const bf16x6_product &p, const cluster_place &own)
        : rows((p.m + BF16X6_ROWS - 1) / BF16X6_ROWS), columns((p.n + BF16X6_COLUMNS - 1) / BF16X6_COLUMNS) {
        const unsigned stages = (p.k + K - 1) / K;
        first = stages * own.part / own.parts;
        end = stages * (own.part + 1) / own.parts;
    }

    __device__ bool keeps_a() const {
        return A_T && end - first <= 2;
    }

    /* Calls body(row, column, does it read A?) of each tile, counted in tiles. */
    template <typename F> __device__ void each(const cluster_place &own, F body) const {
        const unsigned turns = gridDim.x / own.parts, turn = blockIdx.x / own.parts, tiles = rows * columns;
        if constexpr (A_T) {
            unsigned before = rows;
            for (unsigned i = (size_t)tiles * turn / turns; i < (size_t)tiles * (turn + 1) / turns; i++) {
                body(i / columns, i % columns, !keeps_a() || i / columns != before);
                before = i / columns;
            }
        } else {
            for (unsigned i = turn; i < tiles; i += turns) body(i % rows, i / rows, true);
        }
    }
};

} // namespace bf16x6

#endif
