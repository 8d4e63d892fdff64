/* float32 GEMM on the tensor cores: the launches of a call, and the memory of its operands. */
#include "kernels/cuda/tensor/float32.cuh"

#include "kernels/cuda/tensor/split.cuh"

/* --- memory --- */

/* Possible while a graph is captured. NULL: there is no memory, which is no fault. */
static void *allocate(struct float32_workspace *workspace, size_t bytes, cuda_fault *fault) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    void *memory = NULL;
    if (workspace->allocations == FLOAT32_MOST_ALLOCATIONS) return NULL;
    if (!CUDA_TRY(fault, cudaThreadExchangeStreamCaptureMode(&mode))) return NULL;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        memory = NULL;
    } else if (CUDA_TRY(fault, error)) {
        workspace->allocation[workspace->allocations++] = memory;
    }
    CUDA_TRY(fault, cudaThreadExchangeStreamCaptureMode(&mode));
    return memory;
}

bool float32_workspace_open(struct float32_workspace *workspace, unsigned processors, bool tf32,
                            cuda_fault *fault) {
    const size_t bytes = FLOAT32_OPERANDS * sizeof *workspace->flags;
    *workspace = {.open = float32_open(), .transposes = tf32, .processors = processors};
    if (!workspace->open) return true;
    workspace->flags = (plane_flags *)allocate(workspace, bytes, fault);
    workspace->open = workspace->flags && CUDA_TRY(fault, cudaMemset(workspace->flags, 0, bytes)) &&
                      CUDA_TRY(fault, cudaDeviceSynchronize()); /* before a kernel on any stream */
    return !fault->message[0];
}

void float32_workspace_close(struct float32_workspace *workspace) {
    for (unsigned i = 0; i < workspace->allocations; i++) cudaFree(workspace->allocation[i]);
}

/* At least `bytes` of scratch memory. */
static char *scratch(struct float32_workspace *workspace, size_t bytes, cuda_fault *fault) {
    if (bytes <= workspace->scratch_bytes) return workspace->scratch;
    const size_t size = bytes > 2 * workspace->scratch_bytes ? bytes : 2 * workspace->scratch_bytes;
    char *const memory = (char *)allocate(workspace, size, fault);
    if (memory) {
        workspace->scratch = memory;
        workspace->scratch_bytes = size;
    }
    return memory;
}

/* --- operands --- */

static size_t rounded(size_t bytes) {
    const size_t alignment = 1024;
    return (bytes + alignment - 1) / alignment * alignment;
}

static split_source source_of(const void *values, size_t rows, size_t columns, size_t ld) {
    split_source source = {(const float *)values, rows, columns, ld, {}};
    source.to.row_blocks = (unsigned)((rows + PLANE_SIDE - 1) / PLANE_SIDE);
    source.to.column_blocks = (unsigned)((columns + PLANE_SIDE - 1) / PLANE_SIDE);
    return source;
}

static split_source source_c(const gemm_call &call) {
    return source_of(call.c, call.m, call.n, call.ldc);
}

static split_source source_a(const gemm_call &call) {
    const bool transposed = gemm_transposes_a(call.op);
    return source_of(call.a, transposed ? call.k : call.m, transposed ? call.m : call.k, call.lda);
}

static split_source source_b(const gemm_call &call) {
    const bool transposed = gemm_transposes_b(call.op);
    return source_of(call.b, transposed ? call.n : call.k, transposed ? call.k : call.n, call.ldb);
}

static split_source source_of_gradient(const gemm_call &call) {
    return call.op == GEMM_TN ? source_b(call) : source_a(call);
}

static bool same_matrix(const split_source &x, const split_source &y) {
    return x.values == y.values && x.rows == y.rows && x.columns == y.columns && x.ld == y.ld;
}

static void forget(struct float32_workspace *workspace, const void *values) {
    for (float32_operand &one : workspace->operand)
        if (one.source.values == values) one.valid = one.not_written = false;
}

void float32_forget(struct float32_workspace *workspace, const struct gemm_call *call) {
    if (!call->a_unchanged) forget(workspace, call->a);
    if (!call->b_unchanged) forget(workspace, call->b);
    forget(workspace, call->c);
}

void float32_forget_all(struct float32_workspace *workspace) {
    for (float32_operand &one : workspace->operand) one.valid = one.not_written = false;
}

/* The operand with this matrix; NULL: there is none. */
static float32_operand *find(struct float32_workspace *workspace, const split_source &source) {
    for (float32_operand &one : workspace->operand)
        if (one.capacity && same_matrix(one.source, source)) return &one;
    return NULL;
}

/* The one that has not been used for longest. */
static float32_operand *oldest(struct float32_workspace *workspace) {
    float32_operand *oldest = workspace->operand;
    for (float32_operand &one : workspace->operand)
        if (one.last_call < oldest->last_call) oldest = &one;
    return oldest;
}

/* Gives the operand memory for a matrix that it does not have. */
static bool replace(struct float32_workspace *workspace, float32_operand *operand, const split_source &source,
                    cuda_fault *fault) {
    const size_t count = source.to.count(), planes_bytes = 2 * count * PLANE_BYTES;
    planes old = operand->source.to;
    if (count > operand->capacity) {
        old.blocks = (char *)allocate(workspace, planes_bytes + rounded(count * sizeof(unsigned)), fault);
        if (!old.blocks) return false;
        operand->capacity = count;
    }
    operand->source = source;
    operand->source.to.blocks = old.blocks;
    operand->source.to.codes = (unsigned *)(old.blocks + planes_bytes);
    operand->source.to.flags = workspace->flags + (operand - workspace->operand);
    operand->valid = operand->not_written = operand->needed = false;
    return true;
}

/* The operand of a matrix; its planes may be used as they are if it is valid. NULL: there is no memory. */
static float32_operand *take(struct float32_workspace *workspace, const split_source &source,
                             cuda_fault *fault) {
    float32_operand *operand = find(workspace, source);
    if (!operand) {
        operand = oldest(workspace);
        if (!replace(workspace, operand, source, fault)) return NULL;
    }
    operand->last_call = workspace->calls;
    return operand;
}

planes float32_planes_of_c(struct float32_workspace *workspace, const struct gemm_call *call) {
    float32_operand *const own = workspace->open && !workspace->transposes && call->dtype == GEMM_F32
                                     ? find(workspace, source_c(*call))
                                     : NULL;
    if (!own) return {};
    own->valid = true;
    own->last_call = workspace->calls;
    return own->source.to;
}

bool float32_reserve_transposed(struct float32_workspace *workspace, const struct gemm_call *call,
                                cuda_fault *fault) {
    workspace->calls++;
    return workspace->open && take(workspace, source_of_gradient(*call), fault);
}

bool float32_is_operand(const struct float32_operand *operand, const struct gemm_call *call, bool b) {
    return operand->capacity && same_matrix(operand->source, b ? source_b(*call) : source_a(*call));
}

/* alone: the matrix itself need not be written, unless it is needed. */
static float32_transposed transposed_of(struct float32_workspace *workspace, const split_source &source,
                                        bool alone) {
    static_assert(2 * PLANE_BYTES == PLANE_SIDE * PLANE_SIDE * sizeof(float));
    float32_operand *const own = workspace->open && workspace->transposes ? find(workspace, source) : NULL;
    if (!own) return {};
    own->not_written = own->not_written || (alone && !own->needed);
    const float32_transposed all = {(float *)own->source.to.blocks, own->source.to.row_blocks * PLANE_SIDE,
                                    own->valid, own->not_written};
    own->valid = true;
    own->last_call = workspace->calls;
    return all;
}

float32_transposed float32_transposed_of_gradient(struct float32_workspace *workspace,
                                                  const struct gemm_call *call) {
    return transposed_of(workspace, source_of_gradient(*call), false);
}

float32_transposed float32_transposed_of_c(struct float32_workspace *workspace,
                                           const struct gemm_call *call) {
    return transposed_of(workspace, source_c(*call), call->c_only_operand);
}

/* Bytes of scratch memory: bf16 planes of both operands, and sums of 64 rows of C. */
static size_t scratch_bytes(const gemm_call &call) {
    const size_t rows = (call.m + PLANE_SIDE - 1) / PLANE_SIDE;
    return 3 * (source_a(call).to.count() + source_b(call).to.count()) * PLANE_BYTES +
           rows * call.n * sizeof(float);
}

bool float32_reserve(struct float32_workspace *workspace, const struct gemm_call *call, cuda_fault *fault) {
    workspace->calls++;
    return take(workspace, source_a(*call), fault) && take(workspace, source_b(*call), fault) &&
           scratch(workspace, scratch_bytes(*call), fault);
}

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

static float32_product product_of(const gemm_call &call, const planes &a, const planes &b, const planes &c,
                                  float *column_partials) {
    const bool a_t = gemm_transposes_a(call.op), b_t = gemm_transposes_b(call.op);
    return {.m = call.m,
            .n = call.n,
            .k = call.k,
            .a = plane_operand(a, a_t),
            .b = plane_operand(b, !b_t),
            .c = c,
            .column_partials = column_partials,
            .a_values = (const float *)call.a,
            .b_values = (const float *)call.b,
            .a_row = a_t ? 1 : call.lda,
            .a_column = a_t ? call.lda : 1,
            .b_row = b_t ? 1 : call.ldb,
            .b_column = b_t ? call.ldb : 1};
}

static void launch_all(const struct float32_workspace *workspace, const gemm_call &call, split_source a,
                       bool a_is_split, split_source b, bool b_is_split, const planes &c, char *memory,
                       cuda_launcher &launcher) {
    const slope<float> back(call);
    a.to.wide = memory;
    b.to.wide = memory + 3 * a.to.count() * PLANE_BYTES;
    float *const partials = (float *)(b.to.wide + 3 * b.to.count() * PLANE_BYTES);
    split_launch(a, a_is_split, b, b_is_split, call.op, c.flags, launcher);
    float32_launch(call.op, product_of(call, a.to, b.to, c, partials), sink<float>(call), back,
                   (unsigned)gemm_multiprocessors(call, (int)workspace->processors), launcher);
    if (!back.on) return;
    const unsigned blocks = (unsigned)((call.n + SUM_COLUMNS - 1) / SUM_COLUMNS);
    launch(launcher, "column_sum_kernel", column_sum_kernel, dim3(blocks), dim3(SUM_COLUMNS, SUM_ROWS), 0,
           (const float *)partials, (call.m + PLANE_SIDE - 1) / PLANE_SIDE, call.n, back.column_sums);
}

void float32_gemm(struct float32_workspace *workspace, const struct gemm_call *call,
                  cuda_launcher &launcher) {
    const split_source a = source_a(*call), b = source_b(*call);
    if (launcher.describe) return launch_all(workspace, *call, a, false, b, false, {}, NULL, launcher);
    float32_forget(workspace, call);
    float32_operand *const own_a = find(workspace, a), *const own_b = find(workspace, b);
    launch_all(workspace, *call, own_a->source, own_a->valid, own_b->source, own_b->valid || own_a == own_b,
               float32_planes_of_c(workspace, call), workspace->scratch, launcher);
    own_a->valid = own_b->valid = true;
}
