/* Narrow products: one dimension is the number of classes (16 at most), the other two are large.

   Idea       such a product is one pass over the large matrix, read (forward, weight gradient) or written (input gradient) once,
              16 bytes a thread, while the narrow one stays in shared memory or registers:
                NN  Y = X W       a warp takes ROWS rows of X; its lanes share k, and add up with shuffles
                TN  dW = X^T dY   a lane owns one pack of columns of X; warps and blocks share the rows and add up in a fixed order
                NT  dX = dY W^T   a lane owns one pack of columns of dX, and keeps its rows of W in registers
   Bound by   bytes of the large matrix: 8192 x 2048 in float32 is 67 MB, 22 us at 3 TB/s. The multiply-adds (N rounded up to a
              multiple of 4) take 8 us of the float32 units beside it. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/tuned.cuh"

static const size_t WIDEST_NARROW = 16, SHORTEST_LONG = 1024;
static const int WARPS = 8, THREADS = 32 * WARPS;

/* May packs be used along a dimension of the large matrix? */
static bool whole_packs(const void *memory, size_t cols, size_t ld, size_t element) {
    const size_t width = 16 / element;
    return (uintptr_t)memory % 16 == 0 && cols % width == 0 && ld % width == 0;
}

bool narrow_takes(const struct gemm_call *call) {
    const size_t size = call->dtype == GEMM_F32 ? 4 : call->dtype == GEMM_F64 ? 8 : 2;
    const size_t c_size = call->c_f32 ? 4 : size;
    if (call->op == GEMM_NT)
        return call->k > 0 && call->k <= WIDEST_NARROW && call->m >= SHORTEST_LONG &&
               whole_packs(call->c, call->n, call->ldc, c_size);
    if (call->op == GEMM_NN)
        return call->n <= WIDEST_NARROW && call->m >= SHORTEST_LONG &&
               whole_packs(call->a, call->k, call->lda, size);
    return call->op == GEMM_TN && call->n <= WIDEST_NARROW && call->k >= SHORTEST_LONG &&
           whole_packs(call->a, call->m, call->lda, size);
}

/* Calls `function<N>()` with the smallest multiple of 4 that holds `width`. */
template <typename F> static void with_width(size_t width, F function) {
    if (width <= 4) return function.template operator()<4>();
    if (width <= 8) return function.template operator()<8>();
    if (width <= 12) return function.template operator()<12>();
    return function.template operator()<16>();
}

/* N numbers of shared memory that all lanes read alike, or W that are a lane's own. */
template <int N, typename R> __device__ inline void load_row(R (&row)[N], const R *from) {
    constexpr int W = WIDEST<R> < N ? WIDEST<R> : N;
#pragma unroll
    for (int j = 0; j < N; j += W) {
        const pack<R, W> some = pack_at<W>(from + j);
#pragma unroll
        for (int e = 0; e < W; e++) row[j + e] = some.value[e];
    }
}

/* Neighbours that a lane takes at once: few enough that their sums with 16 classes stay in registers. */
template <typename T> constexpr int OWNED = WIDEST<T> < 4 ? WIDEST<T> : 4;

/* --- NN --- */

template <typename T> constexpr int NN_ROWS = OWNED<T>; /* of X, a warp */

/* Elements of k in shared memory at once: two blocks an SM. */
template <typename R, int N> static int nn_slab(size_t k, int shared_bytes) {
    const size_t fits = ((size_t)shared_bytes / 2 - 1024) / (N * sizeof(R)) - WIDEST<R>;
    const size_t whole = (k + 127) / 128 * 128, slab = fits / 128 * 128;
    return (int)(whole < slab ? whole : slab);
}

template <typename T, typename C, int N>
__global__ void __launch_bounds__(THREADS, 2)
    narrow_nn(const T *a, size_t lda, const T *b, size_t ldb, size_t k, int slab, sink<C> out) {
    typedef real<T> R;
    constexpr int W = OWNED<T>, ROWS = NN_ROWS<T>;
    extern __shared__ double2 memory[];
    R *columns = reinterpret_cast<R *>(memory); /* a slab of B, transposed: [N][pitch] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = slab + WIDEST<R>;
    const size_t row0 = ((size_t)blockIdx.x * WARPS + warp) * ROWS;
    const T *row[ROWS]; /* one too far reads the last one again */
#pragma unroll
    for (int r = 0; r < ROWS; r++) row[r] = a + (row0 + r < out.m ? row0 + r : out.m - 1) * lda;
    R sum[ROWS][N] = {};

    for (size_t k0 = 0; k0 < k; k0 += slab) {
        const int left = k - k0 < (size_t)slab ? (int)(k - k0) : slab;
        if (k0) __syncthreads();
        for (int e = threadIdx.x; e < left * N; e += THREADS) {
            const int p = e / N, j = e % N;
            columns[j * pitch + p] = j < out.n ? R(b[(k0 + p) * ldb + j]) : R(0);
        }
        __syncthreads();
#pragma unroll 2
        for (int p = lane * W; p < left; p += 32 * W) {
            pack<T, W> x[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) x[r] = pack_at<W>(row[r] + k0 + p);
#pragma unroll
            for (int j = 0; j < N; j++) {
                R w[W];
                load_row<W>(w, columns + j * pitch + p);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int e = 0; e < W; e++) sum[r][j] += R(x[r].value[e]) * w[e];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
                sum[r][j] += __shfl_xor_sync(0xffffffffu, sum[r][j], offset);
            if (lane == (r * N + j) % 32 && row0 + r < out.m && j < out.n) out.store(row0 + r, j, sum[r][j]);
        }
}

/* --- TN --- */

template <typename T, typename C, int N>
__global__ void __launch_bounds__(THREADS)
    narrow_tn(const T *a, size_t lda, const T *b, size_t ldb, size_t k, sink<C> out,
              cuda_reduction reduction) {
    typedef real<T> R;
    constexpr int W = OWNED<T>, COLUMNS = 32 * W, SLAB = 256;
    __shared__ alignas(16) R rows[SLAB][N];
    __shared__ R total[COLUMNS * N];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t i0 = (size_t)blockIdx.x * COLUMNS + lane * W;
    const size_t per_block = (k + gridDim.y - 1) / gridDim.y, first = blockIdx.y * per_block;
    const size_t last = first + per_block < k ? first + per_block : k;
    R sum[W][N] = {};

    for (size_t k0 = first; k0 < last; k0 += SLAB) {
        const int left = last - k0 < SLAB ? (int)(last - k0) : SLAB;
        __syncthreads();
        for (int e = threadIdx.x; e < left * N; e += THREADS) {
            const int p = e / N, j = e % N;
            rows[p][j] = j < out.n ? R(b[(k0 + p) * ldb + j]) : R(0);
        }
        __syncthreads();
        if (i0 < out.m)
#pragma unroll 8
            for (int p = warp; p < left; p += WARPS) {
                const pack<T, W> x = pack_at<W>(a + (k0 + p) * lda + i0);
                R y[N];
                load_row<N>(y, rows[p]);
#pragma unroll
                for (int e = 0; e < W; e++)
#pragma unroll
                    for (int j = 0; j < N; j++) sum[e][j] += R(x.value[e]) * y[j];
            }
    }

    /* the warps, one after another; in memory (e, j, lane), so that lanes are neighbours */
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) {
        __syncthreads();
        if (warp != w) continue;
#pragma unroll
        for (int e = 0; e < W; e++)
#pragma unroll
            for (int j = 0; j < N; j++) {
                R *at = &total[(e * N + j) * 32 + lane];
                *at = w ? *at + sum[e][j] : sum[e][j];
            }
    }
    __syncthreads();
    R *partial = (R *)reduction.scratch + (size_t)blockIdx.x * COLUMNS * N;
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
        R all = gridDim.y > 1 ? R(0) : total[t];
        if (gridDim.y > 1)
#pragma unroll 8
            for (unsigned chunk = 0; chunk < gridDim.y; chunk++)
                all += __ldcg(&partial[chunk * chunk_size + t]);
        out.store(i, j, all);
    }
}

/* --- NT --- */

template <typename T, typename C, int N>
__global__ void __launch_bounds__(THREADS, 2)
    narrow_nt(const T *a, size_t lda, const T *b, size_t ldb, size_t k, sink<C> out, size_t per_block,
              slope<C> back, cuda_reduction reduction) {
    typedef real<T> R;
    constexpr int W = OWNED<C>, COLUMNS = 32 * W, SLAB = 256;
    __shared__ alignas(16) R rows[SLAB][N];
    __shared__ R sums[WARPS][COLUMNS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t j0 = (size_t)blockIdx.x * COLUMNS + lane * W;
    const size_t first = blockIdx.y * per_block;
    const size_t last = first + per_block < out.m ? first + per_block : out.m;
    R weight[W][N], column[W] = {};
#pragma unroll
    for (int e = 0; e < W; e++)
#pragma unroll
        for (int p = 0; p < N; p++) weight[e][p] = j0 < out.n && p < k ? R(b[(j0 + e) * ldb + p]) : R(0);

    for (size_t i0 = first; i0 < last; i0 += SLAB) {
        const int left = last - i0 < SLAB ? (int)(last - i0) : SLAB;
        __syncthreads();
        for (int e = threadIdx.x; e < left * N; e += THREADS) {
            const int r = e / N, p = e % N;
            rows[r][p] = p < k ? R(a[(i0 + r) * lda + p]) : R(0);
        }
        __syncthreads();
        if (j0 < out.n)
#pragma unroll 4
            for (int r = warp; r < left; r += WARPS) {
                const size_t at = (i0 + r) * out.ldc + j0;
                R x[N];
                load_row<N>(x, rows[r]);
                pack<C, W> y, activated = {}, pre = {};
                if (back.on) activated = pack_at<W>(back.output + at);
                if (back.on && back.pre) pre = pack_at<W>(back.pre + at);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    R sum = 0;
#pragma unroll
                    for (int p = 0; p < N; p++) sum += x[p] * weight[e][p];
                    sum = out.finish(i0 + r, j0 + e, sum);
                    if (back.on)
                        sum *= derivative(back.activation, R(pre.value[e]), R(activated.value[e]));
                    y.value[e] = C(sum);
                    column[e] += R(y.value[e]);
                }
                pack_at<W>(out.c + at) = y;
            }
    }
    if (!back.on) return;

    /* column sums: this block's rows, then the blocks in order by whichever comes last */
    __syncthreads();
#pragma unroll
    for (int e = 0; e < W; e++) sums[warp][lane * W + e] = column[e];
    __syncthreads();
    R *partial = (R *)reduction.scratch;
    const size_t j = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
    const bool mine = threadIdx.x < COLUMNS && j < out.n;
    if (mine) {
        R total = sums[0][threadIdx.x];
        for (int w = 1; w < WARPS; w++) total += sums[w][threadIdx.x];
        partial[blockIdx.y * out.n + j] = total;
    }
    if (!last_block(&reduction.tickets[blockIdx.x], gridDim.y) || !mine) return;
    R total = 0;
#pragma unroll 8
    for (unsigned chunk = 0; chunk < gridDim.y; chunk++) total += __ldcg(&partial[chunk * out.n + j]);
    back.column_sums[j] = total;
}

/* --- launches --- */

/* About how many blocks fill the chip two or three times over, so that the last ones cost little. */
static const size_t PLENTY = 512;

template <typename T, typename C, int N> static void launch_nn(tuned_context *context, const gemm_call &call) {
    const int slab = nn_slab<real<T>, N>(call.k, context->shared_bytes);
    const size_t bytes = (size_t)N * (slab + WIDEST<real<T>>) * sizeof(real<T>);
    const auto kernel = narrow_nn<T, C, N>;
    if (bytes > 48 << 10 &&
        !CUDA_TRY(&context->fault, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                        context->shared_bytes)))
        return;
    kernel<<<blocks_for(call.m, NN_ROWS<T> * WARPS), THREADS, bytes, context->stream>>>(
        (const T *)call.a, call.lda, (const T *)call.b, call.ldb, call.k, slab, sink<C>(call));
}

template <typename T, typename C, int N> static void launch_tn(tuned_context *context, const gemm_call &call) {
    const size_t groups = blocks_for(call.m, 32 * OWNED<T>);
    const size_t bytes = groups * 32 * OWNED<T> * N * sizeof(real<T>); /* of one chunk's sums */
    size_t chunks = (PLENTY + groups - 1) / groups;
    if (chunks > (call.k + 127) / 128) chunks = (call.k + 127) / 128;
    if (chunks * bytes > REDUCTION_BYTES) chunks = REDUCTION_BYTES / bytes;
    if (groups > REDUCTION_GROUPS || chunks < 1) chunks = 1;
    narrow_tn<T, C, N><<<dim3((unsigned)groups, (unsigned)chunks), THREADS, 0, context->stream>>>(
        (const T *)call.a, call.lda, (const T *)call.b, call.ldb, call.k, sink<C>(call), context->reduction);
}

template <typename T, typename C, int N> static void launch_nt(tuned_context *context, const gemm_call &call) {
    const size_t groups = blocks_for(call.n, 32 * OWNED<C>);
    const size_t wanted = (PLENTY + groups - 1) / groups, most = (call.m + 127) / 128;
    const size_t chunks = wanted < most ? wanted : most, per_block = (call.m + chunks - 1) / chunks;
    narrow_nt<T, C, N><<<dim3((unsigned)groups, (unsigned)chunks), THREADS, 0, context->stream>>>(
        (const T *)call.a, call.lda, (const T *)call.b, call.ldb, call.k, sink<C>(call), per_block,
        slope<C>(call), context->reduction);
}

void narrow_gemm(struct tuned_context *context, const struct gemm_call *call) {
    with_types(call, [&]<typename T, typename C>() {
        with_width(call->op == GEMM_NT ? call->k : call->n, [&]<int N>() {
            if (call->op == GEMM_NN) launch_nn<T, C, N>(context, *call);
            if (call->op == GEMM_TN) launch_tn<T, C, N>(context, *call);
            if (call->op == GEMM_NT) launch_nt<T, C, N>(context, *call);
        });
    });
    CUDA_LAUNCHED(&context->fault, "narrow kernel");
}

bool narrow_fuses_backward(const struct gemm_call *call) {
    return call->op == GEMM_NT && call->n <= 32 * REDUCTION_GROUPS;
}
