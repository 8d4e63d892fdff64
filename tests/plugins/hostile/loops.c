/* Never returns. It waits, as in a deadlock: a busy loop would take a core until the timeout. */
#include "tests/plugins/hostile/hostile.h"

#include <unistd.h>

static void attack(void) {
    for (;;) pause();
}

HOSTILE("loops");
