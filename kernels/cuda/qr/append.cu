/* Rows that enter a triangle, on the GPU (kernels/qr.h): all columns in one launch.

   Idea       32 columns at a time: one warp makes their reflectors, a lane each column, and stores V and the
              products V^T V. The other warps apply the 32 before to the columns beyond, a lane each column: W =
              R + V^T A in registers, then T^T W by forward substitution with V^T V and 1 / tau (T^-1 is their
              sum: Puglisi 1992, SIAM J. Sci. Stat. Comput. 13), R -= W and A -= V W. So the next reflectors are
              made while the rest of the columns is updated. A triangle has a cluster of thread blocks if there
              are few triangles.
   Bound by   latency of the reflectors, some 0.2 us a column, for few or small triangles; FMA else: V is read
              from shared memory by broadcast, 16 bytes for 4 multiply-adds.
   Run        ./train bench qr --backend cuda-tuned */
#include "kernels/cuda/qr/qr.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

static constexpr unsigned COLUMNS = 32, MOST_BLOCKS = 8;
template <typename T> constexpr unsigned warps = sizeof(T) == 4 ? 12 : 8;
template <typename T> constexpr int together = sizeof(T) == 4 ? 16 : 8; /* rows that are loaded ahead */

template <typename T> struct append_call {
    T *a;
    size_t r_ld, a_ld, a_stride;
    unsigned n, cols, rows, blocks;
};

/* COLUMNS reflectors: row i of V, and the products of l with those after it. Those that do not exist have
   zeros. */
template <typename T> struct alignas(16) reflectors {
    T v[QR_APPEND_ROWS][COLUMNS], products[COLUMNS][COLUMNS], tau[COLUMNS];
};

template <typename T> struct append_shared {
    reflectors<T> by[2];             /* for even and odd groups of columns */
    T r[COLUMNS][COLUMNS + 1];       /* the triangle of the columns that become reflectors */
    alignas(16) T x[QR_APPEND_ROWS]; /* one of these columns */
};

/* 16 bytes from shared memory. */
template <typename T> struct alignas(16) some { T value[16 / sizeof(T)]; };

/* w += v x for COLUMNS elements. */
template <typename T> __device__ __forceinline__ void add_multiple(T (&w)[COLUMNS], const T *v, T x) {
    enum { EACH = 16 / sizeof(T) };
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k += EACH) {
        const some<T> part = *(const some<T> *)(v + k);
#pragma unroll
        for (int e = 0; e < EACH; e++) w[k + e] += part.value[e] * x;
    }
}

template <typename T> __device__ __forceinline__ T dot(const T (&w)[COLUMNS], const T *v) {
    enum { EACH = 16 / sizeof(T) };
    some<T> sum = {};
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k += EACH) {
        const some<T> part = *(const some<T> *)(v + k);
#pragma unroll
        for (int e = 0; e < EACH; e++) sum.value[e] += part.value[e] * w[k + e];
    }
    T total = sum.value[0];
#pragma unroll
    for (int e = 1; e < EACH; e++) total += sum.value[e];
    return total;
}

/* The same pointer, from which the compiler computes addresses anew instead of keeping them in registers. */
template <typename T> __device__ __forceinline__ T *renewed(T *pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

/* Calls each(i, a[i]) for i = 0 .. ROWS - 1, zero from `rows` on; the elements are loaded ahead. */
template <typename T, int ROWS, typename F>
__device__ __forceinline__ void each_row(unsigned rows, const T *a, size_t a_ld, F each) {
    constexpr int AHEAD = ROWS < together<T> ? ROWS : together<T>;
    T next[AHEAD];
    const auto load = [&](unsigned first) {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) next[i] = first + i < rows ? a[(first + i) * a_ld] : 0;
    };
    load(0);
#pragma unroll 1
    for (unsigned first = 0; first < rows; first += AHEAD) {
        T now[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) now[i] = next[i];
        load(first + AHEAD);
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) each(first + i, now[i]);
    }
}

/* Applies the first `width` reflectors to one column: `from` [width] of R becomes `to`; a [rows]. */
template <typename T, int ROWS>
__device__ void apply(const reflectors<T> &by, unsigned width, unsigned rows, const T *from, T *to, size_t ld,
                      T *a, size_t a_ld) {
    T w[COLUMNS];
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++) w[k] = k < width ? from[k * ld] : 0;
    each_row<T, ROWS>(rows, a, a_ld, [&](unsigned i, T x) { add_multiple(w, by.v[i], x); });
#pragma unroll
    for (unsigned l = 0; l < COLUMNS; l++) {
        w[l] *= by.tau[l];
        const T minus = -w[l];
#pragma unroll
        for (unsigned k = l + 1; k < COLUMNS; k++) w[k] += by.products[l][k] * minus;
    }
    const T *const minuend = renewed(from);
    T *const difference = renewed(to), *const left = renewed(a);
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++)
        if (k < width) difference[k * ld] = minuend[k * ld] - w[k];
    each_row<T, ROWS>(rows, left, a_ld, [&](unsigned i, T x) {
        if (i < rows) left[i * a_ld] = x - dot(w, by.v[i]);
    });
}

/* A warp makes the reflectors of `width` columns; a lane has column lane: `a` [rows], and `from` of R. ROWS is
   at least `rows`. */
template <typename T, int ROWS>
__device__ void make(append_shared<T> &shared, reflectors<T> &by, unsigned width, unsigned rows,
                     const T *from, T *to, size_t ld, const T *a, size_t a_ld) {
    const unsigned lane = threadIdx.x % 32;
    const bool there = lane < width;
    T mine[ROWS], own_factor = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++) mine[i] = there && i < (int)rows ? a[i * a_ld + lane] : 0;
    for (unsigned i = 0; i < width; i++) shared.r[i][lane] = there && i <= lane ? from[i * ld + lane] : 0;
    for (unsigned l = 0; l < COLUMNS; l++) by.products[l][lane] = 0;
    by.tau[lane] = 0;
    __syncwarp();
    for (unsigned c = 0; c < width; c++) {
        if (lane == c) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) shared.x[i] = mine[i];
        }
        __syncwarp();
        T part[4] = {};
#pragma unroll
        for (int i = 0; i < ROWS; i++) part[i % 4] += shared.x[i] * mine[i];
        const T sum = part[0] + part[1] + (part[2] + part[3]);
        const reflector<T> one = reflect(shared.r[c][c], __shfl_sync(0xffffffffu, sum, c));
        const T w = lane > c ? one.tau * (shared.r[c][lane] + one.factor * sum) : 0, scaled = w * one.factor;
#pragma unroll
        for (int i = 0; i < ROWS; i++) mine[i] -= scaled * shared.x[i];
        if (lane < c) by.products[lane][c] = own_factor * (one.factor * sum);
        __syncwarp(); /* all lanes have read x and row c */
        if (lane == c) {
            own_factor = one.factor;
            by.tau[c] = one.tau;
            shared.r[c][c] = one.beta;
        } else if (lane > c) {
            shared.r[c][lane] -= w;
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) by.v[i][lane] = mine[i] * own_factor;
    for (unsigned i = 0; i < width; i++)
        if (there && i <= lane) to[i * ld + lane] = shared.r[i][lane];
    __syncwarp();
}

/* The reflectors of block 0, into this block. */
template <typename T, int ROWS> __device__ void fetch(reflectors<T> &by) {
    const unsigned v = ROWS * COLUMNS * sizeof(T) / 16, rest = (COLUMNS + 1) * COLUMNS * sizeof(T) / 16;
    uint4 *to = (uint4 *)&by, *products = (uint4 *)by.products;
    for (unsigned k = threadIdx.x; k < v; k += blockDim.x) to[k] = cluster_load(to + k, 0);
    for (unsigned k = threadIdx.x; k < rest; k += blockDim.x) products[k] = cluster_load(products + k, 0);
}

static __device__ __forceinline__ unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

template <typename T, int ROWS>
__global__ void __launch_bounds__(32 * warps<T>, 1)
    append_rows(const __grid_constant__ append_call<T> call, const __grid_constant__ qr_table table) {
    extern __shared__ double2 memory[];
    append_shared<T> &shared = *(append_shared<T> *)memory;
    const unsigned lane = threadIdx.x % 32, rank = cluster_rank(),
                   worker = rank * warps<T> + threadIdx.x / 32, workers = call.blocks * warps<T>,
                   number = blockIdx.x / call.blocks, n = call.n, rows = call.rows;
    const size_t ld = call.r_ld;
    const T *from = (const T *)table.from[number];
    T *to = (T *)table.to[number], *a = call.a + number * call.a_stride;
    if (worker == 0) make<T, ROWS>(shared, shared.by[0], least(COLUMNS, n), rows, from, to, ld, a, call.a_ld);
    for (unsigned col = 0; col < n; col += COLUMNS) {
        const unsigned width = least(COLUMNS, n - col), next = col + width,
                       next_width = least(COLUMNS, n - next), group = col / COLUMNS % 2;
        reflectors<T> &by = shared.by[group];
        const T *row_from = from + col * ld;
        T *row_to = to + col * ld;
        __syncwarp();
        cluster_barrier();
        if (rank) {
            fetch<T, ROWS>(by);
            __syncthreads();
        }
        if (worker == 0 && next_width) {
            if (lane < next_width)
                apply<T, ROWS>(by, width, rows, row_from + next + lane, row_to + next + lane, ld,
                               a + next + lane, call.a_ld);
            __syncwarp();
            make<T, ROWS>(shared, shared.by[group ^ 1], next_width, rows, from + next * ld + next,
                          to + next * ld + next, ld, a + next, call.a_ld);
            continue;
        }
        const unsigned busy = next_width ? 1 : 0; /* workers that make reflectors */
        for (unsigned j = next + next_width + 32 * (worker - busy) + lane; j < call.cols;
             j += 32 * (workers - busy))
            apply<T, ROWS>(by, width, rows, row_from + j, row_to + j, ld, a + j, call.a_ld);
    }
    __syncwarp();
    cluster_barrier(); /* block 0 was read */
}

/* --- launches --- */

template <typename T, int ROWS>
static void launch_append(struct cuda_ops_context *context, const struct qr_append *append) {
    const unsigned strips = (unsigned)((append->cols + 31) / 32), processors = qr_processors(context),
                   most = qr_most_blocks(context) < MOST_BLOCKS ? qr_most_blocks(context) : MOST_BLOCKS;
    append_call<T> call = {.r_ld = append->r.ld,
                           .a_ld = append->a.ld,
                           .a_stride = append->a.stride,
                           .n = (unsigned)append->n,
                           .cols = (unsigned)append->cols,
                           .rows = (unsigned)append->rows,
                           .blocks = 1};
    while (2 * call.blocks <= most && 2 * call.blocks * append->count <= processors &&
           2 * call.blocks * warps<T> <= strips)
        call.blocks *= 2;
    qr_each_table(append->count, [&](size_t first, size_t count) {
        call.a = (T *)append->a.values + first * append->a.stride;
        qr_launch(context, "append_rows", append_rows<T, ROWS>, count, call.blocks, 32 * warps<T>,
                  sizeof(append_shared<T>), call, qr_table_of(&append->r, first, count));
    });
}

template <typename T> void cuda_qr_append(void *opaque, const struct qr_append *append) {
    struct cuda_ops_context *context = open_ops(opaque);
    if (!append->count || !append->n || !append->rows) return;
    if (append->rows <= 8) return launch_append<T, 8>(context, append);
    if (append->rows <= 32) return launch_append<T, 32>(context, append);
    launch_append<T, QR_APPEND_ROWS>(context, append);
}

template void cuda_qr_append<float>(void *, const struct qr_append *);
template void cuda_qr_append<double>(void *, const struct qr_append *);
