/* cuda-tuned, small products: 128 images through a layer of 784 x 128 are 26 MFLOP, 0.4 us on the whole GPU.

   Idea       small tiles, so that every SM has one, and all of k in one step: each thread issues its
              asynchronous copies of A and B and waits once. Then each of the 8 warps of a block takes every
              eighth group of 4 k. The 32 lanes of a warp hold the whole tile, 4 x 2 to 8 x 4 elements each.
              The 8 partial sums are added through shared memory in the order of the warps.
   Layout     tile.cuh
   Bound by   latency (launch, one round trip to L2, the wait), then shared memory: for 4 k a lane reads 24
              to 48 elements and does 32 to 128 multiply-adds.
   Improves   5_cublas.cu for small batches
   Run        ./train bench gemm --backends cublas,cuda-tuned */
#include <cuda_pipeline.h>

#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gemm/tile.cuh"
#include "kernels/cuda/gemm/6_tuned.cuh"

static const int WARPS = 8, LANES_M = 4, LANES_N = 8;
static const int THREADS = 32 * WARPS;

static const int STATIC_BYTES = 1024;    /* left for static shared memory */
static const int LARGE_TILES = 96 << 10; /* shared memory that the largest tiles need */
static const size_t UNASKED = 47 << 10;  /* dynamic shared memory that a kernel has without asking */

/* In float64 cuBLAS is faster at smaller sizes, because it uses tensor cores. */
static const double MOST_OF_DOUBLES = 1 << 20;
static const size_t LONGEST_SIDE = 4096;

bool small_takes(const struct gemm_call *call) {
    return call->m <= LONGEST_SIDE && call->n <= LONGEST_SIDE && call->k <= LONGEST_SIDE &&
           (double)call->m * (double)call->n * (double)call->k <=
               (call->dtype == GEMM_F64 ? MOST_OF_DOUBLES : SMALL_MULTIPLICATIONS);
}

/* A or B as stored: `rows` x `cols`, leading dimension `ld`. */
template <typename T> struct source {
    const T *memory;
    size_t rows, cols, ld;
    bool packs; /* rows start at multiples of 16 bytes */
};

/* tile[r][c] = source(row0 + r, col0 + c), 0 outside, for tile_rows x tile_cols elements; tile_cols is a
   multiple of a pack. Asynchronous: wait with __pipeline_wait_prior. */
template <typename T>
__device__ void fetch(T *tile, int tile_rows, int tile_cols, const source<T> &from, size_t row0,
                      size_t col0) {
    constexpr int W = WIDEST<T>;
    const int packs = tile_cols / W, per_row = packs < THREADS ? packs : THREADS;
    const int row_step = THREADS / per_row, pack0 = threadIdx.x % per_row;
    if ((int)threadIdx.x >= row_step * per_row) return;
    for (int r = threadIdx.x / per_row; r < tile_rows; r += row_step)
        for (int p = pack0; p < packs; p += per_row) {
            T *to = tile + r * padded<T>(tile_cols) + p * W;
            const size_t row = row0 + r, col = col0 + p * W;
            const bool inside = row < from.rows && col < from.cols;
            const T *at = from.memory + row * from.ld + col;
            if (inside && from.packs && col + W <= from.cols) {
                __pipeline_memcpy_async(to, at, 16);
            } else {
#pragma unroll
                for (int e = 0; e < W; e++) to[e] = inside && col + e < from.cols ? at[e] : T(0);
            }
        }
}

/* Tiles of (LANES_M * MI) x (LANES_N * NI); `slab` of k at a time, a multiple of WARPS * GROUP. */
template <typename T, typename C, int MI, int NI, bool A_ALONG_K, bool B_ALONG_K>
__global__ void __launch_bounds__(THREADS)
    small_kernel(source<T> a, source<T> b, size_t k, int slab, sink<C> out, slope<C> back,
                 cuda_reduction reduction) {
    typedef real<T> R;
    constexpr int TILE_M = LANES_M * MI, TILE_N = LANES_N * NI;
    extern __shared__ double2 memory[];
    const int a_rows = A_ALONG_K ? TILE_M : slab, a_cols = A_ALONG_K ? slab : TILE_M;
    const int b_rows = B_ALONG_K ? TILE_N : slab, b_cols = B_ALONG_K ? slab : TILE_N;
    T *tile_a = reinterpret_cast<T *>(memory), *tile_b = tile_a + a_rows * padded<T>(a_cols);
    const size_t row0 = (size_t)blockIdx.y * TILE_M, col0 = (size_t)blockIdx.x * TILE_N;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int lane_m = lane / LANES_N, lane_n = lane % LANES_N;
    R sum[MI][NI] = {};

    for (size_t k0 = 0; k0 < k; k0 += slab) {
        if (k0) __syncthreads(); /* all threads have read the previous slab */
        fetch(tile_a, a_rows, a_cols, a, A_ALONG_K ? row0 : k0, A_ALONG_K ? k0 : row0);
        fetch(tile_b, b_rows, b_cols, b, B_ALONG_K ? col0 : k0, B_ALONG_K ? k0 : col0);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        const int left = k - k0 < (size_t)slab ? (int)(k - k0) : slab;
#pragma unroll 2
        for (int p = warp * GROUP; p < left; p += WARPS * GROUP) {
            fragment<T, MI, LANES_M, A_ALONG_K> x;
            fragment<T, NI, LANES_N, B_ALONG_K> y;
            x.load(tile_a, a_cols, lane_m, p);
            y.load(tile_b, b_cols, lane_n, p);
#pragma unroll
            for (int q = 0; q < GROUP; q++)
#pragma unroll
                for (int i = 0; i < MI; i++)
#pragma unroll
                    for (int j = 0; j < NI; j++) sum[i][j] += x.value[i][q] * y.value[j][q];
        }
    }

    __syncthreads();
    R *partial = reinterpret_cast<R *>(memory);
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++) {
            const int r = fragment<T, MI, LANES_M, A_ALONG_K>::index_of(lane_m, i);
            const int c = fragment<T, NI, LANES_N, B_ALONG_K>::index_of(lane_n, j);
            partial[(warp * TILE_M + r) * TILE_N + c] = sum[i][j];
        }
    __syncthreads();
    for (int e = threadIdx.x; e < TILE_M * TILE_N; e += THREADS) {
        const size_t i = row0 + e / TILE_N, j = col0 + e % TILE_N;
        R total = partial[e];
#pragma unroll
        for (int w = 1; w < WARPS; w++) total += partial[w * TILE_M * TILE_N + e];
        if (i < out.m && j < out.n) {
            total = back.apply(i * out.ldc + j, out.finish(i, j, total));
            out.c[i * out.ldc + j] = C(total);
        } else {
            total = 0;
        }
        if (back.on) partial[e] = R(C(total));
    }
    if (!back.on) return;

    /* column sums: of this tile; then the last block of these columns to finish adds the tiles in order */
    __syncthreads();
    R *sums = (R *)reduction.scratch;
    const size_t j = col0 + threadIdx.x;
    const bool mine = threadIdx.x < TILE_N && j < out.n;
    if (mine) {
        R total = 0;
#pragma unroll
        for (int i = 0; i < TILE_M; i++) total += partial[i * TILE_N + threadIdx.x];
        sums[blockIdx.y * out.n + j] = total;
    }
    if (last_block(&reduction.tickets[blockIdx.x], gridDim.y) && mine)
        back.column_sums[j] = back.bias_scale * sum_of_chunks(sums + j, gridDim.y, out.n);
}

template <typename T> static source<T> source_of(const void *memory, size_t rows, size_t cols, size_t ld) {
    return {(const T *)memory, rows, cols, ld, packs_fit((const T *)memory, 0, ld, WIDEST<T>)};
}

template <typename T, typename C, int MI, int NI, bool A_ALONG_K, bool B_ALONG_K> struct small_variant {
    static constexpr int TILE_M = LANES_M * MI, TILE_N = LANES_N * NI;

    /* Bytes for `slab` of k, or for the partial sums that overwrite it if they are larger. */
    static size_t shared_bytes(int slab) {
        const size_t a = A_ALONG_K ? TILE_M * padded<T>(slab) : slab * padded<T>(TILE_M);
        const size_t b = B_ALONG_K ? TILE_N * padded<T>(slab) : slab * padded<T>(TILE_N);
        const size_t tiles = (a + b) * sizeof(T), partial = WARPS * TILE_M * TILE_N * sizeof(real<T>);
        return tiles > partial ? tiles : partial;
    }

    /* The same limit for every call, so that launches in a captured graph stay valid. */
    static bool allow(tuned_context *context) {
        return CUDA_TRY(&context->fault,
                        cudaFuncSetAttribute(small_kernel<T, C, MI, NI, A_ALONG_K, B_ALONG_K>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             context->shared_bytes - STATIC_BYTES));
    }

    /* One slab with all of k if it fits, else as few equal slabs as possible. */
    static void run(tuned_context *context, const gemm_call &call, cuda_launcher &launcher) {
        const int step = WARPS * GROUP;
        int slabs = 1, slab = (int)blocks_for(call.k, step) * step;
        while (slab > step && shared_bytes(slab) > (size_t)context->shared_bytes / 2)
            slab = (int)blocks_for(call.k, step * ++slabs) * step;
        const source<T> a = A_ALONG_K ? source_of<T>(call.a, call.m, call.k, call.lda)
                                      : source_of<T>(call.a, call.k, call.m, call.lda);
        const source<T> b = B_ALONG_K ? source_of<T>(call.b, call.n, call.k, call.ldb)
                                      : source_of<T>(call.b, call.k, call.n, call.ldb);
        if (shared_bytes(slab) > UNASKED && !allow(context)) return;
        const dim3 grid(blocks_for(call.n, TILE_N), blocks_for(call.m, TILE_M));
        const char *name = TILE_M == 32   ? "small_kernel 32x32"
                           : TILE_N == 32 ? "small_kernel 16x32"
                                          : "small_kernel 16x16";
        launch(launcher, name, small_kernel<T, C, MI, NI, A_ALONG_K, B_ALONG_K>, grid, THREADS,
               shared_bytes(slab), a, b, call.k, slab, sink<C>(call), slope<C>(call), context->reduction);
    }
};

/* Calls `function<variant>()` for the tile and op. */
template <typename T, typename C, int MI, int NI, typename F>
static void with_op(enum gemm_op op, F function) {
    if (op == GEMM_NN) function.template operator()<small_variant<T, C, MI, NI, true, false>>();
    if (op == GEMM_TN) function.template operator()<small_variant<T, C, MI, NI, false, false>>();
    if (op == GEMM_NT) function.template operator()<small_variant<T, C, MI, NI, true, true>>();
}

void small_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    const size_t large = (size_t)blocks_for(call->m, 32) * blocks_for(call->n, 32);
    const size_t middle = (size_t)blocks_for(call->m, 16) * blocks_for(call->n, 32);
    with_types(call, [&]<typename T, typename C>() {
        const auto run = [&]<typename V>() { V::run(context, *call, launcher); };
        /* the largest tile that gives most SMs one */
        if (large >= 96 && context->shared_bytes >= LARGE_TILES) {
            with_op<T, C, 8, 4>(call->op, run);
        } else if (middle >= 96) {
            with_op<T, C, 4, 4>(call->op, run);
        } else {
            with_op<T, C, 4, 2>(call->op, run);
        }
    });
}
