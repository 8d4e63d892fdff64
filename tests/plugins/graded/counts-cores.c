/* A right GEMM that says on how many cores it can run, after a thread of it has tried to run on all. */
#define _GNU_SOURCE
#include "tests/plugins/reference.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

/* The id of a thread, not 0: that is the calling one, whose affinity is part of the contract. */
static void *widen(void *argument) {
    cpu_set_t all;
    memset(&all, 0xFF, sizeof all);
    pthread_setaffinity_np(pthread_self(), sizeof all, &all);
    pthread_getaffinity_np(pthread_self(), sizeof all, &all);
    *(int *)argument = CPU_COUNT(&all);
    return NULL;
}

static void describe(void *context, char *text, size_t size) {
    pthread_t thread;
    int cores = 0;
    (void)context;
    if (pthread_create(&thread, NULL, widen, &cores) == 0) pthread_join(thread, NULL);
    snprintf(text, size, "cores: %d", cores);
}

static enum gemm_status right_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {
    .name = "counts-cores", REFERENCE_SLOTS, .gemm = right_gemm, .describe = describe};
GEMM_PLUGIN(backend);
