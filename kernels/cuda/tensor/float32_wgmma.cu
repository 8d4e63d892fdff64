/* float32 GEMM from 16-bit tensor-core products, as accurate as float32 arithmetic.

   Idea       float32 operands are sums of 16-bit planes (planes.cuh). Three products of two fp16 planes, the
              small ones first, leave out only low x low, which is below the rounding of float32. Tensor cores
              truncate their sums, so that a long one drifts: every 64 of k the partial sum is added to
              float32 registers, rounded to nearest, and times the scales of its blocks. Two products are
              enough where A has no low planes (pixels).
   Pipeline   one thread of a producer warpgroup copies blocks of planes to a ring buffer of stages; two
              consumer warpgroups multiply 64 x 128 each. (Clusters that share operands by multicast were
              slower: copies alone took 0.28 instead of 0.23 ms at 8192 x 2048 x 2048.)
   Otherwise  if the split raised PLANES_WIDE: six products of three bf16 planes; PLANES_SPECIAL: one
              multiply-add after the other, so that infinities and NaN come out as IEEE says.
   Bound by   tensor cores: three times the flops at their 16-bit rate, about 790 TFLOP/s on an H200. */
#include "kernels/cuda/tensor/float32_store.cuh"

namespace float32 {

/* Chunks of k between promotions: a block each, and a stage. */
static __device__ unsigned chunks_of(const float32_product &p) {
    return (unsigned)((p.k + PLANE_SIDE - 1) / PLANE_SIDE);
}

template <class S> static __device__ void produce(const float32_product &p, char *shared) {
    const unsigned chunks = chunks_of(p);
    const schedule all(p);
    const ring<S> stages(shared);
    tile own;
    unsigned use = 0;
    for (unsigned turn = 0; all.at(turn, own); turn++)
        for (unsigned k = 0; k < chunks; k++) stages.fill(p, use++, own, k);
}

/* sums += part times the exponents of its blocks, of 32 registers. If a float cannot hold 2^e, in two steps. */
template <class S> static __device__ void promote_half(float *sums, float *part, int of_a, int of_b) {
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
struct exponents {
    int rows, left, right;
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

    /* Starts the products of a stage, in two groups: part = A B over 64 of k. */
    template <class S, bool A_T, bool B_T>
    __device__ void multiply(float (&part)[64], const char *stage) const {
        const char *a = stage + group * PLANE_BYTES, *b = stage + S::A_PLANES * TILE_BYTES;
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
    __device__ exponents exponents_of(const tile &own, unsigned k) const {
        return {__ldg(p.a.exponents + p.a.index(own.row_block + group, k)),
                __ldg(p.b.exponents + p.b.index(own.column_block, k)),
                __ldg(p.b.exponents + p.b.index(own.column_block + 1, k))};
    }

    /* Starts chunk k: the products of use `use` of the ring buffer. */
    template <class S, bool A_T, bool B_T>
    __device__ exponents start(float (&part)[64], const tile &own, unsigned k, unsigned use) const {
        const exponents of = exponents_of(own, k);
        multiply<S, A_T, B_T>(part, ring<S>(shared).wait(use));
        return of;
    }

    /* Ends the chunk after which PENDING others were started. */
    template <class S, int PENDING>
    __device__ void finish(float (&sums)[64], float (&part)[64], const exponents &of, unsigned &use) const {
        wgmma_wait<2 * PENDING + 1>();
        ring<S>(shared).release_low(use);
        wgmma_wait<2 * PENDING>();
        ring<S>(shared).release_high(use++);
        wgmma_done(part);
        promote_half<S>(sums, part, of.rows, of.left);
        promote_half<S>(sums + 32, part + 32, of.rows, of.right);
    }

    /* sums = the tile of A B. `use`: of the ring buffer, counted over all tiles. */
    template <class S, bool A_T, bool B_T>
    __device__ void sum_tile(float (&sums)[64], const tile &own, unsigned chunks, unsigned &use) const {
#pragma unroll
        for (int i = 0; i < 64; i++) sums[i] = 0;
        float even[64], odd[64];
        exponents of_even = start<S, A_T, B_T>(even, own, 0, use), of_odd;
        for (unsigned k = 1;;) {
            if (k == chunks) return finish<S, 0>(sums, even, of_even, use);
            of_odd = start<S, A_T, B_T>(odd, own, k++, use + 1);
            finish<S, 1>(sums, even, of_even, use);
            if (k == chunks) return finish<S, 0>(sums, odd, of_odd, use);
            of_even = start<S, A_T, B_T>(even, own, k++, use + 1);
            finish<S, 1>(sums, odd, of_odd, use);
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

/* What the operands allow. */
enum way { HALF, HIGH, WIDE, PLAIN };

static __device__ enum way way_of(const float32_product &p) {
    const unsigned a = p.a.flags->state, b = p.b.flags->state;
    if ((a | b) & PLANES_SPECIAL) return PLAIN;
    if ((a | b) & PLANES_WIDE) return WIDE;
    return a & PLANES_LOW ? HALF : HIGH;
}

template <bool A_T, bool B_T>
static __device__ void consume(const float32_product &p, const sink<float> &out, const slope<float> &back,
                               char *shared, enum way way) {
    const unsigned chunks = chunks_of(p);
    const schedule all(p);
    const consumer body(p, shared);
    const tile_store to(p, out, back, shared);
    tile own;
    unsigned use = 0;
    for (unsigned turn = 0; all.at(turn, own); turn++) {
        float sums[64];
        if (way == HALF)
            body.sum_tile<half_planes, A_T, B_T>(sums, own, chunks, use);
        else if (way == HIGH)
            body.sum_tile<high_planes, A_T, B_T>(sums, own, chunks, use);
        else if (way == WIDE)
            body.sum_tile<bfloat_planes, A_T, B_T>(sums, own, chunks, use);
        else
            body.sum_tile_plainly(sums, own);
        to.store(sums, own);
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
        if (threadIdx.x == GROUPS * GROUP) {
            if (way == HALF) produce<half_planes>(p, shared);
            if (way == HIGH) produce<high_planes>(p, shared);
            if (way == WIDE) produce<bfloat_planes>(p, shared);
        }
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
