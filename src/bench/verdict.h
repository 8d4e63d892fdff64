/* The outcome of each row of a bench, and the exit status of the whole. */
#ifndef TESSERA_BENCH_VERDICT_H
#define TESSERA_BENCH_VERDICT_H

#include "src/base/status.h"

/* Left out: not possible here, which is no error. Failed: an error (memory, the GPU). Wrong: its results
   are wrong. */
enum outcome { OUTCOME_LEFT_OUT, OUTCOME_FAILED, OUTCOME_WRONG, OUTCOME_RIGHT };

enum outcome outcome_of(enum status status);
/* "left out", "FAILED", "WRONG, no time", "right". */
const char *outcome_words(enum outcome outcome);

/* The worst outcome of all rows; starts as zero. */
struct verdict {
    enum outcome worst; /* OUTCOME_WRONG is worse than OUTCOME_FAILED */
    char reason[768];   /* of the first row with this outcome */
};

void verdict_note(struct verdict *verdict, enum outcome outcome, const char *label, const char *reason);

/* STATUS_OK, STATUS_FAILED or STATUS_VERIFY_FAILED, with the reason as the status message. */
enum status verdict_status(const struct verdict *verdict);

#endif
