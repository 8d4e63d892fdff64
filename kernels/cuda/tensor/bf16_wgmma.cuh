/* The kernel of the GEMMs of 16 bits and of TF32 on the tensor cores: T is __nv_bfloat16, __half or float.
   STORE is what a warp does with its sums: tile_store of bf16_store.cuh or tf32_store.cuh, or tile_update of
   bf16_gradient_large_wgmma.cu.

   Idea       C in tiles of 128 x N, a thread block on each SM that takes one tile after the other. One thread
              copies 64 of k at a time to a ring buffer (tensor maps: any edges, and operands with k along the
              rows or the columns). Two warpgroups multiply 64 x N each, and store C while the copies of the
              next tile run.
   Pairs      two blocks of a cluster, one tile above the other, copy half of B each, to both.
   Parts      for few tiles: blocks of a cluster share the k of a tile. Their sums are added in a fixed order,
              through distributed shared memory.
   Layout     a stage has the 128 rows of A, then the N columns of B: 128 bytes of k each or, where rows or
              columns are contiguous in memory, groups of 64 of them with 128 bytes for each k.
   TF32       half as many elements of k. A comes from registers, and has k along its rows; B has k along its
              columns.
   Start      by programmatic dependent launch: barriers are ready when the kernel before ends.
   Bound by   tensor cores: about 790 TFLOP/s on an H200, of TF32 450; both at the limit of power */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_WGMMA_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_WGMMA_CUH

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/bf16_store.cuh"
#include "kernels/cuda/tensor/cluster.cuh"
#include "kernels/cuda/tensor/tf32_fragments.cuh"
#include "kernels/cuda/tensor/wgmma_bf16.cuh"

namespace bf16 {

static const unsigned GROUPS = 2, THREADS = (GROUPS + 1) * GROUP, WARPS = GROUPS * GROUP / 32;
static const int COPY_REGISTERS = 40, REGISTERS = 232; /* of a thread */
static const unsigned BARRIERS_AT = 226 << 10; /* after the stages of the ring buffer, and the slots */
static const unsigned MOST_STAGES = 8;
static const unsigned SHARED_BYTES = BARRIERS_AT + (2 * MOST_STAGES + WARPS + 1) * sizeof(uint64_t);

static const unsigned A_BYTES = BF16_ROWS * 128, GROUP_BYTES = 64 * 128; /* of 64 rows or columns */
template <int N> constexpr unsigned STAGE_BYTES = A_BYTES + N * 128;
template <typename T> constexpr unsigned STAGE_K = 128 / sizeof(T);

/* The place of a use of the ring buffer. */
struct ring_place {
    unsigned stage = 0, round = 0;

    __device__ void next(unsigned stages) {
        if (++stage == stages) stage = 0, round++;
    }
};

/* A block in its cluster: pairs share B, and the pairs of a cluster share the k of a tile. */
struct cluster_place {
    unsigned rank, row, part; /* row: of the pair */

    __device__ explicit cluster_place(const bf16_product &p)
        : rank(uniform(cluster_rank())), row(rank % p.pair), part(rank / p.pair) {}

    /* The first stage of k of this block. After part p.parts - 1: the number of stages. */
    template <typename T> static __device__ unsigned first_stage(const bf16_product &p, unsigned part) {
        return (p.k + STAGE_K<T> - 1) / STAGE_K<T> * part / p.parts;
    }
};

/* The tiles of a block, in turn: bands of 2048 columns, which the L2 cache holds. */
template <int N> struct schedule {
    static constexpr unsigned BAND = 2048 / N;
    unsigned rows, columns, pair, row_of_pair, cluster; /* rows: of pairs of tiles */

    __device__ schedule(const bf16_product &p, const cluster_place &own)
        : rows((p.m + BF16_ROWS * p.pair - 1) / (BF16_ROWS * p.pair)), columns((p.n + N - 1) / N),
          pair(p.pair), row_of_pair(own.row), cluster(p.pair * p.parts) {}

    /* The upper left element of tile `turn`; false after the last one. */
    __device__ bool at(unsigned turn, unsigned &row, unsigned &column) const {
        const unsigned index = blockIdx.x / cluster + turn * (gridDim.x / cluster);
        if (index >= rows * columns) return false;
        const unsigned band = index / (rows * BAND), inside = index % (rows * BAND);
        const unsigned width = min(BAND, columns - band * BAND);
        row = (inside / width * pair + row_of_pair) * BF16_ROWS;
        column = (band * BAND + inside % width) * N;
        return true;
    }
};

struct ring_barriers {
    uint64_t *full,
        *empty; /* [MOST_STAGES]: a stage was copied; all warps that read it, of both blocks, have */
};

/* COUNT columns of B, to the blocks of a pair, or to this one. */
template <bool B_T, int COUNT>
static __device__ void copy_b(const bf16_product &p, char *to, uint64_t *full, unsigned column, unsigned k,
                              unsigned blocks) {
    constexpr unsigned STEP = B_T ? 64 : COUNT;
#pragma unroll
    for (unsigned at = 0; at < COUNT; at += STEP) {
        const unsigned x = B_T ? column + at : k, y = B_T ? k : column;
        if (blocks)
            tensor_multicast(to + at * 128, p.b, x, y, full, blocks);
        else
            tensor_load(to + at * 128, p.b, x, y, full);
    }
}

template <typename T, bool A_T, bool B_T, int N>
static __device__ void copy_stage(const bf16_product &p, char *stage, uint64_t *full, unsigned row,
                                  unsigned column, unsigned k, const cluster_place &own) {
    mbarrier_expect_tx(full, STAGE_BYTES<N>);
    if constexpr (A_T) {
#pragma unroll
        for (unsigned at = 0; at < BF16_ROWS; at += STAGE_K<T>)
            tensor_load(stage + at * 128, p.a, row + at, k, full);
    } else {
        tensor_load(stage, p.a, k, row, full);
    }
    const unsigned first = own.row * (N / 2);
    if (p.pair == 1)
        copy_b<B_T, N>(p, stage + A_BYTES, full, column, k, 0);
    else
        copy_b<B_T, N / 2>(p, stage + A_BYTES + first * 128, full, column + first, k, 3u << own.part * 2);
}

/* One thread. */
template <typename T, bool A_T, bool B_T, int N>
static __device__ void produce(const bf16_product &p, char *shared, const ring_barriers &ring,
                               const cluster_place &own) {
    const schedule<N> all(p, own);
    const unsigned first = own.first_stage<T>(p, own.part), end = own.first_stage<T>(p, own.part + 1);
    unsigned row, column;
    ring_place use;
    for (unsigned turn = 0; all.at(turn, row, column); turn++)
        for (unsigned k = first; k < end; k++, use.next(p.stages)) {
            if (use.round) mbarrier_wait_alone(ring.empty + use.stage, use.round - 1);
            copy_stage<T, A_T, B_T, N>(p, shared + use.stage * STAGE_BYTES<N>, ring.full + use.stage, row,
                                       column, k * STAGE_K<T>, own);
        }
    start_next_kernel();
}

/* Says to both blocks of a pair that this warp has read a stage. */
static __device__ void release(uint64_t *empty, unsigned pair, const cluster_place &own) {
    const unsigned lane = threadIdx.x % 32;
    if (lane >= pair) return;
    if (pair == 1)
        mbarrier_arrive(empty);
    else
        cluster_arrive_at(empty, own.rank - own.row + lane);
}

template <bool T> static __device__ uint64_t descriptor(const char *at) {
    return T ? wgmma_swizzle128_transposed(at, GROUP_BYTES) : wgmma_swizzle128(at);
}

/* A consumer warpgroup, of 16 bits: sums = its 64 rows of the tile, over `stages` of k. Beside the first
   products it calls `request`, beside the last ones `prepare`. With a second branch such as that of
   `request`, and its wait, in the loop ptxas keeps descriptors in vector registers, which is slower
   (docs/bf16.md). */
template <typename T, bool A_T, bool B_T, int N, typename F, typename G>
static __device__ void multiply(float (&sums)[N / 2], const bf16_product &p, char *shared,
                                const ring_barriers &ring, const cluster_place &own, ring_place &use,
                                unsigned stages, unsigned group, F request, G prepare) {
    const unsigned tail = own.part + 1 < p.parts ? 0 : p.k % BF16_K; /* of k, in a stage that is not full */
    const unsigned full = stages - (tail > 0);
    unsigned before = 0;
    const auto multiply_step = [&](unsigned step) {
        const char *const a = shared + use.stage * STAGE_BYTES<N> + group * GROUP_BYTES,
                          *const b = shared + use.stage * STAGE_BYTES<N> + A_BYTES;
        wgmma_16bit<T, N, A_T, B_T>(sums, descriptor<A_T>(a + step * (A_T ? 2048 : 32)),
                                    descriptor<B_T>(b + step * (B_T ? 2048 : 32)), true);
    };
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] = 0;
    for (unsigned k = 0; k < full; k++, use.next(p.stages)) {
        mbarrier_wait(ring.full + use.stage, use.round);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) multiply_step(step);
        wgmma_commit();
        if (!k) {
            request();
        } else {
            wgmma_wait<1>();
            release(ring.empty + before, p.pair, own);
        }
        before = use.stage;
    }
    if (tail) {
        mbarrier_wait(ring.full + use.stage, use.round);
#pragma unroll 1
        for (unsigned step = 0; step * 16 < tail; step++) {
            wgmma_fence();
            multiply_step(step);
            wgmma_commit();
        }
        if (!full) request();
    }
    prepare();
    wgmma_wait<0>();
    wgmma_done(sums);
    if (full) release(ring.empty + before, p.pair, own);
    if (tail) {
        release(ring.empty + use.stage, p.pair, own);
        use.next(p.stages);
    }
}

/* The same of TF32. A warpgroup loads A into registers, half a stage while the tensor cores have the other
   half of it or of the stage before. Each half has its own registers, which wgmma reads until the wait. */
template <int N, typename F, typename G>
static __device__ void multiply_tf32(float (&sums)[N / 2], const bf16_product &p, char *shared,
                                     const ring_barriers &ring, const cluster_place &own, ring_place &use,
                                     unsigned stages, unsigned group, F request, G prepare) {
    float first[2][4], second[2][4];
    unsigned before = 0;
    const auto multiply_half = [&](const float(&half)[2][4], const char *b) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 2; step++)
            wgmma_tf32(sums, half[step], wgmma_swizzle128(b + step * 32), true);
        wgmma_commit();
    };
    const auto stage = [&] { return shared + use.stage * STAGE_BYTES<N>; };
    const auto load_half = [&](float(&half)[2][4], unsigned first_step) {
        load_transposed(half, stage() + group * GROUP_BYTES, first_step);
    };
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] = 0;
    mbarrier_wait(ring.full + use.stage, use.round);
    load_half(first, 0);
#pragma unroll 1
    for (unsigned k = 0; k < stages; k++) {
        multiply_half(first, stage() + A_BYTES);
        wgmma_wait<1>();
        if (k)
            release(ring.empty + before, p.pair, own);
        else
            request();
        load_half(second, 2);
        multiply_half(second, stage() + A_BYTES + 64);
        wgmma_wait<1>();
        before = use.stage;
        use.next(p.stages);
        if (k + 1 == stages) break;
        mbarrier_wait(ring.full + use.stage, use.round);
        load_half(first, 0);
    }
    prepare();
    wgmma_wait<0>();
    wgmma_done(sums);
    release(ring.empty + before, p.pair, own);
}

/* Adds the sums of the parts of k, in the order of the parts: those of group g in part g, whose ring buffer
   receives them. All threads of the cluster wait at the barrier. */
template <int N>
static __device__ void add_parts(float (&sums)[N / 2], const bf16_product &p, char *shared,
                                 const cluster_place &own, unsigned group, uint64_t *received) {
    const unsigned thread = threadIdx.x % GROUP;
    uint4 *const first = (uint4 *)shared + thread;
    cluster_barrier_of_reads(); /* all have read their stages */
    if (own.part != group) {
        uint4 *const to = first + (own.part - (own.part > group)) * (N / 8) * GROUP;
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            const float4 four = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
            cluster_send(to + i * GROUP, group * p.pair + own.row, *(const uint4 *)&four, received);
        }
        return;
    }
    if (thread == 0) mbarrier_expect_tx(received, (p.parts - 1) * 64 * N * sizeof(float));
    __syncwarp();
    mbarrier_wait(received, 0);
    for (unsigned other = 0; other + 1 < p.parts; other++)
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            const float4 more = *(const float4 *)&first[(other * (N / 8) + i) * GROUP];
            sums[4 * i] += more.x;
            sums[4 * i + 1] += more.y;
            sums[4 * i + 2] += more.z;
            sums[4 * i + 3] += more.w;
        }
}

template <typename STORE, typename T, bool A_T, bool B_T, int N>
static __device__ void consume(const typename STORE::product &p, char *shared, const ring_barriers &ring,
                               const cluster_place &own, uint64_t *arrived) {
    const schedule<N> all(p, own);
    const unsigned stages = own.first_stage<T>(p, own.part + 1) - own.first_stage<T>(p, own.part);
    STORE to(p, shared + p.stages * STAGE_BYTES<N>, arrived);
    if constexpr (STORE::PARTS) to.stores = p.parts == 1 || to.group == own.part;
    ring_place use;
    unsigned row, column;
    for (unsigned turn = 0; all.at(turn, row, column); turn++) {
        float sums[N / 2];
        to.begin(row, column);
        const auto request = [&] { to.request(); };
        const auto prepare = [&] { to.prepare(); };
        if constexpr (sizeof(T) == 4)
            multiply_tf32<N>(sums, p, shared, ring, own, use, stages, to.group, request, prepare);
        else
            multiply<T, A_T, B_T, N>(sums, p, shared, ring, own, use, stages, to.group, request, prepare);
        if (STORE::PARTS && p.parts > 1) add_parts<N>(sums, p, shared, own, to.group, arrived + WARPS);
        to.store(sums);
    }
    tensor_stores_wait(0);
}

template <typename STORE, typename T, bool A_T, bool B_T, int N>
__global__ void __launch_bounds__(THREADS, 1) bf16_kernel(const __grid_constant__ typename STORE::product p) {
    static_assert(sizeof(T) == 2 || (A_T && !B_T));
#ifdef HAVE_WGMMA
    extern __shared__ __align__(1024) char shared[]; /* ring buffer, slots, barriers */
    uint64_t *const barriers = (uint64_t *)(shared + BARRIERS_AT), *const arrived =
                                                                       barriers + 2 * MOST_STAGES;
    const ring_barriers ring = {barriers, barriers + MOST_STAGES};
    const cluster_place own(p);
    if (threadIdx.x == GROUPS * GROUP) {
        tensor_map_prefetch(p.a);
        tensor_map_prefetch(p.b);
    }
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < p.stages; i++) {
            mbarrier_init(ring.full + i);
            mbarrier_init(ring.empty + i, WARPS * p.pair);
        }
        for (unsigned i = 0; i <= WARPS; i++) mbarrier_init(arrived + i);
    }
    cluster_barrier_of_reads(); /* mbarrier_init has a fence */
    wait_for_kernels_before();
    if (uniform(threadIdx.x / GROUP) == GROUPS) {
        warpgroup_fewer_registers<COPY_REGISTERS>();
        if (threadIdx.x == GROUPS * GROUP) produce<T, A_T, B_T, N>(p, shared, ring, own);
        __syncwarp();
        if (STORE::PARTS && p.parts > 1) cluster_barrier_of_reads(); /* that of add_parts */
    } else {
        warpgroup_more_registers<REGISTERS>();
        consume<STORE, T, A_T, B_T, N>(p, shared, ring, own, arrived);
    }
    cluster_barrier_of_reads(); /* the other blocks may still copy to this one */
#endif
}

} // namespace bf16

#endif
