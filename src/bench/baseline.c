#include "src/bench/baseline.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/backend_options.h"
#include "src/base/text.h"

enum { LONGEST_LINE = 1 << 16 };

static const char *text_of(const cJSON *line, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, key));
    return text ? text : "";
}

/* A whole number from 1 to 2^24, else 0. */
static size_t size_of(const cJSON *line, const char *key) {
    const double value = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(line, key));
    return value >= 1 && value <= 0x1p24 ? (size_t)value : 0;
}

static bool parse_entry(const cJSON *line, struct baseline_entry *entry) {
    static const char *const ops[] = {"NN", "TN", "NT"};
    int op = -1, dtype = -1;
    for (int i = 0; i < 3; i++)
        if (strcmp(text_of(line, "op"), ops[i]) == 0) op = i;
    for (int i = GEMM_F32; i <= GEMM_BF16; i++)
        if (strcmp(text_of(line, "dtype"), dtype_name((enum gemm_dtype)i)) == 0) dtype = i;
    *entry = (struct baseline_entry){
        .dtype = (enum gemm_dtype)dtype,
        .shape = {.op = (enum gemm_op)op,
                  .m = size_of(line, "m"),
                  .n = size_of(line, "n"),
                  .k = size_of(line, "k")},
        .seconds = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(line, "median_seconds"))};
    snprintf(entry->backend, sizeof entry->backend, "%s", text_of(line, "backend"));
    snprintf(entry->path, sizeof entry->path, "%s", text_of(line, "path"));
    snprintf(entry->precision, sizeof entry->precision, "%s", text_of(line, "precision"));
    snprintf(entry->gpu, sizeof entry->gpu, "%s", text_of(line, "gpu"));
    entry->threads = (int)size_of(line, "threads");
    snprintf(entry->shape.what, sizeof entry->shape.what, "%s", text_of(line, "what"));
    snprintf(entry->shape.config, sizeof entry->shape.config, "%s", text_of(line, "config"));
    return op >= 0 && dtype >= 0 && entry->shape.m && entry->shape.n && entry->shape.k &&
           entry->seconds > 0 && entry->backend[0] && entry->threads;
}

static enum status add_line(struct baseline *baseline, const char *text, const char *path, size_t number) {
    cJSON *line = cJSON_Parse(text);
    if (!line) return status_set(STATUS_BAD_DATA, "%s:%zu: not a line of JSON", path, number);
    struct baseline_entry entry;
    const bool timed = strcmp(text_of(line, "type"), "gemm") == 0 && parse_entry(line, &entry),
               warm = strcmp(text_of(line, "operands"), "warm") == 0;
    cJSON_Delete(line);
    if (!timed) return STATUS_OK;
    if (baseline->count && warm != baseline->warm)
        return status_set(STATUS_BAD_DATA, "%s:%zu: some operands are warm, others are not", path, number);
    baseline->warm = warm;
    struct baseline_entry *grown = realloc(baseline->entries, (baseline->count + 1) * sizeof *grown);
    if (!grown) return status_set(STATUS_FAILED, "out of memory");
    baseline->entries = grown;
    baseline->entries[baseline->count++] = entry;
    return STATUS_OK;
}

enum status baseline_read(struct baseline *baseline, const char *path) {
    *baseline = (struct baseline){0};
    FILE *file = fopen(path, "r");
    char *text = malloc(LONGEST_LINE);
    enum status status = STATUS_OK;
    if (!file)
        status = status_set(STATUS_BAD_DATA, "cannot open the baseline '%s': %s", path, strerror(errno));
    for (size_t number = 1; !status && text && fgets(text, LONGEST_LINE, file); number++)
        if (*text_trim(text)) status = add_line(baseline, text, path, number);
    if (file) fclose(file);
    free(text);
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
        if (entry->dtype == dtype && entry->shape.op == shape->op && entry->shape.m == shape->m &&
            entry->shape.n == shape->n && entry->shape.k == shape->k && same_setup(entry, candidate, dtype))
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
