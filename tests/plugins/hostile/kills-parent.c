/* Kills the process that started it. */
#include "tests/plugins/hostile/hostile.h"

#include <signal.h>
#include <unistd.h>

static void attack(void) {
    kill(getppid(), SIGKILL);
}

HOSTILE("kills-parent");
