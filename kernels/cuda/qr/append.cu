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
#include "kernels/cuda/qr/append_make.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

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
