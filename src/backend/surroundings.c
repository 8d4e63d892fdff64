#define _GNU_SOURCE
#include "src/backend/surroundings.h"

#include <dirent.h>
#include <errno.h>
#include <fenv.h>
#include <locale.h>
#ifdef __GLIBC__
#    include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __SSE__
#    include <xmmintrin.h>
#endif

/* A thread that ends meanwhile is not looked at. */
static void observe_thread(pid_t thread, struct surroundings *now) {
    now->threads++;
    errno = 0; /* -1 is a priority, too */
    const int scheduler = sched_getscheduler(thread), policy = scheduler & ~SCHED_RESET_ON_FORK,
              nice = getpriority(PRIO_PROCESS, (id_t)thread);
    if (errno) return;
    now->real_time |= policy != SCHED_OTHER && policy != SCHED_BATCH && policy != SCHED_IDLE;
    if (nice < now->best_nice) now->best_nice = nice;
}

static void observe_threads(struct surroundings *now) {
    DIR *tasks = opendir("/proc/self/task");
    now->scheduler = sched_getscheduler(0);
    now->best_nice = now->nice = getpriority(PRIO_PROCESS, 0);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        if (entry->d_name[0] != '.') observe_thread((pid_t)strtol(entry->d_name, NULL, 10), now);
    if (tasks) closedir(tasks);
}

/* waitid reports a child that has ended first: then a running one is not seen. */
static bool has_children(void) {
    siginfo_t ended = {0};
    return waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
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
    observe_threads(now);
    now->children = has_children();
}

const char *surroundings_changed(const struct surroundings *before, const struct surroundings *after) {
    if (after->rounding != before->rounding) return "it changed the rounding mode";
    if (after->flush != before->flush)
        return "it changed the floating-point control register (flush to zero?)";
    if (strcmp(after->locale, before->locale) != 0) return "it changed the locale (setlocale)";
    if (strcmp(after->directory, before->directory) != 0) return "it changed the working directory (chdir)";
    if (!CPU_EQUAL(&after->cpus, &before->cpus)) return "it changed the CPU affinity of the calling thread";
    if (after->nice != before->nice || after->scheduler != before->scheduler)
        return "it changed the priority of the calling thread (setpriority, sched_setscheduler)";
    if (after->best_nice < before->best_nice || (after->real_time && !before->real_time))
        return "it raised the priority of a thread (setpriority, sched_setscheduler)";
    if (after->children && !before->children) return "a process that it started is still there (fork)";
    return NULL;
}
