/* Aborts. */
#include "tests/plugins/hostile/hostile.h"

#include <stdlib.h>

static void attack(void) {
    abort();
}

HOSTILE("aborts");
