/* Runs of commands in which allocations fail, and what such a run may leave behind. Each run is a process of
   its own, forked before any OpenMP thread runs. Under AddressSanitizer it looks for leaks, too. */
#ifndef TESSERA_TESTS_FAILING_RUNS_H
#define TESSERA_TESTS_FAILING_RUNS_H

#include "src/cmd/command.h"
#include "tests/support.h"

/* To be called once, before any run. */
void failing_runs_open(void);

/* Counts an allocation of the run. Returns true, with errno set, if it must fail. */
bool allocation_fails(void);

/* Declares a file that the runs of this test write: replaced as a whole, or (`lines`: a log) line by line.
   Returns its path in the test's folder. */
const char *output_file(const char *name, bool lines);

/* Keeps the content that the outputs have now, which a failed run must leave. */
void keep_old(void);

/* Teardown of each test: forgets its outputs. */
int forget_outputs(void **state);

/* Runs once; asserts that it succeeds. The arguments are separated by spaces. */
void run_before(const struct command *command, const char *arguments, ...)
    __attribute__((format(printf, 2, 3)));

/* Runs once undisturbed. Then every `stride`-th allocation fails in its turn, alone and, more rarely, with
   all that follow. Asserts that each run says so, exits with code 1 (4 if a backend did not start), leaks
   nothing, and leaves every output old or new. */
void fail_each(size_t stride, const struct command *command, const char *arguments, ...)
    __attribute__((format(printf, 3, 4)));

#endif
