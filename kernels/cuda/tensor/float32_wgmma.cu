/* float32 GEMM from 16-bit tensor-core products, as accurate as float32 arithmetic.

   Idea       float32 operands are sums of 16-bit planes (planes.cuh). Three products of two fp16 planes, the
              small ones first, leave out only low x low, which is below the rounding of float32. Tensor cores
              truncate their sums, so that a long one drifts: every 64 of k the partial sum is added to
              float32 registers, rounded to nearest, and times the scales of its blocks. Two products are
              enough where A has no low planes (pixels).
   Pipeline   one thread of a producer warpgroup copies blocks of planes to a ring buffer of stages; two
              consumer warpgroups multiply 64 x 128 each. (Clusters that share operands by multicast were
              slower: copies alone took 0.28 instead of 0.23 ms at 8192 x 2048 x 2048.)
   Otherwise  chunks of k with a block that is wide: six products of three bf16 planes. If the split raised
              PLANES_SPECIAL: one multiply-add after the other, so that infinities and NaN come out as IEEE
              says.
   Bound by   tensor cores: three times the flops at their 16-bit rate, about 790 TFLOP/s on an H200. */
#include "kernels/cuda/tensor/float32_store.cuh"

namespace float32 {

/* Chunks of k between promotions: a block each, and a stage. */
static __device__ unsigned chunks_of(const float32_product &p) {
    return (unsigned)((p.k + PLANE_SIDE - 1) / PLANE_SIDE);
}

/* Chunks of k from which on prefetching what the backward epilogue reads pays: 0.362 -> 0.348 ms at 8192 x
   2048 x 2048, but 0.074 -> 0.086 at k = 10 (H100). */
static const unsigned FEWEST_TO_PREFETCH = 16;

/* Prefetches what the backward epilogue reads of a tile of C, a part with each chunk. */
static __device__ void prefetch(const float32_product &p, const float *matrix, size_t ld, const tile &at,
                                unsigned k, unsigned chunks) {
    const size_t row0 = (size_t)at.row_block * 64, column0 = (size_t)at.column_block * 64;
    const unsigned rows = (TILE + chunks - 1) / chunks, first = k * rows, last = min(first + rows, TILE);
    const uint32_t bytes = (uint32_t)(min((size_t)TILE, p.n - column0) * sizeof(float) / 16 * 16);
    if (((uintptr_t)matrix | ld * sizeof(float)) % 16 || !bytes) return;
    for (unsigned i = first; i < last && row0 + i < p.m; i++)
        bulk_prefetch(matrix + (row0 + i) * ld + column0, bytes);
}

/* Calls fill(use, of_a, of_b, own, k) for each chunk of each tile, USES stages apart. */
template <unsigned USES, typename F>
static __device__ void produce(const float32_product &p, const slope<float> &back, size_t ldc, F fill) {
    const unsigned chunks = chunks_of(p);
    const schedule all(p);
    tile own;
    unsigned use = 0;
    for (unsigned turn = 0; all.at(turn, own); turn++) {
        strip of_a(p.a, own.row_block), of_b(p.b, own.column_block);
        for (unsigned k = 0; k < chunks; k++, use += USES, of_a.next(), of_b.next()) {
            if (back.on && chunks >= FEWEST_TO_PREFETCH) prefetch(p, back.output, ldc, own, k, chunks);
            fill(use, of_a, of_b, own, k);
        }
    }
}

/* What the operands allow. MIXED: there are wide blocks. */
enum way { HALF, HIGH, MIXED, PLAIN };

static __device__ enum way way_of(const float32_product &p) {
    const unsigned a = p.a.flags->state, both = a | p.b.flags->state;
    if (both & PLANES_SPECIAL) return PLAIN;
    if (both & PLANES_WIDE) return MIXED;
    return a & PLANES_LOW ? HALF : HIGH;
}

static __device__ void produce(const float32_product &p, const slope<float> &back, size_t ldc, char *shared,
                               enum way way) {
    const bool low = p.a.flags->state & PLANES_LOW;
    if (way == HALF)
        produce<1>(p, back, ldc, [&](unsigned use, const strip &a, const strip &b, const tile &, unsigned) {
            ring<half_planes>(shared).fill(p, use, a, b);
        });
    if (way == HIGH)
        produce<1>(p, back, ldc, [&](unsigned use, const strip &a, const strip &b, const tile &, unsigned) {
            ring<high_planes>(shared).fill(p, use, a, b);
        });
    if (way == MIXED)
        produce<2>(p, back, ldc,
                   [&](unsigned use, const strip &a, const strip &b, const tile &own, unsigned k) {
                       const ring<mixed_planes> stages(shared);
                       const bool wide = is_wide(p, own, k);
                       stages.fill(use, wide ? p.a.wide : p.a.blocks, a, wide ? 3 : low ? 2 : 1);
                       stages.fill(use + 1, wide ? p.b.wide : p.b.blocks, b, wide ? 3 : 2);
                   });
}

/* sums += part times the factors of its blocks, of 32 registers. If a float cannot hold 2^e, in two steps. */
template <class S>
static __device__ void promote_half(float *sums, float *part, unsigned of_a, unsigned of_b) {
    const block_factor a = S::factor(of_a), b = S::factor(of_b);
    const int e = uniform(-(a.e + b.e)), outer = e < -100 || e > 126 ? e / 2 : 0;
    const float first = power_of_two(outer), factor = power_of_two(e - outer) * (a.scale * b.scale);
    if (outer) {
#pragma unroll
        for (int i = 0; i < 32; i++) part[i] *= first;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) sums[i] = fmaf(part[i], factor, sums[i]);
}

/* Of the blocks of a warpgroup's 64 rows, and of its left and right 64 columns. */
struct block_codes {
    unsigned rows, left, right;
};

/* A consumer warpgroup. Registers of D as in wgmma.cuh. */
struct consumer {
    const float32_product &p;
    char *shared;
    const int lane, warp, group;

    __device__ consumer(const float32_product &product, char *memory)
        : p(product), shared(memory), lane(threadIdx.x % 32), warp(uniform(threadIdx.x / 32 % 4)),
          group(uniform(threadIdx.x / GROUP)) {}

    template <bool T> __device__ static uint64_t descriptor(const char *at) {
        return T ? wgmma_swizzle128_transposed(at, PLANE_BYTES) : wgmma_swizzle128(at);
    }

    /* Starts the products of a chunk, in two groups: part = A B over 64 of k. */
    template <class S, bool A_T, bool B_T>
    __device__ void multiply(float (&part)[64], const char *a, const char *b) const {
        a += group * PLANE_BYTES;
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < S::PRODUCTS; x++) {
            if (x == S::PRODUCTS - 1) wgmma_commit(); /* the low planes have been read by then */
#pragma unroll
            for (int step = 0; step < K / 16; step++)
                wgmma_n128<S::FORMAT, A_T, B_T>(
                    part, descriptor<A_T>(a + (S::A >> 4 * x & 15) * TILE_BYTES + step * (A_T ? 2048 : 32)),
                    descriptor<B_T>(b + (S::B >> 4 * x & 15) * TILE_BYTES + step * (B_T ? 2048 : 32)),
                    x || step);
        }
        wgmma_commit();
    }

    /* Of a chunk: loads that a later promote waits for. */
    __device__ block_codes codes_of(const tile &own, unsigned k) const {
        return {__ldg(p.a.codes + p.a.index(own.row_block + group, k)),
                __ldg(p.b.codes + p.b.index(own.column_block, k)),
                __ldg(p.b.codes + p.b.index(own.column_block + 1, k))};
    }

    template <class S>
    __device__ static void promote(float (&sums)[64], float (&part)[64], const block_codes &of) {
        wgmma_done(part);
        promote_half<S>(sums, part, of.rows, of.left);
        promote_half<S>(sums + 32, part + 32, of.rows, of.right);
    }

    /* Starts chunk k: the products of use `use` of the ring buffer. */
    template <class S, bool A_T, bool B_T>
    __device__ block_codes start(float (&part)[64], const tile &own, unsigned k, unsigned use) const {
        const block_codes of = codes_of(own, k);
        const char *const stage = ring<S>(shared).wait(use);
        multiply<S, A_T, B_T>(part, stage, stage + S::A_PLANES * TILE_BYTES);
        return of;
    }

    /* Ends the chunk after which PENDING others were started. */
    template <class S, int PENDING>
    __device__ void finish(float (&sums)[64], float (&part)[64], const block_codes &of, unsigned &use) const {
        wgmma_wait<2 * PENDING + 1>();
        ring<S>(shared).release_low(use);
        wgmma_wait<2 * PENDING>();
        ring<S>(shared).release_high(use++);
        promote<S>(sums, part, of);
    }

    /* sums = the tile of A B. `use`: of the ring buffer, counted over all tiles. Two chunks are under way. */
    template <class S, bool A_T, bool B_T>
    __device__ void sum_tile(float (&sums)[64], const tile &own, unsigned chunks, unsigned &use) const {
#pragma unroll
        for (int i = 0; i < 64; i++) sums[i] = 0;
        float even[64], odd[64];
        block_codes of_even = start<S, A_T, B_T>(even, own, 0, use), of_odd;
        for (unsigned k = 1;;) {
            if (k == chunks) return finish<S, 0>(sums, even, of_even, use);
            of_odd = start<S, A_T, B_T>(odd, own, k++, use + 1);
            finish<S, 1>(sums, even, of_even, use);
            if (k == chunks) return finish<S, 0>(sums, odd, of_odd, use);
            of_even = start<S, A_T, B_T>(even, own, k++, use + 1);
            finish<S, 1>(sums, odd, of_odd, use);
        }
    }

    template <class S, bool A_T, bool B_T>
    __device__ void add(float (&sums)[64], const char *a, const char *b, const block_codes &of,
                        unsigned use) const {
        const ring<mixed_planes> stages(shared);
        float part[64];
        multiply<S, A_T, B_T>(part, a, b);
        wgmma_wait<0>();
        stages.release_high(use);
        stages.release_high(use + 1);
        promote<S>(sums, part, of);
    }

    /* The same where some chunks are wide. */
    template <bool A_T, bool B_T>
    __device__ void sum_tile_mixed(float (&sums)[64], const tile &own, unsigned chunks, unsigned &use) const {
        const ring<mixed_planes> stages(shared);
        const bool low = uniform(p.a.flags->state & PLANES_LOW);
#pragma unroll
        for (int i = 0; i < 64; i++) sums[i] = 0;
#pragma unroll 1
        for (unsigned k = 0; k < chunks; k++, use += 2) {
            const block_codes of = codes_of(own, k);
            const bool wide = uniform(is_wide(p, own, k));
            const char *const a = stages.wait(use), *const b = stages.wait(use + 1);
            if (wide)
                add<wide_planes, A_T, B_T>(sums, a, b, of, use);
            else if (low)
                add<half_planes, A_T, B_T>(sums, a, b, of, use);
            else
                add<high_planes, A_T, B_T>(sums, a, b, of, use);
        }
    }

    /* The same in float32 arithmetic, from the matrices as they are. */
    __device__ void sum_tile_plainly(float (&sums)[64], const tile &own) const {
        const size_t row0 = (size_t)(own.row_block + group) * 64 + warp * 16 + lane / 4;
        const size_t column0 = (size_t)own.column_block * 64 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 64; i++) sums[i] = 0;
#pragma unroll 1
        for (size_t k = 0; k < p.k; k++) {
            float a[2];
#pragma unroll
            for (int h = 0; h < 2; h++)
                a[h] = __ldg(p.a_values + min(row0 + h * 8, p.m - 1) * p.a_row + k * p.a_column);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const size_t column = min(column0 + i / 2 * 8 + i % 2, p.n - 1);
                const float b = __ldg(p.b_values + k * p.b_row + column * p.b_column);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float &sum = sums[i / 2 * 4 + h * 2 + i % 2];
                    sum = fmaf(a[h], b, sum);
                }
            }
        }
    }
};

template <bool A_T, bool B_T>
static __device__ void consume(const float32_product &p, const sink<float> &out, const slope<float> &back,
                               char *shared, enum way way) {
    const unsigned chunks = chunks_of(p);
    const schedule all(p);
    const consumer body(p, shared);
    tile own;
    unsigned use = 0;
    for (unsigned turn = 0; all.at(turn, own); turn++) {
        float sums[64];
        if (way == HALF)
            body.sum_tile<half_planes, A_T, B_T>(sums, own, chunks, use);
        else if (way == HIGH)
            body.sum_tile<high_planes, A_T, B_T>(sums, own, chunks, use);
        else if (way == MIXED)
            body.sum_tile_mixed<A_T, B_T>(sums, own, chunks, use);
        else
            body.sum_tile_plainly(sums, own);
        tile_store(p, out, back, shared, own).store(sums);
    }
}

template <bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, 1)
    float32_kernel(const __grid_constant__ float32_product p, const __grid_constant__ sink<float> out,
                   const __grid_constant__ slope<float> back) {
#ifdef HAVE_WGMMA
    extern __shared__ __align__(1024) char shared[];
    uint64_t *barriers = (uint64_t *)(shared + BARRIERS_AT);
    const enum way way = (enum way)uniform(way_of(p));
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < 3 * MOST_STAGES; i++)
            mbarrier_init(barriers + i, i < MOST_STAGES ? 1 : GROUPS * GROUP / 32);
    __syncthreads();
    if (uniform(threadIdx.x / GROUP) == GROUPS) {
        warpgroup_fewer_registers<COPY_REGISTERS>();
        if (threadIdx.x == GROUPS * GROUP) produce(p, back, out.ldc, shared, way);
    } else {
        warpgroup_more_registers<REGISTERS>();
        consume<A_T, B_T>(p, out, back, shared, way);
    }
#endif
}

/* --- the host --- */

typedef void kernel(float32_product, sink<float>, slope<float>);

static kernel *kernel_of(enum gemm_op op) {
    return op == GEMM_NN   ? float32_kernel<false, true>
           : op == GEMM_TN ? float32_kernel<true, true>
                           : float32_kernel<false, false>;
}

} // namespace float32

bool float32_open(void) {
    using namespace float32;
    int device = 0, major = 0;
    bool open = cudaGetDevice(&device) == cudaSuccess &&
                cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                major == 9;
    for (int op = GEMM_NN; op <= GEMM_NT && open; op++) {
        cudaFuncAttributes attributes;
        kernel *one = kernel_of((enum gemm_op)op);
        open = cudaFuncGetAttributes(&attributes, one) == cudaSuccess && attributes.binaryVersion == 90 &&
               cudaFuncSetAttribute(one, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) ==
                   cudaSuccess;
    }
    return open;
}

void float32_launch(enum gemm_op op, const float32_product &product, const sink<float> &out,
                    const slope<float> &back, unsigned processors, cuda_launcher &launcher) {
    using namespace float32;
    const size_t tiles = (product.m + TILE - 1) / TILE * ((product.n + TILE - 1) / TILE);
    launch(launcher, "float32_kernel", kernel_of(op),
           dim3((unsigned)(tiles < processors ? tiles : processors)), THREADS, SHARED_BYTES, product, out,
           back);
}
