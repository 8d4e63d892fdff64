#include "kernels/cuda/gemm/cublas_library.cuh"

#include <dlfcn.h>
#include <stdio.h>

#define TEXT(macro) #macro
#define TEXT_OF(macro) TEXT(macro) /* some names are macros for the version of the function in the headers */
static const char SONAME[] = "libcublas.so." TEXT_OF(CUBLAS_VER_MAJOR);

struct attempt {
    struct cublas_library functions;
    char error[400]; /* "" if all were found */
};

static void find_functions(struct attempt *attempt, void *library) {
    cublas_library *functions = &attempt->functions;
    const struct {
        const char *name;
        void *to; /* a pointer to a function */
    } all[] = {{TEXT_OF(cublasCreate), &functions->create},
               {TEXT_OF(cublasDestroy), &functions->destroy},
               {TEXT_OF(cublasSetStream), &functions->set_stream},
               {TEXT_OF(cublasSetWorkspace), &functions->set_workspace},
               {TEXT_OF(cublasSetMathMode), &functions->set_math_mode},
               {TEXT_OF(cublasSetSmCountTarget), &functions->set_sm_count_target},
               {TEXT_OF(cublasGetVersion), &functions->get_version},
               {TEXT_OF(cublasGetStatusString), &functions->get_status_string},
               {TEXT_OF(cublasGemmEx), &functions->gemm},
               {TEXT_OF(cublasGemmStridedBatchedEx), &functions->gemm_batch}};
    for (const auto &function : all) {
        *(void **)function.to = dlsym(library, function.name);
        if (!*(void **)function.to)
            snprintf(attempt->error, sizeof attempt->error, "%s has no %s: update the CUDA toolkit", SONAME,
                     function.name);
    }
}

static struct attempt load(void) {
    struct attempt attempt = {};
    void *library = dlopen(SONAME, RTLD_LAZY | RTLD_LOCAL);
    if (library) {
        find_functions(&attempt, library);
    } else {
        snprintf(attempt.error, sizeof attempt.error,
                 "cuBLAS cannot be loaded: %s (install it, or add its folder to LD_LIBRARY_PATH)", dlerror());
    }
    return attempt;
}

const struct cublas_library *cublas_load(char *why, size_t size) {
    static const struct attempt attempt = load(); /* one thread loads, others wait */
    if (!attempt.error[0]) return &attempt.functions;
    snprintf(why, size, "%s", attempt.error);
    return NULL;
}
