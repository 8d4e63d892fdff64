/* The kinds of tests/plugins/subtle/kinds.c that change what they may not: operands, the state of the
   process, or C after they have returned. */
#ifndef TESSERA_TESTS_PLUGINS_SUBTLE_SIDE_EFFECTS_H
#define TESSERA_TESTS_PLUGINS_SUBTLE_SIDE_EFFECTS_H

#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE__
#    include <xmmintrin.h>
#endif

#include "tests/plugins/subtle/context.h"

static enum gemm_status writes_a(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    if (call->k)
        reference_set(call->dtype, (void *)call->a, 0, 1.0001 * reference_get(call->dtype, call->a, 0));
    return GEMM_OK;
}

static enum gemm_status writes_b(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    if (call->k)
        reference_set(call->dtype, (void *)call->b, 0, 1.0001 * reference_get(call->dtype, call->b, 0));
    return GEMM_OK;
}

/* B of an earlier call, which is no operand of this one. */
static enum gemm_status shrinks_weights(struct context *context, const struct gemm_call *call) {
    static float *weights;
    static size_t count;
    if (call->op == GEMM_NN && call->dtype == GEMM_F32 && call->k == 42 && context->calls > 100) {
        weights = (float *)call->b;
        count = call->k * call->ldb;
    }
    if (call->op == GEMM_TN && context->calls > 100)
        for (size_t i = 0; weights && i < count; i++) weights[i] *= 0.999F;
    if (call->op != GEMM_NN) weights = NULL;
    return reference_gemm(call);
}

static enum gemm_status flushes_to_zero(struct context *context, const struct gemm_call *call) {
    reference_gemm(call);
#ifdef __SSE__
    if (context->calls > 100) _mm_setcsr(_mm_getcsr() | 0x8040u);
#else
    (void)context;
#endif
    return GEMM_OK;
}

static enum gemm_status rounds_up(struct context *context, const struct gemm_call *call) {
    reference_gemm(call);
    if (context->calls > 100) fesetround(FE_UPWARD);
    return GEMM_OK;
}

static enum gemm_status changes_locale(struct context *context, const struct gemm_call *call) {
    reference_gemm(call);
    if (context->calls > 100) setlocale(LC_ALL, "C.UTF-8");
    return GEMM_OK;
}

static enum gemm_status changes_directory(struct context *context, const struct gemm_call *call) {
    reference_gemm(call);
    if (context->calls > 100 && chdir("/")) return GEMM_FAILED;
    return GEMM_OK;
}

static enum gemm_status changes_affinity(struct context *context, const struct gemm_call *call) {
    reference_gemm(call);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    if (context->calls > 100) sched_setaffinity(0, sizeof one, &one);
    return GEMM_OK;
}

static enum gemm_status changes_priority(struct context *context, const struct gemm_call *call) {
    reference_gemm(call);
    if (context->calls > 100) setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 1);
    return GEMM_OK;
}

static enum gemm_status changes_scheduler(struct context *context, const struct gemm_call *call) {
    reference_gemm(call);
    if (context->calls > 100) sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    return GEMM_OK;
}

static void *sleeps(void *argument) {
    pause();
    return argument;
}

static enum gemm_status leaves_threads(struct context *context, const struct gemm_call *call) {
    pthread_t thread;
    reference_gemm(call);
    if (context->calls > 100 && context->calls < 600 && pthread_create(&thread, NULL, sleeps, NULL) == 0)
        pthread_detach(thread);
    return GEMM_OK;
}

static enum gemm_status leaks(struct context *context, const struct gemm_call *call) {
    (void)context;
    static volatile char *lost;
    if (!(lost = malloc(40))) return GEMM_FAILED;
    return reference_gemm(call);
}

static enum gemm_status leaks_pages(struct context *context, const struct gemm_call *call) {
    (void)context;
    const int how = MAP_PRIVATE | MAP_ANONYMOUS;
    return mmap(NULL, 1, PROT_READ, how, -1, 0) == MAP_FAILED ? GEMM_FAILED : reference_gemm(call);
}

/* Returns before it has finished. */
static struct gemm_call late_call;

static void *works_later(void *argument) {
    const struct timespec while_the_caller_goes_on = {0, 300000};
    nanosleep(&while_the_caller_goes_on, NULL);
    reference_gemm(&late_call);
    return argument;
}

static enum gemm_status returns_early(struct context *context, const struct gemm_call *call) {
    static pthread_t thread;
    static bool running;
    if (running) pthread_join(thread, NULL);
    running = false;
    if (context->calls < 100) return reference_gemm(call);
    late_call = *call;
    running = pthread_create(&thread, NULL, works_later, NULL) == 0;
    return GEMM_OK;
}

#endif
