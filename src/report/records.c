#include "src/report/records.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/jsonl.h"

/* Larger than any measured value; sums and squares do not overflow. */
static const double LARGEST = 1e18;

static const char *const known[] = {"header",    "step",       "epoch",     "summary", "compare",
                                    "peak",      "gemm",       "scaling",   "amdahl",  "shmem",
                                    "breakeven", "evaluation", "confusion", "mistake", "ensemble"};

static bool is_known(const char *type) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], type) == 0) return true;
    return false;
}

static enum status no_memory(void) {
    return status_set(STATUS_FAILED, "out of memory");
}

static enum status append(struct records *records, struct record record) {
    if (records->count == records->capacity) {
        const size_t capacity = records->capacity ? 2 * records->capacity : 256;
        struct record *list = realloc(records->list, capacity * sizeof *list);
        if (!list) return no_memory();
        records->list = list;
        records->capacity = capacity;
    }
    records->list[records->count++] = record;
    return STATUS_OK;
}

enum status records_add(struct records *records, cJSON *line) {
    const char *type = record_text(line, "type");
    if (!is_known(type)) {
        cJSON_Delete(line);
        return STATUS_OK;
    }
    if (strcmp(type, "header") == 0) {
        records->header = line;
        records->runs++;
    }
    const enum status status = append(records, (struct record){type, line, records->header, records->runs});
    if (status) cJSON_Delete(line);
    return status;
}

void records_write(const struct records *records, FILE *out) {
    for (size_t i = 0; i < records->count; i++) jsonl_print(out, records->list[i].line);
}

static bool is_blank(const char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", line[i]) || !line[i]) return false;
    return true;
}

static cJSON *parse_line(const char *line, size_t length) {
    const char *end = NULL;
    cJSON *object = cJSON_ParseWithLengthOpts(line, length, &end, 0);
    if (object && cJSON_IsObject(object) && record_text(object, "type")[0] &&
        is_blank(end, length - (size_t)(end - line)))
        return object;
    cJSON_Delete(object);
    return NULL;
}

static enum status read_lines(struct records *records, FILE *in, const char *file) {
    const size_t before = records->count;
    enum status status = STATUS_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    records->runs++; /* rows before the first header do not belong to the previous file */
    records->header = NULL;
    for (size_t number = 1; !status && (length = getline(&line, &room, in)) >= 0; number++) {
        if (is_blank(line, (size_t)length)) continue;
        cJSON *object = parse_line(line, (size_t)length);
        if (object) {
            status = records_add(records, object);
        } else {
            status = status_set(
                STATUS_BAD_DATA,
                "%s, line %zu: not a JSON object with a \"type\"; was the run cut off? Delete that line",
                file, number);
        }
    }
    free(line);
    if (!status && ferror(in))
        status = status_set(STATUS_BAD_DATA, "cannot read '%s': %s", file, strerror(errno));
    if (!status && records->count == before)
        status =
            status_set(STATUS_BAD_DATA,
                       "'%s' has no line of a known type; give files that train --log, compare, bench or "
                       "eval --log wrote",
                       file);
    return status;
}

enum status records_read(struct records *records, const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in) return status_set(STATUS_BAD_DATA, "cannot open '%s': %s", path, strerror(errno));
    const enum status status = read_lines(records, in, path);
    records->file_count++;
    fclose(in);
    return status;
}

void records_free(struct records *records) {
    for (size_t i = 0; i < records->count; i++) cJSON_Delete(records->list[i].line);
    free(records->list);
    *records = (struct records){0};
}

const struct record *records_after(const struct records *records, const struct record *record,
                                   const char *type) {
    size_t i = record ? (size_t)(record - records->list) + 1 : 0;
    for (; i < records->count; i++)
        if (strcmp(records->list[i].type, type) == 0) return &records->list[i];
    return NULL;
}

bool records_any(const struct records *records, const char *type) {
    return records_after(records, NULL, type) != NULL;
}

double record_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) && fabs(item->valuedouble) <= LARGEST ? item->valuedouble : (double)NAN;
}

const char *record_text(const cJSON *object, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text ? text : "";
}

bool record_true(const cJSON *object, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, key));
}

bool record_has(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key) != NULL;
}

size_t record_count(const cJSON *object, const char *key, size_t most, size_t otherwise) {
    const double value = record_number(object, key);
    return value >= 0 && value <= (double)most && value == floor(value) ? (size_t)value : otherwise;
}
