/* The table of the operations of QR on the GPU, and what they share. */
#include <stdlib.h>

#include "kernels/cuda/qr/qr.cuh"

int qr_attribute(struct cuda_ops_context *context, cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    if (CUDA_TRY(&context->fault, cudaGetDevice(&device)))
        CUDA_TRY(&context->fault, cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

static bool copy_to_host(struct cuda_ops_context *context, void *to, const void *from, size_t bytes) {
    return CUDA_TRY(&context->fault,
                    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, context->stream)) &&
           CUDA_TRY(&context->fault, cudaStreamSynchronize(context->stream));
}

void qr_to_host(struct cuda_ops_context *context, void *to, const void *from, size_t bytes) {
    copy_to_host(context, to, from, bytes);
}

void qr_columns_to_host(struct cuda_ops_context *context, size_t *to, const unsigned *from, size_t count) {
    unsigned part[256];
    for (size_t first = 0, some; first < count; first += some) {
        some = count - first < 256 ? count - first : 256;
        if (!copy_to_host(context, part, from + first, some * sizeof *part)) return;
        for (size_t i = 0; i < some; i++) to[first + i] = part[i];
    }
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

const struct qr_ops *cuda_qr_ops(struct cuda_ops_context *context, enum gemm_dtype dtype) {
    if (dtype != GEMM_F32 && dtype != GEMM_F64) return NULL;
    const size_t most = (size_t)qr_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (qr_panel_shared(dtype) > most || qr_append_shared(dtype) > most) return NULL;
    return dtype == GEMM_F32 ? table<float>() : table<double>();
}
