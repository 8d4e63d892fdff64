/* float32 GEMM by six bf16 products on the tensor cores, float32 in and out.

   Idea       a float32 is the sum of three bfloat16 (bf16x6_split.cuh). Six of the nine products, the small
              ones first, leave out what is below the rounding of float32. Tensor cores truncate their sums:
              every 64 of k they are added to float32 registers. No operand needs another range, a scale or a
              pass of its own.
   Pipeline   one thread copies 64 of k of A and B to a ring buffer (tensor maps); a warpgroup splits B into
              planes in shared memory; two warpgroups split A on the way to registers, and multiply 64 x 64
              each: while the tensor cores have one stage, they split the next.
   Parts      for few tiles: blocks of a cluster share the k of a tile (bf16x6_store.cuh).
   Bound by   long k: tensor cores, six times the flops at their bf16 rate, and as much by shared memory;
              short k: the start, and the exchange of sums (docs/tensor-cores.md) */
#include "kernels/cuda/tensor/bf16x6_ring.cuh"
#include "kernels/cuda/tensor/bf16x6_store.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"

namespace bf16x6 {

/* A_T: A is transposed (TN). B_BY_K: memory has a row of B for each k (NN, TN); otherwise one for each column
   of op(B) (NT). */

template <bool A_T, bool B_BY_K>
static __device__ void copy_stage(const bf16x6_product &p, char *stage, uint64_t *full, unsigned row,
                                  unsigned column, unsigned k, bool reads_a) {
    char *const b = stage + A_BYTES;
    mbarrier_expect_tx(full, reads_a ? STAGE_BYTES : STAGE_BYTES - A_BYTES);
    if (A_T && reads_a)
#pragma unroll
        for (unsigned i = 0; i < BF16X6_ROWS / 32; i++)
            tensor_load(stage + i * (K * LINE), p.a, row + 32 * i, k, full);
    if (!A_T && reads_a)
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
            tensor_load(stage + i * (BF16X6_ROWS * LINE), p.a, k + 32 * i, row, full);
#pragma unroll
    for (unsigned i = 0; i < 2; i++)
        tensor_load(b + i * (K * LINE), p.b, (B_BY_K ? column : k) + 32 * i, B_BY_K ? k : column, full);
}

/* One thread. */
template <bool A_T, bool B_BY_K>
static __device__ void produce(const bf16x6_product &p, char *shared, const barriers &ring,
                               const cluster_place &own) {
    const schedule<A_T> all(p, own);
    ring_place<STAGES> use;
    all.each(own, [&](unsigned row, unsigned column, bool reads_a) {
        for (unsigned k = all.first; k < all.end; k++, use.next()) {
            if (use.round) mbarrier_wait_alone(ring.empty + use.stage, use.round - 1);
            copy_stage<A_T, B_BY_K>(p, shared + use.stage * STAGE_BYTES, ring.full + use.stage,
                                    row * BF16X6_ROWS, column * BF16X6_COLUMNS, k * K, reads_a);
        }
    });
}

/* A warpgroup: the planes of B. */
template <bool A_T, bool B_BY_K>
static __device__ void split_all(const bf16x6_product &p, char *shared, const barriers &ring,
                                 const cluster_place &own) {
    const schedule<A_T> all(p, own);
    const unsigned warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
    ring_place<STAGES> use;
    ring_place<PLANE_STAGES> to;
    all.each(own, [&](unsigned, unsigned, bool) {
        for (unsigned k = all.first; k < all.end; k++, use.next(), to.next()) {
            const char *const tile = shared + use.stage * STAGE_BYTES + A_BYTES;
            char *const planes = shared + PLANES_AT + to.stage * PLANES_BYTES;
            mbarrier_wait(ring.full + use.stage, use.round);
            if (to.round) mbarrier_wait(ring.multiplied + to.stage, to.round - 1);
            if constexpr (B_BY_K)
                split_b_by_k<A_T>(planes, tile, warp, lane);
            else
                split_b_by_columns(planes, tile, warp, lane);
            wgmma_written();
            warp_arrives(ring.split + to.stage);
            warp_arrives(ring.empty + use.stage);
        }
    });
}

/* D += A B, or D = A B unless `adds`: 64 rows, 64 columns, k = 16; A in registers. */
template <bool B_BY_K>
static __device__ void multiply_16(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool adds) {
#ifdef HAVE_WGMMA
#    define D8(i)                                                                                   \
        "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
            "+f"(d[i + 6]), "+f"(d[i + 7])
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, adds, 1, 1, %38; }"
                 : D8(0), D8(8), D8(16), D8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((unsigned)adds), "n"(B_BY_K));
#    undef D8
#endif
}

template <bool A_T, bool B_BY_K> struct consumer {
    const barriers &ring;
    char *shared;
    const unsigned lane, row; /* row: of the tile, the first of this thread */
    ring_place<STAGES> from;
    ring_place<PLANE_STAGES> of_b;

    __device__ consumer(const barriers &all, char *memory)
        : ring(all), shared(memory), lane(threadIdx.x % 32),
          row(uniform(threadIdx.x / GROUP) * 64 + first_row<A_T>(uniform(threadIdx.x / 32 % 4), lane)) {}

    /* Loads the fragments of the next stage, unless they are kept. */
    __device__ void load(fragments &a, bool reads_a) {
        const char *const tile = shared + from.stage * STAGE_BYTES;
        mbarrier_wait(ring.full + from.stage, from.round);
        if (A_T && reads_a) load_a_transposed(a, tile, row, lane);
        if (!A_T && reads_a) load_a(a, tile, row, lane);
        warp_arrives(ring.empty + from.stage);
        from.next();
    }

    static __device__ uint64_t descriptor(const char *at) {
        return B_BY_K ? wgmma_swizzle128_transposed(at, PLANE_BYTES) : wgmma_swizzle128(at);
    }

    __device__ void multiply(float (&part)[32], const fragments &a) const {
        const char *const b = shared + PLANES_AT + of_b.stage * PLANES_BYTES;
        constexpr unsigned planes[6][2] = {{2, 0}, {1, 1}, {0, 2}, {1, 0}, {0, 1}, {0, 0}}; /* 0: high */
        mbarrier_wait(ring.split + of_b.stage, of_b.round);
        wgmma_fence();
#pragma unroll
        for (unsigned x = 0; x < 6; x++)
#pragma unroll
            for (unsigned step = 0; step < STEPS; step++)
                multiply_16<B_BY_K>(
                    part, a.of[planes[x][0]][step],
                    descriptor(b + planes[x][1] * PLANE_BYTES + step * (B_BY_K ? 16 * LINE : 32)), x || step);
        wgmma_commit();
    }

    /* sums += a stage, or = the first one. While the tensor cores have it: meanwhile(). */
    template <typename F> __device__ void add(float (&sums)[32], fragments &now, bool first, F meanwhile) {
        float part[32];
        multiply(part, now);
        meanwhile();
        wgmma_wait<0>();
        wgmma_done(part);
        warp_arrives(ring.multiplied + of_b.stage);
        of_b.next();
#pragma unroll
        for (unsigned i = 0; i < 32; i++) sums[i] = first ? part[i] : sums[i] + part[i];
    }

    /* sums = a tile, over `stages` of k. before() runs while the first one is multiplied: it may read the
       sums of the tile before. */
    template <typename F>
    __device__ void sum_tile(float (&sums)[32], fragments &even, fragments &odd, unsigned stages,
                             bool reads_a, F before) {
        load(even, reads_a);
        add(sums, even, true, [&] {
            before();
            if (stages > 1) load(odd, reads_a);
        });
#pragma unroll 1
        for (unsigned k = 1; k < stages; k += 2) {
            add(sums, odd, false, [&] {
                if (k + 1 < stages) load(even, reads_a);
            });
            if (k + 1 < stages)
                add(sums, even, false, [&] {
                    if (k + 2 < stages) load(odd, reads_a);
                });
        }
    }
};

template <bool A_T, bool B_BY_K>
static __device__ void consume(const bf16x6_product &p, const sink<float> &out, const slope<float> &back,
                               char *shared, const barriers &ring, const cluster_place &own) {
    const schedule<A_T> all(p, own);
    consumer<A_T, B_BY_K> body(ring, shared);
    const unsigned none = ~0u;
    unsigned tile_row = 0,
             tile_column = none; /* of the sums, which are stored while the next tile is multiplied */
    float sums[32];
    fragments even, odd;
    const auto store = [&] {
        const tile_store<A_T> to = {p,
                                    out,
                                    back,
                                    own,
                                    (float4 *)(shared + SLOTS_AT),
                                    (float *)(shared + WARP_SUMS_AT),
                                    ring.received,
                                    tile_row * BF16X6_ROWS + body.row,
                                    tile_column * BF16X6_COLUMNS + body.lane % 4 * 2};
        if (tile_column != none) to.store(sums, tile_row, tile_column, (unsigned *)(ring.received + 1));
    };
    all.each(own, [&](unsigned row, unsigned column, bool reads_a) {
        body.sum_tile(sums, even, odd, all.end - all.first, reads_a, [&] {
            if constexpr (A_T) store();
        });
        tile_row = row, tile_column = column;
        if constexpr (!A_T) store();
    });
    if constexpr (A_T) store();
}

template <bool A_T, bool B_BY_K>
__global__ void __launch_bounds__(THREADS, 1)
    bf16x6_kernel(const __grid_constant__ bf16x6_product p, const __grid_constant__ sink<float> out,
                  const __grid_constant__ slope<float> back) {
#ifdef HAVE_WGMMA
    extern __shared__ __align__(1024) char shared[];
    const barriers ring(shared);
    const cluster_place own(p.parts);
    const unsigned group = uniform(threadIdx.x / GROUP);
    if (threadIdx.x == PRODUCER * GROUP) {
        tensor_map_prefetch(p.a);
        tensor_map_prefetch(p.b);
        ring.open();
    }
    cluster_barrier_of_reads(); /* mbarrier_init has a fence */
    if (group == PRODUCER) {
        warpgroup_fewer_registers<PRODUCER_REGISTERS<A_T>>();
        if (threadIdx.x == PRODUCER * GROUP) produce<A_T, B_BY_K>(p, shared, ring, own);
    } else if (group == SPLITTER) {
        warpgroup_fewer_registers<SPLITTER_REGISTERS<A_T>>();
        split_all<A_T, B_BY_K>(p, shared, ring, own);
    } else {
        warpgroup_more_registers<CONSUMER_REGISTERS<A_T>>();
        consume<A_T, B_BY_K>(p, out, back, shared, ring, own);
    }
#endif
}

/* --- the host --- */

typedef void kernel(bf16x6_product, sink<float>, slope<float>);

static kernel *kernel_of(enum gemm_op op) {
    return op == GEMM_NN   ? bf16x6_kernel<false, true>
           : op == GEMM_TN ? bf16x6_kernel<true, true>
                           : bf16x6_kernel<false, false>;
}

} // namespace bf16x6

bool bf16x6_open(void) {
    using namespace bf16x6;
    for (int op = GEMM_NN; op <= GEMM_NT; op++)
        if (!cuda_allows_wgmma((const void *)kernel_of((enum gemm_op)op), SHARED_BYTES)) return false;
    return true;
}

unsigned bf16x6_clusters(unsigned blocks) {
    using namespace bf16x6;
    return clusters_that_fit((const void *)kernel_of(GEMM_NN), blocks, THREADS, SHARED_BYTES);
}

void bf16x6_launch(enum gemm_op op, const bf16x6_product &p, const sink<float> &out, const slope<float> &back,
                   unsigned processors, cuda_launcher &launcher) {
    using namespace bf16x6;
    const unsigned tiles = blocks_for(p.m, BF16X6_ROWS) * blocks_for(p.n, BF16X6_COLUMNS),
                   most = p.parts > 1 ? tiles : processors; /* with parts of k, a tile each */
    launch_cluster(launcher, "bf16x6_kernel", kernel_of(op), dim3((tiles < most ? tiles : most) * p.parts),
                   THREADS, SHARED_BYTES, p.parts, p, out, back);
}
