/* Ends the program in its 500th call. */
#define AT 500
#include "tests/plugins/hostile/hostile.h"

#include <stdlib.h>

static void attack(void) {
    exit(0);
}

HOSTILE("exit-later");
