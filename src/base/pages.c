#include "src/base/pages.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

void *pages_alloc(size_t bytes) {
    const size_t line = 64, huge = (size_t)2 << 20, unit = bytes < huge ? line : huge;
    if (bytes > SIZE_MAX - unit) return NULL;
    const size_t rounded = bytes ? (bytes + unit - 1) / unit * unit : unit;
    void *memory = aligned_alloc(unit, rounded);
#ifdef MADV_HUGEPAGE
    if (memory && unit == huge) madvise(memory, rounded, MADV_HUGEPAGE); /* a hint */
#endif
    return memory;
}
