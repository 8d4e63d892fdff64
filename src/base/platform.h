/* The build and the machine, for every log header. */
#ifndef TESSERA_BASE_PLATFORM_H
#define TESSERA_BASE_PLATFORM_H

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
/* The default number of threads: OMP_NUM_THREADS if set, else the cores in the affinity mask. */
int platform_threads(void);
/* Physical memory, and the part that is available without swapping, in bytes; 0 if unknown. */
uint64_t platform_memory(void);
uint64_t platform_memory_available(void);

/* The last-level cache of the first core, in bytes; 0 if unknown. */
size_t platform_last_cache(void);

#endif
