#include "src/cmd/bench_table.h"

#include <stdio.h>
#include <string.h>

#include "src/base/platform.h"
#include "src/base/text.h"

void bench_print_header(const struct contestants *contestants) {
    printf("Tessera %s, commit %s; %s; %s; %s %s\n", TESSERA_VERSION, platform_commit(), platform_cpu(),
           platform_system(), platform_compiler(), platform_flags());
    for (size_t i = 0; i < contestants->count; i++) {
        const struct compute *compute = &contestants->list[i].compute;
        const struct rates *rates = &contestants->list[i].rates;
        printf("%-*s %s%s%s; peak at best %.0f GFLOP/s f32, %.0f f64, copies %.1f GB/s\n", BENCH_LABEL,
               contestants->list[i].label, compute->description, compute->gpu[0] ? ", " : "", compute->gpu,
               1e-9 * rates->flops[GEMM_F32], 1e-9 * rates->flops[GEMM_F64], 1e-9 * rates->bandwidth);
    }
    for (size_t i = 0; i < contestants->left_out_count; i++)
        printf("%-*s %s: %s\n", BENCH_LABEL, contestants->left_out[i].label,
               outcome_words(contestants->left_out[i].outcome), contestants->left_out[i].reason);
    printf("\n");
}

void bench_print_titles(const char *more) {
    printf("to GPU: A and B, from GPU: C, copied between it and pageable memory, medians\n");
    printf("%-2s %-4s %6s %6s %6s  %-*s %9s %9s %9s %9s %6s %9s %9s%s\n", "op", "type", "m", "n", "k",
           BENCH_LABEL, "backend", "median", "least", "most", "GFLOP/s", "peak", "to GPU", "from GPU", more);
}

void bench_print_result(const struct contestant *who, enum gemm_dtype dtype, const struct gemm_shape *shape,
                        const struct result *result) {
    printf("%-2s %-4s %6zu %6zu %6zu  %-*s ", gemm_op_name(shape->op), dtype_name(dtype), shape->m, shape->n,
           shape->k, BENCH_LABEL, who->label);
    if (result->outcome != OUTCOME_RIGHT) {
        printf("%s: %s", outcome_words(result->outcome), result->reason);
        return;
    }
    printf("%9s %9s %9s %9.1f", text_seconds(result->seconds.median).text,
           text_seconds(result->seconds.min).text, text_seconds(result->seconds.max).text,
           1e-9 * result->flops / result->seconds.median);
    if (result->peak > 0) {
        printf(" %4.0f %%", 100 * share_of_peak(result));
    } else {
        printf(" %6s", "-");
    }
    const bool gpu = who->compute.backend->device != GEMM_ON_HOST;
    printf(" %9s %9s%s", gpu ? text_seconds(result->h2d).text : "-",
           gpu ? text_seconds(result->d2h).text : "-", result->seconds.noisy ? "  noisy" : "");
}

/* --- kernels --- */

static bool same_kernel(const struct gemm_kernel *a, const struct gemm_kernel *b) {
    return strcmp(a->name, b->name) == 0 && a->shared_bytes == b->shared_bytes &&
           a->registers == b->registers;
}

void bench_note_kernels(struct bench_kernels *kernels, const struct result *result) {
    for (size_t k = 0; k < result->kernels; k++) {
        bool seen = kernels->count == BENCH_MOST_KERNELS;
        for (size_t i = 0; i < kernels->count && !seen; i++)
            seen = same_kernel(&kernels->list[i], &result->kernel[k]);
        if (!seen) kernels->list[kernels->count++] = result->kernel[k];
    }
}

void bench_print_kernels(const struct bench_kernels *kernels) {
    if (!kernels->count) return;
    printf("\n%-48s %8s %10s %14s %10s\n", "kernel", "threads", "registers", "shared memory", "occupancy");
    for (size_t i = 0; i < kernels->count; i++) {
        const struct gemm_kernel *kernel = &kernels->list[i];
        printf("%-48s %8u %10u %14s %8.0f %%\n", kernel->name, kernel->threads, kernel->registers,
               text_bytes((double)kernel->shared_bytes).text, 100 * kernel->occupancy);
    }
}

/* --- flags --- */

enum status bench_parse_count(const char *flag, const char *text, size_t most, size_t *value) {
    int64_t count;
    if (!text) return STATUS_OK;
    if (!text_parse_int(text, &count) || count < 1 || (uint64_t)count > most)
        return status_set(STATUS_USAGE, "--%s must be a whole number from 1 to %zu, not '%s'", flag, most,
                          text);
    *value = (size_t)count;
    return STATUS_OK;
}

enum status bench_parse_real(const char *flag, const char *text, double *value) {
    if (!text) return STATUS_OK;
    if (text_parse_real(text, value) && *value >= 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "--%s must be a number from 0, not '%s'", flag, text);
}

enum status bench_parse_list(const char *flag, const char *text, size_t room, size_t *values, size_t *count) {
    *count = 0;
    while (*text && strcmp(text, "none") != 0) {
        char word[24];
        int64_t value;
        const size_t length = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        if (*count == room || !text_parse_int(word, &value) || value < 1 || value > 1 << 24)
            return status_set(STATUS_USAGE,
                              "--%s must be up to %zu whole numbers from 1, as in 1,2,4, not '%s'", flag,
                              room, word);
        values[(*count)++] = (size_t)value;
        text += length + (text[length] == ',');
    }
    return STATUS_OK;
}
