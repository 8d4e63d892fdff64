/* The table of the operations of QR on the GPU, and what they share. */
#include <stdlib.h>

#include "kernels/cuda/qr/qr.cuh"

static int attribute_of(struct cuda_ops_context *context, cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    if (CUDA_TRY(&context->fault, cudaGetDevice(&device)))
        CUDA_TRY(&context->fault, cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

unsigned qr_processors(struct cuda_ops_context *context) {
    return (unsigned)attribute_of(context, cudaDevAttrMultiProcessorCount);
}

unsigned qr_most_blocks(struct cuda_ops_context *context) {
    return attribute_of(context, cudaDevAttrComputeCapabilityMajor) >= 9 ? 16 : 1;
}

void qr_to_host(struct cuda_ops_context *context, void *to, const void *from, size_t bytes) {
    if (CUDA_TRY(&context->fault, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, context->stream)))
        CUDA_TRY(&context->fault, cudaStreamSynchronize(context->stream));
}

void qr_columns_to_host(struct cuda_ops_context *context, size_t *to, const unsigned *from, size_t count) {
    unsigned *narrow = (unsigned *)to; /* widened from the last one on, in place */
    qr_to_host(context, narrow, from, count * sizeof *narrow);
    for (size_t i = count; i-- > 0;) to[i] = narrow[i];
}

template <typename T> static size_t panel_rows(void *context) {
    return cuda_qr_panel_rows(context, sizeof(T) == 4 ? GEMM_F32 : GEMM_F64);
}

template <typename T> static const struct qr_ops *table(void) {
    static const struct qr_ops ops = {
        .panel_width = 64,
        .panel_rows = panel_rows<T>,
        .panel = cuda_qr_panel<T>,
        .append = cuda_qr_append<T>,
        .block = cuda_qr_block<T>,
        .subtract = cuda_qr_subtract<T>,
        .rows = cuda_qr_rows<T>,
        .gather = cuda_qr_gather<T>,
        .scale = cuda_qr_scale<T>,
        .largest = cuda_qr_largest<T>,
        .cholesky = cuda_qr_cholesky<T>,
        .diagonals = cuda_qr_diagonals<T>,
        .deficient = cuda_qr_deficient<T>,
        .solve = cuda_qr_solve<T>,
    };
    return &ops;
}

const struct qr_ops *cuda_qr_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? table<float>() : dtype == GEMM_F64 ? table<double>() : NULL;
}
