/* Closes every file descriptor. */
#include "tests/plugins/hostile/hostile.h"

#include <unistd.h>

static void attack(void) {
    for (int fd = 0; fd < 1 << 16; fd++) close(fd);
}

HOSTILE("closes-files");
