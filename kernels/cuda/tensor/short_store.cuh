/* The GEMM of up to 128 rows (short_kernel.cuh): what a launch needs, how blocks share a tile, and the way
   from sums in registers to C. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_SHORT_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_SHORT_STORE_CUH

#include "kernels/cuda/tensor/bf16_store.cuh"
#include "kernels/cuda/tensor/cluster.cuh"
#include "kernels/cuda/tensor/tf32_fragments.cuh"

namespace short_rows {

using bf16::GROUP;

static const unsigned COLUMNS = 64, UNITS = COLUMNS / 8, MOST_STAGES = 9;
static const unsigned LINE = 128; /* bytes of k in a stage */
static const unsigned B_BYTES = COLUMNS * LINE;
static const unsigned BARRIER_BYTES = (2 * MOST_STAGES + 1) * sizeof(uint64_t);

/* Shared memory of a block with GROUPS warpgroups: a ring buffer of p.stages, which also receives the sums of
   the other parts, then the barriers. */
template <int GROUPS> struct layout {
    static constexpr unsigned ROWS = 64 * GROUPS, THREADS = GROUPS * GROUP;
    static constexpr unsigned A_BYTES = ROWS * LINE, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr unsigned UNIT_BYTES = THREADS * 16; /* sums of 8 columns */
};

template <typename T> constexpr unsigned STAGE_K = LINE / sizeof(T);

/* Two neighbours of C, in one word. */
template <typename T> struct pair_format {
    typedef uint32_t word;
    static __device__ word round(float x, float y) {
        return round_pair_to<T>(x, y);
    }
    static __device__ word round_gradients(float x, float y) {
        return round_gradients_to<T>(x, y);
    }
    static __device__ float2 floats(word two) {
        return floats_of<T>(two);
    }
    template <enum activation A> static __device__ word activated(float x, float y, word rounded) {
        return bf16::activated<A, T>(x, y, rounded);
    }
};

template <> struct pair_format<float> {
    typedef float2 word;
    static __device__ word round(float x, float y) {
        return {x, y};
    }
    static __device__ word round_gradients(float x, float y) {
        return {x, y};
    }
    static __device__ float2 floats(word two) {
        return two;
    }
    template <enum activation A> static __device__ word activated(float x, float y, word) {
        return {activate(A, x), activate(A, y)};
    }
};

/* All that a launch needs. */
struct product {
    CUtensorMap a, b;
    void *c, *pre;     /* pre: NULL, or receives the values before the activation */
    const float *bias; /* of NN, or NULL */
    const void *read;  /* of NT: what the derivative reads, or NULL */
    float *sums;       /* of NT: those of the columns of C as stored, or NULL */
    size_t ldc;
    unsigned m, n, k, pair; /* pair: 2 tiles share the copies of A in a cluster, or 1 */
    unsigned stages;        /* of the ring buffer */
    enum activation activation;
    float alpha, sum_scale;
    bool b_early; /* B may be read before the kernels before this one end */
};

/* Units of columns are divided among the blocks that share the k of a tile. */
template <int PARTS> constexpr unsigned MOST_UNITS = (UNITS + PARTS - 1) / PARTS;

/* The part whose block stores a unit, and the first unit that it stores. */
template <int PARTS> __host__ __device__ constexpr unsigned owner_of(unsigned unit) {
    return unit * PARTS / UNITS;
}

template <int PARTS> __host__ __device__ constexpr unsigned first_unit_of(unsigned part) {
    return (UNITS * part + PARTS - 1) / PARTS;
}

/* The share of a block: stages of k to multiply, and units to store. */
template <int PARTS> struct share {
    unsigned pair, rank, part, column0, first_stage, stages, first_unit, units;

    __device__ share(const product &p, unsigned stage_k) {
        const unsigned all = (p.k + stage_k - 1) / stage_k;
        pair = p.pair;
        rank = uniform(cluster_rank());
        part = rank / pair;
        column0 = (blockIdx.x / (PARTS * pair) * pair + rank % pair) * COLUMNS;
        first_stage = all * part / PARTS;
        stages = all * (part + 1) / PARTS - first_stage;
        first_unit = first_unit_of<PARTS>(part);
        units = first_unit_of<PARTS>(part + 1) - first_unit;
    }

    /* The rank of a part's block of the same tile. */
    __device__ unsigned rank_of(unsigned other) const {
        return other * pair + rank % pair;
    }
};

struct barriers {
    uint64_t *full, *empty, *received; /* [MOST_STAGES], [MOST_STAGES], one */

    __device__ explicit barriers(char *at)
        : full((uint64_t *)at), empty(full + MOST_STAGES), received(empty + MOST_STAGES) {}
};

/* Where the block that stores `unit` of its units receives four sums of `thread` of a part. */
template <int GROUPS, int PARTS>
static __device__ float4 &received(char *shared, unsigned part, unsigned unit, unsigned thread) {
    return ((float4 *)shared)[(part * MOST_UNITS<PARTS> + unit) * layout<GROUPS>::THREADS + thread];
}

/* Sends the sums of each unit to the block that stores it. */
template <int GROUPS, int PARTS>
static __device__ void send(const float (&sums)[COLUMNS / 2], char *shared, const barriers &bars,
                            const share<PARTS> &own) {
    float4 *const base = &received<GROUPS, PARTS>(shared, own.part, 0, threadIdx.x);
#pragma unroll
    for (unsigned unit = 0; unit < UNITS; unit++) {
        const unsigned owner = owner_of<PARTS>(unit), index = unit - first_unit_of<PARTS>(owner);
        const float4 four = {sums[4 * unit], sums[4 * unit + 1], sums[4 * unit + 2], sums[4 * unit + 3]};
        if (owner == own.part) /* the same thread will read it */
            base[index * layout<GROUPS>::THREADS] = four;
        else
            cluster_send((const uint4 *)(base + index * layout<GROUPS>::THREADS), own.rank_of(owner),
                         *(const uint4 *)&four, bars.received);
    }
}

/* wgmma of TF32 takes no transposed operand from shared memory, and in C = A B (NN) B is one. In
   C^T = B^T A^T it is the first operand, which may come from registers. */
template <typename T, bool NN> constexpr bool SWAPS = NN && sizeof(T) == 4;

/* What a thread stores of each unit: two pairs of neighbours in a row of C, h = 0 and 1. A unit is 8 columns
   of C, and a pair has columns 2 (lane % 4) and the next one, in row lane / 4 + 8 h of its warp's 16.
   SWAPPED: a unit is 8 rows of C, and a pair has transposed_row and the next one, in row 2 (lane % 4) + h. */
template <bool SWAPPED, int PARTS> struct place {
    unsigned row, column;

    __device__ explicit place(const share<PARTS> &own) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = SWAPPED ? warp / 4 * 64 + own.first_unit * 8 + lane % 4 * 2 : warp * 16 + lane / 4;
        column = own.column0 + (SWAPPED ? transposed_row(warp % 4, lane) : own.first_unit * 8 + lane % 4 * 2);
    }

    __device__ unsigned row_of(unsigned unit, unsigned h) const {
        return SWAPPED ? row + 8 * unit + h : row + 8 * h;
    }

    __device__ unsigned column_of(unsigned unit) const {
        return SWAPPED ? column : column + 8 * unit;
    }

    static __device__ float2 pair(const float4 &sums, unsigned h) {
        if (SWAPPED) return h ? float2{sums.y, sums.w} : float2{sums.x, sums.z};
        return h ? float2{sums.z, sums.w} : float2{sums.x, sums.y};
    }
};

/* NN: bias and activation; NT: the derivative of the activation, and sums of columns. */
template <bool NN, int GROUPS, int PARTS, typename T> struct epilogue {
    static constexpr unsigned MOST = MOST_UNITS<PARTS>;
    static constexpr bool SWAPPED = SWAPS<T, NN>;
    typedef pair_format<T> format;
    typedef typename format::word word;
    const product &p;
    const share<PARTS> &own;
    const place<SWAPPED, PARTS> position;
    bool inside[MOST][2];
    word read[MOST][2];
    float2 bias[MOST];

    __device__ epilogue(const product &p, const share<PARTS> &own) : p(p), own(own), position(own) {
#pragma unroll
        for (unsigned h = 0; h < 2; h++)
#pragma unroll
            for (unsigned unit = 0; unit < MOST; unit++)
                inside[unit][h] =
                    unit < own.units && position.column_of(unit) < p.n && position.row_of(unit, h) < p.m;
    }

    /* A pair of C, or of a matrix like it. */
    __device__ word &pair_of(void *matrix, unsigned unit, unsigned h) const {
        return *(word *)((T *)matrix + position.row_of(unit, h) * p.ldc + position.column_of(unit));
    }

    /* Requests what the formulas need beside the sums. */
    __device__ void load() {
#pragma unroll
        for (unsigned unit = 0; unit < MOST; unit++) {
            bias[unit] = {};
            if (NN && p.bias && inside[unit][0])
                bias[unit] = *(const float2 *)(p.bias + position.column_of(unit));
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                read[unit][h] = {};
                if (!NN && p.read && inside[unit][h]) read[unit][h] = pair_of((void *)p.read, unit, h);
            }
        }
    }

    /* The sums of a unit, in the order of the parts. */
    __device__ float4 total(char *shared, unsigned unit) const {
        float4 total = received<GROUPS, PARTS>(shared, 0, unit, threadIdx.x);
#pragma unroll
        for (unsigned part = 1; part < PARTS; part++) {
            const float4 more = received<GROUPS, PARTS>(shared, part, unit, threadIdx.x);
            total.x += more.x;
            total.y += more.y;
            total.z += more.z;
            total.w += more.w;
        }
        return total;
    }

    template <enum activation A> __device__ word finish(float2 sums, unsigned unit, unsigned h) const {
        float x = sums.x, y = sums.y;
        if constexpr (!NN) {
            const float2 z = format::floats(read[unit][h]);
            x *= p.alpha * derivative(A, z.x, z.x);
            y *= p.alpha * derivative(A, z.y, z.y);
            return p.sums ? format::round_gradients(x, y) : format::round(x, y);
        }
        x = fmaf(p.alpha, x, bias[unit].x);
        y = fmaf(p.alpha, y, bias[unit].y);
        const word rounded = format::round(x, y);
        if (p.pre && inside[unit][h]) pair_of(p.pre, unit, h) = rounded;
        return format::template activated<A>(x, y, rounded);
    }

    /* Stores C; and the sums of columns over the rows of this warp, in place of what four of its lanes
       received from this block itself. */
    template <enum activation A> __device__ void store(char *shared) const {
#pragma unroll
        for (unsigned unit = 0; unit < MOST; unit++) {
            const float4 four = total(shared, unit);
            float2 sum = {};
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                word stored = finish<A>(position.pair(four, h), unit, h);
                if (!inside[unit][h]) stored = {};
                if (inside[unit][h]) pair_of(p.c, unit, h) = stored;
                const float2 floats = format::floats(stored);
                sum.x += floats.x;
                sum.y += floats.y;
            }
            if constexpr (!NN) {
#pragma unroll
                for (unsigned lanes = 4; lanes < 32; lanes *= 2) {
                    sum.x += __shfl_xor_sync(~0u, sum.x, lanes);
                    sum.y += __shfl_xor_sync(~0u, sum.y, lanes);
                }
                if (threadIdx.x % 32 < 4)
                    *(float2 *)&received<GROUPS, PARTS>(shared, own.part, unit, threadIdx.x) = sum;
            }
        }
    }

    /* Of all warps, in order. */
    __device__ void store_sums(char *shared) const {
        const unsigned unit = threadIdx.x / 8, column = threadIdx.x % 8,
                       to = own.column0 + (own.first_unit + unit) * 8 + column;
        if (unit >= own.units || to >= p.n) return;
        float total = 0;
#pragma unroll
        for (unsigned warp = 0; warp < 4 * GROUPS; warp++)
            total += ((const float *)&received<GROUPS, PARTS>(shared, own.part, unit,
                                                              warp * 32 + column / 2))[column % 2];
        p.sums[to] = p.sum_scale * total;
    }
};

/* The kernel for GEMM_NN or GEMM_NT, 1 or 2 warpgroups, and so many parts of k: short_16bit_wgmma.cu and
   short_tf32_wgmma.cu. */
typedef void kernel(product);
kernel *kernel_of_16bit(enum gemm_dtype dtype, enum gemm_op op, unsigned groups, unsigned parts);
kernel *kernel_of_tf32(enum gemm_op op, unsigned groups, unsigned parts);

} // namespace short_rows

#endif
