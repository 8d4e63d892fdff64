/* Ends the program in its first call. */
#include "tests/plugins/hostile/hostile.h"

#include <stdlib.h>

static void attack(void) {
    exit(0);
}

HOSTILE("exit-first");
