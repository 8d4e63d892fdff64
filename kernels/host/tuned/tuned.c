/* tuned: the project's own GEMM for the host.

   Idea       register tiles, packed micro-panels and cache blocks: Goto and van de Geijn, "Anatomy of
              High-Performance Matrix Multiplication" (2008), and BLIS. For the small products of training:
              the first micro-kernel that reads a micro-panel of B packs it; A is packed only if it is reused
              enough or its rows conflict in the cache; with a small n or k the lanes run along another
              dimension (dot.h, transposed_c.h, small_k.h).
   Bound by   FMA; ukernel.h counts registers and bytes, gemm_loops.h and plan.c the caches.
   Same bits  for any number of threads: an element is one sum over k, in an order that the shape decides.
   Improves   kernels/host/gemm/openblas.c on the shapes of training
   Run        ./train --backend tuned --threads 2 (or tuned:isa=avx2) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#    include <omp.h>
#else
#    define omp_get_thread_num() 0
#endif

#include "kernels/host/tuned/nearest.h"
#include "kernels/host/tuned/tuned.h"
#include "src/base/pages.h"

/* The fastest first; the last one is always usable. */
static const struct tuned_isa *const isas[] = {
#if defined(__x86_64__)
    &tuned_avx512bf16,
    &tuned_avx512,
    &tuned_avx2,
#endif
    &tuned_portable,
};
enum { ISAS = sizeof isas / sizeof *isas };

/* With fewer FMAs (multiply-accumulates) one thread is faster: a fork and join take 1 to 2 us. */
static const size_t ONE_THREAD_MACS = 1 << 17;

static const struct gemm_option options[] = {{"isa", "auto|avx512bf16|avx512|avx2|portable", "auto",
                                              "instruction set; auto: the best that the CPU has"},
                                             {0}};

static const struct tuned_isa *find_isa(const char *name, char *why, size_t size) {
    const bool best = strcmp(name, "auto") == 0;
    for (size_t i = 0; i < ISAS; i++)
        if ((best || strcmp(name, isas[i]->name) == 0) && isas[i]->usable()) return isas[i];
    size_t used = (size_t)snprintf(why, size, "this CPU does not support isa=%s; it supports", name);
    for (size_t i = 0; i < ISAS; i++)
        if (isas[i]->usable() && used < size)
            used += (size_t)snprintf(why + used, size - used, " %s", isas[i]->name);
    return NULL;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Allocates workspace for `threads` threads. Old contents are lost. */
static bool reserve(struct tuned_context *tuned, int threads) {
    size_t needed = 0;
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++)
        needed = larger(needed, tuned_workspace(tuned_kernel_for(tuned, (enum gemm_dtype)dtype)));
    tuned->stride = (needed + 4095) / 4096 * 4096;
    char *workspace = pages_alloc(tuned->stride * (size_t)threads);
    if (!workspace) return false;
    free(tuned->workspace);
    tuned->workspace = workspace;
    tuned->threads = tuned->capacity = threads;
    return true;
}

static int tuned_set_threads(void *context, int threads) {
    struct tuned_context *tuned = context;
#ifndef _OPENMP
    threads = 1;
#endif
    if (threads > tuned->capacity && !reserve(tuned, threads)) return tuned->threads;
    return tuned->threads = threads;
}

static void tuned_destroy(void *context) {
    struct tuned_context *tuned = context;
    free(tuned->workspace);
    free(tuned->sums);
    free(tuned);
}

struct tuned_context *tuned_open(const struct tuned_isa *isa, int threads) {
    struct tuned_context *tuned = calloc(1, sizeof *tuned);
    if (tuned) tuned->isa = isa;
    if (!tuned || !reserve(tuned, 1)) {
        free(tuned);
        return NULL;
    }
    tuned_set_threads(tuned, threads);
    return tuned;
}

static void *tuned_create(const struct gemm_setup *setup, char *why, size_t size) {
    const struct tuned_isa *isa = find_isa(setup->option[0].text, why, size);
    struct tuned_context *tuned = isa ? tuned_open(isa, setup->threads) : NULL;
    if (isa && !tuned) snprintf(why, size, "out of memory");
    return tuned;
}

static bool tuned_supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype != GEMM_F16 && op != GEMM_TT;
}

/* Scratch for partial sums that a bfloat16 C cannot hold. */
static bool reserve_sums(struct tuned_context *tuned, size_t elements) {
    if (elements <= tuned->sums_capacity) return true;
    free(tuned->sums);
    tuned->sums = malloc(elements * sizeof *tuned->sums);
    tuned->sums_capacity = tuned->sums ? elements : 0;
    return tuned->sums != NULL;
}

static enum gemm_status tuned_gemm(void *context, const struct gemm_call *call) {
    struct tuned_context *tuned = context;
    const struct tuned_kernel *kernel = tuned_kernel_for(tuned, call->dtype);
    const bool rounded = call->dtype == GEMM_BF16 && !call->c_f32;
    if (rounded && call->beta != 0) return GEMM_UNSUPPORTED;
    if (call->m == 0 || call->n == 0) return GEMM_OK;
    const bool small = call->m * call->n * call->k < ONE_THREAD_MACS;
    struct tuned_plan plan = tuned_plan_for(kernel, call, small ? 1 : (size_t)tuned->threads);
    if (rounded && plan.kc * kernel->vnni < call->k) {
        if (!reserve_sums(tuned, call->m * call->ldc)) return GEMM_FAILED;
        plan.partial_sums = tuned->sums;
    }
    const size_t parts = plan.row_parts * plan.col_parts;
    if (parts == 1) {
        kernel->part(call, &plan, 0, tuned->workspace);
        return GEMM_OK;
    }
#pragma omp parallel for schedule(static) num_threads((int)parts)
    for (size_t part = 0; part < parts; part++)
        kernel->part(call, &plan, part, tuned->workspace + part * tuned->stride);
    return GEMM_OK;
}

/* Threads of a batch that each compute whole matrices; 1 if they rather share each matrix. */
static size_t batch_threads(const struct tuned_context *tuned, const struct gemm_call *call, size_t count) {
    const size_t macs = call->m * call->n * call->k, threads = (size_t)tuned->threads;
    const bool rounded = call->dtype == GEMM_BF16 && !call->c_f32; /* partial sums are for one matrix */
    if (rounded || count * macs < ONE_THREAD_MACS) return 1;
    if (macs < ONE_THREAD_MACS) return count < threads ? count : threads;
    return count % threads == 0 || count >= 4 * threads ? threads : 1;
}

static enum gemm_status tuned_gemm_batch(void *context, const struct gemm_call *call, size_t count,
                                         const struct gemm_strides *strides) {
    struct tuned_context *tuned = context;
    const struct tuned_kernel *kernel = tuned_kernel_for(tuned, call->dtype);
    const size_t threads = batch_threads(tuned, call, count);
    enum gemm_status status = GEMM_OK;
    if (threads == 1) {
        for (size_t i = 0; i < count && status == GEMM_OK; i++) {
            const struct gemm_call item = gemm_batch_item(call, strides, i);
            status = tuned_gemm(context, &item);
        }
        return status;
    }
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
    for (size_t i = 0; i < count; i++) {
        const struct gemm_call item = gemm_batch_item(call, strides, i);
        const struct tuned_plan plan = tuned_plan_for(kernel, &item, 1);
        kernel->part(&item, &plan, 0, tuned->workspace + (size_t)omp_get_thread_num() * tuned->stride);
    }
    return GEMM_OK;
}

/* The one reason for GEMM_FAILED. */
static const char *tuned_error(void *context) {
    (void)context;
    return "out of memory";
}

static bool tuned_fuses(void *context, const struct gemm_call *call) {
    (void)context;
    (void)call;
    return true;
}

static void tuned_describe(void *context, char *text, size_t size) {
    const struct tuned_context *tuned = context;
    snprintf(text, size, "%s, %d thread%s", tuned->isa->name, tuned->threads, tuned->threads == 1 ? "" : "s");
}

const struct gemm_backend gemm_tuned = {
    .name = "tuned",
    .summary = "packed panels, tiles in registers, blocks for the caches: AVX-512, AVX2 or portable C",
    .device = GEMM_ON_HOST,
    .supports = tuned_supports,
    .gemm = tuned_gemm,
    .create = tuned_create,
    .destroy = tuned_destroy,
    .options = options,
    .set_threads = tuned_set_threads,
    .fuses = tuned_fuses,
    .describe = tuned_describe,
    .error = tuned_error,
    .fused = &tuned_fused,
    .nearest = &tuned_nearest,
    .gemm_batch = tuned_gemm_batch,
};
