/* Changes the directory. */
#include "tests/plugins/hostile/hostile.h"

#include <unistd.h>

static void attack(void) {
    if (chdir("/") != 0) return;
}

HOSTILE("changes-directory");
