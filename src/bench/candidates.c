#include "src/bench/candidates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_left_out(struct candidates *candidates, const struct sweep_row *row, enum outcome outcome,
                         const char *reason) {
    struct left_out *out = &candidates->left_out[candidates->left_out_count++];
    out->outcome = outcome;
    snprintf(out->label, sizeof out->label, "%s", row->label);
    snprintf(out->reason, sizeof out->reason, "%s", reason);
}

enum status candidates_rates(const struct config *config, enum gemm_device device, int threads,
                             bool bandwidth, struct rates *rates) {
    struct contestant contestant = {0};
    struct contest_request request = {.task = CONTEST_RATES,
                                      .config = *config,
                                      .rates_of = device,
                                      .threads = threads,
                                      .bandwidth = bandwidth};
    struct contest_reply reply;
    const enum status status = contestant_ask(&contestant, "measuring peak rates", &request, &reply);
    contestant_end(&contestant);
    *rates = reply.rates;
    return status;
}

/* Copies the rates of an earlier candidate with the same device and thread count, or measures them. */
static enum status find_rates(const struct candidates *candidates, struct candidate *one,
                              const struct config *config) {
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *other = &candidates->list[i];
        if (other->compute.backend->device != one->compute.backend->device ||
            other->compute.threads != one->compute.threads)
            continue;
        one->rates = other->rates;
        return STATUS_OK;
    }
    return candidates_rates(config, one->compute.backend->device, one->compute.threads, true, &one->rates);
}

enum status candidate_open(struct candidate *one, struct contestant *contestant, const struct config *config,
                           const struct contest_backend *backend, size_t slot) {
    struct contest_request request = {.task = CONTEST_OPEN, .config = *config, .slot = slot};
    struct contest_reply reply;
    const enum status status = contestant_ask(contestant, "opening", &request, &reply);
    struct compute *compute = &one->compute;
    *one = (struct candidate){.contestant = contestant,
                              .slot = slot,
                              .config = *config,
                              .backend = {.name = backend->bare, .device = backend->device}};
    snprintf(one->label, sizeof one->label, "%s", backend->name);
    snprintf(one->path, sizeof one->path, "%s", backend->path);
    snprintf(compute->name, sizeof compute->name, "%s", backend->name);
    snprintf(compute->description, sizeof compute->description, "%s", reply.description);
    snprintf(compute->gpu, sizeof compute->gpu, "%s", reply.gpu);
    compute->backend = &one->backend;
    compute->threads = reply.threads;
    compute->precision = reply.precision;
    memcpy(one->supports, reply.supports, sizeof one->supports);
    return status;
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
        if (row->wrong[0]) {
            add_left_out(candidates, row, OUTCOME_WRONG, row->wrong);
            continue;
        }
        if (!row->backend) {
            add_left_out(candidates, row, OUTCOME_LEFT_OUT, row->left_out);
            continue;
        }
        enum status status = candidate_open(one, row->contestant, &row->config, row->backend, i);
        snprintf(one->label, sizeof one->label, "%s", row->label);
        if (!status) status = find_rates(candidates, one, &row->config);
        if (status) {
            add_left_out(candidates, row, outcome_of(status), status_message());
        } else {
            candidates->count++;
        }
    }
    return STATUS_OK;
}

void candidates_close(struct candidates *candidates) {
    free(candidates->list);
    free(candidates->left_out);
    *candidates = (struct candidates){0};
}
