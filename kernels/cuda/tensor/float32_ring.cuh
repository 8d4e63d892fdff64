/* The float32 GEMM of the tensor cores: its sizes, the tiles of a thread block and the ring buffer of their
   planes. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_RING_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_RING_CUH

#include "kernels/cuda/tensor/bulk_copy.cuh"
#include "kernels/cuda/tensor/float32.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

namespace float32 {

static const int GROUPS = 2, GROUP = 128;              /* warpgroups that multiply, and their threads */
static const int THREADS = (GROUPS + 1) * GROUP;       /* one more group copies */
static const int COPY_REGISTERS = 40, REGISTERS = 232; /* of a thread */
static const int K = PLANE_SIDE;                       /* of a stage */
static const unsigned TILE = FLOAT32_TILE, TILE_BYTES = 2 * PLANE_BYTES; /* of one plane of an operand */
static const unsigned BAND = 16;              /* tiles side by side that the L2 cache shares */
static const unsigned RING_BYTES = 192 << 10; /* in shared memory; after it: */
static const unsigned AREA_FLOATS = 16 * 64;  /* per warp that multiplies, for the epilogue */
static const unsigned BARRIERS_AT = RING_BYTES + GROUPS * GROUP / 32 * AREA_FLOATS * sizeof(float);
static const unsigned MOST_STAGES = 4, NOTES_AT = BARRIERS_AT + 2 * MOST_STAGES * sizeof(uint64_t);
static const unsigned SHARED_BYTES = NOTES_AT + GROUPS * GROUP / 32 * sizeof(unsigned);

/* The factor of a block's sums: scale 2^-e. */
struct block_factor {
    int e;
    float scale;
};

/* Planes and products, the smallest first. Digit x of A and B: the planes that product x multiplies. */
struct half_planes {
    static constexpr wgmma_format FORMAT = WGMMA_F16;
    static constexpr int A_PLANES = 2, B_PLANES = 2, STAGES = 3, PRODUCTS = 3;
    static constexpr unsigned A = 0x001, B = 0x010;

    static __device__ block_factor factor(unsigned code) {
        return code & CODE_PIXELS ? block_factor{0, PIXEL_SCALE} : block_factor{exponent_of(code), 1};
    }
};

/* The low plane of A is 0. */
struct high_planes : half_planes {
    static constexpr int A_PLANES = 1, STAGES = 4, PRODUCTS = 2;
    static constexpr unsigned A = 0x00, B = 0x01;
};

/* Of chunks with a wide block. */
struct wide_planes {
    static constexpr wgmma_format FORMAT = WGMMA_BF16;
    static constexpr int PRODUCTS = 6;
    static constexpr unsigned A = 0x001012, B = 0x010210;

    static __device__ block_factor factor(unsigned code) {
        return {wide_exponent(code), 1};
    }
};

/* The ring buffer where some blocks are wide: a stage has up to three planes of A, the next one of B. */
struct mixed_planes {
    static constexpr int A_PLANES = 3, B_PLANES = 0, STAGES = 4;
};

template <class S> constexpr unsigned STAGE_BYTES = (S::A_PLANES + S::B_PLANES) * TILE_BYTES;

struct tile {
    unsigned row_block, column_block; /* in blocks of 64 */
};

/* Is one of the four blocks that a tile reads at chunk k wide? */
static __device__ bool is_wide(const float32_product &p, const tile &at, unsigned k) {
    const unsigned codes = __ldg(p.a.codes + p.a.index(at.row_block, k)) |
                           __ldg(p.a.codes + p.a.index(at.row_block + 1, k)) |
                           __ldg(p.b.codes + p.b.index(at.column_block, k)) |
                           __ldg(p.b.codes + p.b.index(at.column_block + 1, k));
    return codes & CODE_WIDE;
}

/* The tiles of a thread block, in turn. */
struct schedule {
    unsigned rows, columns; /* of tiles */

    __device__ explicit schedule(const float32_product &p)
        : rows((unsigned)((p.m + TILE - 1) / TILE)), columns((unsigned)((p.n + TILE - 1) / TILE)) {}

    /* False after the last one. */
    __device__ bool at(unsigned turn, tile &own) const {
        const unsigned index = blockIdx.x + turn * gridDim.x;
        if (index >= rows * columns) return false;
        const unsigned band = index / (rows * BAND), inside = index % (rows * BAND);
        const unsigned width = min(BAND, columns - band * BAND);
        own.row_block = inside / width * 2;
        own.column_block = (band * BAND + inside % width) * 2;
        return true;
    }
};

/* The blocks of a tile along k, two across, in bytes from the start of a plane. */
struct strip {
    size_t at[2], step, plane_bytes;

    __device__ strip(const plane_operand &of, unsigned across)
        : step((of.k_is_rows ? of.columns : 1) * (size_t)PLANE_BYTES), plane_bytes(of.count * PLANE_BYTES) {
#pragma unroll
        for (unsigned g = 0; g < 2; g++) at[g] = of.index(across + g, 0) * PLANE_BYTES;
    }

    __device__ void next() {
        at[0] += step;
        at[1] += step;
    }
};

/* The ring buffer: stage u % STAGES for use u has 64 of k, as A [plane][2 blocks] and B [plane][2 blocks]. */
template <class S> struct ring {
    char *stages;
    uint64_t *full, *empty;

    __device__ explicit ring(char *shared) : stages(shared), full((uint64_t *)(shared + BARRIERS_AT)) {
        empty = full + MOST_STAGES;
    }

    __device__ char *stage(unsigned use) const {
        return stages + use % S::STAGES * STAGE_BYTES<S>;
    }

    /* One thread: waits until there is room for the bytes of a use. Returns what counts them. */
    __device__ uint64_t *start(unsigned use, uint32_t bytes) const {
        if (use >= S::STAGES) mbarrier_wait_alone(empty + use % S::STAGES, use / S::STAGES - 1);
        mbarrier_expect_tx(full + use % S::STAGES, bytes);
        return full + use % S::STAGES;
    }

    /* One thread: copies some planes of the two blocks of a strip. */
    __device__ static void copy(char *to, const char *planes, const strip &from, unsigned count,
                                uint64_t *full) {
#pragma unroll
        for (unsigned plane = 0; plane < count; plane++)
#pragma unroll
            for (unsigned g = 0; g < 2; g++)
                bulk_copy(to + plane * TILE_BYTES + g * PLANE_BYTES,
                          planes + from.at[g] + plane * from.plane_bytes, PLANE_BYTES, full);
    }

    /* One thread: copies a stage as soon as there is room. B first is faster: 0.107 -> 0.099 ms at 784 x 2048
       x 8192, pixels (H100). */
    __device__ void fill(const float32_product &p, unsigned use, const strip &of_a, const strip &of_b) const {
        uint64_t *const ready = start(use, STAGE_BYTES<S>);
        copy(stage(use) + S::A_PLANES * TILE_BYTES, p.b.blocks, of_b, S::B_PLANES, ready);
        copy(stage(use), p.a.blocks, of_a, S::A_PLANES, ready);
    }

    /* The same with some planes of one operand. */
    __device__ void fill(unsigned use, const char *planes, const strip &of, unsigned count) const {
        copy(stage(use), planes, of, count, start(use, count * TILE_BYTES));
    }

    /* All lanes of a consumer warp. */
    __device__ const char *wait(unsigned use) const {
        mbarrier_wait(full + use % S::STAGES, use / S::STAGES);
        return stage(use);
    }

    __device__ void release(unsigned use) const {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + use % S::STAGES);
    }
};

} // namespace float32

#endif
