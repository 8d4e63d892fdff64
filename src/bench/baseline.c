#include "src/bench/baseline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/backend_options.h"
#include "src/base/text.h"
#include "src/bench/shapes.h"
#include "src/report/records.h"

/* A whole number from 1 to 2^24, else 0. */
static size_t size_of(const cJSON *line, const char *key) {
    return record_count(line, key, (size_t)1 << 24, 0);
}

static bool parse_entry(const cJSON *line, struct baseline_entry *entry) {
    static const char *const ops[] = {"NN", "TN", "NT"};
    int op = -1, dtype = -1;
    for (int i = 0; i < 3; i++)
        if (strcmp(record_text(line, "op"), ops[i]) == 0) op = i;
    for (int i = GEMM_F32; i < DTYPES; i++)
        if (strcmp(record_text(line, "dtype"), dtype_name((enum gemm_dtype)i)) == 0) dtype = i;
    *entry = (struct baseline_entry){.dtype = (enum gemm_dtype)dtype,
                                     .shape = {.op = (enum gemm_op)op,
                                               .m = size_of(line, "m"),
                                               .n = size_of(line, "n"),
                                               .k = size_of(line, "k"),
                                               .pixels = record_true(line, "pixels")},
                                     .seconds = record_number(line, "median_seconds")};
    snprintf(entry->backend, sizeof entry->backend, "%s", record_text(line, "backend"));
    snprintf(entry->path, sizeof entry->path, "%s", record_text(line, "path"));
    snprintf(entry->precision, sizeof entry->precision, "%s", record_text(line, "precision"));
    snprintf(entry->gpu, sizeof entry->gpu, "%s", record_text(line, "gpu"));
    entry->threads = (int)size_of(line, "threads");
    snprintf(entry->shape.what, sizeof entry->shape.what, "%s", record_text(line, "what"));
    snprintf(entry->shape.config, sizeof entry->shape.config, "%s", record_text(line, "config"));
    return op >= 0 && dtype >= 0 && entry->shape.m && entry->shape.n && entry->shape.k &&
           entry->seconds > 0 && entry->backend[0] && entry->threads;
}

static enum status add_entry(struct baseline *baseline, const cJSON *line, const char *path) {
    struct baseline_entry entry;
    const bool warm = strcmp(record_text(line, "operands"), "warm") == 0;
    if (!parse_entry(line, &entry)) return STATUS_OK;
    if (baseline->count && warm != baseline->warm)
        return status_set(STATUS_BAD_DATA, "%s: some operands are warm, others are not", path);
    baseline->warm = warm;
    struct baseline_entry *grown = realloc(baseline->entries, (baseline->count + 1) * sizeof *grown);
    if (!grown) return status_set(STATUS_FAILED, "out of memory");
    baseline->entries = grown;
    baseline->entries[baseline->count++] = entry;
    return STATUS_OK;
}

enum status baseline_read(struct baseline *baseline, const char *path) {
    *baseline = (struct baseline){0};
    struct records records = {0};
    const struct record *row = NULL;
    enum status status = records_read(&records, path);
    records_print_warnings(&records);
    while (!status && (row = records_after(&records, row, "gemm")))
        status = add_entry(baseline, row->line, path);
    records_free(&records);
    if (!status && baseline->count == 0)
        status = status_set(STATUS_BAD_DATA, "'%s' holds no times of 'bench gemm --log'", path);
    if (status) baseline_close(baseline);
    return status;
}

void baseline_close(struct baseline *baseline) {
    free(baseline->entries);
    *baseline = (struct baseline){0};
}

static bool same_setup(const struct baseline_entry *entry, const struct candidate *candidate,
                       enum gemm_dtype dtype) {
    const struct compute *compute = &candidate->compute;
    return strcmp(entry->backend, compute->name) == 0 && entry->threads == compute->threads &&
           strcmp(entry->precision, compute_precision(compute, dtype)) == 0 &&
           strcmp(entry->gpu, compute->gpu) == 0;
}

double baseline_seconds(const struct baseline *baseline, const struct candidate *candidate,
                        enum gemm_dtype dtype, const struct gemm_shape *shape) {
    for (size_t i = 0; i < baseline->count; i++) {
        const struct baseline_entry *entry = &baseline->entries[i];
        if (entry->dtype == dtype && shapes_equal(&entry->shape, shape) &&
            same_setup(entry, candidate, dtype))
            return entry->seconds;
    }
    return 0;
}

/* As in --backends: a plug-in by its path, with its options. */
static void append_backend(const struct baseline_entry *entry, char *list, size_t size) {
    const char *options = backend_options_in(entry->backend), *comma = list[0] ? "," : "";
    if (entry->path[0]) {
        text_append(list, size, "%s%s%s%s", comma, entry->path, options[0] ? ":" : "", options);
    } else {
        text_append(list, size, "%s%s", comma, entry->backend);
    }
}

void baseline_backends(const struct baseline *baseline, char *list, size_t size) {
    list[0] = '\0';
    for (size_t i = 0; i < baseline->count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = strcmp(baseline->entries[i].backend, baseline->entries[j].backend) == 0;
        if (!seen) append_backend(&baseline->entries[i], list, size);
    }
}

void baseline_threads(const struct baseline *baseline, char *list, size_t size) {
    list[0] = '\0';
    for (size_t i = 0; i < baseline->count; i++) {
        bool seen = baseline->entries[i].gpu[0] != '\0';
        for (size_t j = 0; j < i && !seen; j++)
            seen =
                !baseline->entries[j].gpu[0] && baseline->entries[j].threads == baseline->entries[i].threads;
        if (!seen) text_append(list, size, "%s%d", list[0] ? "," : "", baseline->entries[i].threads);
    }
}
