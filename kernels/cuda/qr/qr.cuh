/* The operations of QR on the GPU (kernels/qr.h). */
#ifndef TESSERA_KERNELS_CUDA_QR_QR_CUH
#define TESSERA_KERNELS_CUDA_QR_QR_CUH

#include <float.h>
#include <math.h>

extern "C" {
#include "kernels/qr.h"
}
#include "kernels/cuda/ops/ops.cuh"

/* The table for f32 or f64, whose functions take a struct cuda_ops_context. NULL for another dtype, and if a
   thread block of this GPU cannot have the shared memory that they need. */
const struct qr_ops *cuda_qr_ops(struct cuda_ops_context *context, enum gemm_dtype dtype);

/* Triangles of one launch, as a parameter of the kernel: a list in host memory is cut into pieces of MOST. */
template <unsigned MOST> struct qr_table_of {
    const void *from[MOST];
    void *to[MOST];
};
enum { QR_TABLE = 128 };
typedef qr_table_of<QR_TABLE> qr_table;

/* Calls launch(first, count, table) for each piece; `from` or `to` of the list may be NULL. */
template <unsigned MOST = QR_TABLE, typename F>
void qr_each_table(const struct qr_triangles *r, size_t count, F launch) {
    qr_table_of<MOST> table = {};
    for (size_t first = 0, some; first < count; first += some) {
        some = count - first < MOST ? count - first : MOST;
        for (size_t i = 0; i < some; i++) {
            if (r->from) table.from[i] = r->from[first + i];
            if (r->to) table.to[i] = r->to[first + i];
        }
        launch(first, some, table);
    }
}

/* A launch of clusters of `blocks` blocks. */
struct qr_launch_config {
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute cluster = {};
    struct cuda_ops_context *context;

    qr_launch_config(struct cuda_ops_context *of, size_t grid, unsigned blocks, unsigned threads,
                     size_t shared_bytes)
        : context(of) {
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {blocks, 1, 1};
        launch.gridDim = dim3((unsigned)grid);
        launch.blockDim = dim3(threads);
        launch.dynamicSmemBytes = shared_bytes;
        launch.stream = context->stream;
        launch.attrs = &cluster;
        launch.numAttrs = blocks > 1 ? 1 : 0;
    }
    qr_launch_config(const qr_launch_config &) = delete;

    /* More shared memory than 48 KB, and more blocks than 8, have to be asked for. */
    void allow(const void *kernel) {
        CUDA_TRY(&context->fault, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       (int)launch.dynamicSmemBytes));
        if (cluster.val.clusterDim.x > 8)
            CUDA_TRY(&context->fault,
                     cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
};

/* Launches `kernel` on `matrices` clusters of `blocks` blocks each. */
template <typename... P, typename... A>
void qr_launch(struct cuda_ops_context *context, const char *name, void (*kernel)(P...), size_t matrices,
               unsigned blocks, unsigned threads, size_t shared_bytes, const A &...arguments) {
    qr_launch_config config(context, matrices * blocks, blocks, threads, shared_bytes);
    config.allow((const void *)kernel);
    CUDA_TRY(&context->fault, cudaLaunchKernelEx(&config.launch, kernel, arguments...));
    cuda_launched(&context->fault, name, __FILE__, __LINE__);
}

/* Of the GPU. */
int qr_attribute(struct cuda_ops_context *context, cudaDeviceAttr attribute);
static inline unsigned qr_processors(struct cuda_ops_context *context) {
    return (unsigned)qr_attribute(context, cudaDevAttrMultiProcessorCount);
}

/* The most blocks of a cluster that this GPU runs (panel.cu): 1 below compute capability 9.0. */
unsigned qr_most_blocks(struct cuda_ops_context *context);

/* Shared memory of a block (panel.cu, append.cu). */
size_t qr_panel_shared(enum gemm_dtype dtype);
size_t qr_append_shared(enum gemm_dtype dtype);

/* Waits for the results of an op and copies them: bytes, or numbers of columns, which become size_t. After an
   error they stay as they were. */
void qr_to_host(struct cuda_ops_context *context, void *to, const void *from, size_t bytes);
void qr_columns_to_host(struct cuda_ops_context *context, size_t *to, const unsigned *from, size_t count);

/* Entries of the table in files of their own: panel.cu, append.cu, blocks.cu, triangles.cu and solve.cu. */
size_t cuda_qr_panel_rows(void *context, enum gemm_dtype dtype);
template <typename T> void cuda_qr_panel(void *context, const struct qr_panel *panel);
template <typename T> void cuda_qr_append(void *context, const struct qr_append *append);
template <typename T>
void cuda_qr_block(void *context, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                   size_t row, size_t col, const struct qr_matrix *w);
template <typename T>
void cuda_qr_subtract(void *context, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                      size_t row, size_t col, const struct qr_matrix *w);
template <typename T>
void cuda_qr_rows(void *context, size_t rows, size_t to_rows, size_t cols, const void *from, size_t from_ld,
                  const double *scale, void *to, size_t to_ld);
template <typename T>
void cuda_qr_gather(void *context, size_t count, size_t to_rows, size_t cols, const struct qr_rows *pieces,
                    size_t from_ld, const double *scale, const struct qr_matrix *to);
template <typename T>
void cuda_qr_scale(void *context, size_t count, size_t n, size_t cols, double factor,
                   const struct qr_triangles *r);
template <typename T>
void cuda_qr_largest(void *context, size_t rows, size_t cols, const void *a, size_t lda, double *largest);
template <typename T>
void cuda_qr_cholesky(void *context, size_t count, size_t width, size_t cols, const struct qr_triangles *r,
                      size_t col, size_t *column);
template <typename T>
void cuda_qr_diagonals(void *context, size_t count, size_t n, const struct qr_triangles *r, double *to);
template <typename T>
void cuda_qr_deficient(void *context, size_t count, size_t n, const struct qr_triangles *r, double tolerance,
                       const double *bound, size_t *column);
template <typename T>
void cuda_qr_solve(void *context, size_t n, size_t cols, const void *r, size_t ld, void *x);

#ifdef __CUDACC__
/* A reflector from the element on the diagonal and the squares below it: it eliminates them. */
template <typename T> struct reflector {
    T beta;   /* the new element on the diagonal */
    T factor; /* V = factor times the elements below */
    T tau;
};

/* 1 / x and 1 / sqrt(x), nearly as if rounded once. */
__device__ __forceinline__ float inverse(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ double inverse(double x) {
    return 1 / x;
}
__device__ __forceinline__ float inverse_root(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y + y * 0.5f * (1 - x * y * y); /* a step of Newton's method */
}
__device__ __forceinline__ double inverse_root(double x) {
    return 1 / sqrt(x);
}

/* Squares that are no normal numbers count as zero: nothing is to eliminate. NaN spreads. */
template <typename T> __device__ __forceinline__ reflector<T> reflect(T head, T squares) {
    const bool none = squares < (sizeof(T) == 4 ? FLT_MIN : DBL_MIN);
    const T all = head * head + squares, by_length = inverse_root(all), length = all * by_length,
            size = fabs(head), factor = inverse(size + length);
    if (none) return {head, 0, 0};
    return {head > 0 ? -length : length, head > 0 ? factor : -factor, 1 + size * by_length};
}
#endif

#endif
