#define _GNU_SOURCE
#include "src/backend/surroundings.h"

#include <dirent.h>
#include <fenv.h>
#include <locale.h>
#ifdef __GLIBC__
#    include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE__
#    include <xmmintrin.h>
#endif

static size_t count_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    size_t count = 0;
    while (tasks && readdir(tasks)) count++;
    if (tasks) closedir(tasks);
    return count;
}

/* Of AddressSanitizer, which replaces malloc; NULL without. */
extern size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

size_t surroundings_memory(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    if (file && fscanf(file, "%lu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    size_t heap = 0;
#ifdef __GLIBC__
    heap = mallinfo2().uordblks;
#endif
    if (__sanitizer_get_current_allocated_bytes) heap = __sanitizer_get_current_allocated_bytes();
    return heap + pages * (size_t)sysconf(_SC_PAGESIZE);
}

void surroundings_observe(struct surroundings *now) {
    memset(now, 0, sizeof *now);
    now->rounding = fegetround();
#ifdef __SSE__
    now->flush = _mm_getcsr() & ~0x3fu; /* without the exception flags */
#endif
    snprintf(now->locale, sizeof now->locale, "%s", setlocale(LC_ALL, NULL));
    if (!getcwd(now->directory, sizeof now->directory)) now->directory[0] = '\0';
    sched_getaffinity(0, sizeof now->cpus, &now->cpus);
    now->threads = count_threads();
}

const char *surroundings_changed(const struct surroundings *before, const struct surroundings *after) {
    if (after->rounding != before->rounding) return "it changed the rounding mode";
    if (after->flush != before->flush)
        return "it changed the floating-point control register (flush to zero?)";
    if (strcmp(after->locale, before->locale) != 0) return "it changed the locale (setlocale)";
    if (strcmp(after->directory, before->directory) != 0) return "it changed the working directory (chdir)";
    if (!CPU_EQUAL(&after->cpus, &before->cpus)) return "it changed the CPU affinity of the calling thread";
    return NULL;
}
