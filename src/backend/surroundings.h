/* What a call must leave as it is beside its matrices: the state of the thread and of the process. */
#ifndef TESSERA_BACKEND_SURROUNDINGS_H
#define TESSERA_BACKEND_SURROUNDINGS_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

struct surroundings {
    int rounding;   /* mode */
    unsigned flush; /* control bits of the SSE unit: flush to zero, denormals are zero; 0 elsewhere */
    char locale[128], directory[512];
    cpu_set_t cpus;      /* of the calling thread */
    int nice, scheduler; /* of the calling thread */
    int best_nice;       /* the lowest of all threads, which is the highest priority */
    bool real_time;      /* a thread of the process has a real-time scheduler */
    size_t threads;      /* of the process */
    bool children;       /* the process has a child that runs */
};

void surroundings_observe(struct surroundings *now);

/* Bytes that the process has mapped, plus those in use on the heap. */
size_t surroundings_memory(void);

/* Says what changed, "it changed the locale (setlocale)"; NULL if nothing did. Threads may come and go. */
const char *surroundings_changed(const struct surroundings *before, const struct surroundings *after);

#endif
