#include "src/backend/registry.h"

#include <stdio.h>
#include <string.h>

#include "src/backend/backend_options.h"
#include "src/backend/plugin.h"
#include "src/base/text.h"

/* Each backend has one entry here. No other file knows what was built. */
extern const struct gemm_backend gemm_serial, gemm_tuned, gemm_cblas;
#ifdef HAVE_OPENMP
extern const struct gemm_backend gemm_openmp;
#endif
#ifdef HAVE_OPENBLAS
extern const struct gemm_backend gemm_openblas;
#endif
#ifdef HAVE_CUDA
extern const struct gemm_backend gemm_cuda_naive, gemm_cuda_coalesced, gemm_cuda_shmem, gemm_cuda_order,
    gemm_cuda_tuned, gemm_cublas;
extern const struct device_driver device_cuda;
#endif

#ifdef CUDA_LEFT_OUT
#    define NO_CUDA "the GPU part was left out by CUDA=0 when this was built (make CUDA=1 builds it)"
#elif defined CUDA_NOT_WANTED
#    define NO_CUDA "no GPU was found when this was built (make CUDA=1 builds the GPU backends nevertheless)"
#else
#    define NO_CUDA "the CUDA toolkit was not found when this was built (install it, then make)"
#endif

#ifdef OPENBLAS_LEFT_OUT
#    define NO_OPENBLAS "this was built with OPENBLAS=0"
#else
#    define NO_OPENBLAS \
        "OpenBLAS was not found when this was built (install libopenblas-openmp-dev, then make)"
#endif

static const struct registry_entry entries[] = {
    {"serial", &gemm_serial, NULL},
#ifdef HAVE_OPENMP
    {"openmp", &gemm_openmp, NULL},
#else
    {"openmp", NULL, "the compiler had no OpenMP when this was built (clang: install libomp-dev, then make)"},
#endif
#ifdef HAVE_OPENBLAS
    {"openblas", &gemm_openblas, NULL},
#else
    {"openblas", NULL, NO_OPENBLAS},
#endif
    {"cblas", &gemm_cblas, NULL},           {"tuned", &gemm_tuned, NULL},
#ifdef HAVE_CUDA
    {"cuda-naive", &gemm_cuda_naive, NULL}, {"cuda-coalesced", &gemm_cuda_coalesced, NULL},
    {"cuda-shmem", &gemm_cuda_shmem, NULL}, {"cuda-order", &gemm_cuda_order, NULL},
    {"cuda-tuned", &gemm_cuda_tuned, NULL}, {"cublas", &gemm_cublas, NULL},
#else
    {"cuda-naive", NULL, NO_CUDA},
    {"cuda-coalesced", NULL, NO_CUDA},
    {"cuda-shmem", NULL, NO_CUDA},
    {"cuda-order", NULL, NO_CUDA},
    {"cuda-tuned", NULL, NO_CUDA},
    {"cublas", NULL, NO_CUDA},
#endif
};

/* For "auto", the fastest first. */
static const char *const preferred[] = {"tuned", "openblas", "openmp", "serial"};

size_t registry_count(void) {
    return sizeof entries / sizeof *entries;
}

const struct registry_entry *registry_at(size_t index) {
    return &entries[index];
}

const struct device_driver *registry_device(enum gemm_device where) {
#ifdef HAVE_CUDA
    if (where == GEMM_ON_CUDA) return &device_cuda;
#endif
    return where == GEMM_ON_HOST ? &device_host : NULL;
}

static bool runs_here(const struct registry_entry *entry, char *why, size_t size) {
    if (!entry->backend) {
        snprintf(why, size, "%s", entry->missing);
        return false;
    }
    if (!registry_device(entry->backend->device)) {
        snprintf(why, size, "it runs on a GPU, but " NO_CUDA);
        return false;
    }
    const struct device_driver *device = registry_device(entry->backend->device);
    return (!device->probe || device->probe(why, size)) &&
           (!entry->backend->probe || entry->backend->probe(why, size));
}

bool registry_usable(const struct registry_entry *entry, char *why, size_t size) {
    const struct gemm_option *missing = entry->backend ? backend_options_missing(entry->backend, NULL) : NULL;
    if (!missing) return runs_here(entry, why, size);
    snprintf(why, size, "it needs %s=%s", missing->key, missing->values);
    return false;
}

static void list_usable(char *list, size_t size) {
    char why[256];
    list[0] = '\0';
    for (size_t i = 0; i < registry_count(); i++)
        if (registry_usable(&entries[i], why, sizeof why))
            text_append(list, size, "%s%s", list[0] ? ", " : "", entries[i].name);
}

static enum status unknown_backend(const char *name) {
    const char *names[sizeof entries / sizeof *entries];
    char list[512];
    for (size_t i = 0; i < registry_count(); i++) names[i] = entries[i].name;
    const char *near = text_nearest(name, names, registry_count());
    list_usable(list, sizeof list);
    return status_set(STATUS_UNAVAILABLE,
                      "no backend is called '%s'%s%s%s; usable here: %s; or a plug-in by its path: ./my.so",
                      name, near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", list);
}

static bool is_name(const char *name) {
    for (size_t i = 0; i < registry_count(); i++)
        if (strcmp(name, entries[i].name) == 0) return true;
    return strcmp(name, "auto") == 0;
}

/* An entry for the name, built or not, or for the plug-in at this path. */
static enum status find_entry(const char *name, struct registry_entry *entry) {
    for (size_t i = 0; i < registry_count(); i++) {
        if (strcmp(name, entries[i].name) != 0) continue;
        *entry = entries[i];
        return STATUS_OK;
    }
    *entry = (struct registry_entry){.name = name};
    return plugin_is_path(name) ? plugin_load(name, is_name, &entry->backend) : unknown_backend(name);
}

static enum status find_usable(const char *name, const char *options, const struct gemm_backend **backend) {
    char why[256] = "", list[512];
    struct registry_entry entry;
    struct backend_values values;
    enum status status = find_entry(name, &entry);
    if (!status && entry.backend) status = backend_options_parse(entry.backend, options, &values);
    if (status) return status;
    if (runs_here(&entry, why, sizeof why)) {
        *backend = entry.backend;
        return STATUS_OK;
    }
    list_usable(list, sizeof list);
    return status_set(STATUS_UNAVAILABLE, "backend '%s' cannot be used: %s; usable here: %s", name, why,
                      list);
}

enum status registry_find(const char *text, const struct gemm_backend **backend) {
    char name[BACKEND_OPTIONS_TEXT], why[256];
    const char *options = backend_options_in(text);
    const size_t length = (size_t)(options - text) - (options > text && options[-1] == ':');
    if (length >= sizeof name) return status_set(STATUS_USAGE, "the name of the backend is too long");
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    for (size_t p = 0; strcmp(name, "auto") == 0 && p < sizeof preferred / sizeof *preferred; p++) {
        struct registry_entry entry;
        if (find_entry(preferred[p], &entry) == STATUS_OK && registry_usable(&entry, why, sizeof why))
            snprintf(name, sizeof name, "%s", preferred[p]);
    }
    return find_usable(name, options, backend);
}

const char *registry_option_owner(const char *key) {
    for (size_t i = 0; i < registry_count(); i++) {
        const struct gemm_option *option = entries[i].backend ? entries[i].backend->options : NULL;
        for (; option && option->key; option++)
            if (strcmp(option->key, key) == 0) return entries[i].name;
    }
    return NULL;
}
