/* Kills the process that started it by a system call of 32-bit programs, which a 64-bit one can make, too. */
#include "tests/plugins/hostile/hostile.h"

#include <signal.h>
#include <unistd.h>

static void attack(void) {
#ifdef __x86_64__
    enum { KILL = 37 };
    long result;
    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(KILL), "b"((long)getppid()), "c"((long)SIGKILL)
                     : "memory");
    (void)result;
#else
    kill(getppid(), SIGKILL);
#endif
}

HOSTILE("kills-parent-32");
