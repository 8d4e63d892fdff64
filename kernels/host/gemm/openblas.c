/* openblas: cblas_sgemm and cblas_dgemm, the library that most numerical programs call.

   Idea       the OpenBLAS that `make` found, through kernels/host/gemm/cblas.c
   Bound by   FMA: it reaches 70-90 % of the peak on training shapes, less for n = 10.
   Improves   kernels/host/gemm/openmp.c, by packing and by blocking for registers and caches
   Threads    some builds ignore openblas_set_num_threads: the count is read back, and reported.
   Run        ./train --backend openblas --threads 2 */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/host/gemm/cblas.h"

#define TEXT(macro) #macro
#define TEXT_OF(macro) TEXT(macro)

/* The library is loaded when it is used. Its constructor starts threads, maps a buffer for each core, and
   never returns if it cannot map one: 128 MiB for each core in OpenBLAS 0.3.21, and 43 MiB for the
   library. */
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

static struct cblas *open_library(char *why, size_t size) {
    static const char soname[] = TEXT_OF(OPENBLAS_SONAME);
    const bool loaded = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD) != NULL;
    return loaded || fits_address_space(why, size) ? cblas_open(soname, why, size) : NULL;
}

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    struct cblas *openblas = open_library(why, size);
    if (openblas) cblas_set_threads(openblas, setup->threads);
    return openblas;
}

/* Leaves the thread count as it is, since another context may be in use. */
static bool probe(char *why, size_t size) {
    struct cblas *openblas = open_library(why, size);
    cblas_close(openblas);
    return openblas != NULL;
}

const struct gemm_backend gemm_openblas = {
    .name = "openblas",
    .summary = "OpenBLAS cblas_sgemm and cblas_dgemm",
    .device = GEMM_ON_HOST,
    .supports = cblas_supports,
    .gemm = cblas_gemm,
    .probe = probe,
    .create = create,
    .destroy = cblas_close,
    .set_threads = cblas_set_threads,
    .own_threads = cblas_own_threads,
    .describe = cblas_describe,
};
