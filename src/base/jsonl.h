/* Logs: one JSON object a line, keyed by "type". */
#ifndef TESSERA_BASE_JSONL_H
#define TESSERA_BASE_JSONL_H

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>

#include "src/base/status.h"

/* {"type": type}, to be filled and written. */
cJSON *jsonl_new(const char *type);

/* {"type": "header"} with what was built and where it runs: version, commit, machine, cpu, compiler,
   flags. */
cJSON *jsonl_header(void);

/* An integer, exact up to 2^53. */
void jsonl_count(cJSON *object, const char *key, uint64_t value);

/* A text; nothing if it is NULL or "". */
void jsonl_text(cJSON *object, const char *key, const char *text);

/* Writes the object as one line and flushes it, so that a killed run keeps it. `out` NULL: nothing. */
void jsonl_print(FILE *out, const cJSON *object);
/* The same, then deletes the object. */
void jsonl_write(FILE *out, cJSON *object);

/* Opens a log for --log before the work starts; "" gives NULL, and that is fine. */
enum status jsonl_open(FILE **log, const char *path);

/* Closes it (NULL: nothing). Returns `status`, or STATUS_FAILED if that was STATUS_OK and not all could be
   written. */
enum status jsonl_close(FILE *log, const char *path, enum status status);

#endif
