/* cuda-tuned, narrow input gradients: dX = dY W^T, where dY has as many columns as there are classes (16 at
   most).

   Idea       a thread block has 64 x 64 elements of dX at a time, as a block of planes has (planes.cuh), and
              goes up a strip of them. A lane owns a pack of 16 bytes in eight of its rows. If a product on
              tensor cores has read dX as float32 planes, they are written with it: dX is not split in a pass
              of its own.
   Bound by   bytes: dX is written and, with a backward epilogue, Y is read: 8192 x 2048 in float32 are 134
              MB, and 201 MB with planes: 45 and 67 us at 3 TB/s.
   Improves   5_cublas.cu for output layers
   Run        ./train bench gemm --backends cublas,cuda-tuned */
#include "kernels/cuda/gemm/6_tuned_narrow.cuh"
#include "kernels/cuda/tensor/float32_block.cuh"

bool narrow_fuses_backward(const struct gemm_call *call) {
    const gemm_backward *backward = call->backward;
    if (gemm_is_16bit(call->dtype)) return narrow_bf16_fuses_backward(call);
    return call->op == GEMM_NT && call->n <= 32 * REDUCTION_GROUPS &&
           whole_packs(call, backward->output, call->n, call->ldc) &&
           (!activation_needs_input(backward->activation) ||
            whole_packs(call, backward->pre, call->n, call->ldc));
}

static const int THREADS = 128, LANES = 16; /* of a row */

template <typename T> struct nt_shape {
    static constexpr int W = WIDEST<T>, COLUMNS = LANES * W, ROWS = PLANE_SIDE;
    static constexpr int PACKS = ROWS * LANES / THREADS; /* of a thread */
};

/* What a thread has of a block of dX: packs in rows two apart, as the fours of float32::block_area. */
template <typename T> struct nt_share {
    typedef nt_shape<T> S;
    static constexpr int W = S::W;
    const sink<T> &out;
    const slope<T> &back;
    size_t first; /* index in C of the first pack */
    int rows;     /* from its row to the last one */

    __device__ static int row(int i) {
        return (int)threadIdx.x / 32 * 16 + i * 2 + (int)threadIdx.x % 32 / LANES;
    }
    __device__ nt_share(const sink<T> &to, const slope<T> &slopes, size_t row0, size_t end, size_t column)
        : out(to), back(slopes), first((row0 + row(0)) * to.ldc + column),
          rows(column < to.n && row0 + row(0) < end ? (int)min(end - row0, (size_t)S::ROWS) - row(0) : 0) {}

    __device__ size_t at(int i) const {
        return first + i * 2 * out.ldc;
    }
    __device__ bool has(int i) const {
        return i * 2 < rows;
    }

    /* x = act'(Z). All loads are issued before the first use. */
    template <enum activation A> __device__ void load_slopes(T (&x)[S::PACKS][W]) const {
        pack<T, W> y[S::PACKS];
#pragma unroll
        for (int i = 0; i < S::PACKS; i++)
            if (has(i)) y[i] = pack_at<W>(back.output + at(i));
#pragma unroll
        for (int i = 0; i < S::PACKS; i++) {
            pack<T, W> z = {};
            if ((ACTIVATIONS_NEEDING_INPUT >> A & 1) && has(i)) z = pack_at<W>(back.pre + at(i));
#pragma unroll
            for (int e = 0; e < W; e++) x[i][e] = derivative(A, z.value[e], y[i].value[e]);
        }
    }

    /* sum = dY W^T, a few k at a time, so that few weights are in registers. */
    template <int N>
    __device__ static void multiply(T (&sum)[S::PACKS][W], const T (&dy)[S::ROWS][N],
                                    const T (&weights)[S::COLUMNS][N]) {
        constexpr int K = 4;
#pragma unroll
        for (int p = 0; p < N; p += K) {
            T weight[W][K];
#pragma unroll
            for (int e = 0; e < W; e++) load_row<K>(weight[e], weights[threadIdx.x % LANES * W + e] + p);
#pragma unroll
            for (int i = 0; i < S::PACKS; i++) {
                T gradient[K];
                load_row<K>(gradient, dy[row(i)] + p);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    if (p == 0) sum[i][e] = 0;
#pragma unroll
                    for (int q = 0; q < K; q++) sum[i][e] += gradient[q] * weight[e][q];
                }
            }
        }
    }

    /* x = alpha x + beta C. */
    __device__ void scale(T (&x)[S::PACKS][W]) const {
#pragma unroll
        for (int i = 0; i < S::PACKS; i++)
#pragma unroll
            for (int e = 0; e < W; e++) x[i][e] *= out.alpha;
        if (out.beta == 0) return;
#pragma unroll
        for (int i = 0; i < S::PACKS; i++) {
            pack<T, W> old = {};
            if (has(i)) old = pack_at<W>(out.c + at(i));
#pragma unroll
            for (int e = 0; e < W; e++) x[i][e] += out.beta * old.value[e];
        }
    }

    /* Stores x, times its slopes if there is a backward epilogue, in C. x is 0 outside. */
    __device__ void store(T (&x)[S::PACKS][W], const T (&slope)[S::PACKS][W]) const {
#pragma unroll
        for (int i = 0; i < S::PACKS; i++) {
            pack<T, W> y;
#pragma unroll
            for (int e = 0; e < W; e++)
                y.value[e] = x[i][e] = !has(i) ? 0 : back.on ? x[i][e] * slope[i][e] : x[i][e];
            if (has(i)) __stwb((uint4 *)(out.c + at(i)), *(const uint4 *)&y); /* in one access */
        }
    }
};

/* The rows of dY of a block, and those of W: [row][N], 0 outside. A thread loads all of its elements before
   it stores the first. */
template <int ROWS, int N, typename T> struct staged_rows {
    static constexpr int COUNT = ROWS * N / THREADS;
    static_assert(ROWS * N % THREADS == 0);
    T own[COUNT];

    __device__ void load(const T *from, size_t ld, size_t row0, size_t rows, size_t cols) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const unsigned e = threadIdx.x + i * THREADS, j = e % N;
            const size_t row = row0 + e / N;
            own[i] = row < rows && j < cols ? from[row * ld + j] : T(0);
        }
    }
    __device__ void store(T (&to)[ROWS][N]) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) to[0][threadIdx.x + i * THREADS] = own[i];
    }
};

/* One launch: sums[j] = the sum of column[] over the threads with column j, in a fixed order. */
template <typename T>
static __device__ void store_column_sums(const T (&column)[WIDEST<T>], size_t n, T *sums,
                                         cuda_reduction reduction) {
    constexpr int W = WIDEST<T>, COLUMNS = nt_shape<T>::COLUMNS, PARTS = THREADS / LANES;
    __shared__ T parts[PARTS][COLUMNS];
#pragma unroll
    for (int e = 0; e < W; e++) parts[threadIdx.x / LANES][threadIdx.x % LANES * W + e] = column[e];
    __syncthreads();
    T *partial = (T *)reduction.scratch;
    const size_t j = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
    const bool mine = threadIdx.x < COLUMNS && j < n;
    if (mine) {
        T total = parts[0][threadIdx.x];
        for (int part = 1; part < PARTS; part++) total += parts[part][threadIdx.x];
        partial[blockIdx.y * n + j] = total;
    }
    if (!last_block(&reduction.tickets[blockIdx.x], gridDim.y) || !mine) return;
    sums[j] = sum_of_chunks(partial + j, gridDim.y, n);
}

/* c: the planes of C; `blocks` NULL: there are none. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 4)
    narrow_nt(const T *a, size_t lda, const T *b, size_t ldb, size_t k, const __grid_constant__ sink<T> out,
              size_t rows_of_block, const __grid_constant__ slope<T> back, const __grid_constant__ planes c,
              cuda_reduction reduction) {
    typedef nt_shape<T> S;
    constexpr int W = S::W;
    __shared__ alignas(16) T dy[S::ROWS][N], weights[S::COLUMNS][N];
    __shared__ alignas(16) float32::block_memory memory;
    const size_t first = blockIdx.y * rows_of_block, last = min(first + rows_of_block, out.m);
    const size_t j0 = (size_t)blockIdx.x * S::COLUMNS + threadIdx.x % LANES * W;
    T column[W] = {};
    staged_rows<S::COLUMNS, N, T> of_w;
    of_w.load(b, ldb, (size_t)blockIdx.x * S::COLUMNS, out.n, k);
    of_w.store(weights);
    unsigned raised = 0;
    /* from the last rows on: the weight gradient has just read Y, whose last rows are in the L2 cache */
    for (size_t left = (last - first + S::ROWS - 1) / S::ROWS; left-- > 0;) {
        const size_t row0 = first + left * S::ROWS;
        const nt_share<T> own(out, back, row0, last, j0);
        staged_rows<S::ROWS, N, T> of_dy;
        of_dy.load(a, lda, row0, last, k);
        T x[S::PACKS][W], slope[S::PACKS][W];
        if (back.on)
            with_activation(
                back.activation, [&]<enum activation A>() { own.template load_slopes<A>(slope); });
        __syncthreads();
        of_dy.store(dy);
        __syncthreads();
        own.multiply(x, dy, weights);
        own.scale(x);
        own.store(x, slope);
#pragma unroll
        for (int i = 0; i < S::PACKS; i++)
#pragma unroll
            for (int e = 0; e < W; e++) column[e] += x[i][e];
        if constexpr (sizeof(T) == sizeof(float))
            if (c.blocks)
                raised |=
                    float32::block_area(memory).split(x, c, row0 / PLANE_SIDE * c.column_blocks + blockIdx.x);
    }
    if (c.blocks && threadIdx.x == 0) planes_done(c.flags, raised | PLANES_LOW, gridDim.x * gridDim.y);
    if (back.on) store_column_sums(column, out.n, back.column_sums, reduction);
}

template <typename T, int N>
static void launch_nt(tuned_context *context, const gemm_call &call, const planes &c,
                      cuda_launcher &launcher) {
    typedef nt_shape<T> S;
    const size_t groups = blocks_for(call.n, S::COLUMNS), blocks = blocks_for(call.m, S::ROWS);
    const auto kernel = narrow_nt<T, N>;
    const size_t chunks = chunks_for(context, kernel, THREADS, 0, groups, blocks, 1);
    const size_t blocks_of_chunk = (blocks + chunks - 1) / chunks;
    launch(launcher, "narrow_nt", kernel,
           dim3((unsigned)groups, (unsigned)((blocks + blocks_of_chunk - 1) / blocks_of_chunk)), THREADS, 0,
           (const T *)call.a, call.lda, (const T *)call.b, call.ldb, call.k, sink<T>(call),
           blocks_of_chunk * S::ROWS, slope<T>(call), c, context->reduction);
}

void narrow_nt_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    const planes c = launcher.describe ? planes{} : float32_planes_of_c(&context->float32, call);
    with_real(call->dtype, [&]<typename T>() {
        with_width(call->k, [&]<int N>() { launch_nt<T, N>(context, *call, c, launcher); });
    });
}
