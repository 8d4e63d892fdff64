/* Logs: one JSON object a line, keyed by "type". */
#ifndef TESSERA_BASE_JSONL_H
#define TESSERA_BASE_JSONL_H

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>

#include "src/base/status.h"

/* {"type": type}, for the caller to fill and write. */
cJSON *jsonl_new(const char *type);

/* {"type": "header"} with version, commit, machine, cpu, compiler and flags. */
cJSON *jsonl_header(void);

/* Adds an integer, exact up to 2^53. */
void jsonl_count(cJSON *object, const char *key, uint64_t value);

/* Adds a text unless it is NULL or "". */
void jsonl_text(cJSON *object, const char *key, const char *text);

/* Writes the object as one line and flushes it, so that it survives a killed run. Does nothing if `out` is
   NULL. */
void jsonl_print(FILE *out, const cJSON *object);
/* The same, then deletes the object. */
void jsonl_write(FILE *out, cJSON *object);

/* Opens a log for --log before the work starts. If the path is "", *log is NULL. */
enum status jsonl_open(FILE **log, const char *path);

/* Closes the log unless it is NULL. Returns `status`, or STATUS_FAILED if `status` is STATUS_OK and a write
   failed. */
enum status jsonl_close(FILE *log, const char *path, enum status status);

#endif
