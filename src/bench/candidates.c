#include "src/bench/candidates.h"

#include <stdio.h>
#include <stdlib.h>

static void add_left_out(struct candidates *candidates, const struct sweep_row *row, enum outcome outcome,
                         const char *reason) {
    struct left_out *out = &candidates->left_out[candidates->left_out_count++];
    out->outcome = outcome;
    snprintf(out->label, sizeof out->label, "%s", row->label);
    snprintf(out->reason, sizeof out->reason, "%s", reason);
}

/* Copies the rates of an earlier candidate with the same device and thread count, or measures them. */
static enum status find_rates(const struct candidates *candidates, struct candidate *one, int ordinal) {
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *other = &candidates->list[i];
        if (other->compute.backend->device != one->compute.backend->device ||
            other->compute.threads != one->compute.threads)
            continue;
        one->rates = other->rates;
        return STATUS_OK;
    }
    return rates_measure(&one->compute, ordinal, &one->rates);
}

enum status candidates_open(struct candidates *candidates, const struct sweep *sweep) {
    *candidates = (struct candidates){.list = calloc(sweep->count, sizeof *candidates->list),
                                      .left_out = calloc(sweep->count, sizeof *candidates->left_out)};
    if (!candidates->list || !candidates->left_out) {
        candidates_close(candidates);
        return status_set(STATUS_FAILED, "out of memory");
    }
    for (size_t i = 0; i < sweep->count; i++) {
        const struct sweep_row *row = &sweep->rows[i];
        struct candidate *one = &candidates->list[candidates->count];
        const struct compute_options options = config_compute(&row->config);
        if (row->wrong[0]) {
            add_left_out(candidates, row, OUTCOME_WRONG, row->wrong);
            continue;
        }
        if (!row->backend) {
            add_left_out(candidates, row, OUTCOME_LEFT_OUT, row->left_out);
            continue;
        }
        enum status status = compute_open(&one->compute, row->backend, &options);
        if (!status) status = find_rates(candidates, one, options.ordinal);
        if (status) {
            compute_close(&one->compute);
            add_left_out(candidates, row, outcome_of(status), status_message());
            continue;
        }
        snprintf(one->label, sizeof one->label, "%s", row->label);
        candidates->count++;
    }
    return STATUS_OK;
}

void candidates_close(struct candidates *candidates) {
    for (size_t i = 0; i < candidates->count; i++) compute_close(&candidates->list[i].compute);
    free(candidates->list);
    free(candidates->left_out);
    *candidates = (struct candidates){0};
}
