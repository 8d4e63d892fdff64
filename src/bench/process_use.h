/* What the kernel says of another process (proc(5)). */
#ifndef TESSERA_BENCH_PROCESS_USE_H
#define TESSERA_BENCH_PROCESS_USE_H

#include <stdbool.h>
#include <sys/types.h>

/* Of a process or thread. */
struct process_use {
    char state;  /* 'R': it runs, or would if there were a core for it; 'Z': a zombie */
    pid_t group; /* its process group */
    long threads;
    double memory; /* resident, in bytes */
};

/* `path` is /proc/PID/stat or /proc/PID/task/TID/stat. False if there is no such process. */
bool process_use_read(const char *path, struct process_use *use);

/* Does a thread of the process run, or wait for a core? */
bool process_runs(pid_t pid);

/* Is there a process in this group, other than its leader and zombies? */
bool process_has_others(pid_t group);

#endif
