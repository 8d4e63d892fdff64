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

/* Exactly `bytes` zeroed bytes between two pages that cannot be accessed: at the start of a page or, with
   `at_end`, up to the end of one, so that an access before or after them crashes. NULL if out of memory. */
void *pages_alloc_guarded(size_t bytes, bool at_end);
void pages_free_guarded(void *memory, size_t bytes);

#endif
