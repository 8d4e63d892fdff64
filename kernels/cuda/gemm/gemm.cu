/* The slots that all hand-written CUDA backends share. */
#include "kernels/cuda/gemm/gemm.cuh"

#include <stdlib.h>

void *cuda_gemm_create(const struct gemm_setup *setup, char *why, size_t size) {
    cuda_gemm_context *context = (cuda_gemm_context *)calloc(1, sizeof *context);
    if (!context) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    context->stream = (cudaStream_t)setup->stream;
    for (int i = 0; i < GEMM_MOST_OPTIONS; i++) context->option[i] = (int)setup->option[i].number;
    return context;
}

void cuda_gemm_destroy(void *context) {
    free(context);
}

bool cuda_gemm_supports(enum gemm_dtype dtype, enum gemm_op op) {
    return !gemm_is_16bit(dtype) && op != GEMM_TT;
}

const char *cuda_gemm_error(void *context) {
    return ((cuda_gemm_context *)context)->fault.message;
}
