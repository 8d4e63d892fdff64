#define _GNU_SOURCE
#include "src/base/process.h"

#include <fcntl.h>
#include <locale.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "src/base/memory.h"
#include "src/base/terminal.h"

/* --- standard streams --- */

static void open_closed_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
            return; /* open takes the lowest free one */
}

void process_take_output(char *path, size_t size) {
    fflush(stdout);
    snprintf(path, size, "/dev/fd/%d", fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    dup2(STDERR_FILENO, STDOUT_FILENO);
}

void process_pin_locale(void) {
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c) uselocale(c);
}

void process_open(void) {
    open_closed_streams();
    process_pin_locale();
    memory_watch_json();
    signal(SIGXFSZ, SIG_IGN);
}

/* --- signals --- */

static const struct {
    int number;
    const char *name;
    bool once; /* the second one has its default effect */
} signals[] = {{SIGINT, "SIGINT", true},
               {SIGTERM, "SIGTERM", true},
               {SIGHUP, "SIGHUP", false},
               {SIGPIPE, "SIGPIPE", false},
               {SIGXCPU, "SIGXCPU", false}};
enum { SIGNALS = sizeof signals / sizeof *signals };

static volatile sig_atomic_t *stop_flag, caught;
static bool answers; /* is a user at the terminal? */

static void on_signal(int number) {
    static const char answer[] = "\r\033[KInterrupted: ending (Ctrl-C again: at once).\n";
    if (!caught && answers && write(STDERR_FILENO, answer, sizeof answer - 1) < 0) answers = false;
    if (!caught) caught = number;
    __atomic_store_n(stop_flag, 1, __ATOMIC_RELAXED); /* other threads read it */
}

void process_catch_signals(volatile sig_atomic_t *stop) {
    stop_flag = stop;
    answers = isatty(STDERR_FILENO);
    for (int i = 0; i < SIGNALS; i++) {
        /* restarted: a signal must not break the write of a checkpoint */
        const struct sigaction action = {.sa_handler = on_signal,
                                         .sa_flags = SA_RESTART | (signals[i].once ? (int)SA_RESETHAND : 0)};
        struct sigaction old;
        if (sigaction(signals[i].number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(signals[i].number, &action, NULL);
    }
}

const char *process_signal(void) {
    for (int i = 0; i < SIGNALS; i++)
        if (signals[i].number == caught) return signals[i].name;
    return "";
}

bool process_is_interrupted(void) {
    return caught != 0;
}

/* --- the end --- */

int process_flush(enum status status) {
    fflush(NULL);
    if (memory_ran_out() && !status) {
        terminal_note("out of memory: the output is not complete");
        status = STATUS_FAILED;
    }
    const bool incomplete = ferror(stdout) != 0;
    const bool interrupted = status == STATUS_INTERRUPTED || (incomplete && caught == SIGPIPE);
    if (interrupted && caught) return caught == SIGTERM ? STATUS_INTERRUPTED : 128 + caught;
    if (!incomplete) return (int)status;
    terminal_note("cannot write to standard output");
    return status ? (int)status : STATUS_FAILED;
}

/* --- threads that wait --- */

/* 2000 pauses, some 20 us, and 1 ms, the least that libomp has above 0. */
static const struct {
    const char *name, *value;
} spin_limits[] = {{"GOMP_SPINCOUNT", "2000"}, {"KMP_BLOCKTIME", "1"}};
enum { SPIN_LIMITS = sizeof spin_limits / sizeof *spin_limits };

void process_limit_spinning(char **argv) {
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0); /* 2^20 cycles; read when the library is loaded */
    if (getenv("OMP_WAIT_POLICY")) return;
    for (size_t i = 0; i < SPIN_LIMITS; i++)
        if (getenv(spin_limits[i].name)) return;
    char *program = realpath("/proc/self/exe", NULL); /* with this name, not "exe", in lists of processes */
    bool set = program;
    for (size_t i = 0; i < SPIN_LIMITS && set; i++)
        set = setenv(spin_limits[i].name, spin_limits[i].value, 1) == 0;
    if (set) execv(program, argv);
    free(program); /* it cannot be executed again: without limits then */
}

enum status process_confine(int cores) {
    static const char *const counts[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                                         "BLIS_NUM_THREADS"};
    static const char *const bindings[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"};
    cpu_set_t allowed, taken;
    char count[16];
    CPU_ZERO(&taken);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&taken) < cores; cpu++)
        if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &taken);
    if (CPU_COUNT(&taken) < cores || sched_setaffinity(0, sizeof taken, &taken) != 0)
        return status_set(STATUS_UNAVAILABLE, "%d threads need as many cores; this process may use %d", cores,
                          CPU_COUNT(&taken));
    snprintf(count, sizeof count, "%d", cores);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) setenv(counts[i], count, 1);
    for (size_t i = 0; i < sizeof bindings / sizeof *bindings; i++) unsetenv(bindings[i]);
    setenv("KMP_AFFINITY", "disabled", 1); /* LLVM's OpenMP sets the affinity of its threads itself */
    return STATUS_OK;
}

bool process_spins_by_choice(void) {
    const char *policy = getenv("OMP_WAIT_POLICY");
    if (policy && strcasecmp(policy, "active") == 0) return true;
    for (size_t i = 0; i < SPIN_LIMITS; i++) {
        const char *value = getenv(spin_limits[i].name);
        if (value && strcmp(value, spin_limits[i].value) != 0) return true;
    }
    return false;
}
