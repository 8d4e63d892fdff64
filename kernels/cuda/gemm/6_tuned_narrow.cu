/* cuda-tuned, narrow products: one dimension is the number of classes (16 at most), the other two are large.

   Idea       read the large matrix once, 16 bytes a thread; keep the narrow one in shared memory.
                NN  Y = X W      a block owns 64 rows of X, two a lane; its warps split k
                TN  dW = X^T dY  a lane owns one pack of columns of X; warps and blocks split the rows
                NT  dX = dY W^T  is in 6_tuned_narrow_nt.cu
              Partial sums are added in a fixed order.
   Bound by   bytes of the large matrix: 8192 x 2048 in float32 is 67 MB, 22 us at 3 TB/s. The multiply-adds
              (N rounded up to a multiple of 4) overlap and take 8 us.
   Improves   5_cublas.cu for output layers
   Run        ./train bench gemm --backends cublas,cuda-tuned */
#include <cuda_pipeline.h>

#include "kernels/cuda/gemm/6_tuned_narrow.cuh"

static const size_t WIDEST_NARROW = 16, SHORTEST_LONG = 1024;
static const int WARPS = 8, THREADS = 32 * WARPS;

bool narrow_takes(const struct gemm_call *call) {
    if (gemm_is_16bit(call->dtype)) return narrow_bf16_takes(call);
    if (call->op == GEMM_NT)
        return call->k > 0 && call->k <= WIDEST_NARROW && call->m >= SHORTEST_LONG &&
               whole_packs(call, call->c, call->n, call->ldc);
    if (call->op == GEMM_NN)
        return call->n <= WIDEST_NARROW && call->m >= SHORTEST_LONG &&
               whole_packs(call, call->a, call->k, call->lda);
    return call->op == GEMM_TN && call->n <= WIDEST_NARROW && call->k >= SHORTEST_LONG &&
           whole_packs(call, call->a, call->m, call->lda);
}

/* Columns that a lane owns: few enough that their sums with 16 classes stay in registers. */
template <typename T> constexpr int OWNED = WIDEST<T> < 4 ? WIDEST<T> : 4;

/* A ring of slabs of the large matrix: asynchronous copies run STAGES - 1 slabs ahead. The bytes in flight
   hide the latency of memory, whatever the occupancy. */
static const int STAGES = 4;

/* tile[r][c] = memory[(row0 + r) * ld + col0 + c], ROWS rows of COLS elements. Packs from column `cols` on
   are 0; rows from `rows` on repeat the last one. */
template <int ROWS, int COLS, int PITCH, int THREADS, typename T>
__device__ inline void fetch(T *tile, const T *memory, size_t ld, size_t row0, size_t rows, size_t col0,
                             size_t cols) {
    constexpr int W = WIDEST<T>, PACKS = COLS / W, STEP = THREADS / PACKS;
    const int c = threadIdx.x % PACKS * W;
    const int missing = col0 + c < cols ? 0 : 16;
#pragma unroll
    for (int r = threadIdx.x / PACKS; r < ROWS; r += STEP) {
        const size_t row = row0 + r < rows ? row0 + r : rows - 1;
        __pipeline_memcpy_async(tile + r * PITCH + c, missing ? memory : memory + row * ld + col0 + c, 16,
                                missing);
    }
}

/* to[p][j] = from[(row0 + p) * ld + j], 0 outside of rows x cols, for `count` rows of N. A thread loads some
   elements before it stores the first of them. */
template <int N, int THREADS, typename T>
__device__ inline void stage_rows(T *to, int count, const T *from, size_t ld, size_t row0, size_t rows,
                                  size_t cols) {
    constexpr int SOME = 12;
    for (int e0 = threadIdx.x; e0 < count * N; e0 += SOME * THREADS) {
        T some[SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            const int e = e0 + i * THREADS;
            const size_t p = row0 + e / N, j = e % N;
            some[i] = e < count * N && p < rows && j < cols ? from[p * ld + j] : T(0);
        }
#pragma unroll
        for (int i = 0; i < SOME; i++)
            if (e0 + i * THREADS < count * N) to[e0 + i * THREADS] = some[i];
    }
}

/* --- NN --- */

/* A block owns ROWS rows, two a lane; its warps split the k of a slab. Their sums have to fit in shared
   memory. */
template <typename T> struct nn_shape {
    static constexpr int WARPS = sizeof(T) == 4 ? 16 : 8, THREADS = 32 * WARPS;
    static constexpr int ROWS = 64, SLAB = 256 / (int)sizeof(T), PITCH = SLAB + WIDEST<T>;
    static constexpr size_t TILES = (size_t)STAGES * ROWS * PITCH * sizeof(T);
};

template <typename T, int N>
__global__ void __launch_bounds__(nn_shape<T>::THREADS)
    narrow_nn(const T *a, size_t lda, const T *b, size_t ldb, size_t k, int panel, sink<T> out) {
    typedef nn_shape<T> S;
    constexpr int W = WIDEST<T>, WARPS = S::WARPS, SHARE = S::SLAB / WARPS; /* k of a warp */
    extern __shared__ double2 memory[];
    T *tiles = reinterpret_cast<T *>(memory);
    T *weight = reinterpret_cast<T *>(tiles + STAGES * S::ROWS * S::PITCH); /* [panel][N] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t row0 = (size_t)blockIdx.x * S::ROWS;
    T sum[2][N] = {};

    for (size_t k0 = 0; k0 < k; k0 += panel) {
        const size_t k_end = k0 + panel < k ? k0 + panel : k;
        const int slabs = (int)((k_end - k0 + S::SLAB - 1) / S::SLAB);
        const auto fetch_slab = [&](int s) {
            if (s < slabs)
                fetch<S::ROWS, S::SLAB, S::PITCH, S::THREADS>(tiles + s % STAGES * S::ROWS * S::PITCH, a, lda,
                                                              row0, out.m, k0 + (size_t)s * S::SLAB, k_end);
            __pipeline_commit();
        };
        if (k0) __syncthreads();
        for (int s = 0; s < STAGES - 1; s++) fetch_slab(s);
        stage_rows<N, S::THREADS>(weight, slabs * S::SLAB, b, ldb, k0, k_end, out.n);
        for (int s = 0; s < slabs; s++) {
            __pipeline_wait_prior(STAGES - 2);
            __syncthreads();
            fetch_slab(s + STAGES - 1);
            const T *x = tiles + (s % STAGES * S::ROWS + lane) * S::PITCH + warp * SHARE;
            const T *w = weight + (s * S::SLAB + warp * SHARE) * N;
#pragma unroll
            for (int p = 0; p < SHARE; p += W) {
                const pack<T, W> x0 = pack_at<W>(x + p), x1 = pack_at<W>(x + 32 * S::PITCH + p);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    T y[N];
                    load_row<N>(y, w + (p + e) * N);
#pragma unroll
                    for (int j = 0; j < N; j++) {
                        sum[0][j] += x0.value[e] * y[j];
                        sum[1][j] += x1.value[e] * y[j];
                    }
                }
            }
        }
        __pipeline_wait_prior(0);
    }

    /* add the warps' sums in order; [warp][j][row], so that lanes read neighbours */
    __syncthreads();
    T *sums = reinterpret_cast<T *>(memory);
#pragma unroll
    for (int j = 0; j < N; j++) {
        sums[(warp * N + j) * S::ROWS + lane] = sum[0][j];
        sums[(warp * N + j) * S::ROWS + lane + 32] = sum[1][j];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < S::ROWS * N; e += S::THREADS) {
        const int j = e % N, r = e / N;
        if (row0 + r >= out.m || j >= out.n) continue;
        T total = 0;
        for (int w = 0; w < WARPS; w++) total += sums[(w * N + j) * S::ROWS + r];
        out.store(row0 + r, j, total);
    }
}

/* --- TN --- */

template <typename T> struct tn_shape {
    static constexpr int COLUMNS = 32 * OWNED<T>, SLAB = 32, PANEL = 256; /* of k */
    static constexpr size_t TILES = (size_t)STAGES * SLAB * COLUMNS * sizeof(T);
};

template <typename T, int N>
__global__ void __launch_bounds__(THREADS) narrow_tn(const T *a, size_t lda, const T *b, size_t ldb, size_t k,
                                                     sink<T> out, cuda_reduction reduction) {
    typedef tn_shape<T> S;
    constexpr int W = OWNED<T>, COLUMNS = S::COLUMNS;
    extern __shared__ double2 memory[];
    T *tiles = reinterpret_cast<T *>(memory);
    T *rows = reinterpret_cast<T *>(tiles + STAGES * S::SLAB * COLUMNS); /* [PANEL][N] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t per_block = (k + gridDim.y - 1) / gridDim.y, first = blockIdx.y * per_block;
    const size_t last = first + per_block < k ? first + per_block : k;
    T sum[W][N] = {};

    for (size_t k0 = first; k0 < last; k0 += S::PANEL) {
        const size_t k_end = k0 + S::PANEL < last ? k0 + S::PANEL : last;
        const int slabs = (int)((k_end - k0 + S::SLAB - 1) / S::SLAB);
        const auto fetch_slab = [&](int s) {
            if (s < slabs)
                fetch<S::SLAB, COLUMNS, COLUMNS, THREADS>(tiles + s % STAGES * S::SLAB * COLUMNS, a, lda,
                                                          k0 + (size_t)s * S::SLAB, k_end,
                                                          (size_t)blockIdx.x * COLUMNS, out.m);
            __pipeline_commit();
        };
        if (k0 > first) __syncthreads();
        for (int s = 0; s < STAGES - 1; s++) fetch_slab(s);
        stage_rows<N, THREADS>(rows, slabs * S::SLAB, b, ldb, k0, k_end, out.n);
        for (int s = 0; s < slabs; s++) {
            __pipeline_wait_prior(STAGES - 2);
            __syncthreads();
            fetch_slab(s + STAGES - 1);
            const T *tile = tiles + s % STAGES * S::SLAB * COLUMNS + lane * W;
            const int left = k_end - k0 - s * S::SLAB < S::SLAB ? (int)(k_end - k0 - s * S::SLAB) : S::SLAB;
#pragma unroll
            for (int r = warp; r < S::SLAB; r += WARPS) {
                if (r >= left) break; /* the rows beyond are copies of the last one */
                const pack<T, W> x = pack_at<W>(tile + r * COLUMNS);
                T y[N];
                load_row<N>(y, rows + (s * S::SLAB + r) * N);
#pragma unroll
                for (int e = 0; e < W; e++)
#pragma unroll
                    for (int j = 0; j < N; j++) sum[e][j] += x.value[e] * y[j];
            }
        }
        __pipeline_wait_prior(0);
    }

    T *total = reinterpret_cast<T *>(memory);
    /* one warp after another adds its sums; order (e, j, lane), so that lanes access neighbours */
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) {
        __syncthreads(); /* in the first iteration: `total` overwrites the tiles */
        if (warp != w) continue;
#pragma unroll
        for (int e = 0; e < W; e++)
#pragma unroll
            for (int j = 0; j < N; j++) {
                T *at = &total[(e * N + j) * 32 + lane];
                *at = w ? *at + sum[e][j] : sum[e][j];
            }
    }
    __syncthreads();
    T *partial = (T *)reduction.scratch + (size_t)blockIdx.x * COLUMNS * N;
    const size_t chunk_size = (size_t)gridDim.x * COLUMNS * N;
    if (gridDim.y > 1) {
        for (int t = threadIdx.x; t < COLUMNS * N; t += THREADS)
            partial[blockIdx.y * chunk_size + t] = total[t];
        if (!last_block(&reduction.tickets[blockIdx.x], gridDim.y)) return;
    }
    for (int t = threadIdx.x; t < COLUMNS * N; t += THREADS) {
        const int e = t / 32 / N, j = t / 32 % N;
        const size_t i = (size_t)blockIdx.x * COLUMNS + t % 32 * W + e;
        if (i >= out.m || j >= out.n) continue;
        out.store(i, j, gridDim.y > 1 ? sum_of_chunks(partial + t, gridDim.y, chunk_size) : total[t]);
    }
}

/* --- launches --- */

/* Dynamic shared memory of a block; kernels declare up to 1 KB of static shared memory. */
static size_t capacity(const tuned_context *context) {
    return (size_t)context->shared_bytes - 1024;
}

/* Sets the same limit for every call, so that launches in a captured graph stay valid. */
template <typename K> static bool allow(tuned_context *context, K kernel) {
    return CUDA_TRY(&context->fault, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                          (int)capacity(context)));
}

template <typename T, int N>
static void launch_nn(tuned_context *context, const gemm_call &call, cuda_launcher &launcher) {
    typedef nn_shape<T> S;
    const size_t sums = (size_t)S::WARPS * N * S::ROWS * sizeof(T);
    const size_t fits = (capacity(context) - S::TILES) / (N * sizeof(T)) / S::SLAB * S::SLAB;
    const size_t whole = (call.k + S::SLAB - 1) / S::SLAB * S::SLAB, panel = whole < fits ? whole : fits;
    size_t bytes = S::TILES + panel * N * sizeof(T);
    if (bytes < sums) bytes = sums;
    const auto kernel = narrow_nn<T, N>;
    if (allow(context, kernel))
        launch(launcher, "narrow_nn", kernel, blocks_for(call.m, S::ROWS), S::THREADS, bytes,
               (const T *)call.a, call.lda, (const T *)call.b, call.ldb, call.k, (int)panel, sink<T>(call));
}

template <typename T, int N>
static void launch_tn(tuned_context *context, const gemm_call &call, cuda_launcher &launcher) {
    typedef tn_shape<T> S;
    const size_t groups = blocks_for(call.m, S::COLUMNS);
    const size_t bytes = groups * S::COLUMNS * N * sizeof(T); /* of the sums of one chunk */
    const size_t shared = S::TILES + S::PANEL * N * sizeof(T);
    const auto kernel = narrow_tn<T, N>;
    if (!allow(context, kernel)) return;
    size_t chunks = chunks_for(context, kernel, THREADS, shared, groups, call.k, 128);
    if (chunks * bytes > REDUCTION_BYTES) chunks = REDUCTION_BYTES / bytes;
    if (groups > REDUCTION_GROUPS || chunks < 1) chunks = 1;
    launch(launcher, "narrow_tn", kernel, dim3((unsigned)groups, (unsigned)chunks), THREADS, shared,
           (const T *)call.a, call.lda, (const T *)call.b, call.ldb, call.k, sink<T>(call),
           context->reduction);
}

void narrow_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    if (gemm_is_16bit(call->dtype)) return narrow_bf16_gemm(context, call, launcher);
    if (call->op == GEMM_NT) return narrow_nt_gemm(context, call, launcher);
    with_real(call->dtype, [&]<typename T>() {
        with_width(call->n, [&]<int N>() {
            if (call->op == GEMM_NN) launch_nn<T, N>(context, *call, launcher);
            if (call->op == GEMM_TN) launch_tn<T, N>(context, *call, launcher);
        });
    });
}
