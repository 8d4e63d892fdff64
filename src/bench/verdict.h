/* What becomes of a row that cannot be measured, and of the command that it is a row of. */
#ifndef TESSERA_BENCH_VERDICT_H
#define TESSERA_BENCH_VERDICT_H

#include "src/base/status.h"

/* Left out: it cannot be done here, and that is no fault. Failed: it should have worked (memory, the GPU).
   Wrong: what it computes is. */
enum outcome { OUTCOME_LEFT_OUT, OUTCOME_FAILED, OUTCOME_WRONG, OUTCOME_RIGHT };

enum outcome outcome_of(enum status status);
/* "left out", "FAILED", "WRONG, no time"; "right". */
const char *outcome_words(enum outcome outcome);

/* Of all rows so far; zero at first. */
struct verdict {
    enum outcome worst; /* OUTCOME_WRONG before OUTCOME_FAILED */
    char reason[768];   /* of the first row that is as bad */
};

void verdict_note(struct verdict *verdict, enum outcome outcome, const char *label, const char *reason);

/* STATUS_OK, STATUS_FAILED or STATUS_VERIFY_FAILED, with the reason as the kept message. */
enum status verdict_status(const struct verdict *verdict);

#endif
