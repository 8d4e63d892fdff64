/* Shared by the hand-written GEMM kernels: context, call with strides, launches. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_GEMM_CUH
#define TESSERA_KERNELS_CUDA_GEMM_GEMM_CUH

extern "C" {
#include "kernels/gemm.h"
}
#include "kernels/cuda/launch.cuh"

/* C = alpha op(A) op(B) + beta C, with any layout of A and B written as strides:
   op(A)(i,p) = a[i * a_row + p * a_col], op(B)(p,j) = b[p * b_row + j * b_col]. One of each pair is 1. */
template <typename T> struct strided_gemm {
    size_t m, n, k;
    T alpha, beta;
    const T *a;
    size_t a_row, a_col;
    const T *b;
    size_t b_row, b_col;
    T *c;
    size_t ldc;

    explicit strided_gemm(const gemm_call &call)
        : m(call.m), n(call.n), k(call.k), alpha((T)call.alpha), beta((T)call.beta), a((const T *)call.a),
          a_row(call.op == GEMM_TN ? 1 : call.lda), a_col(call.op == GEMM_TN ? call.lda : 1),
          b((const T *)call.b), b_row(call.op == GEMM_NT ? 1 : call.ldb),
          b_col(call.op == GEMM_NT ? call.ldb : 1), c((T *)call.c), ldc(call.ldc) {}

    /* beta == 0 never reads C, which may hold NaN. */
    __device__ void store(size_t i, size_t j, T sum) const {
        T *at = c + i * ldc + j;
        *at = beta == 0 ? alpha * sum : alpha * sum + beta * *at;
    }
};

struct cuda_gemm_context {
    cudaStream_t stream;
    cuda_fault fault;
    int option[GEMM_MOST_OPTIONS]; /* the numbers of struct gemm_value */
};

/* Slots that are the same for every hand-written backend. */
void *cuda_gemm_create(const struct gemm_setup *setup, char *why, size_t size);
void cuda_gemm_destroy(void *context);
bool cuda_gemm_supports(enum gemm_dtype dtype, enum gemm_op op);
const char *cuda_gemm_error(void *context);

/* The launches of one call, with m and n above 0. */
typedef void cuda_gemm_launches(const cuda_gemm_context *context, const gemm_call &call,
                                cuda_launcher &launcher);

/* The slots `gemm` and `kernels` of a backend, from its launches. */
template <cuda_gemm_launches LAUNCHES> enum gemm_status cuda_gemm_run(void *opaque, const gemm_call *call) {
    cuda_gemm_context *context = (cuda_gemm_context *)opaque;
    cuda_launcher launcher = {.stream = context->stream, .fault = &context->fault};
    if (call->m && call->n) LAUNCHES(context, *call, launcher);
    return context->fault.message[0] ? GEMM_FAILED : GEMM_OK;
}

template <cuda_gemm_launches LAUNCHES>
size_t cuda_gemm_kernels(void *opaque, const gemm_call *call, gemm_kernel *list, size_t size) {
    cuda_gemm_context *context = (cuda_gemm_context *)opaque;
    cuda_launcher launcher = {.fault = &context->fault, .describe = true, .list = list, .size = size};
    if (call->m && call->n && cuda_gemm_supports(call->dtype, call->op)) LAUNCHES(context, *call, launcher);
    return launcher.count;
}

/* Calls `function<T>()` with the type of f32 or f64. */
template <typename F> void with_real(enum gemm_dtype dtype, F function) {
    if (dtype == GEMM_F32) return function.template operator()<float>();
    return function.template operator()<double>();
}

/* Calls `function<TILE>()` with the side of a tile. */
template <typename F> void with_tile(int tile, F function) {
    if (tile == 4) return function.template operator()<4>();
    if (tile == 8) return function.template operator()<8>();
    if (tile == 16) return function.template operator()<16>();
    return function.template operator()<32>();
}

/* Calls `function<A, B, ...>()` with the flags as constants. */
template <bool... KNOWN, typename F> void with_flags(F function) {
    function.template operator()<KNOWN...>();
}

template <bool... KNOWN, typename F, typename... R> void with_flags(F function, bool flag, R... rest) {
    if (flag) return with_flags<KNOWN..., true>(function, rest...);
    return with_flags<KNOWN..., false>(function, rest...);
}

/* Grid y is limited to 65535 blocks: kernels loop over the grid. */
static inline unsigned grid_y(size_t count, unsigned per_block) {
    const unsigned blocks = blocks_for(count, per_block);
    return blocks < 65535u ? blocks : 65535u;
}

#endif
