#include "src/bench/sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel should choose a contestant if memory runs out, not the program that started it. */
static void volunteer_for_oom(void) {
    FILE *file = fopen("/proc/self/oom_score_adj", "w");
    if (file) fputs("500", file);
    if (file) fclose(file);
}

/* --- filters of system calls --- */

#if defined __x86_64__
#    define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#    define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#    define ARCHITECTURE 0 /* there are no filters */
#endif

/* The x32 ABI of x86-64 has the same calls under numbers from here on (seccomp(2)); other ABIs have none. */
#define X32_CALLS 0x40000000u

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define EQUALS(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(value), then, otherwise)
#define AT_LEAST(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, value, then, otherwise)
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)

static void install_filter(struct sock_filter *lines, size_t count) {
    const struct sock_fprog filter = {.len = (unsigned short)count, .filter = lines};
    if (ARCHITECTURE && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER,
                SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &filter);
}

/* Lets the kernel end this process if it signals another one: kill(getppid(), SIGKILL). Signal 0, which asks
   whether a process exists, is allowed. */
static void forbid_signals(void) {
    struct sock_filter lines[] = {
        LOAD(arch),                           /*  0 */
        EQUALS(ARCHITECTURE, 0, 15),          /*  1: else to 17 */
        LOAD(nr),                             /*  2 */
        AT_LEAST(X32_CALLS, 13, 0),           /*  3: to 17 */
        EQUALS(__NR_kill, 5, 0),              /*  4: to 10 */
        EQUALS(__NR_rt_sigqueueinfo, 4, 0),   /*  5: to 10 */
        EQUALS(__NR_tgkill, 5, 0),            /*  6: to 12 */
        EQUALS(__NR_rt_tgsigqueueinfo, 4, 0), /*  7: to 12 */
        EQUALS(__NR_tkill, 8, 0),             /*  8: to 17 */
        EQUALS(__NR_pidfd_send_signal, 7, 6), /*  9: to 17, else to 16 */
        LOAD(args[1]),                        /* 10: the signal */
        EQUALS(0, 4, 2),                      /* 11: to 16, else to 14 */
        LOAD(args[2]),                        /* 12: the signal */
        EQUALS(0, 2, 0),                      /* 13: to 16 */
        LOAD(args[0]),                        /* 14: the process */
        EQUALS(getpid(), 0, 1),               /* 15: else to 17 */
        RETURN(SECCOMP_RET_ALLOW),            /* 16 */
        RETURN(SECCOMP_RET_KILL_PROCESS),     /* 17 */
    };
    install_filter(lines, sizeof lines / sizeof *lines);
}

/* What a backend starts stays in the process group of the contestant, which is stopped and ended with it. */
static void keep_process_group(void) {
    struct sock_filter lines[] = {
        LOAD(nr),                          /* 0: of this ABI; forbid_signals refuses the others */
        EQUALS(__NR_setsid, 1, 0),         /* 1: to 3 */
        EQUALS(__NR_setpgid, 0, 1),        /* 2: else to 4 */
        RETURN(SECCOMP_RET_ERRNO | EPERM), /* 3 */
        RETURN(SECCOMP_RET_ALLOW),         /* 4 */
    };
    install_filter(lines, sizeof lines / sizeof *lines);
}

void sandbox_forbid_affinity(void) {
    struct sock_filter lines[] = {
        LOAD(arch),                           /*  0 */
        EQUALS(ARCHITECTURE, 0, 8),           /*  1: else to 10 */
        LOAD(nr),                             /*  2 */
        AT_LEAST(X32_CALLS, 6, 0),            /*  3: to 10 */
        EQUALS(__NR_sched_setaffinity, 0, 3), /*  4: else to 8 */
        LOAD(args[0]),                        /*  5: the thread */
        EQUALS(0, 3, 0),                      /*  6: to 10 */
        EQUALS(getpid(), 2, 1),               /*  7: to 10, else to 9 */
        RETURN(SECCOMP_RET_ALLOW),            /*  8 */
        RETURN(SECCOMP_RET_ERRNO | EPERM),    /*  9 */
        RETURN(SECCOMP_RET_KILL_PROCESS),     /* 10 */
    };
    install_filter(lines, sizeof lines / sizeof *lines);
}

void sandbox_begin(void) {
    volunteer_for_oom();
    forbid_signals();
    keep_process_group();
}
