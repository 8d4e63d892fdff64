/* float32 GEMM on the tensor cores: the launches of a call, and their memory. */
#include "kernels/cuda/tensor/float32.cuh"

#include "kernels/cuda/tensor/split.cuh"

/* --- memory --- */

bool float32_workspace_open(struct float32_workspace *workspace, unsigned processors, cuda_fault *fault) {
    const size_t bytes = 2 * sizeof *workspace->counters;
    *workspace = {.open = float32_open(), .processors = processors};
    if (!workspace->open) return true;
    return CUDA_TRY(fault, cudaMalloc((void **)&workspace->counters, bytes)) &&
           CUDA_TRY(fault, cudaMemset(workspace->counters, 0, bytes)) &&
           CUDA_TRY(fault, cudaDeviceSynchronize()); /* before a kernel on any stream */
}

void float32_workspace_close(struct float32_workspace *workspace) {
    for (unsigned i = 0; i < workspace->growths; i++) cudaFree(workspace->memory[i]);
    cudaFree(workspace->counters);
}

/* Possible while a graph is captured. */
static bool allocate(void **memory, size_t bytes, cuda_fault *fault) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (!CUDA_TRY(fault, cudaThreadExchangeStreamCaptureMode(&mode))) return false;
    const bool done = CUDA_TRY(fault, cudaMalloc(memory, bytes));
    return CUDA_TRY(fault, cudaThreadExchangeStreamCaptureMode(&mode)) && done;
}

/* At least twice the size before: few growths. */
static bool reserve(struct float32_workspace *workspace, size_t bytes, cuda_fault *fault) {
    if (bytes <= workspace->size) return true;
    const size_t size = bytes > 2 * workspace->size ? bytes : 2 * workspace->size;
    if (workspace->growths == FLOAT32_MOST_GROWTHS ||
        !allocate(&workspace->memory[workspace->growths], size, fault))
        return false;
    workspace->growths++;
    workspace->size = size;
    return true;
}

/* The parts of a memory, in turn; without memory it counts them. */
struct arena {
    char *at;
    size_t used;

    void *take(size_t bytes) {
        const size_t alignment = 1024, begin = used;
        used += (bytes + alignment - 1) / alignment * alignment;
        return at ? at + begin : NULL;
    }
};

/* The planes of rows x columns in memory: room for three. */
static split_source take_planes(arena &memory, const void *values, size_t rows, size_t columns, size_t ld) {
    split_source source = {(const float *)values, rows, columns, ld, {}};
    source.to.row_blocks = (unsigned)((rows + PLANE_SIDE - 1) / PLANE_SIDE);
    source.to.column_blocks = (unsigned)((columns + PLANE_SIDE - 1) / PLANE_SIDE);
    source.to.blocks = (char *)memory.take(3 * source.to.count() * PLANE_BYTES);
    source.to.exponents = (int *)memory.take(source.to.count() * sizeof(int));
    return source;
}

struct parts {
    split_source a, b;
    float *column_partials;

    parts(const gemm_call &call, arena &memory) {
        const bool a_t = gemm_transposes_a(call.op), b_t = gemm_transposes_b(call.op);
        a = take_planes(memory, call.a, a_t ? call.k : call.m, a_t ? call.m : call.k, call.lda);
        b = take_planes(memory, call.b, b_t ? call.n : call.k, b_t ? call.k : call.n, call.ldb);
        const size_t rows = (call.m + PLANE_SIDE - 1) / PLANE_SIDE;
        column_partials = call.backward ? (float *)memory.take(rows * call.n * sizeof(float)) : NULL;
    }
};

/* --- column sums --- */

static const unsigned SUM_COLUMNS = 32, SUM_ROWS = 16; /* of a thread block */

/* sums[j] = partials[0][j] + partials[1][j] + ..., in a fixed order. */
__global__ void __launch_bounds__(SUM_COLUMNS *SUM_ROWS)
    column_sum_kernel(const float *partials, size_t rows, size_t columns, float *sums) {
    __shared__ float totals[SUM_ROWS][SUM_COLUMNS];
    const size_t column = (size_t)blockIdx.x * SUM_COLUMNS + threadIdx.x;
    float total = 0;
    if (column < columns)
        for (size_t row = threadIdx.y; row < rows; row += SUM_ROWS) total += partials[row * columns + column];
    totals[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y || column >= columns) return;
    for (unsigned y = 1; y < SUM_ROWS; y++) total += totals[y][threadIdx.x];
    sums[column] = total;
}

/* --- a call --- */

/* Products below this take about as long on float32 lanes, or their tiles are too few for all SMs. */
static const size_t FEWEST_TILES = 48, SHORTEST_K = 256;

static size_t tiles_along(size_t size) {
    return (size + FLOAT32_TILE - 1) / FLOAT32_TILE;
}

bool float32_supports(const struct float32_workspace *workspace, const struct gemm_call *call) {
    const size_t m = tiles_along(call->m), n = tiles_along(call->n), k = tiles_along(call->k);
    const size_t most = INT32_MAX / 16; /* tiles, and pairs of blocks, of a matrix */
    return workspace->open && call->dtype == GEMM_F32 && call->op != GEMM_TT && m && n && k &&
           m <= most / n && m <= most / k && n <= most / k;
}

bool float32_pays(const struct gemm_call *call) {
    return call->k >= SHORTEST_K && call->m >= FLOAT32_TILE && call->n >= FLOAT32_TILE &&
           tiles_along(call->m) * tiles_along(call->n) >= FEWEST_TILES;
}

static float32_product product_of(const gemm_call &call, const parts &split, unsigned *counters) {
    const bool a_t = gemm_transposes_a(call.op), b_t = gemm_transposes_b(call.op);
    return {.m = call.m,
            .n = call.n,
            .k = call.k,
            .a = plane_operand(split.a.to, a_t),
            .b = plane_operand(split.b.to, !b_t),
            .state = counters,
            .ticket = counters + 1,
            .column_partials = split.column_partials,
            .a_values = split.a.values,
            .b_values = split.b.values,
            .a_row = a_t ? 1 : call.lda,
            .a_column = a_t ? call.lda : 1,
            .b_row = b_t ? 1 : call.ldb,
            .b_column = b_t ? call.ldb : 1};
}

void float32_gemm(struct float32_workspace *workspace, const struct gemm_call *call,
                  cuda_launcher &launcher) {
    arena count = {};
    parts counted(*call, count);
    if (!launcher.describe && !reserve(workspace, count.used, launcher.fault)) return;
    arena memory = {.at = launcher.describe ? NULL : (char *)workspace->memory[workspace->growths - 1]};
    const parts split(*call, memory);
    const slope<float> back(*call);
    split_launch(split.a, split.b, workspace->counters, workspace->processors, launcher);
    float32_launch(call->op, product_of(*call, split, workspace->counters), sink<float>(*call), back,
                   workspace->processors, launcher);
    if (!back.on) return;
    const unsigned blocks = (unsigned)((call->n + SUM_COLUMNS - 1) / SUM_COLUMNS);
    launch(launcher, "column_sum_kernel", column_sum_kernel, dim3(blocks), dim3(SUM_COLUMNS, SUM_ROWS), 0,
           (const float *)split.column_partials, (call->m + PLANE_SIDE - 1) / PLANE_SIDE, call->n,
           back.column_sums);
}
