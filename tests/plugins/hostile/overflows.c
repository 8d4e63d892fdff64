/* Overflows the stack. */
#include "tests/plugins/hostile/hostile.h"

#include <string.h>

static volatile int depth;

static int recurse(int level) {
    volatile char frame[4096];
    memset((char *)frame, level, sizeof frame);
    if (depth == level) return frame[level % 4096];
    return recurse(level + 1) + frame[0];
}

static void attack(void) {
    depth = -1;
    depth = recurse(0);
}

HOSTILE("overflows");
