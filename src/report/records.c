#include "src/report/records.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/input.h"
#include "src/base/memory.h"
#include "src/base/terminal.h"

/* Larger than any measured value; sums and squares do not overflow. */
static const double LARGEST = 1e18;

static const char *const known[] = {
    "header",        "step",           "epoch",     "summary",          "compare",
    "peak",          "gemm",           "scaling",   "amdahl",           "shmem",
    "breakeven",     "evaluation",     "confusion", "mistake",          "ensemble",
    "grade",         "verification",   "stopped",   "kmeans_iteration", "kmeans",
    "kmeans_centre", "kmeans_step",    "qr",        "readout_ridge",    "readout",
    "readout_step",  "readout_memory", "ranks"};

static bool is_known(const char *type) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], type) == 0) return true;
    return false;
}

static enum status no_memory(void) {
    return status_set(STATUS_FAILED, "out of memory");
}

/* An array with room for one more element than `count`; NULL: out of memory, and the old one is unchanged. */
static void *with_room(void *array, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) return array;
    const size_t larger = *capacity ? 2 * *capacity : 16;
    void *moved = memory_resize(array, larger * size);
    if (moved) *capacity = larger;
    return moved;
}

static enum status begin_run(struct records *records, const char *id, const cJSON *header) {
    struct record_run *run = with_room(records->run, records->run_count, &records->run_capacity, sizeof *run);
    if (!run) return no_memory();
    records->run = run;
    records->current = records->run_count++;
    run[records->current] = (struct record_run){id, header, ++records->runs};
    return STATUS_OK;
}

/* Sets records->current to the run of this row. */
static enum status find_run(struct records *records, const cJSON *line, bool *foreign) {
    const char *id = record_text(line, "run");
    if (!records->run_count) return begin_run(records, id, NULL);
    if (!id[0] || strcmp(id, records->run[records->current].id) == 0) return STATUS_OK;
    *foreign = true;
    for (size_t i = records->run_count; i-- > 0;)
        if (strcmp(id, records->run[i].id) == 0) {
            records->current = i;
            return STATUS_OK;
        }
    return begin_run(records, id, NULL);
}

static enum status append(struct records *records, cJSON *line, bool *foreign) {
    const char *type = record_text(line, "type");
    const enum status status = strcmp(type, "header") == 0
                                   ? begin_run(records, record_text(line, "run"), line)
                                   : find_run(records, line, foreign);
    if (status) return status;
    struct record *list = with_room(records->list, records->count, &records->capacity, sizeof *list);
    if (!list) return no_memory();
    const struct record_run *run = &records->run[records->current];
    records->list = list;
    list[records->count++] = (struct record){type, line, run->header, run->number};
    return STATUS_OK;
}

/* *foreign: the row is not of the run of the row before, and no header. */
static enum status add(struct records *records, cJSON *line, bool *foreign) {
    const bool wanted = is_known(record_text(line, "type"));
    const enum status status = wanted ? append(records, line, foreign) : STATUS_OK;
    if (status || !wanted) cJSON_Delete(line);
    return status;
}

enum status records_add(struct records *records, cJSON *line) {
    return add(records, line, &(bool){false});
}

void records_write(const struct records *records, struct logfile *log) {
    for (size_t i = 0; i < records->count; i++) jsonl_print(log, records->list[i].line);
}

static void warn(struct records *records, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char **more = memory_resize(records->warnings, (records->warning_count + 1) * sizeof *more);
    if (!more) return;
    records->warnings = more;
    if ((more[records->warning_count] = memory_copy(text))) records->warning_count++;
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

/* What was unusual about the lines of a file. */
struct oddities {
    size_t skipped, first_skipped; /* lines that are no JSON object with a type */
    size_t first_foreign;          /* the first line of another run than the line before; 0: none */
};

static void warn_of(struct records *records, const struct oddities *odd, const char *file) {
    char more[64] = "";
    if (odd->skipped > 1) snprintf(more, sizeof more, ", like %zu more", odd->skipped - 1);
    if (odd->skipped)
        warn(records,
             "%s, line %zu: not a JSON object with a \"type\" (the run was cut off, or another program wrote "
             "it): skipped%s",
             file, odd->first_skipped, more);
    if (odd->first_foreign)
        warn(records,
             "%s, line %zu: of another run than the line before: two processes wrote this log at the same "
             "time; their rows are told apart",
             file, odd->first_foreign);
}

static enum status nothing_found(const struct oddities *odd, const char *file) {
    if (odd->skipped)
        return status_set(STATUS_BAD_DATA,
                          "%s, line %zu: not a JSON object with a \"type\", and no other line is of a known "
                          "type; give files that train --log, kmeans, compare, bench or eval --log wrote",
                          file, odd->first_skipped);
    return status_set(STATUS_BAD_DATA,
                      "'%s' has no line of a known type; give files that train --log, kmeans, compare, bench "
                      "or eval --log wrote",
                      file);
}

static enum status read_lines(struct records *records, FILE *in, const char *file) {
    const size_t before = records->count;
    struct oddities odd = {0};
    enum status status = STATUS_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    records->run_count = 0; /* rows before the first header do not belong to the previous file */
    for (size_t number = 1; !status && (length = getline(&line, &room, in)) >= 0; number++) {
        bool foreign = false;
        if (is_blank(line, (size_t)length)) continue;
        cJSON *object = parse_line(line, (size_t)length);
        if (memory_ran_out()) {
            cJSON_Delete(object);
            status = no_memory();
        } else if (object) {
            status = add(records, object, &foreign);
            if (foreign && !odd.first_foreign) odd.first_foreign = number;
        } else if (!odd.skipped++) {
            odd.first_skipped = number;
        }
    }
    free(line);
    if (!status && !feof(in)) status = input_error(errno, "", file);
    if (!status && records->count == before) status = nothing_found(&odd, file);
    if (!status) warn_of(records, &odd, file);
    return status;
}

enum status records_read(struct records *records, const char *path) {
    FILE *in = fopen(path, "rb"); /* or a pipe */
    if (!in) return input_error(errno, "", path);
    const enum status status = read_lines(records, in, path);
    records->file_count++;
    fclose(in);
    return status;
}

void records_print_warnings(const struct records *records) {
    for (size_t i = 0; i < records->warning_count; i++) terminal_note("warning: %s", records->warnings[i]);
}

void records_free(struct records *records) {
    for (size_t i = 0; i < records->count; i++) cJSON_Delete(records->list[i].line);
    for (size_t i = 0; i < records->warning_count; i++) free(records->warnings[i]);
    free(records->warnings);
    free(records->run);
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
