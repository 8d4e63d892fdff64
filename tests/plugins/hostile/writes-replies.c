/* Writes to every file descriptor, as if it were a reply. */
#include "tests/plugins/hostile/hostile.h"

#include <unistd.h>

static void attack(void) {
    static const char zeros[256];
    for (int fd = 3; fd < 1 << 12; fd++)
        if (write(fd, zeros, sizeof zeros) < 0) continue;
}

HOSTILE("writes-replies");
