#include "src/data/dataset_loading.h"

#ifdef HAVE_OPENMP
#    include <omp.h>
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/process.h"

struct dataset_loading {
    const char *source;
    struct dataset_options options;
    pthread_t thread;
    bool threaded; /* else there was none to be had: loaded at once */
    struct dataset_pair pair;
    enum status status;
    char message[2048]; /* each thread has its own */
};

static void *load(void *opaque) {
    struct dataset_loading *loading = opaque;
    process_pin_locale();
    loading->status = dataset_load(&loading->pair, loading->source, loading->options);
    snprintf(loading->message, sizeof loading->message, "%s", loading->status ? status_message() : "");
    return NULL;
}

/* LLVM's OpenMP looks a symbol up (dlsym) when it starts, while it holds a lock of its own. If it started in
   the loading thread while the caller is in dlopen of OpenBLAS, whose constructor calls OpenMP, each would
   wait for the other's lock. So it starts here. */
static void start_openmp(void) {
#ifdef HAVE_OPENMP
    (void)omp_get_max_threads();
#endif
}

struct dataset_loading *dataset_loading_begin(const char *source, struct dataset_options options) {
    struct dataset_loading *loading = calloc(1, sizeof *loading);
    if (!loading) {
        status_write("out of memory");
        return NULL;
    }
    loading->source = source;
    loading->options = options;
    start_openmp();
    loading->threaded = pthread_create(&loading->thread, NULL, load, loading) == 0;
    if (!loading->threaded) load(loading);
    return loading;
}

enum status dataset_loading_end(struct dataset_loading *loading, struct dataset_pair *pair) {
    if (loading->threaded) pthread_join(loading->thread, NULL);
    const enum status status = loading->status;
    *pair = loading->pair;
    if (status) status_write("%s", loading->message);
    free(loading);
    return status;
}

void dataset_loading_abandon(struct dataset_loading *loading) {
    if (loading->threaded) pthread_detach(loading->thread);
}
