#include "src/nn/ensemble_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/comm/comm.h"

/* --- events --- */

/* Without memory an event is lost: it is only for the log. */
static void *grown(void *list, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) return list;
    const size_t more = *capacity ? 2 * *capacity : 16;
    void *larger = realloc(list, more * size);
    if (larger) *capacity = more;
    return larger ? larger : list;
}

static void keep_step(void *self, const struct member *member, size_t step, double loss) {
    struct member_history *history = member->history;
    (void)self;
    history->step = grown(history->step, &history->step_capacity, history->steps, sizeof *history->step);
    if (history->steps < history->step_capacity)
        history->step[history->steps++] = (struct member_step){step, loss};
}

static void keep_epoch(void *self, const struct member *member) {
    struct member_history *history = member->history;
    (void)self;
    history->epoch = grown(history->epoch, &history->epoch_capacity, history->epochs, sizeof *history->epoch);
    if (history->epochs < history->epoch_capacity) history->epoch[history->epochs++] = member->last;
}

static void keep_warning(void *self, const struct member *member, const char *message) {
    (void)self;
    snprintf(member->history->warning, sizeof member->history->warning, "%s", message);
}

const struct ensemble_observer ensemble_history = {
    .step = keep_step, .epoch = keep_epoch, .warning = keep_warning};

void ensemble_free_history(struct member *member) {
    if (!member->history) return;
    free(member->history->step);
    free(member->history->epoch);
    free(member->history);
    member->history = NULL;
}

/* --- messages --- */

/* What is sent first. */
struct report {
    enum status status;
    char message[1024], warning[256];
    struct run_summary summary;
    struct epoch_record last;
    struct evaluation evaluation[ENSEMBLE_PARTS];
    bool evaluated[ENSEMBLE_PARTS];
    size_t steps, epochs;
};

void ensemble_send_member(const struct ensemble *ensemble, struct member *member) {
    const struct member_history *history = member->history;
    struct report *report = calloc(1, sizeof *report); /* all of it is defined: it is sent */
    struct report none = {.status = STATUS_FAILED, .message = "out of memory"},
                  *sent = report ? report : &none;
    if (report) {
        *report = (struct report){.status = member->status,
                                  .summary = member->summary,
                                  .last = member->last,
                                  .steps = history->steps,
                                  .epochs = history->epochs};
        memcpy(report->message, member->message, sizeof report->message);
        memcpy(report->warning, history->warning, sizeof report->warning);
        for (int p = 0; p < ENSEMBLE_PARTS; p++) {
            report->evaluated[p] = member->result[p].members > 0;
            if (report->evaluated[p]) report->evaluation[p] = member->result[p].member[0];
        }
    }
    comm_send(ensemble->comm, 0, sent, sizeof *sent);
    comm_send(ensemble->comm, 0, history->step, sent->steps * sizeof *history->step);
    comm_send(ensemble->comm, 0, history->epoch, sent->epochs * sizeof *history->epoch);
    for (int p = 0; p < ENSEMBLE_PARTS; p++) {
        const struct committee *result = &member->result[p];
        if (sent->evaluated[p])
            comm_send(ensemble->comm, 0, result->sum, result->count * result->classes * sizeof *result->sum);
    }
    free(report);
}

static enum status receive_events(struct ensemble *ensemble, struct member *member,
                                  const struct report *report, int from) {
    const struct ensemble_observer *observer = ensemble->observer;
    struct member_step *step = calloc(report->steps + 1, sizeof *step);
    struct epoch_record *epoch = calloc(report->epochs + 1, sizeof *epoch);
    const bool memory = step && epoch;
    if (memory) {
        comm_receive(ensemble->comm, from, step, report->steps * sizeof *step);
        comm_receive(ensemble->comm, from, epoch, report->epochs * sizeof *epoch);
    }
    for (size_t s = 0; memory && observer->step && s < report->steps; s++)
        observer->step(observer->self, member, step[s].step, step[s].loss);
    for (size_t e = 0; memory && observer->epoch && e < report->epochs; e++) {
        member->last = epoch[e];
        observer->epoch(observer->self, member);
    }
    if (memory && observer->warning && report->warning[0])
        observer->warning(observer->self, member, report->warning);
    free(step);
    free(epoch);
    return memory ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

static enum status receive_results(struct ensemble *ensemble, struct member *member,
                                   const struct report *report, int from) {
    for (int p = 0; p < ENSEMBLE_PARTS; p++) {
        struct committee *result = &member->result[p];
        const struct committee *like = &ensemble_part_at(ensemble, p)->committee;
        if (!report->evaluated[p]) continue;
        const enum status status = committee_open(result, 1, like->count, like->classes);
        if (status) return status;
        comm_receive(ensemble->comm, from, result->sum, like->count * like->classes * sizeof *result->sum);
        result->member[0] = report->evaluation[p];
        result->members = 1;
    }
    return STATUS_OK;
}

enum status ensemble_receive_member(struct ensemble *ensemble, struct member *member) {
    const int from = ensemble_rank_of(ensemble, (size_t)(member - ensemble->member));
    struct report report;
    comm_receive(ensemble->comm, from, &report, sizeof report);
    member->status = report.status;
    memcpy(member->message, report.message, sizeof member->message);
    enum status status = receive_events(ensemble, member, &report, from);
    if (!status) status = receive_results(ensemble, member, &report, from);
    member->last = report.last;
    member->summary = report.summary;
    member->summary.part = dataset_reported(ensemble->data);
    return status;
}
