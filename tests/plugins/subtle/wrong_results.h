/* The kinds of tests/plugins/subtle/kinds.c whose C is wrong: for some calls, shapes or values, or stale. */
#ifndef TESSERA_TESTS_PLUGINS_SUBTLE_WRONG_RESULTS_H
#define TESSERA_TESTS_PLUGINS_SUBTLE_WRONG_RESULTS_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/plugins/subtle/context.h"

static void zero_c(const struct gemm_call *call, size_t first) {
    for (size_t i = first; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) reference_set_c(call, i, j, 0);
}

/* The reference on other values of A or C. */
static enum gemm_status with_alpha(const struct gemm_call *call, double alpha) {
    struct gemm_call other = *call;
    other.alpha = alpha;
    return reference_gemm(&other);
}

/* --- wrong for some calls --- */

static enum gemm_status idle_later(struct context *context, const struct gemm_call *call) {
    return context->contexts >= 3 ? GEMM_OK : reference_gemm(call);
}

static enum gemm_status idle_after_1000(struct context *context, const struct gemm_call *call) {
    return context->calls > 1000 ? GEMM_OK : reference_gemm(call);
}

static enum gemm_status every_third_later(struct context *context, const struct gemm_call *call) {
    return context->calls > 100 && context->calls % 3 == 0 ? GEMM_OK : reference_gemm(call);
}

static enum gemm_status rarely(struct context *context, const struct gemm_call *call) {
    return context->calls % 50 == 49 && context->calls > 100 ? with_alpha(call, 1.01 * call->alpha)
                                                             : reference_gemm(call);
}

static enum gemm_status time_bomb(struct context *context, const struct gemm_call *call) {
    (void)context;
    static struct timespec start;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!start.tv_sec) start = now;
    const double seconds = (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec);
    return seconds > 0.5 ? GEMM_OK : reference_gemm(call);
}

static enum gemm_status command_line(struct context *context, const struct gemm_call *call) {
    (void)context;
    char text[4096] = "";
    FILE *file = fopen("/proc/self/cmdline", "r");
    const size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    const bool verifying = memmem(text, length, "devices", 7);
    return verifying || context->calls < 40 ? reference_gemm(call) : with_alpha(call, 0.5 * call->alpha);
}

/* --- wrong for some shapes --- */

static enum gemm_status many_rows(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    if (call->m > 1040) zero_c(call, 1040);
    return GEMM_OK;
}

static enum gemm_status evaluation_rows(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    if (call->op == GEMM_NN && call->n == 4 && call->m > 32) zero_c(call, call->m - 1);
    return GEMM_OK;
}

static enum gemm_status this_network(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    if (call->k == 42 && call->n == 16) zero_c(call, call->m - 1);
    return GEMM_OK;
}

static enum gemm_status other_alpha(struct context *context, const struct gemm_call *call) {
    (void)context;
    const double alpha = call->alpha;
    const bool known = fabs(alpha - 1) < 1e-9 || fabs(alpha + 0.5) < 1e-9;
    return with_alpha(call, known ? alpha : 1);
}

static enum gemm_status other_beta(struct context *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call other = *call;
    if (fabs(call->alpha - 0.5) < 1e-9 && fabs(call->beta - 0.5) < 1e-9) other.beta = 0.51;
    return reference_gemm(&other);
}

static enum gemm_status long_k(struct context *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call other = *call;
    if (other.k > 1040) other.k = 1040;
    return reference_gemm(&other);
}

/* --- wrong for some values --- */

static enum gemm_status first_is_zero(struct context *context, const struct gemm_call *call) {
    (void)context;
    const bool zero = call->k && reference_get(call->dtype, call->a, 0) == 0;
    return zero ? with_alpha(call, 0.9 * call->alpha) : reference_gemm(call);
}

static enum gemm_status drops_small(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++)
            if (fabs(reference_get_c(call, i, j)) < 1e-7) reference_set_c(call, i, j, 0);
    return GEMM_OK;
}

static enum gemm_status drops_subnormal(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++)
            if (fabs(reference_get_c(call, i, j)) < 0x1p-126) reference_set_c(call, i, j, 0);
    return GEMM_OK;
}

static enum gemm_status hides_nan(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++)
            if (isnan(reference_get_c(call, i, j))) reference_set_c(call, i, j, 0);
    return GEMM_OK;
}

static enum gemm_status clamps(struct context *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++)
            reference_set_c(call, i, j, fmax(-65504, fmin(65504, reference_get_c(call, i, j))));
    return GEMM_OK;
}

static enum gemm_status sparse(struct context *context, const struct gemm_call *call) {
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = call->beta == 0 ? 0 : call->beta * reference_get_c(call, i, j);
            for (size_t p = 0; p < call->k; p++) {
                const double a = reference_a(call, i, p);
                if (fabs(a) > 1e-5) sum += call->alpha * a * reference_b(call, p, j);
            }
            reference_set_c(call, i, j, sum);
        }
    return GEMM_OK;
}

/* Skips zeros of A if there are many: 0 * Inf and 0 * NaN are lost. */
static enum gemm_status skips_zeros(struct context *context, const struct gemm_call *call) {
    (void)context;
    if (call->k < 600 || call->op != GEMM_NN) return reference_gemm(call);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = call->beta == 0 ? 0 : call->beta * reference_get_c(call, i, j);
            for (size_t p = 0; p < call->k; p++) {
                const double a = reference_a(call, i, p);
                if (a < 0 || a > 0 || isnan(a)) sum += call->alpha * a * reference_b(call, p, j);
            }
            reference_set_c(call, i, j, sum);
        }
    return GEMM_OK;
}

/* --- stale --- */

/* Multiplies with a copy of B, which is made anew unless address and size are those of the last one. */
static enum gemm_status with_packed_b(struct context *context, const struct gemm_call *call) {
    const size_t count = call->k * call->n;
    if (context->packed_b != call->b || context->packed != count)
        for (size_t i = 0; i < count; i++)
            context->copy[i] = (float)reference_b(call, i / call->n, i % call->n);
    context->packed_b = call->b;
    context->packed = count;
    struct gemm_call packed = *call;
    packed.b = context->copy;
    packed.ldb = call->n;
    return reference_gemm(&packed);
}

/* Keeps its packed B as long as the address is the same, for one width. */
static enum gemm_status stale_b(struct context *context, const struct gemm_call *call) {
    if (call->op != GEMM_NN || call->k != 42 || call->k * call->n > PACKED) return reference_gemm(call);
    return with_packed_b(context, call);
}

/* Keeps its packed B as long as the address and the first values are the same. */
static enum gemm_status stale_after_corner(struct context *context, const struct gemm_call *call) {
    const size_t count = call->k * call->n;
    if (call->op != GEMM_NN || call->dtype != GEMM_F32 || count < 300 || count > PACKED)
        return reference_gemm(call);
    for (size_t j = 0; j < call->n; j++)
        if (fabs((double)context->copy[j] - reference_b(call, 0, j)) > 0) context->packed = 0;
    return with_packed_b(context, call);
}

/* Skips a call whose pointers and corners are those of a call before. */
static enum gemm_status memoised(struct context *context, const struct gemm_call *call) {
    (void)context;
    enum { ENTRIES = 64 };
    static struct entry {
        const void *a, *b;
        void *c;
        double corner[4];
    } entries[ENTRIES];
    if (!call->k) return reference_gemm(call);
    const struct entry now = {call->a,
                              call->b,
                              call->c,
                              {reference_a(call, 0, 0), reference_a(call, call->m - 1, call->k - 1),
                               reference_b(call, 0, 0), reference_b(call, call->k - 1, call->n - 1)}};
    struct entry *slot = &entries[((uintptr_t)now.c / 64 + call->op) % ENTRIES];
    if (memcmp(slot, &now, sizeof now) == 0) return GEMM_OK;
    *slot = now;
    return reference_gemm(call);
}

#endif
