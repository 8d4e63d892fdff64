/* Aligned host memory, in huge pages where possible. */
#ifndef TESSERA_BASE_PAGES_H
#define TESSERA_BASE_PAGES_H

#include <stddef.h>

/* At least `bytes` bytes, 64-byte aligned, released by free(); NULL if out of memory. Buffers of 2 MB or more
   use huge pages if the system has them: a column of tiles touches a page in every row of a matrix, and a TLB
   has about 2000 entries. */
void *pages_alloc(size_t bytes);

#endif
