/* float32 GEMM by six bf16 products on the tensor cores, float32 in and out.

   Idea       a float32 is the sum of three bfloat16 (bf16x6_split.cuh). Six of the nine products, the small
              ones first, leave out what is below the rounding of float32. Tensor cores truncate their sums:
              every 64 of k they are added to float32 registers. No operand needs another range, a scale or a
              pass of its own.
   TF32       the first two of the three, with three products: 16 bits of significand, where TF32 has 11.
   Pipeline   one thread copies 64 of k of A and B to a ring buffer (tensor maps); four warps, or seven if
              tiles have 72 columns, split B into planes in shared memory; two warpgroups split A on the way
              to registers, and multiply 64 x 64 (or 64 x 72) each, in turns: while the tensor cores have a
              stage of one, the other splits.
   Parts      for few tiles: blocks of a cluster share the k of a tile (bf16x6_store.cuh).
   Update     weight gradients may update the weights themselves (bf16x6_update.cuh).
   Bound by   long k: tensor cores, six times the flops at their bf16 rate, and as much by shared memory;
              short k: the start, and the exchange of sums (docs/tensor-cores.md) */
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/bf16x6_ring.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"
#include "kernels/cuda/tensor/wgmma_registers.cuh"

namespace bf16x6 {

template <typename V, typename P>
static __device__ void copy_b(const P &p, char *stage, uint64_t *full, unsigned column, unsigned k) {
    char *const b = stage + V::A_BYTES;
    mbarrier_expect_tx(full, V::B_BYTES);
#pragma unroll
    for (unsigned i = 0; V::B_BY_K && i < V::B_COLUMNS / 32; i++)
        tensor_load(b + i * (K * LINE), p.b, column + 32 * i, k, full);
#pragma unroll
    for (unsigned i = 0; !V::B_BY_K && i < 2; i++)
        tensor_load(b + i * (V::W * LINE), p.b, k + 32 * i, column, full);
}

template <typename V, typename P>
static __device__ void copy_a(const P &p, char *stage, uint64_t *full, unsigned row, unsigned k) {
    mbarrier_expect_tx(full, V::A_BYTES);
    if (V::A_T)
#pragma unroll
        for (unsigned i = 0; i < BF16X6_ROWS / 32; i++)
            tensor_load(stage + i * (K * LINE), p.a, row + 32 * i, k, full);
    else
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
            tensor_load(stage + i * (BF16X6_ROWS * LINE), p.a, k + 32 * i, row, full);
}

/* One thread. What may be read early is requested before the kernels before have ended: the first stages of
   B, and of a weight gradient those of A as well. */
template <typename V, typename P>
static __device__ void produce(const P &p, char *shared, const barriers &ring, const cluster_place &own) {
    const schedule<V::A_T, P> all(p, own);
    unsigned early = 0; /* stages of which B alone was requested */
    ring_place<V::STAGES> use;
    bool waited = false;
    const auto stage = [&](unsigned i) { return shared + V::STAGES_AT + i * V::STAGE_BYTES; };
    const auto wait = [&] {
        wait_for_kernels_before();
        start_next_kernel();
        waited = true;
    };
    all.each([&](auto tile, bool reads_a) {
        const auto &one = product_of(p, tile.number);
        if (!V::A_T && !waited) {
            early = one.early ? min(V::STAGES, all.end - all.first) : 0;
            for (unsigned i = 0; i < early; i++)
                copy_b<V>(one, stage(i), ring.b_full + i, tile.column * V::W, (all.first + i) * K);
            wait();
        }
        for (unsigned k = all.first; k < all.end; k++, use.next()) {
            if (use.round) mbarrier_wait_alone(ring.empty + use.stage, use.round - 1);
            if (!waited && (use.round || !one.early)) wait();
            if (use.round || use.stage >= early)
                copy_b<V>(one, stage(use.stage), ring.b_full + use.stage, tile.column * V::W, k * K);
            if (reads_a)
                copy_a<V>(one, stage(use.stage), ring.a_full + use.stage, tile.row * BF16X6_ROWS, k * K);
            else
                mbarrier_arrive(ring.a_full + use.stage);
        }
    });
    if (!waited) wait();
}

/* V::SPLITTERS warps: the planes of B. */
template <typename V, typename P>
static __device__ void split_all(const P &p, char *shared, const barriers &ring, const cluster_place &own) {
    const schedule<V::A_T, P> all(p, own);
    const unsigned warp = uniform(threadIdx.x / 32) - WARPS, lane = threadIdx.x % 32;
    ring_place<V::STAGES> use;
    ring_place<V::PLANE_STAGES> to;
    all.each([&](auto, bool) {
        for (unsigned k = all.first; k < all.end; k++, use.next(), to.next()) {
            const char *const tile = shared + V::STAGES_AT + use.stage * V::STAGE_BYTES + V::A_BYTES;
            char *const planes = shared + V::PLANES_AT + to.stage * V::PLANES_BYTES;
            mbarrier_wait(ring.b_full + use.stage, use.round);
            if (to.round) mbarrier_wait(ring.multiplied + to.stage, to.round - 1);
            if constexpr (!V::B_BY_K)
                split_b_by_columns<V::PLANES, V::W>(planes, tile, warp, V::SPLITTERS, lane);
            else if constexpr (V::W == BF16X6_WIDE)
                split_b_by_k_wide<V::PLANES>(planes, tile, warp, V::SPLITTERS, lane);
            else
                split_b_by_k<V::PLANES, V::A_T>(planes, tile, warp, lane);
            wgmma_written();
            warp_arrives(ring.split + to.stage);
            warp_arrives(ring.empty + use.stage);
        }
    });
}

template <typename V> struct consumer {
    typedef bf16x6::fragments<V::PLANES> fragments;
    const barriers &ring;
    char *shared;
    const unsigned group, lane, row; /* row: of the tile, the first of this thread */
    ring_place<V::STAGES> from;
    ring_place<V::PLANE_STAGES> of_b;

    __device__ consumer(const barriers &all, char *memory)
        : ring(all), shared(memory), group(uniform(threadIdx.x / GROUP)), lane(threadIdx.x % 32),
          row(group * 64 + first_row<V::A_T>(uniform(threadIdx.x / 32 % 4), lane)) {
        if (group == 1) pass_turn();
    }

    /* Loads the fragments of the next stage, unless they are kept. */
    __device__ void load(fragments &a, bool reads_a) {
        const char *const tile = shared + V::STAGES_AT + from.stage * V::STAGE_BYTES;
        mbarrier_wait(ring.a_full + from.stage, from.round);
        if (V::A_T && reads_a) load_a_transposed(a, tile, row, lane);
        if (!V::A_T && reads_a) load_a(a, tile, row, lane);
        warp_arrives(ring.empty + from.stage);
        from.next();
    }

    /* With parts of k, a block has one tile: after the last stage of k, nothing reads or writes this one. */
    __device__ char *unused_stage() const {
        return shared + V::STAGES_AT + from.stage * V::STAGE_BYTES;
    }

    /* Of 16 of k of a plane. */
    static __device__ uint64_t descriptor(const char *plane, unsigned step) {
        if (!V::B_BY_K) return wgmma_swizzle128(plane + step * 32);
        if (V::W == BF16X6_WIDE) return wgmma_plain_transposed(plane + step * 256, 128, K * 16);
        return wgmma_swizzle128_transposed(plane + step * 16 * LINE, PLANE_BYTES<V::W>);
    }

    /* The warpgroups take turns: while one multiplies, the other one loads and splits A, or stores. Otherwise
       both would wait for the tensor cores, then both leave them idle. */
    __device__ void await_turn() const {
        asm volatile("bar.sync %0, %1;" : : "r"(2 + group), "n"(CONSUMERS) : "memory");
    }
    __device__ void pass_turn() const {
        asm volatile("bar.arrive %0, %1;" : : "r"(3 - group), "n"(CONSUMERS) : "memory");
    }

    __device__ void multiply(float (&part)[V::W / 2], const fragments &a) const {
        const char *const b = shared + V::PLANES_AT + of_b.stage * V::PLANES_BYTES;
        constexpr unsigned planes[6][2] = {{2, 0}, {1, 1}, {0, 2}, {1, 0}, {0, 1}, {0, 0}}; /* 0: high */
        constexpr unsigned first = V::PLANES == 3 ? 0 : 3;
        mbarrier_wait(ring.split + of_b.stage, of_b.round);
        await_turn();
        wgmma_fence();
#pragma unroll
        for (unsigned x = first; x < 6; x++)
#pragma unroll
            for (unsigned step = 0; step < STEPS; step++)
                wgmma_registers<V::B_BY_K>(part, a.of[planes[x][0]][step],
                                           descriptor(b + planes[x][1] * PLANE_BYTES<V::W>, step),
                                           x > first || step);
        wgmma_commit();
        pass_turn();
    }

    /* sums += a stage, or = the first one. While the tensor cores have it: meanwhile(). */
    template <typename F>
    __device__ void add(float (&sums)[V::W / 2], fragments &now, bool first, F meanwhile) {
        float part[V::W / 2];
        multiply(part, now);
        meanwhile();
        wgmma_wait<0>();
        wgmma_done(part);
        warp_arrives(ring.multiplied + of_b.stage);
        of_b.next();
#pragma unroll
        for (unsigned i = 0; i < V::W / 2; i++) sums[i] = first ? part[i] : sums[i] + part[i];
    }

    /* sums = a tile, over `stages` of k. before() and last() run while the first and the last one are
       multiplied: before() may read the sums of the tile before. */
    template <typename F, typename G>
    __device__ void sum_tile(float (&sums)[V::W / 2], fragments &even, fragments &odd, unsigned stages,
                             bool reads_a, F before, G last) {
        load(even, reads_a);
        add(sums, even, true, [&] {
            before();
            if (stages > 1)
                load(odd, reads_a);
            else
                last();
        });
#pragma unroll 1
        for (unsigned k = 1; k < stages; k += 2) {
            add(sums, odd, false, [&] {
                if (k + 1 < stages)
                    load(even, reads_a);
                else
                    last();
            });
            if (k + 1 < stages)
                add(sums, even, false, [&] {
                    if (k + 2 < stages)
                        load(odd, reads_a);
                    else
                        last();
                });
        }
    }
};

/* What a tile is stored to. */
__device__ inline const sink<float> &sink_of(const bf16x6_product &, const sink<float> &out) {
    return out;
}
__device__ inline const bf16x6_gradient &sink_of(const bf16x6_gradient &p, const bf16x6_gradients &) {
    return p;
}

template <typename V, typename P, typename S>
static __device__ void consume(const P &launch, const S &out, const slope<float> &back, char *shared,
                               const barriers &ring, const cluster_place &own) {
    constexpr bool updates = V::ARRAYS > 0;
    typedef std::conditional_t<updates, gradient_place, tile_place> place;
    typedef tile_store<bf16x6_product, sink<float>, V::A_T, V::W> product_store;
    typedef std::conditional_t<updates, gradient_store, product_store> writer;
    if constexpr (!updates) wait_for_kernels_before();
    const schedule<V::A_T, P> all(launch, own);
    const unsigned warp = threadIdx.x / 32, none = ~0u;
    char *const area = shared + AREAS_AT + warp * AREA_BYTES<V::ARRAYS, V::W>;
    consumer<V> body(ring, shared);
    weight_updater<V::ARRAYS> updater(launch, area, ring.weights + warp * WEIGHT_BOXES);
    place tile = {0, none}; /* of the sums, which are stored while the next tile is multiplied */
    float sums[V::W / 2];
    typename consumer<V>::fragments even, odd;
    const auto writer_of = [&](place tile) {
        const auto &p = product_of(launch, tile.number);
        return writer{p,
                      sink_of(p, out),
                      back,
                      own,
                      (float4 *)area + threadIdx.x % 32,
                      (float *)(shared + WARP_SUMS_AT),
                      (float2 *)body.unused_stage() + threadIdx.x,
                      ring.received,
                      tile.row * BF16X6_ROWS + body.row,
                      tile.column * V::W + body.lane % 4 * 2};
    };
    const auto store = [&](bool last, place next) {
        if constexpr (updates) /* after the first operands, which are more urgent */
            if (tile.column == none) updater.request_all(next);
        if (tile.column == none) return;
        if constexpr (updates)
            updater.store(writer_of(tile), sums, last, tile, next);
        else
            writer_of(tile).store(sums, tile, (unsigned *)(ring.received + 1));
    };
    all.each([&](place next, bool reads_a) {
        if constexpr (updates)
            if (tile.column == none) updater.start();
        body.sum_tile(
            sums, even, odd, all.end - all.first, reads_a,
            [&] {
                if constexpr (V::A_T) store(false, next);
            },
            [&] {
                if constexpr (!V::A_T) writer_of(next).request_inputs();
            });
        tile = next;
        if constexpr (!V::A_T) store(false, next);
    });
    if (body.group == 0) body.await_turn(); /* the last turn that was passed */
    if constexpr (V::A_T) store(true, tile);
}

__device__ inline void prefetch_maps(const bf16x6_product &p) {
    tensor_map_prefetch(p.a);
    tensor_map_prefetch(p.b);
}
__device__ inline void prefetch_maps(const bf16x6_gradients &all) {
#pragma unroll 1
    for (unsigned i = 0; i < all.count; i++) {
        tensor_map_prefetch(all.list[i].a);
        tensor_map_prefetch(all.list[i].b);
        tensor_map_prefetch(all.list[i].map[0]);
    }
}

template <typename V, typename P, typename S>
static __device__ void run(const P &p, const S &out, const slope<float> &back) {
    extern __shared__ __align__(1024) char shared[];
    const barriers ring(shared);
    const cluster_place own(p);
    const unsigned warp = uniform(threadIdx.x / 32);
    if (threadIdx.x == PRODUCER * 32) {
        prefetch_maps(p);
        ring.open(V::SPLITTERS);
    }
    cluster_barrier_of_reads(); /* mbarrier_init has a fence */
    if (warp >= WARPS) {
        warpgroup_fewer_registers<V::OTHER_REGISTERS>();
        constexpr unsigned idle = (WARPS + V::SPLITTERS) * 32; /* the first thread of those without a role */
        if (threadIdx.x < idle) {
            split_all<V>(p, shared, ring, own);
        } else if (warp == PRODUCER) {
            if (threadIdx.x % 32 == 0) produce<V>(p, shared, ring, own);
        } else if constexpr (V::ARRAYS > 0) {
            update_rest<V::ARRAYS>(p, threadIdx.x - idle, PRODUCER * 32 - idle);
        }
    } else {
        warpgroup_more_registers<V::CONSUMER_REGISTERS>();
        consume<V>(p, out, back, shared, ring, own);
    }
}

template <unsigned PLANES, bool A_T, bool B_BY_K, unsigned W>
__global__ void __launch_bounds__(THREADS, 1)
    bf16x6_kernel(const __grid_constant__ bf16x6_product p, const __grid_constant__ sink<float> out,
                  const __grid_constant__ slope<float> back) {
#ifdef HAVE_WGMMA
    run<variant<PLANES, A_T, B_BY_K, 0, W>>(p, out, back);
#endif
}

/* Weight gradients that update their weights. */
template <unsigned PLANES, int ARRAYS>
__global__ void __launch_bounds__(THREADS, 1)
    bf16x6_update_kernel(const __grid_constant__ bf16x6_gradients all,
                         const __grid_constant__ slope<float> none) {
#ifdef HAVE_WGMMA
    run<variant<PLANES, true, true, ARRAYS, BF16X6_COLUMNS>>(all, all, none);
#endif
}

/* --- the host --- */

typedef void kernel(bf16x6_product, sink<float>, slope<float>);
typedef void update_kernel(bf16x6_gradients, slope<float>);

/* A kernel and the shared memory of its blocks. */
template <typename F> struct launchable {
    F *function;
    unsigned bytes;
};

template <unsigned PLANES, bool A_T, bool B_BY_K, unsigned W>
constexpr launchable<kernel> LAUNCHABLE = {bf16x6_kernel<PLANES, A_T, B_BY_K, W>,
                                           variant<PLANES, A_T, B_BY_K, 0, W>::SHARED_BYTES};

template <unsigned PLANES> static launchable<kernel> kernel_of(enum gemm_op op, bool wide) {
    constexpr unsigned NARROW = BF16X6_COLUMNS, WIDE = BF16X6_WIDE;
    if (op == GEMM_TN) return LAUNCHABLE<PLANES, true, true, NARROW>;
    if (op == GEMM_NN)
        return wide ? LAUNCHABLE<PLANES, false, true, WIDE> : LAUNCHABLE<PLANES, false, true, NARROW>;
    return wide ? LAUNCHABLE<PLANES, false, false, WIDE> : LAUNCHABLE<PLANES, false, false, NARROW>;
}

static launchable<kernel> kernel_of(unsigned planes, enum gemm_op op, bool wide) {
    return planes == 3 ? kernel_of<3>(op, wide) : kernel_of<2>(op, wide);
}

template <unsigned PLANES, int ARRAYS> static launchable<update_kernel> update_kernel_of() {
    return {bf16x6_update_kernel<PLANES, ARRAYS>,
            variant<PLANES, true, true, ARRAYS, BF16X6_COLUMNS>::SHARED_BYTES};
}

static launchable<update_kernel> update_kernel_of(unsigned planes, bool velocities) {
    if (velocities) return planes == 3 ? update_kernel_of<3, 2>() : update_kernel_of<2, 2>();
    return planes == 3 ? update_kernel_of<3, 1>() : update_kernel_of<2, 1>();
}

template <typename F> static bool usable(const launchable<F> &one) {
    return cuda_allows_wgmma((const void *)one.function, one.bytes);
}

} // namespace bf16x6

bool bf16x6_open(unsigned planes) {
    using namespace bf16x6;
    for (int op = GEMM_NN; op <= GEMM_NT; op++)
        if (!usable(kernel_of(planes, (enum gemm_op)op, false)) ||
            !usable(kernel_of(planes, (enum gemm_op)op, true)))
            return false;
    return usable(update_kernel_of(planes, false)) && usable(update_kernel_of(planes, true));
}

unsigned bf16x6_clusters(unsigned planes, unsigned blocks) {
    const auto one = bf16x6::kernel_of(planes, GEMM_NN, false);
    return clusters_that_fit((const void *)one.function, blocks, bf16x6::THREADS, one.bytes);
}

void bf16x6_launch(unsigned planes, enum gemm_op op, const bf16x6_product &p, const sink<float> &out,
                   const slope<float> &back, cuda_launcher &launcher) {
    const auto one = bf16x6::kernel_of(planes, op, p.width == BF16X6_WIDE);
    launch_dependent(launcher, planes == 3 ? "bf16x6_kernel" : "bf16x3_kernel", one.function,
                     dim3(p.clusters * p.parts), bf16x6::THREADS, one.bytes, p.parts, p, out, back);
}

void bf16x6_launch_update(unsigned planes, const bf16x6_gradients &all, const slope<float> &none,
                          cuda_launcher &launcher) {
    const bool velocities = all.count ? all.list[0].array[1] : all.rest[0].array[1];
    const auto one = bf16x6::update_kernel_of(planes, velocities);
    launch_dependent(launcher, planes == 3 ? "bf16x6_update_kernel" : "bf16x3_update_kernel", one.function,
                     dim3(all.clusters * all.parts), bf16x6::THREADS, one.bytes, all.parts, all, none);
}
