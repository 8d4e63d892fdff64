#include "src/bench/verdict.h"

#include <stdio.h>

enum outcome outcome_of(enum status status) {
    if (status == STATUS_OK) return OUTCOME_RIGHT;
    if (status == STATUS_VERIFY_FAILED) return OUTCOME_WRONG;
    return status == STATUS_UNAVAILABLE || status == STATUS_USAGE ? OUTCOME_LEFT_OUT : OUTCOME_FAILED;
}

const char *outcome_words(enum outcome outcome) {
    static const char *const words[] = {"left out", "FAILED", "WRONG, no time", "right"};
    return words[outcome];
}

void verdict_note(struct verdict *verdict, enum outcome outcome, const char *label, const char *reason) {
    if (outcome == OUTCOME_RIGHT || outcome <= verdict->worst) return;
    verdict->worst = outcome;
    snprintf(verdict->reason, sizeof verdict->reason, "%s %s: %s", label,
             outcome == OUTCOME_WRONG ? "does not compute what it should" : "failed", reason);
}

enum status verdict_status(const struct verdict *verdict) {
    if (verdict->worst == OUTCOME_LEFT_OUT) return STATUS_OK;
    return status_set(verdict->worst == OUTCOME_WRONG ? STATUS_VERIFY_FAILED : STATUS_FAILED, "%s",
                      verdict->reason);
}
