/* Never returns. */
#include "tests/plugins/hostile/hostile.h"

#include <stddef.h>

static void attack(void) {
    for (volatile int forever = 1; forever;) continue;
}

HOSTILE("loops");
