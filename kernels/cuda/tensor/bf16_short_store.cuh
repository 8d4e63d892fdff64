/* The GEMM of 16 bits of few rows (bf16_short_wgmma.cu): what a launch needs, how blocks share a tile, and
   the way from sums in registers to C. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_SHORT_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_SHORT_STORE_CUH

#include "kernels/cuda/tensor/bf16_store.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace bf16_short {

using bf16::GROUP;

static const unsigned COLUMNS = 64, UNITS = COLUMNS / 8, STAGE_K = 64, MOST_STAGES = 9;
static const unsigned B_BYTES = COLUMNS * STAGE_K * 2;
static const unsigned BARRIER_BYTES = (2 * MOST_STAGES + 1) * sizeof(uint64_t);

/* Shared memory of a block with GROUPS warpgroups: a ring buffer of p.stages, which also receives the sums of
   the other parts, then the barriers. */
template <int GROUPS> struct layout {
    static constexpr unsigned ROWS = 64 * GROUPS, THREADS = GROUPS * GROUP;
    static constexpr unsigned A_BYTES = ROWS * STAGE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr unsigned UNIT_BYTES = THREADS * 16; /* sums of 8 columns */
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

/* The share of a block: stages of k to multiply, and units of the columns to store. */
template <int PARTS> struct share {
    unsigned pair, rank, part, column0, first_stage, stages, first_unit, units;

    __device__ explicit share(const product &p) {
        const unsigned all = (p.k + STAGE_K - 1) / STAGE_K;
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

/* A thread has columns 2 (lane % 4) and the one after it of each unit, in two rows. NN: bias and activation;
   NT: the derivative of the activation, and sums of columns. */
template <bool BACKWARD, int GROUPS, int PARTS, typename T> struct epilogue {
    static constexpr unsigned MOST = MOST_UNITS<PARTS>;
    const product &p;
    const share<PARTS> &own;
    unsigned row, column; /* of the first unit; the other row is row + 8 */
    size_t at[2];         /* index of the first unit in C, for both rows */
    bool inside[MOST][2];
    uint32_t read[MOST][2];
    float2 bias[MOST];

    __device__ epilogue(const product &p, const share<PARTS> &own) : p(p), own(own) {
        row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        column = own.column0 + own.first_unit * 8 + threadIdx.x % 4 * 2;
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
            at[h] = (row + 8 * h) * p.ldc + column;
#pragma unroll
            for (unsigned unit = 0; unit < MOST; unit++)
                inside[unit][h] = unit < own.units && column + unit * 8 < p.n && row + 8 * h < p.m;
        }
    }

    /* Requests what the formulas need beside the sums. */
    __device__ void load() {
#pragma unroll
        for (unsigned unit = 0; unit < MOST; unit++) {
            bias[unit] = {};
            if (!BACKWARD && p.bias && inside[unit][0])
                bias[unit] = *(const float2 *)(p.bias + column + unit * 8);
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                read[unit][h] = 0;
                if (BACKWARD && p.read && inside[unit][h])
                    read[unit][h] = *(const uint32_t *)((const T *)p.read + at[h] + unit * 8);
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

    template <enum activation A>
    __device__ uint32_t finish(float x, float y, unsigned unit, unsigned h) const {
        if constexpr (BACKWARD) {
            const float2 z = floats_of<T>(read[unit][h]);
            x *= p.alpha * derivative(A, z.x, z.x);
            y *= p.alpha * derivative(A, z.y, z.y);
            return p.sums ? round_gradients_to<T>(x, y) : round_pair_to<T>(x, y);
        }
        x = fmaf(p.alpha, x, bias[unit].x);
        y = fmaf(p.alpha, y, bias[unit].y);
        const uint32_t rounded = round_pair_to<T>(x, y);
        if (p.pre && inside[unit][h]) *(uint32_t *)((T *)p.pre + at[h] + unit * 8) = rounded;
        return bf16::activated<A, T>(x, y, rounded);
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
                uint32_t word = finish<A>(h ? four.z : four.x, h ? four.w : four.y, unit, h);
                if (!inside[unit][h]) word = 0;
                if (inside[unit][h]) *(uint32_t *)((T *)p.c + at[h] + unit * 8) = word;
                const float2 stored = floats_of<T>(word);
                sum.x += stored.x;
                sum.y += stored.y;
            }
            if constexpr (BACKWARD) {
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
        const unsigned unit = threadIdx.x / 8, place = threadIdx.x % 8,
                       to = own.column0 + (own.first_unit + unit) * 8 + place;
        if (unit >= own.units || to >= p.n) return;
        float total = 0;
#pragma unroll
        for (unsigned warp = 0; warp < 4 * GROUPS; warp++)
            total += ((const float *)&received<GROUPS, PARTS>(shared, own.part, unit,
                                                              warp * 32 + place / 2))[place % 2];
        p.sums[to] = p.sum_scale * total;
    }
};

} // namespace bf16_short

#endif
