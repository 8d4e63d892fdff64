/* cublas: NVIDIA's library.

   Idea       call cublasGemmEx. cuBLAS is column-major: it reads a row-major matrix as its transpose. The
              call for C^T = op(B)^T op(A)^T therefore exchanges A and B, m and n, and copies nothing.
   Precision  true float32 by default. tf32 rounds the operands to 10 bits of mantissa in the tensor cores;
              bf16 and fp16 operands arrive rounded. Both accumulate in float32, split-K sums too.
   Bound by   flops for large shapes (61 TFLOP/s in float32 on an H100); launch latency and too few tiles for
              132 SMs for small ones.
   Improves   3_shmem.cu, which has no register tiles. Next: 6_tuned.cu
   Run        ./train --backend cublas --precision f32 (or tf32, bf16, fp16) */
#include <limits.h>
#include <stdlib.h>

#include "kernels/cuda/gemm/cublas_library.cuh"
#include "kernels/cuda/gemm/gemm.cuh"

/* As cuBLAS recommends for Hopper; owned by the context, so that a captured graph never allocates. */
static const size_t WORKSPACE = (size_t)32 << 20;

struct cublas_context {
    const cublas_library *cublas;
    cublasHandle_t handle;
    cublasComputeType_t compute; /* of float32 calls */
    void *workspace;
    int multiprocessors, planned; /* planned: for how many cuBLAS chooses kernels */
    cuda_fault fault;
};

static bool noted(cublas_context *context, cublasStatus_t status, const char *call, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    if (!context->fault.message[0])
        snprintf(context->fault.message, sizeof context->fault.message, "%s:%d: %s: %s", __FILE__, line, call,
                 context->cublas->get_status_string(status));
    return false;
}
#define CUBLAS_TRY(context, call) noted(context, call, #call, __LINE__)

static void cublas_destroy(void *opaque) {
    cublas_context *context = (cublas_context *)opaque;
    if (context->handle) context->cublas->destroy(context->handle);
    cudaFree(context->workspace);
    free(context);
}

static bool open_handle(cublas_context *context, cudaStream_t stream) {
    const cublas_library *cublas = context->cublas;
    return CUBLAS_TRY(context, cublas->create(&context->handle)) &&
           CUBLAS_TRY(context, cublas->set_stream(context->handle, stream)) &&
           CUDA_TRY(&context->fault, cudaMalloc(&context->workspace, WORKSPACE)) &&
           CUBLAS_TRY(context, cublas->set_workspace(context->handle, context->workspace, WORKSPACE)) &&
           CUBLAS_TRY(context, cublas->set_math_mode(context->handle,
                                                     CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
}

static bool cublas_probe(char *why, size_t size) {
    return cublas_load(why, size) != NULL;
}

static bool count_multiprocessors(cublas_context *context) {
    int device = 0;
    return CUDA_TRY(&context->fault, cudaGetDevice(&device)) &&
           CUDA_TRY(&context->fault, cudaDeviceGetAttribute(&context->multiprocessors,
                                                            cudaDevAttrMultiProcessorCount, device));
}

static void *cublas_create(const struct gemm_setup *setup, char *why, size_t size) {
    const cublas_library *cublas = cublas_load(why, size);
    if (!cublas) return NULL;
    cublas_context *context = (cublas_context *)calloc(1, sizeof *context);
    if (!context) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    context->cublas = cublas;
    context->compute = setup->precision == GEMM_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (open_handle(context, (cudaStream_t)setup->stream) && count_multiprocessors(context)) return context;
    snprintf(why, size, "%s", context->fault.message);
    cublas_destroy(context);
    return NULL;
}

static bool cublas_supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)dtype;
    (void)op;
    return true;
}

static bool fits_int(const struct gemm_call *call) {
    const size_t limit = INT_MAX;
    return call->m <= limit && call->n <= limit && call->k <= limit && call->lda <= limit &&
           call->ldb <= limit && call->ldc <= limit;
}

/* cuBLAS requires at least 1, even for a matrix without columns. */
static int leading(size_t ld) {
    return ld ? (int)ld : 1;
}

static cudaDataType_t type_of(enum gemm_dtype dtype) {
    return dtype == GEMM_F32    ? CUDA_R_32F
           : dtype == GEMM_F64  ? CUDA_R_64F
           : dtype == GEMM_BF16 ? CUDA_R_16BF
                                : CUDA_R_16F;
}

static cublasComputeType_t compute_of(const cublas_context *context, enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? context->compute : dtype == GEMM_F64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
}

/* cuBLAS divides a product into as many equal parts as there are multiprocessors. If other work occupies some
   of them, others do two parts each, and the product takes twice the time. */
static bool plan(cublas_context *context, const gemm_call &call) {
    const int free = gemm_multiprocessors(call, context->multiprocessors);
    if (free == context->planned) return true;
    context->planned = free;
    return CUBLAS_TRY(context, context->cublas->set_sm_count_target(context->handle, free));
}

static enum gemm_status cublas_gemm_batch(void *opaque, const struct gemm_call *call, size_t count,
                                          const struct gemm_strides *strides) {
    cublas_context *context = (cublas_context *)opaque;
    const cublas_library *cublas = context->cublas;
    if (!fits_int(call) || count > INT_MAX || call->epilogue || call->backward) return GEMM_UNSUPPORTED;
    const cublasOperation_t ta = gemm_transposes_a(call->op) ? CUBLAS_OP_T : CUBLAS_OP_N,
                            tb = gemm_transposes_b(call->op) ? CUBLAS_OP_T : CUBLAS_OP_N;
    const bool single = call->dtype != GEMM_F64;
    const cudaDataType_t type = type_of(call->dtype), c_type = call->c_f32 ? CUDA_R_32F : type;
    const float alpha_f32 = (float)call->alpha, beta_f32 = (float)call->beta;
    const void *alpha = single ? (const void *)&alpha_f32 : &call->alpha,
               *beta = single ? (const void *)&beta_f32 : &call->beta;
    const int m = (int)call->m, n = (int)call->n, k = (int)call->k;
    const cublasComputeType_t compute = compute_of(context, call->dtype);
    if (!plan(context, *call)) return GEMM_FAILED;
    const bool done =
        count == 1
            ? CUBLAS_TRY(context,
                         cublas->gemm(context->handle, tb, ta, n, m, k, alpha, call->b, type,
                                      leading(call->ldb), call->a, type, leading(call->lda), beta, call->c,
                                      c_type, leading(call->ldc), compute, CUBLAS_GEMM_DEFAULT))
            : CUBLAS_TRY(context, cublas->gemm_batch(context->handle, tb, ta, n, m, k, alpha, call->b, type,
                                                     leading(call->ldb), (long long)strides->b, call->a, type,
                                                     leading(call->lda), (long long)strides->a, beta, call->c,
                                                     c_type, leading(call->ldc), (long long)strides->c,
                                                     (int)count, compute, CUBLAS_GEMM_DEFAULT));
    return done ? GEMM_OK : GEMM_FAILED;
}

static enum gemm_status cublas_gemm(void *opaque, const struct gemm_call *call) {
    return cublas_gemm_batch(opaque, call, 1, NULL);
}

static void cublas_describe(void *opaque, char *text, size_t size) {
    const cublas_context *context = (const cublas_context *)opaque;
    int version = 0;
    context->cublas->get_version(context->handle, &version);
    snprintf(text, size, "cuBLAS %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static bool cublas_takes_precision(enum gemm_precision precision) {
    (void)precision;
    return true;
}

static const char *cublas_error(void *opaque) {
    return ((cublas_context *)opaque)->fault.message;
}

extern "C" const struct gemm_backend gemm_cublas = {
    .name = "cublas",
    .summary = "NVIDIA cuBLAS",
    .device = GEMM_ON_CUDA,
    .supports = cublas_supports,
    .gemm = cublas_gemm,
    .create = cublas_create,
    .destroy = cublas_destroy,
    .probe = cublas_probe,
    .takes_precision = cublas_takes_precision,
    .describe = cublas_describe,
    .error = cublas_error,
    .gemm_batch = cublas_gemm_batch,
};
