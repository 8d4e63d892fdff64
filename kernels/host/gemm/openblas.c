/* openblas: cblas_sgemm and cblas_dgemm, the library that most numerical programs call.

   Idea       CBLAS is row-major and has the three ops: the call is passed on unchanged.
   Bound by   FMA: it reaches 70-90 % of the peak on training shapes, less for n = 10.
   Improves   kernels/host/gemm/openmp.c, by packing and by blocking for registers and caches
   Threads    some builds ignore openblas_set_num_threads: the count is read back, and reported.
   Run        ./train --backend openblas --threads 2 */
#include <cblas.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/gemm.h"

/* --- loading --- */

/* The library is loaded when it is used. Its constructor starts threads, maps a buffer for each core, and
   never returns if it cannot map one. */
#define FUNCTIONS(X)            \
    X(cblas_sgemm)              \
    X(cblas_dgemm)              \
    X(openblas_set_num_threads) \
    X(openblas_get_num_threads) \
    X(openblas_get_parallel)    \
    X(openblas_get_config)      \
    X(openblas_get_corename)
#define MEMBER(name) __typeof__(name) *name;
#define FIND(name) found = found && (*(void **)&blas.name = dlsym(library, #name)) != NULL;
#define TEXT(macro) #macro
#define TEXT_OF(macro) TEXT(macro)

static struct {
    bool loaded;
    FUNCTIONS(MEMBER)
} blas;

/* 128 MiB for each core in OpenBLAS 0.3.21, and 43 MiB for the library. */
static bool fits_address_space(char *why, size_t size) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const size_t bytes = ((size_t)(cores > 0 ? cores : 1) + 1) << 27;
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) return munmap(memory, bytes) == 0;
    snprintf(why, size, "OpenBLAS needs %zu MiB of address space, more than is left (ulimit -v)",
             bytes >> 20);
    return false;
}

static bool openblas_load(char *why, size_t size) {
    if (blas.loaded) return true;
    if (!fits_address_space(why, size)) return false;
    void *library = dlopen(TEXT_OF(OPENBLAS_SONAME), RTLD_NOW | RTLD_LOCAL);
    bool found = library != NULL;
    FUNCTIONS(FIND)
    if (!found) snprintf(why, size, "%s", dlerror());
    blas.loaded = found;
    return found;
}

/* --- the backend --- */

struct openblas_context {
    int threads;
};

static int openblas_set_threads(void *context, int threads) {
    struct openblas_context *openblas = context;
    blas.openblas_set_num_threads(threads);
    openblas->threads = blas.openblas_get_num_threads();
    return openblas->threads;
}

static void *openblas_create(const struct gemm_setup *setup, char *why, size_t size) {
    if (!openblas_load(why, size)) return NULL;
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
        blas.cblas_sgemm(CblasRowMajor, a, b, m, n, k, (float)call->alpha, call->a, lda, call->b, ldb,
                         (float)call->beta, call->c, ldc);
    } else {
        blas.cblas_dgemm(CblasRowMajor, a, b, m, n, k, call->alpha, call->a, lda, call->b, ldb, call->beta,
                         call->c, ldc);
    }
    return GEMM_OK;
}

static bool openblas_own_threads(void *context) {
    const struct openblas_context *openblas = context;
    return openblas->threads > 1 && blas.openblas_get_parallel() != OPENBLAS_OPENMP;
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
    const int kind = blas.openblas_get_parallel();
    char version[32] = "";
    sscanf(blas.openblas_get_config(), "OpenBLAS %31s", version);
    snprintf(text, size, "OpenBLAS %s, core %s%s, %s, %d thread%s", version, blas.openblas_get_corename(),
             slow_core(blas.openblas_get_corename()), threading[kind >= 0 && kind <= 2 ? kind : 0],
             openblas->threads, openblas->threads == 1 ? "" : "s");
}

const struct gemm_backend gemm_openblas = {
    .name = "openblas",
    .summary = "OpenBLAS cblas_sgemm and cblas_dgemm",
    .device = GEMM_ON_HOST,
    .supports = openblas_supports,
    .gemm = openblas_gemm,
    .probe = openblas_load,
    .create = openblas_create,
    .destroy = free,
    .set_threads = openblas_set_threads,
    .own_threads = openblas_own_threads,
    .describe = openblas_describe,
};
