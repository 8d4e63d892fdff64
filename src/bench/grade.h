/* Grades submissions of an assignment. A graded submission is a JSON object of type "grade": table, CSV,
   JUnit XML and page are written from these, and a log of them is what a rerun continues.

   It is verified (verify.h: the case list and secret cases) and timed as in `bench`, in a contestant. Beyond
   that each product runs in a context of its own, each timing has new operands from a secret seed, and every
   C that is still in memory after a timing is checked. The peak is measured in a process without a
   submission, so that none can lower it. */
#ifndef TESSERA_BENCH_GRADE_H
#define TESSERA_BENCH_GRADE_H

#include "src/base/jsonl.h"
#include "src/bench/candidates.h"
#include "src/bench/grade_files.h"

struct grading {
    const struct assignment *assignment;
    const char *builds;              /* the folder for what is compiled */
    void (*stage)(const char *what); /* (optional) called when a part of the work begins */
    struct config config;
    struct candidate pair[2]; /* the submission; the backend that speed is relative to, if any */
    struct contest_backend backend[2];
    struct contestant contestant[2];
    bool supports[DTYPES][3]; /* [dtype][op]: the first answer of the submission */
    struct rates rates[2];    /* by enum gemm_device */
    bool has_rates[2];
};

/* Confines this process and all that it starts to the threads of the assignment, and opens the backend that
   speed is relative to. STATUS_UNAVAILABLE if that cannot be used, or if there are fewer cores. */
enum status grading_open(struct grading *grading, const struct assignment *assignment, const char *builds);
void grading_close(struct grading *grading);

/* *line receives the "grade" line, which the caller owns. Whatever the submission does is no error;
   STATUS_FAILED, with *line NULL, if no process could be started or memory ran out; STATUS_INTERRUPTED, at
   once and with *line NULL, if the program is interrupted (process.h). */
enum status grade_submission(struct grading *grading, const struct submission *submission, cJSON **line);

/* Is the line a result of the file as it is now, for this assignment, on this model of processor? */
bool grade_is_current(const cJSON *line, const struct submission *submission,
                      const struct assignment *assignment);

/* --- grade_score.c --- */

/* Adds points and ranks to the lines, and sorts them: most points first, then the fastest, then by name. */
void grade_rank(cJSON **lines, size_t count, const struct assignment *assignment);

/* --- grade_write.c --- */

/* Writes DIR/grades.csv, .json and .xml (JUnit). `lines` are ranked; `header` is of jsonl_header. */
enum status grade_write(const char *folder, cJSON *const *lines, size_t count, const cJSON *header,
                        const struct assignment *assignment);

#endif
