/* Says that it uses one thread (it has no set_threads), and keeps eight busy after the verification, 0.3 ms a
   call. That shows on a machine with an idle core (tests/bench/wrong_backends.py). */
#include "tests/plugins/reference.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { HELPERS = 7, FIRST_CALL = 10000 };
static const double SECONDS = 0.0003;
static atomic_int working;

static void *work(void *argument) {
    while (atomic_load(&working)) continue;
    return argument;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    static int calls;
    pthread_t helper[HELPERS];
    int count = 0;
    (void)context;
    const double start = seconds();
    const enum gemm_status status = reference_gemm(call);
    if (++calls < FIRST_CALL) return status;
    atomic_store(&working, 1);
    while (count < HELPERS && pthread_create(&helper[count], NULL, work, NULL) == 0) count++;
    while (seconds() < start + SECONDS) continue;
    atomic_store(&working, 0);
    while (count) pthread_join(helper[--count], NULL);
    return status;
}

static const struct gemm_backend backend = {.name = "more-threads", REFERENCE_SLOTS, .gemm = gemm};
GEMM_PLUGIN(backend);
