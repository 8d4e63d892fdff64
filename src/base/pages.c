#include "src/base/pages.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/platform.h"
#include "src/base/text.h"

static const size_t SMALL = (size_t)1 << 20;   /* bytes; to read what is available would take longer */
static const size_t RESERVE = (size_t)8 << 20; /* for page tables, stacks and small allocations */

static enum status out_of_memory(size_t bytes, uint64_t available, const char *limit) {
    return status_set(STATUS_FAILED, "out of memory: %s needed, %s available%s%s%s",
                      text_bytes((double)bytes).text, text_bytes((double)available).text,
                      limit[0] ? " (limited by " : "", limit, limit[0] ? ")" : "");
}

enum status pages_check(size_t bytes) {
    const char *limit;
    if (bytes < SMALL) return STATUS_OK;
    const uint64_t all = platform_memory_available(&limit), available = all > RESERVE ? all - RESERVE : 0;
    return bytes <= available ? STATUS_OK : out_of_memory(bytes, available, limit);
}

/* Maps `bytes` bytes and two more pages, none of which can be accessed yet. */
static bool map_guarded(struct pages_guarded *pages, size_t bytes, size_t page) {
    char *memory = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) *pages = (struct pages_guarded){.first = memory + page, .mapped = bytes};
    return memory != MAP_FAILED;
}

void *pages_guarded_take(struct pages_guarded *pages, size_t bytes, bool at_end) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), wanted = (bytes + page - 1) / page * page;
    if (!pages->first || pages->mapped < wanted) {
        pages_guarded_free(pages);
        if (!map_guarded(pages, wanted, page)) return NULL;
    }
    const bool more = pages->open < wanted;
    const size_t from = more ? pages->open : wanted, to = more ? wanted : pages->open;
    /* qemu refuses an empty range */
    if (from < to && mprotect(pages->first + from, to - from, more ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        return NULL;
    pages->open = wanted;
    return at_end ? pages->first + wanted - bytes : pages->first;
}

void pages_guarded_free(struct pages_guarded *pages) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (pages->first) munmap(pages->first - page, pages->mapped + 2 * page);
    *pages = (struct pages_guarded){0};
}

void *pages_alloc(size_t bytes) {
    const size_t line = 64, huge = (size_t)2 << 20, unit = bytes < huge ? line : huge;
    const size_t rounded = bytes > SIZE_MAX - unit ? bytes : bytes ? (bytes + unit - 1) / unit * unit : unit;
    if (pages_check(rounded)) return NULL;
    void *memory = aligned_alloc(unit, rounded);
    if (!memory) {
        const char *limit;
        const uint64_t available = platform_memory_available(&limit);
        out_of_memory(bytes, available, limit);
    }
#ifdef MADV_HUGEPAGE
    if (memory && unit == huge) madvise(memory, rounded, MADV_HUGEPAGE); /* a hint */
#endif
    return memory;
}
