/* Clipping by norm, and max-norm, as kernels/host/ops/norms.h: sums in double precision and in a fixed order.
   The host reads no result.

   Bound by   bytes: 12 million gradients in float32 are read once, 48 MB, 16 us at 3 TB/s. Max-norm reads
              the weights once, and scales the columns that exceed the limit. */
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/ops.cuh"

static const int THREADS = 256, WARPS = THREADS / 32;
static const unsigned MAX_BLOCKS = 528; /* four for each SM of an H100 */

/* The sum over the block, valid in thread 0. */
__device__ static double sum_over_block(double mine) {
    __shared__ double warps[WARPS];
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
    __syncthreads(); /* the previous call may still read `warps` */
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < WARPS; w++) mine += warps[w];
    return mine;
}

template <typename R, int WIDE>
__global__ void __launch_bounds__(THREADS)
    clip_kernel(size_t count, const R *grad, double limit, double *factor, cuda_reduction reduction) {
    double *partial = (double *)reduction.scratch, sum = 0;
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * WIDE; i < count;
         i += (size_t)gridDim.x * THREADS * WIDE) {
        const pack<R, WIDE> g = pack_at<WIDE>(grad + i);
#pragma unroll
        for (int e = 0; e < WIDE; e++) sum += (double)g.value[e] * (double)g.value[e];
    }
    sum = sum_over_block(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    if (!last_block(reduction.tickets, gridDim.x)) return;
    sum = 0;
    for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS) sum += __ldcg(&partial[b]);
    sum = sum_over_block(sum);
    if (threadIdx.x) return;
    const double wanted = limit / (sqrt(sum) + 1e-6);
    *factor = wanted < 1 ? wanted : 1;
}

template <typename R>
void cuda_clip_norm(void *opaque, size_t count, const void *grad, double limit, double *factor) {
    cuda_ops_context *context = open_ops(opaque);
    constexpr int WIDE = WIDEST<R>;
    const R *g = (const R *)grad;
    const bool wide = packs_fit(g, count, 0, WIDE);
    unsigned blocks = cuda_grid_for(count, (size_t)THREADS * (wide ? WIDE : 1));
    if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
    if (wide) {
        clip_kernel<R, WIDE>
            <<<blocks, THREADS, 0, context->stream>>>(count, g, limit, factor, context->reduction);
    } else {
        clip_kernel<R, 1>
            <<<blocks, THREADS, 0, context->stream>>>(count, g, limit, factor, context->reduction);
    }
    CUDA_LAUNCHED(&context->fault, "clip_kernel");
}

static const int COLUMNS = 32, ROWS = 8; /* threads of a block: x along a row */

/* Writes the factor of each column to the start of the scratch memory, before the partial sums. */
template <typename R>
__global__ void __launch_bounds__(COLUMNS *ROWS)
    column_factor_kernel(size_t rows, size_t cols, double limit, const struct tally *guard, const R *weights,
                         cuda_reduction reduction) {
    __shared__ double sums[ROWS][COLUMNS];
    R *factors = (R *)reduction.scratch;
    double *partial = (double *)reduction.scratch + cols; /* enough for factors of any type */
    const size_t c = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
    double sum = 0;
    if (guard->bad_step) return;
    if (c < cols)
#pragma unroll 4
        for (size_t r = (size_t)blockIdx.y * ROWS + threadIdx.y; r < rows; r += (size_t)gridDim.y * ROWS)
            sum += (double)weights[r * cols + c] * (double)weights[r * cols + c];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const bool mine = threadIdx.y == 0 && c < cols;
    for (int t = 1; mine && t < ROWS; t++) sum += sums[t][threadIdx.x];
    if (gridDim.y > 1) {
        if (mine) partial[blockIdx.y * cols + c] = sum;
        if (!last_block(&reduction.tickets[blockIdx.x], gridDim.y)) return;
        if (mine) sum = sum_of_chunks(partial + c, gridDim.y, cols);
    }
    const double norm = sqrt(sum);
    if (mine) factors[c] = norm > limit ? R(limit / (norm + 1e-7)) : R(1);
}

template <typename R>
__global__ void __launch_bounds__(COLUMNS *ROWS)
    scale_columns_kernel(size_t rows, size_t cols, const struct tally *guard, R *weights, const R *factors) {
    const size_t c = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
    if (guard->bad_step || c >= cols) return;
    const R factor = factors[c];
    if (factor == 1) return; /* most of them */
    for (size_t r = (size_t)blockIdx.y * ROWS + threadIdx.y; r < rows; r += (size_t)gridDim.y * ROWS)
        weights[r * cols + c] *= factor;
}

template <typename R>
void cuda_max_norm(void *opaque, size_t rows, size_t cols, double limit, const struct tally *guard,
                   void *weights) {
    cuda_ops_context *context = open_ops(opaque);
    const size_t groups = (cols + COLUMNS - 1) / COLUMNS;
    /* at least 64 rows a block, within the scratch memory */
    size_t chunks = (rows + 63) / 64 < 64 ? (rows + 63) / 64 : 64;
    while (chunks > 1 && (1 + chunks) * cols * sizeof(double) > REDUCTION_BYTES) chunks /= 2;
    if (groups > REDUCTION_GROUPS) chunks = 1;
    const dim3 grid((unsigned)groups, (unsigned)chunks), block(COLUMNS, ROWS);
    column_factor_kernel<R><<<grid, block, 0, context->stream>>>(rows, cols, limit, guard, (const R *)weights,
                                                                 context->reduction);
    CUDA_LAUNCHED(&context->fault, "column_factor_kernel");
    scale_columns_kernel<R><<<grid, block, 0, context->stream>>>(rows, cols, guard, (R *)weights,
                                                                 (const R *)context->reduction.scratch);
    CUDA_LAUNCHED(&context->fault, "scale_columns_kernel");
}

#define INSTANTIATE(R)                                                               \
    template void cuda_clip_norm<R>(void *, size_t, const void *, double, double *); \
    template void cuda_max_norm<R>(void *, size_t, size_t, double, const struct tally *, void *);
INSTANTIATE(float)
INSTANTIATE(double)
