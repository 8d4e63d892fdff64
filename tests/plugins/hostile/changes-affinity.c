/* Binds itself to one core, the last that it may use. */
#define _GNU_SOURCE
#include "tests/plugins/hostile/hostile.h"

#include <sched.h>

static void attack(void) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
}

HOSTILE("changes-affinity");
