#include "src/bench/contestants.h"

#include <stdio.h>
#include <stdlib.h>

static void leave_out(struct contestants *contestants, const struct sweep_row *row, enum outcome outcome,
                      const char *reason) {
    struct left_out *out = &contestants->left_out[contestants->left_out_count++];
    out->outcome = outcome;
    snprintf(out->label, sizeof out->label, "%s", row->label);
    snprintf(out->reason, sizeof out->reason, "%s", reason);
}

/* The rates of the one before on the same device with as many threads, or new ones. */
static enum status find_rates(const struct contestants *contestants, struct contestant *one, int ordinal) {
    for (size_t i = 0; i < contestants->count; i++) {
        const struct contestant *other = &contestants->list[i];
        if (other->compute.backend->device != one->compute.backend->device ||
            other->compute.threads != one->compute.threads)
            continue;
        one->rates = other->rates;
        return STATUS_OK;
    }
    return rates_measure(&one->compute, ordinal, &one->rates);
}

enum status contestants_open(struct contestants *contestants, const struct sweep *sweep) {
    *contestants = (struct contestants){.list = calloc(sweep->count, sizeof *contestants->list),
                                        .left_out = calloc(sweep->count, sizeof *contestants->left_out)};
    if (!contestants->list || !contestants->left_out) {
        contestants_close(contestants);
        return status_set(STATUS_FAILED, "out of memory");
    }
    for (size_t i = 0; i < sweep->count; i++) {
        const struct sweep_row *row = &sweep->rows[i];
        struct contestant *one = &contestants->list[contestants->count];
        const struct compute_options options = config_compute(&row->config);
        if (row->wrong[0]) {
            leave_out(contestants, row, OUTCOME_WRONG, row->wrong);
            continue;
        }
        if (!row->backend) {
            leave_out(contestants, row, OUTCOME_LEFT_OUT, row->left_out);
            continue;
        }
        enum status status = compute_open(&one->compute, row->backend, &options);
        if (!status) status = find_rates(contestants, one, options.ordinal);
        if (status) {
            compute_close(&one->compute);
            leave_out(contestants, row, outcome_of(status), status_message());
            continue;
        }
        snprintf(one->label, sizeof one->label, "%s", row->label);
        contestants->count++;
    }
    return STATUS_OK;
}

void contestants_close(struct contestants *contestants) {
    for (size_t i = 0; i < contestants->count; i++) compute_close(&contestants->list[i].compute);
    free(contestants->list);
    free(contestants->left_out);
    *contestants = (struct contestants){0};
}
