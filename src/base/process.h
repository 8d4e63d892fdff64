/* The process: standard streams, number format, signals, exit code. */
#ifndef TESSERA_BASE_PROCESS_H
#define TESSERA_BASE_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "src/base/status.h"

/* The first call of main. Opens closed standard streams on /dev/null, so that no file of the run gets their
   descriptors, pins the locale, watches cJSON's allocations (memory.h), and ignores SIGXFSZ: a write beyond
   the file size limit fails with EFBIG. */
void process_open(void);

/* Pins the locale of the calling thread to "C". Numbers keep their decimal point even if a library or a
   plug-in calls setlocale. Each thread that reads or writes numbers as text calls it once. */
void process_pin_locale(void);

/* From now on SIGINT, SIGTERM, SIGHUP, SIGPIPE and SIGXCPU set *stop, except those that the parent process
   had ignored (nohup). A second SIGINT or SIGTERM ends the process at once. The others may come several times
   for one reason: a closed terminal, each write to a closed pipe, each second beyond the CPU time limit. */
void process_catch_signals(volatile sig_atomic_t *stop);

/* The name of the first signal that set *stop; "" if none has. */
const char *process_signal(void);
bool process_is_interrupted(void); /* Has one? Always false before process_catch_signals. */

/* Writes the path of the standard output to `path`, for a log; what the program prints from now on goes to
   standard error. */
void process_take_output(char *path, size_t size);

/* The last call of main: flushes all streams. Returns the exit code: `status`; STATUS_FAILED, with a line on
   stderr, if the standard output is incomplete, or memory.h noted a failure; if a signal interrupted the run,
   128 + its number (130 for SIGTERM, too). */
int process_flush(enum status status);

/* OpenMP threads that wait spin for minutes (libgomp) or 200 ms (libomp): beside another busy process they
   take the cores from the very threads they wait for. libgomp reads its limit before main, so the program
   executes itself once more with limits, unless the user has set one. Also limits the threads of an OpenBLAS
   built with pthreads: they spin for 100 ms, and would count as cores that a backend uses (core_use.h). */
void process_limit_spinning(char **argv);

/* Confines this process, and all that it starts from now on, to its first `cores` cores: by affinity, and by
   the thread counts that OpenMP and BLAS libraries read from the environment. STATUS_UNAVAILABLE if it has
   fewer. */
enum status process_confine(int cores);

/* Did the user let waiting OpenMP threads spin? */
bool process_spins_by_choice(void);

#endif
