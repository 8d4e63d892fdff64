/* float32 GEMM from 16-bit tensor-core products, as accurate as float32 arithmetic.

   Idea       float32 operands are sums of 16-bit planes (planes.cuh). Three products of two fp16 planes, the
              small ones first, leave out only low x low, which is below the rounding of float32. Tensor cores
              truncate their sums, so that a long one drifts: every 64 of k the partial sum is added to
              float32 registers, rounded to nearest, and times the scales of its blocks. Two products are
              enough where A has no low planes (pixels).
   Pipeline   one thread of a producer warpgroup copies blocks of planes to a ring buffer of stages; two
              consumer warpgroups multiply 64 x 128 each, in turns (float32_consumer.cuh). (Clusters that
              share operands by multicast were slower: copies alone took 0.28 instead of 0.23 ms at 8192 x
              2048 x 2048.)
   Otherwise  chunks of k with a block that is wide: six products of three bf16 planes. If the split raised
              PLANES_SPECIAL: one multiply-add after the other, so that infinities and NaN come out as IEEE
              says.
   Bound by   tensor cores: three times the flops at their 16-bit rate, about 790 TFLOP/s on an H200. */
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/float32_consumer.cuh"
#include "kernels/cuda/tensor/float32_store.cuh"

namespace float32 {

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

/* Calls fill(use, of_a, of_b, k) for each chunk of each tile. */
template <typename F>
static __device__ void produce(const float32_product &p, const slope<float> &back, size_t ldc, F fill) {
    const unsigned chunks = chunks_of(p);
    const schedule all(p);
    tile own;
    unsigned use = 0;
    for (unsigned turn = 0; all.at(turn, own); turn++) {
        strip of_a(p.a, own.row_block), of_b(p.b, own.column_block);
        for (unsigned k = 0; k < chunks; k++, use++, of_a.next(), of_b.next()) {
            if (back.on && chunks >= FEWEST_TO_PREFETCH) prefetch(p, back.output, ldc, own, k, chunks);
            fill(use, of_a, of_b, k);
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
        produce(p, back, ldc, [&](unsigned use, const strip &a, const strip &b, unsigned) {
            ring<half_planes>(shared).fill(p, use, a, b);
        });
    if (way == HIGH)
        produce(p, back, ldc, [&](unsigned use, const strip &a, const strip &b, unsigned) {
            ring<high_planes>(shared).fill(p, use, a, b);
        });
    if (way != MIXED) return;
    slots_producer producer(shared);
    tile_codes next = {}; /* a chunk ahead: the copies do not wait for them */
    produce(p, back, ldc, [&](unsigned, const strip &a, const strip &b, unsigned k) {
        if (k == 0) next.load(p, a, b, 0);
        const bool wide = next.wide();
        if (k + 1 < chunks_of(p)) next.load(p, a, b, 1);
        producer.fill(p, a, b, wide, low);
    });
}

template <bool A_T, bool B_T>
static __device__ void consume(const float32_product &p, const sink<float> &out, const slope<float> &back,
                               char *shared, enum way way) {
    constexpr bool GRADIENT = A_T; /* of weights: mostly without an epilogue */
    const unsigned chunks = chunks_of(p);
    const schedule all(p);
    const consumer body(p, shared);
    plane_slots slots(shared);
    tile own;
    unsigned use = 0;
    turns::open(body.group);
    for (unsigned turn = 0; all.at(turn, own); turn++) {
        float sums[64];
        epilogue_inputs in;
        const auto request = [&] {
            if (!GRADIENT) tile_store(p, out, back, shared, own).request(in, 0);
        };
        if (way == HALF)
            body.sum_tile<half_planes, A_T, B_T>(sums, own, chunks, use, request);
        else if (way == HIGH)
            body.sum_tile<high_planes, A_T, B_T>(sums, own, chunks, use, request);
        else if (way == MIXED)
            body.sum_tile_mixed<A_T, B_T>(sums, own, chunks, slots, request);
        else
            body.sum_tile_plainly(sums, own);
        tile_store(p, out, back, shared, own).store(sums, in, !GRADIENT && way != PLAIN);
    }
    turns::close(body.group);
}

template <bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, 1)
    float32_kernel(const __grid_constant__ float32_product p, const __grid_constant__ sink<float> out,
                   const __grid_constant__ slope<float> back) {
#ifdef HAVE_WGMMA
    extern __shared__ __align__(1024) char shared[];
    uint64_t *barriers = (uint64_t *)(shared + BARRIERS_AT);
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < 2 * MOST_STAGES; i++)
            mbarrier_init(barriers + i, i < MOST_STAGES ? 1 : GROUPS * GROUP / 32);
    wait_for_kernels_before();
    const enum way way = (enum way)uniform(way_of(p));
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
    for (int op = GEMM_NN; op <= GEMM_NT; op++)
        if (!cuda_allows_wgmma((const void *)kernel_of((enum gemm_op)op), SHARED_BYTES)) return false;
    return true;
}

void float32_launch(enum gemm_op op, const float32_product &product, const sink<float> &out,
                    const slope<float> &back, unsigned processors, cuda_launcher &launcher) {
    using namespace float32;
    const size_t tiles = (product.m + TILE - 1) / TILE * ((product.n + TILE - 1) / TILE);
    launch_dependent(launcher, "float32_kernel", kernel_of(op),
                     dim3((unsigned)(tiles < processors ? tiles : processors)), THREADS, SHARED_BYTES, 1,
                     product, out, back);
}
