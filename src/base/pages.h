/* Memory of the host that is large. */
#ifndef TESSERA_BASE_PAGES_H
#define TESSERA_BASE_PAGES_H

#include <stddef.h>

/* `bytes` or more, 64-byte aligned at least, for free(); NULL without memory. From 2 MB on in huge pages,
   where the system has them: matrices are read in columns of tiles, a page for every row, and a TLB holds
   some 2000 pages. */
void *pages_alloc(size_t bytes);

#endif
