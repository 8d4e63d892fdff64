/* Sliding windows on the GPU (kernels/qr.h): Cholesky factors of diagonal blocks, diagonals, rank. */
#include "kernels/cuda/qr/qr.cuh"

enum { THREADS = 256, ROWS = 32 /* of U^-T G in registers */, RANK_THREADS = 128 };

/* --- Cholesky factors --- */

/* A block for each matrix. G [width][width] becomes U, in shared memory if it fits. */
template <typename T>
__global__ void __launch_bounds__(1024, 1)
    factor_blocks(const __grid_constant__ qr_table table, size_t ld, size_t at, unsigned width, bool copies,
                  unsigned *failed) {
    extern __shared__ double memory[];
    T *const g = (T *)table.to[blockIdx.x] + at, *const u = copies ? (T *)memory : g;
    const size_t u_ld = copies ? width + 1 : ld;
    for (unsigned k = threadIdx.x; copies && k < width * width; k += blockDim.x)
        u[k / width * u_ld + k % width] = g[k / width * ld + k % width];
    __syncthreads();
    unsigned c = 0;
    for (; c < width; c++) {
        const T pivot = u[c * u_ld + c];
        if (!(pivot > 0)) break; /* the same in all threads */
        const T root = sqrt(pivot);
        __syncthreads();
        for (unsigned j = c + threadIdx.x; j < width; j += blockDim.x) u[c * u_ld + j] /= root;
        __syncthreads();
        for (unsigned i = c + 1 + threadIdx.x / 32; i < width; i += blockDim.x / 32)
            for (unsigned j = i + threadIdx.x % 32; j < width; j += 32)
                u[i * u_ld + j] -= u[c * u_ld + i] * u[c * u_ld + j];
        __syncthreads();
    }
    if (threadIdx.x == 0) failed[blockIdx.x] = c;
    for (unsigned k = threadIdx.x; copies && k < width * width; k += blockDim.x)
        if (k % width >= k / width) g[k / width * ld + k % width] = u[k / width * u_ld + k % width];
}

/* A thread for each column of G beyond the block: U^-T G, ROWS rows at a time. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    solve_blocks(const __grid_constant__ qr_table table, size_t ld, size_t at, unsigned width, size_t rest,
                 const unsigned *failed) {
    const T *u = (const T *)table.to[blockIdx.y] + at;
    const size_t j = blockIdx.x * THREADS + threadIdx.x;
    T *g = (T *)table.to[blockIdx.y] + at + width + j, w[ROWS];
    if (failed[blockIdx.y] < width || j >= rest) return;
    for (unsigned first = 0; first < width; first += ROWS) {
        const unsigned rows = width - first < ROWS ? width - first : ROWS;
#pragma unroll
        for (int k = 0; k < ROWS; k++) w[k] = k < (int)rows ? g[(first + k) * ld] : 0;
        for (unsigned c = 0; c < first; c++) {
            const T y = g[c * ld];
#pragma unroll
            for (int k = 0; k < ROWS; k++)
                if (k < (int)rows) w[k] -= u[c * ld + first + k] * y;
        }
#pragma unroll
        for (int c = 0; c < ROWS; c++) {
            if (c >= (int)rows) break;
            w[c] /= u[(first + c) * ld + first + c];
#pragma unroll
            for (int k = c + 1; k < ROWS; k++)
                if (k < (int)rows) w[k] -= u[(first + c) * ld + first + k] * w[c];
            g[(first + c) * ld] = w[c];
        }
    }
}

template <typename T>
void cuda_qr_cholesky(void *opaque, size_t count, size_t width, size_t cols, const struct qr_triangles *r,
                      size_t col, size_t *column) {
    struct cuda_ops_context *context = open_ops(opaque);
    const size_t rest = cols - width, bytes = width * (width + 1) * sizeof(T), at = col * r->ld + col;
    const bool copies = bytes <= (size_t)qr_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    for (size_t i = 0; i < count; i++) column[i] = width;
    unsigned *failed = (unsigned *)cuda_scratch(context, count * sizeof *failed);
    if (!failed || !count) return;
    qr_each_table(r, count, [&](size_t first, size_t some, const qr_table &table) {
        qr_launch(context, "factor_blocks", factor_blocks<T>, some, 1, 1024, copies ? bytes : 0, table, r->ld,
                  at, (unsigned)width, copies, failed + first);
        if (!rest) return;
        solve_blocks<T><<<dim3((unsigned)((rest + THREADS - 1) / THREADS), (unsigned)some), THREADS, 0,
                          context->stream>>>(table, r->ld, at, (unsigned)width, rest, failed + first);
        CUDA_LAUNCHED(&context->fault, "solve_blocks");
    });
    qr_columns_to_host(context, column, failed, count);
}

/* --- diagonals and rank --- */

template <typename T>
__global__ void copy_diagonals(const __grid_constant__ qr_table table, size_t n, size_t ld, double *to) {
    for (size_t j = blockIdx.x * THREADS + threadIdx.x; j < n; j += (size_t)gridDim.x * THREADS)
        to[blockIdx.y * n + j] = (double)((const T *)table.from[blockIdx.y])[j * ld + j];
}

template <typename T>
void cuda_qr_diagonals(void *opaque, size_t count, size_t n, const struct qr_triangles *r, double *to) {
    struct cuda_ops_context *context = open_ops(opaque);
    double *found = (double *)cuda_scratch(context, count * n * sizeof *found);
    memset(to, 0, count * n * sizeof *to);
    if (!found || !count) return;
    qr_each_table(r, count, [&](size_t first, size_t some, const qr_table &table) {
        copy_diagonals<T><<<dim3(cuda_grid_for(n, THREADS), (unsigned)some), THREADS, 0, context->stream>>>(
            table, n, r->ld, found + first * n);
        CUDA_LAUNCHED(&context->fault, "copy_diagonals");
    });
    qr_to_host(context, to, found, count * n * sizeof *to);
}

/* A thread for each column. Its norm is summed only if the bound does not decide. */
template <typename T>
__global__ void find_deficient(const __grid_constant__ qr_table table, size_t n, size_t ld, double tolerance,
                               const double *bound, unsigned *column) {
    const size_t j = blockIdx.x * RANK_THREADS + threadIdx.x;
    const T *r = (const T *)table.from[blockIdx.y];
    if (j >= n) return;
    const double diagonal = fabs((double)r[j * ld + j]);
    if (bound && diagonal > tolerance * bound[j]) return;
    double squares = 0;
#pragma unroll 8
    for (size_t i = 0; i <= j; i++) squares += (double)r[i * ld + j] * (double)r[i * ld + j];
    if (!(diagonal > tolerance * sqrt(squares))) atomicMin(&column[blockIdx.y], (unsigned)j);
}

template <typename T>
void cuda_qr_deficient(void *opaque, size_t count, size_t n, const struct qr_triangles *r, double tolerance,
                       const double *bound, size_t *column) {
    struct cuda_ops_context *context = open_ops(opaque);
    const size_t bounds = bound ? n * sizeof *bound : 0;
    char *scratch = (char *)cuda_scratch(context, bounds + count * sizeof(unsigned));
    double *of_column = bound ? (double *)scratch : NULL;
    unsigned *found = (unsigned *)(scratch + bounds);
    for (size_t i = 0; i < count; i++) column[i] = n;
    if (!scratch || !count) return;
    if (bound)
        CUDA_TRY(&context->fault,
                 cudaMemcpyAsync(of_column, bound, bounds, cudaMemcpyHostToDevice, context->stream));
    CUDA_TRY(&context->fault, cudaMemsetAsync(found, 0xff, count * sizeof *found, context->stream));
    qr_each_table(r, count, [&](size_t first, size_t some, const qr_table &table) {
        const dim3 grid((unsigned)((n + RANK_THREADS - 1) / RANK_THREADS), (unsigned)some);
        find_deficient<T><<<grid, RANK_THREADS, 0, context->stream>>>(table, n, r->ld, tolerance, of_column,
                                                                      found + first);
        CUDA_LAUNCHED(&context->fault, "find_deficient");
    });
    qr_columns_to_host(context, column, found, count);
    for (size_t i = 0; i < count; i++)
        if (column[i] > n) column[i] = n;
}

#define INSTANTIATE(T)                                                                                     \
    template void cuda_qr_cholesky<T>(void *, size_t, size_t, size_t, const struct qr_triangles *, size_t, \
                                      size_t *);                                                           \
    template void cuda_qr_diagonals<T>(void *, size_t, size_t, const struct qr_triangles *, double *);     \
    template void cuda_qr_deficient<T>(void *, size_t, size_t, const struct qr_triangles *, double,        \
                                       const double *, size_t *);
INSTANTIATE(float)
INSTANTIATE(double)
