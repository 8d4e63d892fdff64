#include "src/bench/baseline.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"

enum { LONGEST_LINE = 1 << 16 };

static const char *text_of(const cJSON *line, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, key));
    return text ? text : "";
}

/* A whole number from 1 to 2^40, else 0. */
static size_t size_of(const cJSON *line, const char *key) {
    const double value = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(line, key));
    return value >= 1 && value <= 0x1p40 ? (size_t)value : 0;
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
    snprintf(entry->label, sizeof entry->label, "%s", text_of(line, "label"));
    snprintf(entry->shape.what, sizeof entry->shape.what, "%s", text_of(line, "what"));
    snprintf(entry->shape.config, sizeof entry->shape.config, "%s", text_of(line, "config"));
    return op >= 0 && dtype >= 0 && entry->shape.m && entry->shape.n && entry->shape.k &&
           entry->seconds > 0 && entry->label[0];
}

static enum status add_line(struct baseline *baseline, const char *text, const char *path, size_t number) {
    cJSON *line = cJSON_Parse(text);
    if (!line) return status_set(STATUS_BAD_DATA, "%s:%zu: not a line of JSON", path, number);
    struct baseline_entry entry;
    const bool timed = strcmp(text_of(line, "type"), "gemm") == 0 && parse_entry(line, &entry);
    cJSON_Delete(line);
    if (!timed) return STATUS_OK;
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

double baseline_seconds(const struct baseline *baseline, const char *label, enum gemm_dtype dtype,
                        const struct gemm_shape *shape) {
    for (size_t i = 0; i < baseline->count; i++) {
        const struct baseline_entry *entry = &baseline->entries[i];
        if (entry->dtype == dtype && entry->shape.op == shape->op && entry->shape.m == shape->m &&
            entry->shape.n == shape->n && entry->shape.k == shape->k && strcmp(entry->label, label) == 0)
            return entry->seconds;
    }
    return 0;
}

void baseline_backends(const struct baseline *baseline, char *list, size_t size) {
    list[0] = '\0';
    for (size_t i = 0; i < baseline->count; i++) {
        const char *label = baseline->entries[i].label;
        const size_t length = strcspn(label, ",");
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = strcspn(baseline->entries[j].label, ",") == length &&
                   strncmp(baseline->entries[j].label, label, length) == 0;
        if (!seen) text_append(list, size, "%s%.*s", list[0] ? "," : "", (int)length, label);
    }
}
