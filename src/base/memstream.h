/* A stream into memory that tells when memory runs out. glibc's open_memstream does not: it drops what it has
   no room for, sets no error, and fclose returns 0. */
#ifndef TESSERA_BASE_MEMSTREAM_H
#define TESSERA_BASE_MEMSTREAM_H

#include <stddef.h>
#include <stdio.h>

#include "src/base/status.h"

struct memstream {
    FILE *out;
    char *text; /* after memstream_close: NUL-terminated; the caller frees it */
    size_t length, capacity;
};

/* STATUS_FAILED: out of memory. */
enum status memstream_open(struct memstream *stream);

/* Call it also after a failure of memstream_open. Returns `status`; if that is STATUS_OK and the text is
   complete, `text` holds it, otherwise `text` is NULL. STATUS_FAILED: out of memory. */
enum status memstream_close(struct memstream *stream, enum status status);

#endif
