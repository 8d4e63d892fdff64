/* Large float32 products on the float32 units: what true float32 leaves of a GPU full of tensor cores.

   Idea       a block of 8 warps computes 128 x 256 of C, a lane 8 x 16 of it in registers: 512 multiply-adds for 24 reads of shared
              memory (16 bytes each) per 4 k, so that 95 of 100 issue slots multiply. Slabs of 16 k of A and B come by
              asynchronous copies, three under way while one is computed with. Where tiles do not fill the last wave of the
              chip, k is cut into parts; the block that comes last to a tile adds the parts up, in order.
   Registers  128 sums, 32 of A and 16 or 32 of B of the 255 that a thread may have: one block an SM.
   Bytes      384 elements per 32,768 multiply-adds and k: 1.6 TB/s from L2 at 56 TFLOP/s, a third of what it can.
   Bound by   the float32 units: 66.9 TFLOP/s on an H100 at 1.98 GHz. */
#include <cuda_pipeline.h>

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/tuned.cuh"

#ifndef LARGE_N
#define LARGE_N 256
#define LARGE_SLAB 8
#define LARGE_STAGES 5
#endif
static const int TILE_M = 128, TILE_N = LARGE_N, SLAB = LARGE_SLAB, STAGES = LARGE_STAGES, THREADS = 256;
static const int WARPS_M = TILE_N == 256 ? 2 : 4, WARPS_N = 8 / WARPS_M;
static const int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
static const int LANES_M = TILE_N == 256 ? 8 : 4, LANES_N = 32 / LANES_M;
static const int LANE_M = WARP_M / LANES_M, LANE_N = WARP_N / LANES_N; /* a lane's part of C */

/* The share of one thread in the copies of COUNT rows (A) or columns (B) of op(A), op(B), a slab at a time, to
   tile[k][COUNT]: 16 bytes at once where they are contiguous, else (k is) 4 bytes at once to their transposed place. */
template <int COUNT, bool ALONG_K> struct loader {
    static constexpr int WIDTH = ALONG_K ? 1 : 4;            /* elements of a copy */
    static constexpr int ACROSS = ALONG_K ? 8 : COUNT / 4;   /* neighbouring threads along memory */
    static constexpr int STEP = THREADS / ACROSS;            /* rows, as stored, between turns */
    static constexpr int TURNS = (ALONG_K ? COUNT : SLAB) / STEP;
    static constexpr int PITCH = COUNT + 4, ELEMENTS = SLAB * PITCH;

    const float *from; /* of this thread's first copy of the next slab */
    size_t step;
    int row, col;      /* as stored */
    int count;         /* rows or columns that exist */

    __device__ loader(const float *memory, size_t ld, size_t first, size_t all, size_t k0) {
        row = threadIdx.x / ACROSS;
        col = threadIdx.x % ACROSS * WIDTH;
        count = all - first < COUNT ? (int)(all - first) : COUNT;
        from = ALONG_K ? memory + (first + row) * ld + k0 + col : memory + (k0 + row) * ld + first + col;
        step = STEP * ld;
    }

    /* The next slab, of which `left` k exist, to `tile`. */
    template <bool WHOLE> __device__ void copy(float *tile, int left) const {
        const float *at = from;
#pragma unroll
        for (int t = 0; t < TURNS; t++, at += step) {
            const int r = row + t * STEP;
            if (ALONG_K) {
#pragma unroll
                for (int half = 0; half < SLAB; half += 8) {
                    const bool inside = WHOLE || (r < count && half + col < left);
                    __pipeline_memcpy_async(tile + (half + col) * PITCH + r, inside ? at + half : from, 4,
                                            inside ? 0 : 4);
                }
            } else {
                const int outside = WHOLE ? 0 : r >= left || col >= count ? 16 : col + 4 > count ? 4 * (col + 4 - count) : 0;
                __pipeline_memcpy_async(tile + r * PITCH + col, outside < 16 ? at : from, 16, outside);
            }
        }
    }

    __device__ void fetch(float *tile, int left, size_t ld) {
        if (count == COUNT && left >= SLAB) {
            copy<true>(tile, left);
        } else {
            copy<false>(tile, left);
        }
        from += ALONG_K ? SLAB : SLAB * ld;
    }
};

/* COUNT elements of a row of a tile: packs of 4, LANES packs apart. */
template <int COUNT, int LANES> __device__ void read(float (&value)[COUNT], const float *row) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const pack<float, 4> four = pack_at<4>(row + i * LANES);
#pragma unroll
        for (int e = 0; e < 4; e++) value[i + e] = four.value[e];
    }
}

struct large_arguments {
    const float *a, *b;
    size_t lda, ldb, k, part; /* k of a part, a multiple of SLAB */
    float *partial;           /* [tile][part][LANE_M * LANE_N][THREADS] */
    unsigned *tickets;        /* [tile] */
};

template <bool A_ALONG_K, bool B_ALONG_K>
__global__ void __launch_bounds__(THREADS, TILE_N == 256 ? 1 : 2)
    large_kernel(large_arguments g, sink<float> out) {
    typedef loader<TILE_M, A_ALONG_K> load_a;
    typedef loader<TILE_N, B_ALONG_K> load_b;
    extern __shared__ float4 memory[];
    float *stages = reinterpret_cast<float *>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / LANES_N, lane_n = lane % LANES_N;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
    const size_t row0 = (size_t)blockIdx.y * TILE_M, col0 = (size_t)blockIdx.x * TILE_N;
    const size_t k0 = blockIdx.z * g.part, k_end = k0 + g.part < g.k ? k0 + g.part : g.k;
    const int count = (int)(k_end - k0), slabs = (count + SLAB - 1) / SLAB;
    load_a a(g.a, g.lda, row0, out.m, k0);
    load_b b(g.b, g.ldb, col0, out.n, k0);
    float sum[LANE_M][LANE_N] = {};

    int next = 0; /* slab to fetch */
    const auto fetch = [&] {
        float *tile = stages + next % STAGES * (load_a::ELEMENTS + load_b::ELEMENTS);
        if (next < slabs) {
            a.fetch(tile, count - next * SLAB, g.lda);
            b.fetch(tile + load_a::ELEMENTS, count - next * SLAB, g.ldb);
        }
        next++;
        __pipeline_commit();
    };
    /* two sets of registers: one is read from shared memory while the other is computed with */
    float x[2][LANE_M], y[2][LANE_N];
    const int at_a = warp_m + lane_m * 4, at_b = load_a::ELEMENTS + warp_n + lane_n * 4;
    const auto read_k = [&](int set, const float *stage, int k) {
        read<LANE_M, LANES_M>(x[set], stage + at_a + k * load_a::PITCH);
        read<LANE_N, LANES_N>(y[set], stage + at_b + k * load_b::PITCH);
    };
    for (int s = 0; s < STAGES - 1; s++) fetch();
    __pipeline_wait_prior(STAGES - 2);
    __syncthreads();
    read_k(0, stages, 0);
    for (int s = 0; s < slabs; s++) {
        const float *stage = stages + s % STAGES * (load_a::ELEMENTS + load_b::ELEMENTS);
        const float *after = stages + (s + 1) % STAGES * (load_a::ELEMENTS + load_b::ELEMENTS);
        fetch(); /* into the stage that all have left */
#pragma unroll
        for (int k = 0; k < SLAB; k++) {
            if (k == SLAB - 1) {
                __pipeline_wait_prior(STAGES - 2);
                __syncthreads();
            }
            read_k((k + 1) % 2, k == SLAB - 1 ? after : stage, (k + 1) % SLAB);
#pragma unroll
            for (int i = 0; i < LANE_M; i++)
#pragma unroll
                for (int j = 0; j < LANE_N; j++) sum[i][j] += x[k % 2][i] * y[k % 2][j];
        }
    }

    if (gridDim.z > 1) {
        const size_t tile = blockIdx.y * gridDim.x + blockIdx.x, size = (size_t)LANE_M * LANE_N * THREADS;
        float *mine = g.partial + tile * gridDim.z * size + threadIdx.x;
#pragma unroll
        for (int i = 0; i < LANE_M; i++)
#pragma unroll
            for (int j = 0; j < LANE_N; j++)
                __stcg(&mine[blockIdx.z * size + (i * LANE_N + j) * THREADS], sum[i][j]);
        if (!last_block(&g.tickets[tile], gridDim.z)) return;
#pragma unroll
        for (int i = 0; i < LANE_M; i++)
#pragma unroll
            for (int j = 0; j < LANE_N; j++) sum[i][j] = 0;
        for (unsigned part = 0; part < gridDim.z; part++)
#pragma unroll
            for (int i = 0; i < LANE_M; i++)
#pragma unroll
                for (int j = 0; j < LANE_N; j++)
                    sum[i][j] += __ldcg(&mine[part * size + (i * LANE_N + j) * THREADS]);
    }
#pragma unroll
    for (int i = 0; i < LANE_M; i++)
#pragma unroll
        for (int j = 0; j < LANE_N; j++) {
            const size_t r = row0 + warp_m + i / 4 * (4 * LANES_M) + lane_m * 4 + i % 4;
            const size_t c = col0 + warp_n + j / 4 * (4 * LANES_N) + lane_n * 4 + j % 4;
            if (r < out.m && c < out.n) out.store(r, c, sum[i][j]);
        }
}

bool large_takes(const struct gemm_call *call) {
    return call->dtype == GEMM_F32 && call->m >= 512 && call->n >= 512 && call->k >= 256 &&
           packs_fit((const float *)call->a, 0, call->lda, 4) &&
           packs_fit((const float *)call->b, 0, call->ldb, 4);
}

/* Parts of k so that the waves are full: the fewest turns of the chip, where a part costs its k and, for writing and
   reading its sums, as much as 80 more. */
static unsigned parts_for(size_t tiles, size_t k, size_t at_once) {
    const size_t most = LARGE_BYTES / (tiles * LANE_M * LANE_N * THREADS * sizeof(float));
    size_t best = 1, best_cost = SIZE_MAX;
    for (size_t parts = 1; parts <= 16 && (parts == 1 || parts <= most) && parts <= k / 128; parts++) {
        const size_t turns = (tiles * parts + at_once - 1) / at_once;
        const size_t cost = turns * (k / parts + (parts > 1 ? 80 : 0));
        if (cost < best_cost) {
            best_cost = cost;
            best = parts;
        }
    }
    return (unsigned)best;
}

template <bool A_ALONG_K, bool B_ALONG_K>
static void launch(tuned_context *context, const gemm_call &call) {
    const size_t bytes = (size_t)STAGES * sizeof(float) *
                         (loader<TILE_M, A_ALONG_K>::ELEMENTS + loader<TILE_N, B_ALONG_K>::ELEMENTS);
    const auto kernel = large_kernel<A_ALONG_K, B_ALONG_K>;
    dim3 grid(blocks_for(call.n, TILE_N), blocks_for(call.m, TILE_M));
    const size_t tiles = (size_t)grid.x * grid.y;
    grid.z = tiles <= REDUCTION_GROUPS
                 ? parts_for(tiles, call.k, (size_t)context->processors * (TILE_N == 256 ? 1 : 2))
                 : 1;
    const size_t part = (call.k + grid.z * SLAB - 1) / (grid.z * SLAB) * SLAB;
    if (!CUDA_TRY(&context->fault, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                        (int)bytes)))
        return;
    kernel<<<grid, THREADS, bytes, context->stream>>>(
        {(const float *)call.a, (const float *)call.b, call.lda, call.ldb, call.k, part,
         (float *)context->parts, context->reduction.tickets},
        sink<float>(call));
    CUDA_LAUNCHED(&context->fault, "large_kernel");
}

void large_gemm(struct tuned_context *context, const struct gemm_call *call) {
    if (call->op == GEMM_NN) launch<true, false>(context, *call);
    if (call->op == GEMM_TN) launch<false, false>(context, *call);
    if (call->op == GEMM_NT) launch<true, true>(context, *call);
}
