/* JSON lines of train --log, kmeans, compare, bench and eval --log. No value is trusted: one of the wrong
   type, or not finite, reads as missing. */
#ifndef TESSERA_REPORT_RECORDS_H
#define TESSERA_REPORT_RECORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "src/base/jsonl.h"

struct record {
    const char *type;
    cJSON *line;         /* owned by the records */
    const cJSON *header; /* of its run; NULL if none */
    size_t run;          /* counts the runs of all files: rows of one run share it */
};

/* A row belongs to the header before it. If its key "run" says otherwise, two processes wrote the log at the
   same time, and it belongs to the header of the same file with that value. */
struct record_run {
    const char *id; /* "": of an earlier version */
    const cJSON *header;
    size_t number;
};

struct records {
    struct record *list;
    size_t count, capacity, runs;
    struct record_run *run; /* [run_count] of the current file */
    size_t run_count, run_capacity, current;
    size_t file_count;
    char **warnings; /* [warning_count] about the files, for the user */
    size_t warning_count;
};

/* Adds the rows of a file; unknown types are ignored. A line that is not a JSON object with a "type" (torn,
   because its writer was killed) is skipped. That, and rows of two processes, add a warning with file and
   line. STATUS_BAD_DATA, with the line, if the file cannot be read, or no line is of a known type. */
enum status records_read(struct records *records, const char *path);
/* Adds a line and takes ownership. STATUS_FAILED if memory ran out. */
enum status records_add(struct records *records, cJSON *line);
/* Writes all lines; `log` may be NULL. */
void records_write(const struct records *records, struct logfile *log);
/* On stderr. */
void records_print_warnings(const struct records *records);
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
