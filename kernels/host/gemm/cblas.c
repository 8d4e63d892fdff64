/* cblas: any library with cblas_sgemm and cblas_dgemm: BLIS, MKL, AOCL, ATLAS, OpenBLAS, the reference BLAS.

   Idea       CBLAS is row-major and has the three ops: the call is passed on unchanged.
   Loading    the library is opened for this program alone (RTLD_LOCAL): its names bind neither ours nor those
              of a plug-in, and the other way round.
   Threads    each library has a function of its own to set them; what it reports then is what is printed.
   Run        ./train bench gemm --backends openblas,cblas:/usr/lib/x86_64-linux-gnu/libblis.so.4 */
#define _GNU_SOURCE /* dladdr, RTLD_DEFAULT */
#include "kernels/host/gemm/cblas.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Libraries take integers of 32 bits (LP64) or of 64 (ILP64). A long serves both: the ABIs of 64-bit Linux
   pass each integer argument in a register or a stack slot of 64 bits, and a callee that expects 32 reads the
   lower half. */
_Static_assert(sizeof(long) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "see above");

enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112 }; /* of CBLAS */

typedef void sgemm(int order, int ta, int tb, long m, long n, long k, float alpha, const float *a, long lda,
                   const float *b, long ldb, float beta, float *c, long ldc);
typedef void dgemm(int order, int ta, int tb, long m, long n, long k, double alpha, const double *a, long lda,
                   const double *b, long ldb, double beta, double *c, long ldc);
typedef void set_count(long count);
typedef int get_count(void);
typedef const char *get_text(void);
typedef const char *get_name(int id);
typedef void write_text(char *text, int size);

struct cblas {
    void *library;
    sgemm *f32;
    dgemm *f64;
    int threads;
};

/* --- loading --- */

/* Python's wheels of OpenBLAS prefix their names with scipy_; libraries with 64-bit integers may end theirs
   in 64_. */
static void *find(const struct cblas *cblas, const char *name) {
    static const char *const spellings[] = {"%s", "scipy_%s", "%s64_", "scipy_%s64_"};
    void *found = NULL;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings && !found; i++) {
        char spelled[64];
        snprintf(spelled, sizeof spelled, spellings[i], name);
        found = dlsym(cblas->library, spelled);
    }
    return found;
}

struct cblas *cblas_open(const char *file, char *why, size_t size) {
    struct cblas *cblas = calloc(1, sizeof *cblas);
    if (!cblas) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    cblas->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (cblas->library) {
        cblas->f32 = (sgemm *)find(cblas, "cblas_sgemm");
        cblas->f64 = (dgemm *)find(cblas, "cblas_dgemm");
    }
    if (cblas->f32 && cblas->f64) return cblas;
    if (cblas->library) {
        snprintf(why, size, "'%s' has no cblas_sgemm and cblas_dgemm", file);
    } else {
        snprintf(why, size, "%s", dlerror());
    }
    free(cblas);
    return NULL;
}

void cblas_close(void *context) {
    free(context);
}

/* --- threads --- */

static const struct {
    const char *set, *get;
} thread_functions[] = {
    {"openblas_set_num_threads", "openblas_get_num_threads"},
    {"bli_thread_set_num_threads", "bli_thread_get_num_threads"},
    {"MKL_Set_Num_Threads", "MKL_Get_Max_Threads"},
    {"nvpl_blas_set_num_threads", "nvpl_blas_get_max_threads"},
    {"omp_set_num_threads", "omp_get_max_threads"}, /* of the OpenMP runtime that the library needs */
};

int cblas_set_threads(void *context, int threads) {
    struct cblas *cblas = context;
    cblas->threads = 1;
    for (size_t i = 0; i < sizeof thread_functions / sizeof *thread_functions; i++) {
        set_count *set = (set_count *)find(cblas, thread_functions[i].set);
        get_count *get = (get_count *)find(cblas, thread_functions[i].get);
        if (!set || !get) continue;
        set(threads);
        cblas->threads = get();
        break;
    }
    return cblas->threads;
}

/* Unless it shares the OpenMP runtime of this program. */
bool cblas_own_threads(void *context) {
    const struct cblas *cblas = context;
    static const char *const function = "omp_get_max_threads";
    const void *const runtime = dlsym(cblas->library, function);
    return cblas->threads > 1 && (!runtime || runtime != dlsym(RTLD_DEFAULT, function));
}

/* --- the call --- */

bool cblas_supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)op;
    return !gemm_is_16bit(dtype);
}

static bool fits_int(const struct gemm_call *call) {
    const size_t limit = INT_MAX;
    return call->m <= limit && call->n <= limit && call->k <= limit && call->lda <= limit &&
           call->ldb <= limit && call->ldc <= limit;
}

/* CBLAS requires ld >= 1, even for a matrix without columns. */
static long leading(size_t ld) {
    return ld ? (long)ld : 1;
}

enum gemm_status cblas_gemm(void *context, const struct gemm_call *call) {
    const struct cblas *cblas = context;
    if (!fits_int(call)) return GEMM_UNSUPPORTED;
    const int ta = gemm_transposes_a(call->op) ? TRANSPOSED : NOT_TRANSPOSED;
    const int tb = gemm_transposes_b(call->op) ? TRANSPOSED : NOT_TRANSPOSED;
    const long m = (long)call->m, n = (long)call->n, k = (long)call->k;
    const long lda = leading(call->lda), ldb = leading(call->ldb), ldc = leading(call->ldc);
    if (call->dtype == GEMM_F32) {
        cblas->f32(ROW_MAJOR, ta, tb, m, n, k, (float)call->alpha, call->a, lda, call->b, ldb,
                   (float)call->beta, call->c, ldc);
    } else {
        cblas->f64(ROW_MAJOR, ta, tb, m, n, k, call->alpha, call->a, lda, call->b, ldb, call->beta, call->c,
                   ldc);
    }
    return GEMM_OK;
}

/* --- what the library says of itself --- */

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

static bool describe_openblas(const struct cblas *cblas, char *text, size_t size) {
    static const char *const threading[] = {"sequential build", "pthreads build", "OpenMP build"};
    get_text *config = (get_text *)find(cblas, "openblas_get_config");
    get_text *core = (get_text *)find(cblas, "openblas_get_corename");
    get_count *parallel = (get_count *)find(cblas, "openblas_get_parallel");
    if (!config || !core || !parallel) return false;
    char version[32] = "";
    sscanf(config(), "OpenBLAS %31s", version);
    const int kind = parallel();
    snprintf(text, size, "OpenBLAS %s, core %s%s, %s", version, core(), slow_core(core()),
             threading[kind >= 0 && kind <= 2 ? kind : 0]);
    return true;
}

static bool describe_blis(const struct cblas *cblas, char *text, size_t size) {
    get_text *version = (get_text *)find(cblas, "bli_info_get_version_str");
    get_count *arch = (get_count *)find(cblas, "bli_arch_query_id");
    get_name *name = (get_name *)find(cblas, "bli_arch_string");
    if (!version || !arch || !name) return false;
    snprintf(text, size, "BLIS %s, core %s", version(), name(arch()));
    return true;
}

static bool describe_mkl(const struct cblas *cblas, char *text, size_t size) {
    write_text *version = (write_text *)find(cblas, "MKL_Get_Version_String");
    char whole[200] = "";
    int year, update;
    if (!version) return false;
    version(whole, sizeof whole);
    const char *number = strstr(whole, "Version ");
    if (!number || sscanf(number, "Version %d.%d", &year, &update) != 2) return false;
    snprintf(text, size, "MKL %d.%d", year, update);
    return true;
}

void cblas_describe(void *context, char *text, size_t size) {
    const struct cblas *cblas = context;
    char library[160] = "a library that does not say its version";
    if (!describe_openblas(cblas, library, sizeof library) && !describe_blis(cblas, library, sizeof library))
        describe_mkl(cblas, library, sizeof library);
    snprintf(text, size, "%s, %d thread%s", library, cblas->threads, cblas->threads == 1 ? "" : "s");
}

/* --- the backend --- */

static const struct gemm_option options[] = {
    {"library", "FILE", NULL, "a shared library with cblas_sgemm and cblas_dgemm"},
    {0},
};

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    struct cblas *cblas = cblas_open(setup->option[0].text, why, size);
    if (cblas) cblas_set_threads(cblas, setup->threads);
    return cblas;
}

/* The file that holds the function: behind a name there may be links and alternatives. */
static void describe(void *context, char *text, size_t size) {
    const struct cblas *cblas = context;
    char library[256];
    Dl_info info;
    char *file = dladdr((void *)cblas->f32, &info) ? realpath(info.dli_fname, NULL) : NULL;
    cblas_describe(context, library, sizeof library);
    snprintf(text, size, "%s, from %s", library, file ? file : "an unknown file");
    free(file);
}

const struct gemm_backend gemm_cblas = {
    .name = "cblas",
    .summary = "any CBLAS library, by its file",
    .device = GEMM_ON_HOST,
    .supports = cblas_supports,
    .gemm = cblas_gemm,
    .create = create,
    .destroy = cblas_close,
    .options = options,
    .set_threads = cblas_set_threads,
    .own_threads = cblas_own_threads,
    .describe = describe,
};
