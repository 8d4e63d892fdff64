/* Wrong: two threads add half of k each to the same C without a lock. */
#include "tests/plugins/reference.h"

#include <pthread.h>
#include <sched.h>

struct half {
    const struct gemm_call *call;
    size_t p0, p1;
    pthread_barrier_t *rows; /* both begin a row together, on any machine */
};

static void *add_half(void *argument) {
    const struct half *half = argument;
    const struct gemm_call *call = half->call;
    for (size_t i = 0; i < call->m; i++) {
        pthread_barrier_wait(half->rows);
        for (size_t j = 0; j < call->n; j++) {
            const double c = reference_get_c(call, i, j);
            sched_yield(); /* what the other thread writes meanwhile is lost */
            reference_set_c(call, i, j, c + reference_sum(call, i, j, half->p0, half->p1));
        }
    }
    return NULL;
}

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call scale = *call;
    scale.k = 0;
    reference_gemm(&scale);
    pthread_barrier_t rows;
    struct half low = {call, 0, call->k / 2, &rows}, high = {call, call->k / 2, call->k, &rows};
    pthread_t thread;
    pthread_barrier_init(&rows, NULL, 2);
    if (pthread_create(&thread, NULL, add_half, &low) != 0) return GEMM_FAILED;
    add_half(&high);
    return pthread_join(thread, NULL) == 0 ? GEMM_OK : GEMM_FAILED;
}

static const struct gemm_backend backend = {.name = "race", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
