/* Aligned host memory, in huge pages where possible. */
#ifndef TESSERA_BASE_PAGES_H
#define TESSERA_BASE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

#include "src/base/status.h"

/* STATUS_FAILED if 1 MiB or more is requested and less is available (platform_memory_available). Linux would
   grant the memory, and kill the process that touches it. The message says what is available and what limits
   it. */
enum status pages_check(size_t bytes);

/* At least `bytes` bytes, 64-byte aligned, released by free(); NULL, with the message of pages_check, if out
   of memory. Buffers of 2 MB or more use huge pages if the system has them: a column of tiles touches a page
   in every row of a matrix, and a TLB has about 2000 entries. */
void *pages_alloc(size_t bytes);

/* Memory between pages that cannot be accessed. {0} at first. */
struct pages_guarded {
    char *first;
    size_t mapped, open; /* bytes from there on; open: may be accessed */
};

/* `bytes` bytes of it, of any contents, at the start of a page or, with `at_end`, up to the end of one. The
   pages before and behind cannot be accessed. It grows if it must; what was taken before is invalid then.
   NULL if out of memory. */
void *pages_guarded_take(struct pages_guarded *pages, size_t bytes, bool at_end);
void pages_guarded_free(struct pages_guarded *pages);

#endif
