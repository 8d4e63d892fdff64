/* Trainings by several processes that sockets connect, for tests. */
#ifndef TESSERA_TESTS_JOBS_H
#define TESSERA_TESTS_JOBS_H

#include <sys/types.h>

#include "tests/support.h"

enum { JOB_MOST = 8, JOB_STILL_RUNS = -1 };
static const double JOB_PATIENCE = 120; /* seconds: machines may be slow, and a process that hangs is ended */

#define JOB_RECIPE \
    " --layers 42-16-4 --batch-size 70 --epochs 4 --lr 0.1 --momentum 0.9 --dropout 0.2 --threads 1"

/* The job of the running test. */
extern struct job {
    int size, port;
    pid_t pid[JOB_MOST];
    int code[JOB_MOST]; /* exit codes, or 128 + the signal; JOB_STILL_RUNS: it had to be ended */
    char said[JOB_MOST][4096];
} job;

/* A free port of this host. */
int job_port(void);

/* Starts one rank of `job`, whose size and port are set; or a new job, rank 0 last. */
void job_start_rank(int rank, const char *arguments);
void job_start(int size, const char *arguments);

/* Where a rank writes what it says: one of a few buffers. */
const char *job_file(int rank);

/* Waits for one rank, so many seconds at most; for all, and reads what they said. */
void job_await(int rank, double seconds);
void job_end(void);
void job_expect_codes(int wanted);

/* A job that must end well, and of which rank 0 alone may say something. */
void job_run(int size, const char *arguments);

/* One of two buffers, in turn. */
char *job_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A copy of support_path, which the caller frees. */
char *job_path(const char *name);

void job_assert_same_files(const char *one, const char *other);

/* The checkpoints ONE-seed1.safetensors .. of an ensemble are those of OTHER, which are removed. */
void job_assert_same_members(const char *one, const char *other, int count);

/* A number of the last line of this type in a log. */
double job_last_number(const char *log, const char *type, const char *key);

#endif
