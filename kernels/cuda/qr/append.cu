/* Rows that enter a triangle, on the GPU (kernels/qr.h): all columns in one launch.

   Idea       32 columns at a time. A few warps, the makers, make reflectors of them: a lane has a column and
              some of its rows. The other warps apply the reflectors of the 32 columns before to the columns
              beyond: a lane has one or several columns. It computes W = R + V^T A in registers, then T^T W by
              forward substitution, since T^-1 is V^T V above its diagonal and 1 / tau on it (Puglisi 1992,
              SIAM J. Sci. Stat. Comput. 13), R -= W and A -= V W. So the next reflectors are made while the
              rest is updated. If triangles are few, a cluster of thread blocks shares one.
   Bound by   latency of the reflectors, some 0.4 us a column, if triangles are few or small; else shared
              memory: all lanes read the same 16 bytes of V for 4 multiply-adds of each of their columns.
   Run        ./train bench qr --backends cuda-tuned */
#include "kernels/cuda/qr/qr.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

static constexpr unsigned COLUMNS = 32, PITCH = COLUMNS + 4 /* neighbouring rows start in other banks */,
                          MOST_BLOCKS = 8, ALL = 0xffffffffu,
                          OF_MAKER = 16 /* rows of a warp that makes reflectors */,
                          MOST_MAKERS = QR_APPEND_ROWS / OF_MAKER;

template <typename T> struct append_call {
    T *a;
    size_t r_ld, a_ld, a_stride;
    unsigned n, cols, rows, blocks;
};

/* COLUMNS reflectors: row i of V, and the products of l with those after it. Those that do not exist have
   zeros. */
template <typename T> struct alignas(16) reflectors {
    T v[QR_APPEND_ROWS][PITCH], products[COLUMNS][COLUMNS], tau[COLUMNS];
};

template <typename T> struct append_shared {
    reflectors<T> by[2]; /* for even and odd groups of columns */
    /* Of the columns that become reflectors: */
    T r[COLUMNS][COLUMNS + 1], a[QR_APPEND_ROWS][COLUMNS + 1];
    alignas(16) T x[2][QR_APPEND_ROWS]; /* an even and an odd one of them */
    T sums[2][MOST_MAKERS][COLUMNS];    /* its products with all, of the rows of each warp */
};

/* 16 bytes from shared memory. */
template <typename T> struct alignas(16) some { T value[16 / sizeof(T)]; };

/* The same pointer, from which the compiler computes addresses anew instead of keeping them in registers. */
template <typename T> __device__ __forceinline__ T *renewed(T *pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

/* --- reflectors applied to columns --- */

/* Columns j, j + 32, .. of a lane: those that exist. */
template <int EACH> struct lane_columns {
    unsigned first, end;
    __device__ bool has(int e) const {
        return first + 32 * e < end;
    }
};

/* Calls each(i, x) for the rows i, with x [EACH] = row i of the columns `a`. The next elements are loaded
   while each() works. */
template <typename T, int EACH, typename F>
__device__ __forceinline__ void each_row(unsigned rows, lane_columns<EACH> columns, const T *a, size_t a_ld,
                                         F each) {
    constexpr unsigned AHEAD = 16 / EACH;
    T next[AHEAD][EACH];
    const auto load = [&](unsigned first) {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                next[i][e] = first + i < rows && columns.has(e) ? a[(first + i) * a_ld + 32 * e] : 0;
    };
    load(0);
#pragma unroll 1
    for (unsigned first = 0; first < rows; first += AHEAD) {
        T now[AHEAD][EACH];
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++)
#pragma unroll
            for (int e = 0; e < EACH; e++) now[i][e] = next[i][e];
        load(first + AHEAD);
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) each(first + i, now[i]);
    }
}

/* Calls each(k, v) for the COLUMNS elements from `row` on. */
template <typename T, typename F> __device__ __forceinline__ void each_element(const T *row, F each) {
    constexpr unsigned PART = 16 / sizeof(T);
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k += PART) {
        const some<T> part = *(const some<T> *)(row + k);
#pragma unroll
        for (unsigned p = 0; p < PART; p++) each(k + p, part.value[p]);
    }
}

/* w = T^T w of a column. */
template <typename T> __device__ __forceinline__ void solve(const reflectors<T> &by, T (&w)[COLUMNS]) {
#pragma unroll
    for (unsigned l = 0; l < COLUMNS; l++) {
        w[l] *= by.tau[l];
        each_element(by.products[l], [&](unsigned k, T product) {
            if (k > l) w[k] -= product * w[l];
        });
    }
}

/* v . w */
template <typename T> __device__ __forceinline__ T dot(const T *v, const T (&w)[COLUMNS]) {
    T sum[4] = {};
    each_element(v, [&](unsigned k, T value) { sum[k % 4] += value * w[k]; });
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* Applies the first `width` reflectors to columns: `from` [width] of R becomes `to`; a [rows]. */
template <typename T, int EACH>
__device__ __forceinline__ void apply(const reflectors<T> &by, unsigned width, unsigned rows,
                                      lane_columns<EACH> columns, const T *from, T *to, size_t ld, T *a,
                                      size_t a_ld) {
    T w[EACH][COLUMNS];
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++)
#pragma unroll
        for (int e = 0; e < EACH; e++) w[e][k] = k < width && columns.has(e) ? from[k * ld + 32 * e] : 0;
    each_row<T, EACH>(rows, columns, a, a_ld, [&](unsigned i, const T(&x)[EACH]) {
        each_element(by.v[i], [&](unsigned k, T v) {
#pragma unroll
            for (int e = 0; e < EACH; e++) w[e][k] += v * x[e];
        });
    });
#pragma unroll
    for (int e = 0; e < EACH; e++) solve(by, w[e]);
    const T *const minuend = renewed(from);
    T *const difference = renewed(to), *const left = renewed(a);
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (k < width && columns.has(e)) difference[k * ld + 32 * e] = minuend[k * ld + 32 * e] - w[e][k];
    each_row<T, EACH>(rows, columns, left, a_ld, [&](unsigned i, const T(&x)[EACH]) {
        T sum[EACH][4] = {};
        each_element(by.v[i], [&](unsigned k, T v) {
#pragma unroll
            for (int e = 0; e < EACH; e++) sum[e][k % 4] += v * w[e][k];
        });
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (i < rows && columns.has(e))
                left[i * a_ld + 32 * e] = x[e] - (sum[e][0] + sum[e][1] + (sum[e][2] + sum[e][3]));
    });
}

/* --- reflectors made --- */

/* A barrier of the warps that make reflectors. */
template <int MAKERS> __device__ __forceinline__ void makers_barrier() {
    if (MAKERS == 1)
        __syncwarp();
    else
        asm volatile("bar.sync 1, %0;" : : "n"(32 * MAKERS) : "memory");
}

/* The triangle of the columns that become reflectors: `from` [width][width] of R. */
template <typename T, int MAKERS>
__device__ __forceinline__ void read_triangle(append_shared<T> &shared, unsigned width, const T *from,
                                              size_t ld) {
    constexpr unsigned SHARE = COLUMNS / MAKERS;
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 * SHARE;
    T part[SHARE];
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++)
        part[k] = lane < width && first + k <= lane ? from[(first + k) * ld + lane] : 0;
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++) shared.r[first + k][lane] = part[k];
}

/* Their rows below. */
template <typename T, int MAKERS>
__device__ __forceinline__ void read_rows(append_shared<T> &shared, unsigned width, unsigned rows, const T *a,
                                          size_t a_ld) {
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 * OF_MAKER;
    T part[OF_MAKER];
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        part[i] = lane < width && first + i < rows ? a[(first + i) * a_ld + lane] : 0;
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++) shared.a[first + i][lane] = part[i];
}

/* MAKERS lanes of the makers share a column, of R and the rows: each has every MAKERS-th row of both. */
template <typename T, int MAKERS> struct shared_column {
    static constexpr unsigned OF_LANE = COLUMNS / MAKERS;
    unsigned j, part;
    T r[OF_LANE]; /* rows part + MAKERS i of R */

    __device__ __forceinline__ shared_column(unsigned width, unsigned columns, const T *from, size_t ld)
        : j(threadIdx.x / MAKERS), part(threadIdx.x % MAKERS) {
#pragma unroll
        for (unsigned i = 0; i < OF_LANE; i++)
            r[i] = part + MAKERS * i < width && j < columns ? from[(part + MAKERS * i) * ld + j] : 0;
    }
};

/* The sum over the MAKERS lanes of a column, in all of them. */
template <int MAKERS, typename T> __device__ __forceinline__ T add_parts(T sum) {
#pragma unroll
    for (int step = MAKERS / 2; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
    return sum;
}

/* As `apply`, on the columns that become reflectors: their rows below go to shared.a. */
template <typename T, int MAKERS>
__device__ __forceinline__ void apply_shared(append_shared<T> &shared, const reflectors<T> &by,
                                             unsigned width, unsigned columns, unsigned rows,
                                             const shared_column<T, MAKERS> &column, T *to, size_t ld,
                                             const T *a, size_t a_ld) {
    const unsigned j = column.j, part = column.part;
    T w[COLUMNS], x[OF_MAKER];
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        x[i] = part + MAKERS * i < rows && j < columns ? a[(part + MAKERS * i) * a_ld + j] : 0;
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++) w[k] = k % MAKERS == part ? column.r[k / MAKERS] : 0;
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        each_element(by.v[part + MAKERS * i], [&](unsigned k, T v) { w[k] += v * x[i]; });
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++) w[k] = add_parts<MAKERS>(w[k]);
    solve(by, w);
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++)
        if (k % MAKERS == part && k < width && j < columns) to[k * ld + j] = column.r[k / MAKERS] - w[k];
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        shared.a[part + MAKERS * i][j] = x[i] - dot(by.v[part + MAKERS * i], w);
}

/* The makers make reflectors of the columns in shared.r and shared.a; `to` [width][width] becomes the new
   triangle. */
template <typename T, int MAKERS>
__device__ __forceinline__ void make(append_shared<T> &shared, reflectors<T> &by, unsigned width, T *to,
                                     size_t ld) {
    constexpr unsigned SHARE = COLUMNS / MAKERS;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp * OF_MAKER;
    T mine[OF_MAKER], own_factor = 0;
    makers_barrier<MAKERS>(); /* all makers have written shared.r and shared.a */
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++) mine[i] = shared.a[first + i][lane];
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++) by.products[warp * SHARE + k][lane] = 0;
    if (warp == 0) by.tau[lane] = 0;
    T of_row = shared.r[0][lane], head = shared.r[0][0];
    makers_barrier<MAKERS>();
    for (unsigned c = 0; c < width; c++) {
        T *x = (T *)__builtin_assume_aligned(&shared.x[c % 2][first], 16), part[4] = {};
        const T next_row = shared.r[(c + 1) % COLUMNS][lane],
                next_head = shared.r[(c + 1) % COLUMNS][(c + 1) % COLUMNS];
        if (lane == c) {
#pragma unroll
            for (unsigned i = 0; i < OF_MAKER; i++) x[i] = mine[i];
        }
        __syncwarp();
#pragma unroll
        for (unsigned i = 0; i < OF_MAKER; i++) part[i % 4] += x[i] * mine[i];
        T sum = part[0] + part[1] + (part[2] + part[3]);
        if (MAKERS > 1) {
            shared.sums[c % 2][warp][lane] = sum;
            makers_barrier<MAKERS>();
            sum = shared.sums[c % 2][0][lane];
#pragma unroll
            for (int m = 1; m < MAKERS; m++) sum += shared.sums[c % 2][m][lane];
        }
        const reflector<T> one = reflect(head, __shfl_sync(ALL, sum, c));
        const T product = one.factor * sum, w = lane > c ? one.tau * (of_row + product) : 0,
                scaled = w * one.factor;
#pragma unroll
        for (unsigned i = 0; i < OF_MAKER; i++) mine[i] -= scaled * x[i];
        if (warp == 0) {
            if (lane < c) by.products[lane][c] = own_factor * product;
            if (lane >= c) shared.r[c][lane] = lane == c ? one.beta : of_row - w;
            if (lane == c) by.tau[c] = one.tau;
        }
        own_factor = lane == c ? one.factor : own_factor;
        of_row = next_row;
        head = next_head;
    }
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++) by.v[first + i][lane] = mine[i] * own_factor;
    makers_barrier<MAKERS>();
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++) {
        const unsigned i = warp * SHARE + k;
        if (lane < width && i <= lane) to[i * ld + lane] = shared.r[i][lane];
    }
    makers_barrier<MAKERS>(); /* shared.r was read */
}

/* --- all columns --- */

/* The reflectors of block 0, into this block. */
template <typename T> __device__ __forceinline__ void fetch(reflectors<T> &by, unsigned rows) {
    const unsigned v = rows * PITCH * sizeof(T) / 16, rest = (COLUMNS + 1) * COLUMNS * sizeof(T) / 16;
    uint4 *to = (uint4 *)&by, *products = (uint4 *)by.products;
    for (unsigned k = threadIdx.x; k < v; k += blockDim.x) to[k] = cluster_load(to + k, 0);
    for (unsigned k = threadIdx.x; k < rest; k += blockDim.x) products[k] = cluster_load(products + k, 0);
}

static __host__ __device__ inline unsigned least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

/* Several blocks on an SM are those of many triangles. */
template <int BLOCKS> constexpr unsigned table_size = BLOCKS > 1 ? 1024 : QR_TABLE;

/* WARPS: of a block, of which an SM has BLOCKS. EACH: columns of a lane that applies reflectors. */
template <typename T, int WARPS, int BLOCKS, int MAKERS, int EACH>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    append_rows(const __grid_constant__ append_call<T> call,
                const __grid_constant__ qr_table_of<table_size<BLOCKS>> table) {
    extern __shared__ uint4 memory[];
    append_shared<T> &shared = *(append_shared<T> *)memory;
    const unsigned lane = threadIdx.x % 32, rank = cluster_rank(), worker = rank * WARPS + threadIdx.x / 32,
                   workers = call.blocks * WARPS, number = blockIdx.x / call.blocks, n = call.n,
                   rows = call.rows;
    const size_t ld = call.r_ld, a_ld = call.a_ld;
    const T *from = (const T *)table.from[number];
    T *to = (T *)table.to[number], *a = call.a + number * call.a_stride;
    if (worker < MAKERS) {
        read_triangle<T, MAKERS>(shared, least(COLUMNS, n), from, ld);
        read_rows<T, MAKERS>(shared, least(COLUMNS, n), rows, a, a_ld);
        make<T, MAKERS>(shared, shared.by[0], least(COLUMNS, n), to, ld);
    }
    for (unsigned col = 0; col < n; col += COLUMNS) {
        const unsigned width = least(COLUMNS, n - col), next = col + width,
                       next_width = least(COLUMNS, n - next), group = col / COLUMNS % 2,
                       busy = next_width ? MAKERS : 0;
        reflectors<T> &by = shared.by[group];
        const T *row_from = from + col * ld;
        T *row_to = to + col * ld;
        const bool makes = worker < busy;
        const shared_column<T, MAKERS> column(makes ? width : 0, next_width, row_from + next, ld);
        if (makes) read_triangle<T, MAKERS>(shared, next_width, from + next * ld + next, ld);
        __syncwarp();
        cluster_barrier(); /* R is read while the blocks wait */
        if (makes) {
            apply_shared<T, MAKERS>(shared, by, width, next_width, rows, column, row_to + next, ld, a + next,
                                    a_ld);
            make<T, MAKERS>(shared, shared.by[group ^ 1], next_width, to + next * ld + next, ld);
            continue;
        }
        if (rank) {
            fetch(by, MAKERS * OF_MAKER);
            __syncthreads();
        }
        lane_columns<EACH> columns = {next + next_width + 32 * EACH * (worker - busy) + lane, call.cols};
        for (; columns.first - lane < call.cols; columns.first += 32 * EACH * (workers - busy))
            apply<T, EACH>(by, width, rows, columns, row_from + columns.first, row_to + columns.first, ld,
                           a + columns.first, a_ld);
    }
    __syncwarp();
    cluster_barrier(); /* block 0 was read */
}

/* --- launches --- */

size_t qr_append_shared(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? sizeof(append_shared<float>) : sizeof(append_shared<double>);
}

template <typename T, int WARPS, int BLOCKS, int MAKERS, int EACH>
static void launch_append(struct cuda_ops_context *context, const struct qr_append *append) {
    const unsigned strips = (unsigned)((append->cols + 32 * EACH - 1) / (32 * EACH)),
                   processors = qr_processors(context), most = least(qr_most_blocks(context), MOST_BLOCKS);
    append_call<T> call = {.r_ld = append->r.ld,
                           .a_ld = append->a.ld,
                           .a_stride = append->a.stride,
                           .n = (unsigned)append->n,
                           .cols = (unsigned)append->cols,
                           .rows = (unsigned)append->rows,
                           .blocks = 1};
    while (2 * call.blocks <= most && 2 * call.blocks * append->count <= processors &&
           call.blocks * WARPS < strips + MAKERS)
        call.blocks *= 2;
    qr_each_table<table_size<BLOCKS>>(
        &append->r, append->count, [&](size_t first, size_t count, const auto &table) {
            call.a = (T *)append->a.values + first * append->a.stride;
            qr_launch(context, "append_rows", append_rows<T, WARPS, BLOCKS, MAKERS, EACH>, count, call.blocks,
                      32 * WARPS, sizeof(append_shared<T>), call, table);
        });
}

/* With several columns a lane reads V less often; with one more warps are busy. Of many triangles, an SM has
   several. */
template <typename T, int MAKERS>
static void choose_columns(struct cuda_ops_context *context, const struct qr_append *append) {
    constexpr int FEW = 2 * MAKERS < 4 ? 4 : 2 * MAKERS; /* warps: half of them make reflectors at most */
    if (append->cols >= 1024)
        launch_append<T, 8, 1, MAKERS, sizeof(T) == 4 ? 2 : 1>(context, append);
    else if (append->count <= qr_processors(context))
        launch_append<T, 8, 1, MAKERS, 1>(context, append);
    else
        launch_append<T, FEW, 64 / FEW / (int)sizeof(T), MAKERS, 1>(context, append);
}

template <typename T> void cuda_qr_append(void *opaque, const struct qr_append *append) {
    struct cuda_ops_context *context = open_ops(opaque);
    if (!append->count || !append->n || !append->rows) return;
    if (append->rows <= OF_MAKER) return choose_columns<T, 1>(context, append);
    if (append->rows <= 2 * OF_MAKER) return choose_columns<T, 2>(context, append);
    choose_columns<T, MOST_MAKERS>(context, append);
}

template void cuda_qr_append<float>(void *, const struct qr_append *);
template void cuda_qr_append<double>(void *, const struct qr_append *);
