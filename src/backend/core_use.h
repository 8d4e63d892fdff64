/* How many cores the process keeps busy while a backend works, against the threads that it was given. A time
   on more threads than its row says is a wrong time. */
#ifndef TESSERA_BACKEND_CORE_USE_H
#define TESSERA_BACKEND_CORE_USE_H

#include "src/backend/compute.h"

/* Zero: nothing was measured yet. */
struct core_use {
    double cpu, wall;       /* seconds between begin and end, all of them */
    double cpu_at, wall_at; /* of the last begin */
    double clock_off;       /* the most seconds between the clock of this program and that of the kernel */
};

void core_use_begin(struct core_use *use);
void core_use_end(struct core_use *use);

/* STATUS_VERIFY_FAILED if a backend on the host used clearly more cores than compute->threads. Twice as many
   are allowed if these are several: two teams, that of the program and one of the backend, may both spin.
   Also if the clock of the program is not that of the kernel. */
enum status core_use_check(const struct core_use *use, const struct compute *compute);

/* The same of the clock alone, as it is now. */
enum status core_use_check_clock(void);

#endif
