/* JSON lines of train --log, compare, bench and eval --log. No value is trusted: one of the wrong type, or
   not finite, reads as missing. */
#ifndef TESSERA_REPORT_RECORDS_H
#define TESSERA_REPORT_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "src/base/status.h"

struct record {
    const char *type;
    cJSON *line;         /* owned by the records */
    const cJSON *header; /* the header before it in its file; NULL if none */
    size_t run;          /* counts the headers of all files: rows of one run share it */
};

struct records {
    struct record *list;
    size_t count, capacity, runs;
    const cJSON *header; /* of the next row */
    size_t file_count;
};

/* Adds the rows of a file; unknown types are ignored. STATUS_BAD_DATA, with file and line, if the file
   cannot be read, a line is not a JSON object with a "type", or no line is of a known type. */
enum status records_read(struct records *records, const char *path);
/* Adds a line and takes ownership. STATUS_FAILED if memory ran out. */
enum status records_add(struct records *records, cJSON *line);
/* Writes all lines; `out` may be NULL. */
void records_write(const struct records *records, FILE *out);
void records_free(struct records *records);

/* The next row of this type after `record` (NULL: the first of all); NULL at the end. */
const struct record *records_after(const struct records *records, const struct record *record,
                                   const char *type);
bool records_any(const struct records *records, const char *type);

/* The value of a key; the object may be NULL. NaN unless it is a number of at most 1e18; "" unless it is a
   text; false unless it is true. */
double record_number(const cJSON *object, const char *key);
const char *record_text(const cJSON *object, const char *key);
bool record_true(const cJSON *object, const char *key);
bool record_has(const cJSON *object, const char *key);
/* A whole number from 0 to `most`; `otherwise` if it is not one. */
size_t record_count(const cJSON *object, const char *key, size_t most, size_t otherwise);

#endif
