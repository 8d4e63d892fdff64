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
static const unsigned AREA_BYTES = 4096;      /* of a warp that multiplies, for 16 rows of 64 columns of C */
static const unsigned NOTES_AT = RING_BYTES + GROUPS * GROUP / 32 * AREA_BYTES,
                      NOTES_BYTES = 1152; /* of a warpgroup */
static const unsigned BARRIERS_AT = NOTES_AT + GROUPS * NOTES_BYTES, MOST_STAGES = 4;
static const unsigned SHARED_BYTES = BARRIERS_AT + 2 * MOST_STAGES * sizeof(uint64_t);

/* The factor of a block's sums: scale 2^-e. */
struct block_factor {
    int e;
    float scale;
};

/* Planes and products, the smallest first. Product x multiplies the planes in hexadecimal digit x, from the
   right, of A and B. */
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

template <class S> constexpr unsigned STAGE_BYTES = (S::A_PLANES + S::B_PLANES) * TILE_BYTES;

struct tile {
    unsigned row_block, column_block; /* in blocks of 64 */
};

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

/* The blocks of a tile along k, two across: their numbers in a plane. */
struct strip {
    unsigned at[2], step, count; /* count: of a plane */

    __device__ strip(const plane_operand &of, unsigned across)
        : step(of.k_is_rows ? of.columns : 1), count((unsigned)of.count) {
#pragma unroll
        for (unsigned g = 0; g < 2; g++) at[g] = (unsigned)of.index(across + g, 0);
    }

    __device__ void next() {
        at[0] += step;
        at[1] += step;
    }
};

/* 0 in the first lane of a warp, which the compiler does not know: what depends on it is not uniform. Uniform
   registers would wait for a load at once. */
static __device__ unsigned zero_of_first_lane() {
    unsigned zero;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(zero));
    return zero;
}

/* The codes of the four blocks that a tile reads at a chunk of k: loaded first, and looked at later. */
struct tile_codes {
    unsigned of[4];

    /* Of the chunk that is `steps` after the one of these strips. */
    __device__ void load(const float32_product &p, const strip &of_a, const strip &of_b, unsigned steps) {
        const unsigned zero = zero_of_first_lane();
#pragma unroll
        for (unsigned g = 0; g < 2; g++) {
            of[g] = __ldg(p.a.codes + (of_a.at[g] + steps * of_a.step + zero));
            of[2 + g] = __ldg(p.b.codes + (of_b.at[g] + steps * of_b.step + zero));
        }
    }
    /* The first lane of a warp alone. */
    __device__ bool wide() const {
        return __shfl_sync(1, (of[0] | of[1] | of[2] | of[3]) & CODE_WIDE, 0);
    }
};

/* One thread: copies some planes of the two blocks of a strip. `full` counts the bytes. */
static __device__ void copy_planes(char *to, const char *planes, const strip &from, unsigned count,
                                   uint64_t *full) {
#pragma unroll
    for (unsigned plane = 0; plane < count; plane++)
#pragma unroll
        for (unsigned g = 0; g < 2; g++)
            bulk_copy(to + plane * TILE_BYTES + g * PLANE_BYTES,
                      planes + (size_t)(from.at[g] + plane * from.count) * PLANE_BYTES, PLANE_BYTES, full);
}

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

    /* One thread: copies a stage as soon as there is room. B first is faster: 0.107 -> 0.099 ms at 784 x 2048
       x 8192, pixels (H100). */
    __device__ void fill(const float32_product &p, unsigned use, const strip &of_a, const strip &of_b) const {
        uint64_t *const ready = start(use, STAGE_BYTES<S>);
        copy_planes(stage(use) + S::A_PLANES * TILE_BYTES, p.b.blocks, of_b, S::B_PLANES, ready);
        copy_planes(stage(use), p.a.blocks, of_a, S::A_PLANES, ready);
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

/* The ring buffer where some blocks are wide has a slot for each plane of an operand. A chunk has the
   planes of A, then those of B, each in slots in a row. Producer and consumers count alike where they are. */
struct plane_slots {
    static constexpr unsigned SLOTS = RING_BYTES / TILE_BYTES, CHUNKS = MOST_STAGES; /* at most, at a time */

    char *const memory;
    uint64_t *const full, *const empty; /* [CHUNKS] */
    unsigned chunk, next;               /* of all tiles; the next slot */

    __device__ explicit plane_slots(char *shared)
        : memory(shared), full((uint64_t *)(shared + BARRIERS_AT)), empty(full + MOST_STAGES), chunk(0),
          next(0) {}

    /* The first of `count` slots in a row. `used` += them, and those left out before the end. */
    __device__ char *take(unsigned count, unsigned &used) {
        const unsigned first = next + count > SLOTS ? 0 : next;
        used += first == next ? count : count + SLOTS - next;
        next = first + count;
        return memory + first * TILE_BYTES;
    }
};

static __device__ unsigned planes_of_a(bool wide, bool low) {
    return wide ? 3 : low ? 2 : 1;
}
static __device__ unsigned planes_of_b(bool wide) {
    return wide ? 3 : 2;
}

/* One thread: copies chunks as soon as there is room. */
struct slots_producer {
    plane_slots slots;
    unsigned free, oldest; /* slots; the oldest chunk that has some */
    uint32_t used;         /* slots of chunk c in byte c % 4 */

    __device__ explicit slots_producer(char *shared)
        : slots(shared), free(plane_slots::SLOTS), oldest(0), used(0) {}

    __device__ void fill(const float32_product &p, const strip &of_a, const strip &of_b, bool wide,
                         bool low) {
        const unsigned a_planes = planes_of_a(wide, low), b_planes = planes_of_b(wide);
        const unsigned at = slots.chunk++ % plane_slots::CHUNKS;
        unsigned count = 0;
        char *const a = slots.take(a_planes, count), *const b = slots.take(b_planes, count);
        while (free < count) {
            const unsigned old = oldest % plane_slots::CHUNKS;
            mbarrier_wait_alone(slots.empty + old, oldest++ / plane_slots::CHUNKS);
            free += used >> 8 * old & 255;
        }
        free -= count;
        used = (used & ~(255u << 8 * at)) | count << 8 * at;
        mbarrier_expect_tx(slots.full + at, (a_planes + b_planes) * TILE_BYTES);
        copy_planes(b, wide ? p.b.wide : p.b.blocks, of_b, b_planes, slots.full + at);
        copy_planes(a, wide ? p.a.wide : p.a.blocks, of_a, a_planes, slots.full + at);
    }
};

} // namespace float32

#endif
