/* The build and the machine, for every log header. */
#ifndef TESSERA_BASE_PLATFORM_H
#define TESSERA_BASE_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TESSERA_VERSION "0.1.0"

const char *platform_commit(void);   /* of the source; "unknown" outside a git checkout */
const char *platform_compiler(void); /* name and version */
const char *platform_flags(void);    /* of the compiler */

/* The model name of the processor, or "unknown". One static string. */
const char *platform_cpu(void);
/* System, release and architecture. One static string. */
const char *platform_system(void);

/* The cores of the machine, and those that the process may use: its affinity mask and, rounded up, the CPU
   quota of its control group. */
int platform_cores(void);
int platform_usable_cores(void);
/* The number of threads to use: `wanted`; if that is 0, OMP_NUM_THREADS, or the usable cores. At most
   OMP_THREAD_LIMIT: OpenBLAS waits for ever for threads that the OpenMP runtime refuses. */
int platform_threads(int wanted);

/* What else ran on the machine at the first call, before the program's own work. */
struct platform_load {
    bool known;
    double average; /* the load average of the last minute */
    int others;     /* tasks of other processes that were running or ready to run */
    int cores, usable_cores;
};
struct platform_load platform_load(void);
/* "load 3.6 on 2 cores, 1 usable, 3 other tasks running" */
struct platform_text {
    char text[96];
};
struct platform_text platform_load_text(void);

/* Physical memory in bytes; 0 if unknown. */
uint64_t platform_memory(void);
/* The bytes that can be allocated before the system swaps, fails or kills the process; UINT64_MAX if unknown.
   *limit: what sets the limit, if it is not the physical memory: "memory.max", "ulimit -v"; else "". */
uint64_t platform_memory_available(const char **limit);

/* The last-level cache of the first core, in bytes; 0 if unknown. */
size_t platform_last_cache(void);

#endif
