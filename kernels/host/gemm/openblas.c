/* openblas: cblas_sgemm and cblas_dgemm, the library that most numerical programs call.

   Idea       CBLAS is row-major and has the three ops: the call is passed on unchanged.
   Bound by   FMA: it reaches 70-90 % of the peak on training shapes, less for n = 10.
   Improves   kernels/host/gemm/openmp.c, by packing and by blocking for registers and caches
   Threads    some builds ignore openblas_set_num_threads: the count is read back, and reported.
   Run        ./train --backend openblas --threads 2 */
#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "kernels/gemm.h"

struct openblas_context {
    int threads;
};

static int openblas_set_threads(void *context, int threads) {
    struct openblas_context *openblas = context;
    openblas_set_num_threads(threads);
    openblas->threads = openblas_get_num_threads();
    return openblas->threads;
}

static void *openblas_create(const struct gemm_setup *setup, char *why, size_t size) {
    struct openblas_context *openblas = malloc(sizeof *openblas);
    if (!openblas) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    openblas_set_threads(openblas, setup->threads);
    return openblas;
}

static bool openblas_supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)op;
    return dtype != GEMM_BF16;
}

static bool fits_blas_int(const struct gemm_call *call) {
    const size_t limit = INT_MAX;
    return call->m <= limit && call->n <= limit && call->k <= limit && call->lda <= limit &&
           call->ldb <= limit && call->ldc <= limit;
}

/* CBLAS requires ld >= 1, even for a matrix without columns. */
static int leading(size_t ld) {
    return ld ? (int)ld : 1;
}

static enum gemm_status openblas_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    if (!fits_blas_int(call)) return GEMM_UNSUPPORTED;
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const enum CBLAS_TRANSPOSE a = ta ? CblasTrans : CblasNoTrans, b = tb ? CblasTrans : CblasNoTrans;
    const int m = (int)call->m, n = (int)call->n, k = (int)call->k;
    const int lda = leading(call->lda), ldb = leading(call->ldb), ldc = leading(call->ldc);
    if (call->dtype == GEMM_F32) {
        cblas_sgemm(CblasRowMajor, a, b, m, n, k, (float)call->alpha, call->a, lda, call->b, ldb,
                    (float)call->beta, call->c, ldc);
    } else {
        cblas_dgemm(CblasRowMajor, a, b, m, n, k, call->alpha, call->a, lda, call->b, ldb, call->beta,
                    call->c, ldc);
    }
    return GEMM_OK;
}

static bool openblas_own_threads(void *context) {
    const struct openblas_context *openblas = context;
    return openblas->threads > 1 && openblas_get_parallel() != OPENBLAS_OPENMP;
}

/* A warning if OpenBLAS uses kernels for an older core (forced by OPENBLAS_CORETYPE, or because the library
   is older than the processor): they are 2 to 15 times slower. */
static const char *slow_core(const char *core) {
#if defined(__x86_64__)
    static const char *const avx512[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    static const char *const avx2[] = {"Haswell", "Zen"};
    for (size_t i = 0; i < sizeof avx512 / sizeof *avx512; i++)
        if (strcasecmp(core, avx512[i]) == 0) return "";
    if (__builtin_cpu_supports("avx512f"))
        return " (slow: this CPU has AVX-512; set OPENBLAS_CORETYPE=SkylakeX)";
    for (size_t i = 0; i < sizeof avx2 / sizeof *avx2; i++)
        if (strcasecmp(core, avx2[i]) == 0) return "";
    if (__builtin_cpu_supports("avx2")) return " (slow: this CPU has AVX2; set OPENBLAS_CORETYPE=Haswell)";
#endif
    (void)core;
    return "";
}

static void openblas_describe(void *context, char *text, size_t size) {
    static const char *const threading[] = {"sequential build", "pthreads build", "OpenMP build"};
    const struct openblas_context *openblas = context;
    const int kind = openblas_get_parallel();
    char version[32] = "";
    sscanf(openblas_get_config(), "OpenBLAS %31s", version);
    snprintf(text, size, "OpenBLAS %s, core %s%s, %s, %d thread%s", version, openblas_get_corename(),
             slow_core(openblas_get_corename()), threading[kind >= 0 && kind <= 2 ? kind : 0],
             openblas->threads, openblas->threads == 1 ? "" : "s");
}

const struct gemm_backend gemm_openblas = {
    .name = "openblas",
    .summary = "OpenBLAS cblas_sgemm and cblas_dgemm",
    .device = GEMM_ON_HOST,
    .supports = openblas_supports,
    .gemm = openblas_gemm,
    .create = openblas_create,
    .destroy = free,
    .set_threads = openblas_set_threads,
    .own_threads = openblas_own_threads,
    .describe = openblas_describe,
};
