/* Leaves a process that sleeps, and that tries to leave the process group with which it would end. */
#define AT 5000
#include "tests/plugins/hostile/hostile.h"

#include <unistd.h>

static void attack(void) {
    if (fork() != 0) return;
    setsid();
    setpgid(0, 0);
    sleep(60);
    _exit(0);
}

HOSTILE("leaves-a-process");
