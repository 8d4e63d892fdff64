/* Logs: one JSON object a line, keyed by "type". */
#ifndef TESSERA_BASE_JSONL_H
#define TESSERA_BASE_JSONL_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "src/base/logfile.h"

/* {"type": type, "run": id}, for the caller to fill and write. All lines of a process have the same id. */
cJSON *jsonl_new(const char *type);

/* {"type": "header"} with version, commit, machine, cpu, cores, load, compiler and flags. */
cJSON *jsonl_header(void);

/* Adds an integer, exact up to 2^53. */
void jsonl_count(cJSON *object, const char *key, uint64_t value);

/* Adds a text unless it is NULL or "". */
void jsonl_text(cJSON *object, const char *key, const char *text);

/* Adds height, width and, in hexadecimal, the bytes of an image [height][width]. */
void jsonl_image(cJSON *object, const uint8_t *pixels, size_t height, size_t width);

/* Appends an item to an array. Without an array, for lack of memory, the item is deleted. */
void jsonl_append(cJSON *array, cJSON *item);

/* Appends the object as one line, in UTF-8 (text_utf8). Does nothing if `log` is NULL. If memory ran out
   while the object was made, the line is not written, and logfile_close reports it. */
void jsonl_print(struct logfile *log, const cJSON *object);
/* The same, then deletes the object. */
void jsonl_write(struct logfile *log, cJSON *object);

#endif
