/* The float32 GEMM of the tensor cores: its sizes, the tiles of a thread block and the ring buffer of their planes. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_RING_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_RING_CUH

#include "kernels/cuda/tensor/bulk_copy.cuh"
#include "kernels/cuda/tensor/cluster.cuh"
#include "kernels/cuda/tensor/float32.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

namespace float32 {

#ifndef FLOAT32_CLUSTER
static const int CLUSTER = 2; /* thread blocks */
static const int MODE = 1;
#else
static const int CLUSTER = FLOAT32_CLUSTER, MODE = FLOAT32_MODE;
#endif
static const int GROUPS = 2, GROUP = 128;              /* warpgroups that multiply, and their threads */
static const int THREADS = (GROUPS + 1) * GROUP;       /* one more group copies */
static const int COPY_REGISTERS = 40, REGISTERS = 232; /* of a thread */
static const int K = PLANE_SIDE;                       /* of a stage */
static const unsigned TILE = FLOAT32_TILE, TILE_BYTES = 2 * PLANE_BYTES; /* of one plane of an operand */
static const unsigned BAND = 16;              /* tiles side by side that the L2 cache shares */
static const unsigned RING_BYTES = 192 << 10; /* in shared memory; after it: */
static const unsigned AREA_FLOATS = 64 * 64;  /* per warpgroup, for the epilogue */
static const unsigned BARRIERS_AT = RING_BYTES + GROUPS * AREA_FLOATS * sizeof(float);
static const unsigned MOST_STAGES = 3, SHARED_BYTES = BARRIERS_AT + 2 * MOST_STAGES * sizeof(uint64_t);

/* Planes and products, the smallest first. Digit x of A and B: the planes that product x multiplies. */
struct half_planes {
    static constexpr wgmma_format FORMAT = WGMMA_F16;
    static constexpr int PLANES = 2, STAGES = 3, PRODUCTS = 3;
    static constexpr unsigned A = 0x001, B = 0x010;
};
struct bfloat_planes {
    static constexpr wgmma_format FORMAT = WGMMA_BF16;
    static constexpr int PLANES = 3, STAGES = 2, PRODUCTS = 6;
    static constexpr unsigned A = 0x001012, B = 0x010210;
};

template <class S> constexpr unsigned STAGE_BYTES = 2 * S::PLANES *TILE_BYTES;

/* The value of lane 0, which all lanes have: the compiler then knows that branches on it do not diverge. */
static __device__ int uniform(int value) {
    return __shfl_sync(0xffffffffu, value, 0);
}

struct tile {
    unsigned row_block, column_block; /* in blocks of 64 */
};

/* The tiles of a thread block, in turn. The blocks of a cluster have the same columns. */
struct schedule {
    unsigned rows, columns; /* of cluster tiles */

    __device__ explicit schedule(const float32_product &p)
        : rows((unsigned)((p.m + CLUSTER * TILE - 1) / (CLUSTER * TILE))),
          columns((unsigned)((p.n + TILE - 1) / TILE)) {}

    /* False after the last one. */
    __device__ bool at(unsigned turn, tile &own) const {
        const unsigned index = blockIdx.x / CLUSTER + turn * (gridDim.x / CLUSTER);
        if (index >= rows * columns) return false;
        const unsigned band = index / (rows * BAND), inside = index % (rows * BAND);
        const unsigned width = min(BAND, columns - band * BAND);
        own.row_block = (inside / width * CLUSTER + blockIdx.x % CLUSTER) * 2;
        own.column_block = (band * BAND + inside % width) * 2;
        return true;
    }
};

/* The ring buffer: stage u % STAGES for use u, as A [plane][2 blocks] and B [plane][2 blocks]. */
template <class S> struct ring {
    char *stages;
    uint64_t *full, *empty;

    __device__ explicit ring(char *shared) : stages(shared), full((uint64_t *)(shared + BARRIERS_AT)) {
        empty = full + MOST_STAGES;
    }

    __device__ char *stage(unsigned use) const {
        return stages + use % S::STAGES * STAGE_BYTES<S>;
    }

    /* One thread: copies the blocks of a tile at `k`, B's half to all thread blocks of the cluster. */
    __device__ void fill(const float32_product &p, unsigned use, const tile &at, unsigned k) const {
        const unsigned place = use % S::STAGES;
        char *to = stage(use);
        if (use >= S::STAGES) mbarrier_wait_alone(empty + place, use / S::STAGES - 1);
        mbarrier_expect_tx(full + place, STAGE_BYTES<S>);
#pragma unroll
        for (unsigned g = 0; g < 2; g++) {
            const char *a = p.a.blocks + p.a.index(at.row_block + g, k) * PLANE_BYTES;
            const char *b = p.b.blocks + p.b.index(at.column_block + g, k) * PLANE_BYTES;
            const unsigned within = g * PLANE_BYTES;
#pragma unroll
            for (unsigned plane = 0; plane < S::PLANES; plane++) {
                char *to_a = to + plane * TILE_BYTES + within, *to_b = to_a + S::PLANES * TILE_BYTES;
                bulk_copy(to_a, a + plane * p.a.count * PLANE_BYTES, PLANE_BYTES, full + place);
                if (CLUSTER == 1)
                    bulk_copy(to_b, b + plane * p.b.count * PLANE_BYTES, PLANE_BYTES, full + place);
                else if (g == blockIdx.x % CLUSTER)
                    bulk_copy_to(3, to_b, b + plane * p.b.count * PLANE_BYTES, PLANE_BYTES, full + place);
            }
        }
    }

    /* All lanes of a consumer warp. */
    __device__ const char *wait(unsigned use) const {
        mbarrier_wait(full + use % S::STAGES, use / S::STAGES);
        return stage(use);
    }

    __device__ void release(unsigned use) const {
        const unsigned lane = threadIdx.x % 32;
        if (CLUSTER == 1) {
            if (lane == 0) mbarrier_arrive(empty + use % S::STAGES);
        } else if (lane < CLUSTER) {
            cluster_mbarrier_arrive(empty + use % S::STAGES, lane);
        }
    }
};

} // namespace float32

#endif
