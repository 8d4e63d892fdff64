/* The panel of QR on the GPU (kernels/qr.h): up to 64 columns in one launch.

   Idea       a cluster of up to 16 thread blocks keeps a panel in registers: a warp has 8 of the 64
              columns, a lane some rows of each. The column that becomes a reflector is published in shared
              memory; each warp multiplies it with its columns, and the blocks exchange these products through
              distributed shared memory. The first rows of the panel, which become R, are in every block.
   Bound by   latency: a column takes a barrier of the block, an exchange and some 20 dependent steps.
   Run        ./train bench qr --backends cuda-tuned */
#include "kernels/cuda/qr/qr.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

static constexpr int WARPS = 8, THREADS = 32 * WARPS, COLUMNS = 8 /* of a warp */, WIDTH = WARPS * COLUMNS,
                     TOP = WIDTH / 32 /* of the first rows, for each lane */, MOST_BLOCKS = 16,
                     LANES_OF_T = THREADS / WIDTH /* for each column of T */;

template <typename T> struct panel_call {
    const T *a;
    T *vt, *t;
    size_t lda, a_stride, vt_ld, vt_stride, t_ld, t_stride;
    size_t top_ld, row, col;
    unsigned width, top_rows, rows, lead, blocks;
    bool triangular;
};

/* Values for the columns of a warp. */
template <typename T> struct alignas(16) of_warp { T value[COLUMNS]; };

/* Those of a block: padded, so that reading the values of 16 blocks has no bank conflicts. */
template <typename T> struct of_block {
    of_warp<T> of[WARPS];
    uint4 padding;
};

/* ROWS: of a lane in each column, below the first rows. */
template <typename T, int ROWS> struct panel_shared {
    static constexpr int BODY = 32 * ROWS, TILE = sizeof(T) == 4 ? 128 : 64;
    of_block<T> sums[2][MOST_BLOCKS]; /* of each block, for even and odd columns */
    uint64_t arrived[2];              /* mbarriers: all sums are there */
    T column[2][BODY + WIDTH];        /* the published column: rows of the block, then the first rows */
    T gram[WIDTH][WIDTH + 1];         /* products of the reflectors above the diagonal; else 0 */
    T tau[WIDTH], beta[WIDTH], factor[WIDTH];
    T tile[TILE][WIDTH + 1]; /* between rows and columns */
};

/* The columns of a warp: the rows of this block, and the first rows. Column s is number warp + WARPS s. */
template <typename T, int ROWS> struct panel_columns { T body[COLUMNS][ROWS], top[COLUMNS][TOP]; };

/* tile = `count` rows from `from` on; with `triangular` zeros below the diagonal. */
template <typename T, int ROWS>
__device__ __forceinline__ void read_tile(panel_shared<T, ROWS> &shared, int tile_rows, unsigned count,
                                          unsigned width, const T *from, size_t ld, bool triangular) {
    __syncthreads(); /* the tile was read */
#pragma unroll 16
    for (int k = threadIdx.x; k < tile_rows * WIDTH; k += THREADS) {
        const unsigned i = k / WIDTH, j = k % WIDTH;
        const bool there = i < count && j < width && !(triangular && j < i);
        shared.tile[i][j] = there ? from[i * ld + j] : 0;
    }
    __syncthreads();
}

template <typename T, int ROWS>
__device__ __forceinline__ void read_columns(const panel_call<T> &call, const T *top, const T *a,
                                             unsigned count, panel_shared<T, ROWS> &shared,
                                             panel_columns<T, ROWS> &mine) {
    constexpr int TILE = panel_shared<T, ROWS>::TILE;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    read_tile(shared, WIDTH, call.top_rows, call.width, top, call.top_ld, call.triangular);
#pragma unroll
    for (int s = 0; s < COLUMNS; s++)
#pragma unroll
        for (int i = 0; i < TOP; i++) mine.top[s][i] = shared.tile[32 * i + lane][warp + WARPS * s];
#pragma unroll
    for (int first = 0; first < 32 * ROWS; first += TILE) {
        const unsigned left = count > (unsigned)first ? count - first : 0;
        read_tile(shared, TILE, left, call.width, a + first * call.lda, call.lda, false);
#pragma unroll
        for (int s = 0; s < COLUMNS; s++)
#pragma unroll
            for (int i = 0; i < TILE / 32; i++)
                mine.body[s][first / 32 + i] = shared.tile[32 * i + lane][warp + WARPS * s];
    }
}

/* The elements i of column `slot` of the warp: by selection, so that all stay in registers. */
template <typename T, int N>
__device__ __forceinline__ T pick(const T (&of)[COLUMNS][N], int i, unsigned slot) {
    T value = of[0][i];
#pragma unroll
    for (int s = 1; s < COLUMNS; s++) value = slot == (unsigned)s ? of[s][i] : value;
    return value;
}

/* Column `slot` of the warp becomes the one that all warps read. */
template <typename T, int ROWS>
__device__ __forceinline__ void publish(const panel_columns<T, ROWS> &mine, unsigned slot, T *column) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ROWS; i++) column[32 * i + lane] = pick(mine.body, i, slot);
#pragma unroll
    for (int i = 0; i < TOP; i++) column[32 * (ROWS + i) + lane] = pick(mine.top, i, slot);
}

/* The sums of COLUMNS values over groups of LANES lanes: value s from lane LANES / COLUMNS s of the group
   on. */
template <int LANES, typename T> __device__ __forceinline__ T add_lanes(T (&sum)[COLUMNS]) {
    const unsigned lane = threadIdx.x % 32;
    halve<8>(sum, lane & LANES / 2, LANES / 2);
    halve<4>(sum, lane & LANES / 4, LANES / 4);
    halve<2>(sum, lane & LANES / 8, LANES / 8);
#pragma unroll
    for (int step = LANES / 16; step; step /= 2) sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], step);
    return sum[0];
}

/* Sends the sums of this warp to all blocks: a lane to each. */
template <typename T, int ROWS>
__device__ __forceinline__ void send(T (&sum)[COLUMNS], unsigned c, unsigned blocks,
                                     panel_shared<T, ROWS> &shared) {
    const unsigned lane = threadIdx.x % 32, rank = cluster_rank();
    of_warp<T> *at = &shared.sums[c % 2][rank].of[threadIdx.x / 32], mine;
    const T one = add_lanes<32>(sum);
    if (blocks == 1) {
        if (lane % (32 / COLUMNS) == 0) at->value[lane / (32 / COLUMNS)] = one;
        return;
    }
#pragma unroll
    for (int s = 0; s < COLUMNS; s++) mine.value[s] = __shfl_sync(0xffffffffu, one, 32 / COLUMNS * s);
    if (lane >= blocks) return;
#pragma unroll
    for (int k = 0; k < (int)sizeof(mine) / 16; k++)
        cluster_send((uint4 *)at + k, lane, ((uint4 *)&mine)[k], &shared.arrived[c % 2]);
}

/* Waits for the sums of all blocks. */
template <typename T, int ROWS>
__device__ __forceinline__ void receive(unsigned c, unsigned blocks, panel_shared<T, ROWS> &shared) {
    if (blocks == 1)
        __syncthreads();
    else
        mbarrier_wait(&shared.arrived[c % 2], c / 2);
}

/* Adds the sums of the blocks, in the order of a tree: those of this warp, and the squares of column c. Half
   a warp adds each. */
template <typename T, int ROWS>
__device__ __forceinline__ T add_blocks(const panel_shared<T, ROWS> &shared, unsigned c, unsigned blocks,
                                        T (&sum)[COLUMNS]) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = lane % 16;
    const of_block<T>(&sums)[MOST_BLOCKS] = shared.sums[c % 2];
    if (blocks == 1) {
        const of_warp<T> mine = sums[0].of[warp];
#pragma unroll
        for (int s = 0; s < COLUMNS; s++) sum[s] = mine.value[s];
        return sums[0].of[c % WARPS].value[c / WARPS];
    }
    of_warp<T> part = {};
    if (rank < blocks) part = sums[rank].of[lane < 16 ? warp : c % WARPS];
    const T one = add_lanes<16>(part.value);
#pragma unroll
    for (int s = 0; s < COLUMNS; s++) sum[s] = __shfl_sync(0xffffffffu, one, 16 / COLUMNS * s);
    return __shfl_sync(0xffffffffu, one, 16 + 16 / COLUMNS * (c / WARPS));
}

/* A value in a register: the compiler then selects between two values, and not between two addresses, for
   which it would move the array to local memory. */
__device__ __forceinline__ float kept(float value) {
    asm("" : "+f"(value));
    return value;
}
__device__ __forceinline__ double kept(double value) {
    asm("" : "+d"(value));
    return value;
}

/* T: T^-1 has 1 / tau on its diagonal and V^T V above it (Puglisi 1992, SIAM J. Sci. Stat. Comput. 13). Back
   substitution: LANES_OF_T lanes share a column, and each has every LANES_OF_T-th row. */
template <typename T, int ROWS>
__device__ __forceinline__ void compute_t(panel_shared<T, ROWS> &shared, T *t, size_t ld, unsigned width) {
    constexpr int OF_LANE = WIDTH / LANES_OF_T;
    const unsigned c = threadIdx.x / LANES_OF_T, part = threadIdx.x % LANES_OF_T;
    T column[OF_LANE] = {}, factor[OF_LANE];
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) factor[i] = shared.factor[i * LANES_OF_T + part];
#pragma unroll
    for (int r = OF_LANE - 1; r >= 0; r--)
#pragma unroll
        for (int p = LANES_OF_T - 1; p >= 0; p--) {
            const unsigned k = r * LANES_OF_T + p;
            const T tau = shared.tau[k], sum = __shfl_sync(0xffffffffu, column[r], p, LANES_OF_T),
                    value = k < c    ? -tau * sum
                            : k == c ? tau
                                     : 0;
#pragma unroll
            for (int i = 0; i <= r; i++)
                column[i] += shared.gram[i * LANES_OF_T + part][k] * (factor[i] * value);
            column[r] = part == (unsigned)p ? value : column[r];
        }
#pragma unroll
    for (int r = 0; r < OF_LANE; r++)
        if (r * LANES_OF_T + part < width && c < width) t[(r * LANES_OF_T + part) * ld + c] = column[r];
}

/* Reflector c is applied to the columns after it; column c + 1 is published. Column c stays as it is: its
   factor
   and its element on the diagonal are applied at the end. */
template <typename T, int ROWS>
__device__ __forceinline__ void reflect_column(const panel_call<T> &call, unsigned c,
                                               panel_shared<T, ROWS> &shared, panel_columns<T, ROWS> &mine) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = cluster_rank(), all = 0xffffffffu;
    const T *column = shared.column[c % 2];
    T x[ROWS], top[TOP], sum[COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) x[i] = column[32 * i + lane];
#pragma unroll
    for (int i = 0; i < TOP; i++) top[i] = 32 * i + lane > c ? column[32 * (ROWS + i) + lane] : 0;
#pragma unroll
    for (int s = 0; s < COLUMNS; s++) {
        sum[s] = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) sum[s] += x[i] * mine.body[s][i];
        if (rank == 0) {
#pragma unroll
            for (int i = 0; i < TOP; i++) sum[s] += top[i] * mine.top[s][i];
        }
    }
    if (threadIdx.x == 0 && call.blocks > 1)
        mbarrier_expect_tx(&shared.arrived[c % 2], call.blocks * sizeof shared.sums[0][0].of);
    send(sum, c, call.blocks, shared);
    receive(c, call.blocks, shared);

    const reflector<T> by = reflect(column[32 * ROWS + c], add_blocks(shared, c, call.blocks, sum));
    if (threadIdx.x == 0) {
        shared.tau[c] = by.tau;
        shared.beta[c] = by.beta;
        shared.factor[c] = by.factor;
    }
#pragma unroll
    for (int s = 0; s < COLUMNS; s++) {
        static_assert(TOP == 2);
        const unsigned j = warp + WARPS * s;
        const T upper = kept(mine.top[s][0]), lower = kept(mine.top[s][1]),
                of_row = __shfl_sync(all, c < 32 ? upper : lower, c % 32), /* row c of the column */
            product = of_row + by.factor * sum[s], w = j > c ? by.tau * product : 0;
        if (lane == 0) shared.gram[j][c] = j < c ? product : 0; /* without the factor of j */
        sum[s] = w * by.factor;
#pragma unroll
        for (int i = 0; i < TOP; i++) mine.top[s][i] -= 32 * i + lane == c ? w : sum[s] * top[i];
    }
#pragma unroll
    for (int s = 0; s < COLUMNS; s++)
        if (WARPS * (s + 1) > c) { /* one of these columns is after c */
#pragma unroll
            for (int i = 0; i < ROWS; i++) mine.body[s][i] -= sum[s] * x[i];
        }
    if (warp == (c + 1) % WARPS) publish(mine, (c + 1) / WARPS, shared.column[(c + 1) % 2]);
}

/* R and V^T of the first rows: block 0. */
template <typename T, int ROWS>
__device__ __forceinline__ void write_top(const panel_call<T> &call, T *to, T *vt,
                                          panel_shared<T, ROWS> &shared, const panel_columns<T, ROWS> &mine) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = call.width;
#pragma unroll
    for (int s = 0; s < COLUMNS; s++) {
        const unsigned j = warp + WARPS * s;
        T *out = vt + j * call.vt_ld;
        for (unsigned k = lane; j < width && k < call.lead; k += 32) out[k] = 0;
#pragma unroll
        for (int k = 0; k < TOP; k++) {
            const unsigned i = 32 * k + lane;
            shared.tile[i][j] = i > j ? 0 : i == j ? shared.beta[j] : mine.top[s][k];
            if (j < width && i < call.top_rows && !call.triangular)
                out[call.lead + i] = i < j ? 0 : i == j ? 1 : shared.factor[j] * mine.top[s][k];
        }
    }
    __syncthreads();
    for (unsigned k = threadIdx.x; k < WIDTH * WIDTH; k += THREADS) {
        const unsigned i = k / WIDTH, j = k % WIDTH;
        if (j < width && i < call.top_rows) to[i * call.top_ld + j] = shared.tile[i][j];
    }
}

template <typename T, int ROWS>
__global__ void __launch_bounds__(THREADS, 1)
    factor_panel(const __grid_constant__ panel_call<T> call, const __grid_constant__ qr_table table) {
    extern __shared__ uint4 memory[];
    panel_shared<T, ROWS> &shared = *(panel_shared<T, ROWS> *)memory;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = cluster_rank(),
                   number = blockIdx.x / call.blocks, first = rank * 32 * ROWS,
                   count = call.rows > first ? call.rows - first : 0;
    const size_t at = call.row * call.top_ld + call.col;
    T *vt = call.vt + number * call.vt_stride;
    panel_columns<T, ROWS> mine;
    for (unsigned k = threadIdx.x; k < WIDTH * (WIDTH + 1); k += THREADS) (&shared.gram[0][0])[k] = 0;
    if (threadIdx.x < WIDTH) shared.tau[threadIdx.x] = shared.factor[threadIdx.x] = 0;
    read_columns(call, (const T *)table.from[number] + at, call.a + number * call.a_stride + first * call.lda,
                 count, shared, mine);
    if (warp == 0) publish(mine, 0, shared.column[0]);
    if (threadIdx.x < 2) mbarrier_init(&shared.arrived[threadIdx.x]);
    __syncthreads();   /* for racecheck: a barrier of the cluster alone is none to it */
    cluster_barrier(); /* all blocks have started */
    for (unsigned c = 0; c < call.width; c++) {
        __syncthreads();
        reflect_column(call, c, shared, mine);
    }
    __syncthreads();
    T *below = vt + call.lead + (call.triangular ? 0 : call.top_rows) + first;
#pragma unroll
    for (int s = 0; s < COLUMNS; s++) {
        const unsigned j = warp + WARPS * s;
        const T factor = shared.factor[j];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (j < call.width && 32 * i + lane < count)
                below[j * call.vt_ld + 32 * i + lane] = factor * mine.body[s][i];
    }
    if (rank == 0) write_top(call, (T *)table.to[number] + at, vt, shared, mine);
    if (rank == call.blocks - 1) compute_t(shared, call.t + number * call.t_stride, call.t_ld, call.width);
}

/* --- launches --- */

template <typename T, int ROWS>
static void launch_panel(struct cuda_ops_context *context, const struct qr_panel *panel, unsigned blocks) {
    panel_call<T> call = {
        .lda = panel->a.ld,
        .a_stride = panel->a.stride,
        .vt_ld = panel->vt.ld,
        .vt_stride = panel->vt.stride,
        .t_ld = panel->t.ld,
        .t_stride = panel->t.stride,
        .top_ld = panel->top.ld,
        .row = panel->row,
        .col = panel->col,
        .width = (unsigned)panel->width,
        .top_rows = (unsigned)panel->top_rows,
        .rows = (unsigned)panel->rows,
        .lead = (unsigned)panel->lead,
        .blocks = blocks,
        .triangular = panel->triangular,
    };
    qr_each_table(&panel->top, panel->count, [&](size_t first, size_t count, const qr_table &table) {
        call.a = (const T *)panel->a.values + first * panel->a.stride;
        call.vt = (T *)panel->vt.values + first * panel->vt.stride;
        call.t = (T *)panel->t.values + first * panel->t.stride;
        qr_launch(context, "factor_panel", factor_panel<T, ROWS>, count, blocks, THREADS,
                  sizeof(panel_shared<T, ROWS>), call, table);
    });
}

/* The blocks of a cluster, a power of two, for `rows` rows with so many a block. */
static unsigned blocks_for_rows(size_t rows, size_t of_block) {
    unsigned blocks = 1;
    while (blocks * of_block < rows) blocks *= 2;
    return blocks;
}

template <typename T> constexpr int MOST_ROWS = sizeof(T) == 4 ? 16 : 8; /* of a lane */

size_t qr_panel_shared(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? sizeof(panel_shared<float, MOST_ROWS<float>>)
                             : sizeof(panel_shared<double, MOST_ROWS<double>>);
}

/* A cluster needs as many free SMs that are near each other: part of a GPU may have fewer. */
unsigned qr_most_blocks(struct cuda_ops_context *context) {
    unsigned *most = &context->cluster_blocks;
    if (*most) return *most;
    *most = qr_attribute(context, cudaDevAttrComputeCapabilityMajor) >= 9 ? MOST_BLOCKS : 1;
    for (int clusters = 0; *most > 1; *most /= 2) {
        qr_launch_config config(context, *most, *most, THREADS, qr_panel_shared(GEMM_F32));
        config.allow((const void *)factor_panel<float, MOST_ROWS<float>>);
        if (cudaOccupancyMaxActiveClusters(&clusters, factor_panel<float, MOST_ROWS<float>>,
                                           &config.launch) == cudaSuccess &&
            clusters > 0)
            break;
        cudaGetLastError(); /* clears the error */
    }
    return *most;
}

size_t cuda_qr_panel_rows(void *context, enum gemm_dtype dtype) {
    return (size_t)32 *
           (dtype == GEMM_F32 ? MOST_ROWS<float> : MOST_ROWS<double>)*qr_most_blocks(open_ops(context));
}

/* The fewest rows for each lane with which the batch fits the GPU at once. */
template <typename T> void cuda_qr_panel(void *opaque, const struct qr_panel *panel) {
    struct cuda_ops_context *context = open_ops(opaque);
    const unsigned most = qr_most_blocks(context), processors = qr_processors(context);
    const auto fits = [&](int rows) {
        const unsigned blocks = blocks_for_rows(panel->rows, (size_t)32 * rows);
        return blocks <= most && panel->count * blocks <= processors;
    };
    if (!panel->count || !panel->width) return;
    if (fits(4)) return launch_panel<T, 4>(context, panel, blocks_for_rows(panel->rows, 32 * 4));
    constexpr int MOST = MOST_ROWS<T>;
    if (MOST > 8 && fits(8)) return launch_panel<T, 8>(context, panel, blocks_for_rows(panel->rows, 32 * 8));
    launch_panel<T, MOST>(context, panel, blocks_for_rows(panel->rows, 32 * MOST));
}

template void cuda_qr_panel<float>(void *, const struct qr_panel *);
template void cuda_qr_panel<double>(void *, const struct qr_panel *);
