/* Is killed. */
#include "tests/plugins/hostile/hostile.h"

#include <signal.h>

static void attack(void) {
    raise(SIGKILL);
}

HOSTILE("kills-itself");
