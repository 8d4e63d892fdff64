/* Memory of what is made piece by piece: lists, tables, JSON. A piece that is missing because memory ran out
   must not go unnoticed, so the thread remembers it, and the end asks. */
#ifndef TESSERA_BASE_MEMORY_H
#define TESSERA_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* realloc, calloc and strdup. NULL: out of memory, which memory_ran_out reports. */
void *memory_resize(void *memory, size_t bytes);
void *memory_zero(size_t count, size_t bytes);
char *memory_copy(const char *text);

/* cJSON leaves out of an object what it has no memory for, and does not say so. From now on its allocations
   are watched, too. The first thread calls it before there are others. */
void memory_watch_json(void);

/* Has memory run out in this thread since the last call? */
bool memory_ran_out(void);

#endif
