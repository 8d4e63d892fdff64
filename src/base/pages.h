/* Aligned host memory, in huge pages where possible. */
#ifndef TESSERA_BASE_PAGES_H
#define TESSERA_BASE_PAGES_H

#include <stddef.h>

/* At least `bytes`, 64-byte aligned, for free(); NULL without memory. From 2 MB on in huge pages, if the
   system has them: a column of tiles touches a page in every row of a matrix, and a TLB holds some 2000
   pages. */
void *pages_alloc(size_t bytes);

#endif
