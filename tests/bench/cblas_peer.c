/* Any CBLAS library as a plug-in, so that `./train bench gemm` verifies and times it like our own backends.

   Run        cc -O2 -shared -fPIC -I. tests/bench/cblas_peer.c -o cblas.so
              export CBLAS_LIBRARY=/usr/lib/x86_64-linux-gnu/blis-openmp/libblis.so.4
              ./train bench gemm --backends ./cblas.so

   The library reads its number of threads and its core type from the environment. Its integers must be ints
   (LP64). tests/bench/cpu_peers.py sets these variables. */
#define _GNU_SOURCE /* RTLD_DEEPBIND */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gemm.h"

enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112 }; /* of CBLAS */

typedef void sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                   const float *b, int ldb, float beta, float *c, int ldc);
typedef void dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                   const double *b, int ldb, double beta, double *c, int ldc);
typedef int get_count(void);
typedef const char *get_text(void);
typedef const char *get_name(int id);

static struct {
    void *handle;
    sgemm *f32;
    dgemm *f64;
} library;

/* OpenBLAS's Python wheels prefix their symbols. */
static void *find(const char *name) {
    char prefixed[64];
    snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    void *found = dlsym(library.handle, name);
    return found ? found : dlsym(library.handle, prefixed);
}

/* RTLD_DEEPBIND: the program is linked with an OpenBLAS, and the library must use its own symbols instead. */
static bool probe(char *why, size_t size) {
    const char *path = getenv("CBLAS_LIBRARY");
    library.handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
    if (!library.handle) {
        snprintf(why, size, "%s", path ? dlerror() : "CBLAS_LIBRARY does not name a library");
        return false;
    }
    library.f32 = (sgemm *)find("cblas_sgemm");
    library.f64 = (dgemm *)find("cblas_dgemm");
    if (library.f32 && library.f64) return true;
    snprintf(why, size, "'%s' has no cblas_sgemm and cblas_dgemm", path);
    return false;
}

/* The number of threads that the library reports; 1 if it reports none. */
static int threads_in_use(void) {
    static const char *const names[] = {"openblas_get_num_threads", "bli_thread_get_num_threads",
                                        "MKL_Get_Max_Threads"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        get_count *count = (get_count *)find(names[i]);
        if (count) return count();
    }
    return 1;
}

static int set_threads(void *context, int threads) {
    (void)threads;
    return *(int *)context = threads_in_use();
}

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    int *threads = malloc(sizeof *threads);
    if (threads) {
        set_threads(threads, setup->threads);
    } else {
        snprintf(why, size, "out of memory");
    }
    return threads;
}

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)op;
    return dtype != GEMM_BF16;
}

/* BLAS requires at least 1, even for a matrix without columns. */
static int leading(size_t ld) {
    return ld ? (int)ld : 1;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    const int ta = gemm_transposes_a(call->op) ? TRANSPOSED : NOT_TRANSPOSED;
    const int tb = gemm_transposes_b(call->op) ? TRANSPOSED : NOT_TRANSPOSED;
    const int m = (int)call->m, n = (int)call->n, k = (int)call->k;
    const int lda = leading(call->lda), ldb = leading(call->ldb), ldc = leading(call->ldc);
    if (call->dtype == GEMM_F32) {
        library.f32(ROW_MAJOR, ta, tb, m, n, k, (float)call->alpha, call->a, lda, call->b, ldb,
                    (float)call->beta, call->c, ldc);
    } else {
        library.f64(ROW_MAJOR, ta, tb, m, n, k, call->alpha, call->a, lda, call->b, ldb, call->beta, call->c,
                    ldc);
    }
    return GEMM_OK;
}

static bool own_threads(void *context) {
    get_count *parallel = (get_count *)find("openblas_get_parallel");
    return *(int *)context > 1 && parallel && parallel() == 1; /* a build with pthreads */
}

static void describe(void *context, char *text, size_t size) {
    (void)context;
    get_text *config = (get_text *)find("openblas_get_config"),
             *core = (get_text *)find("openblas_get_corename");
    get_text *version = (get_text *)find("bli_info_get_version_str");
    get_count *arch = (get_count *)find("bli_arch_query_id");
    get_name *arch_name = (get_name *)find("bli_arch_string");
    char openblas[32] = "";
    if (config && core) {
        sscanf(config(), "OpenBLAS %31s", openblas);
        snprintf(text, size, "OpenBLAS %s, core %s", openblas, core());
    } else if (version && arch && arch_name) {
        snprintf(text, size, "BLIS %s, core %s", version(), arch_name(arch()));
    } else {
        snprintf(text, size, "%s", getenv("CBLAS_LIBRARY"));
    }
}

static const struct gemm_backend backend = {.name = "cblas",
                                            .summary = "the CBLAS library that CBLAS_LIBRARY names",
                                            .device = GEMM_ON_HOST,
                                            .probe = probe,
                                            .create = create,
                                            .destroy = free,
                                            .supports = supports,
                                            .gemm = gemm,
                                            .set_threads = set_threads,
                                            .own_threads = own_threads,
                                            .describe = describe};
GEMM_PLUGIN(backend);
