#include "src/nn/ensemble.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/process.h"
#include "src/comm/comm.h"
#include "src/nn/alike.h"
#include "src/nn/ensemble_member.h"
#include "src/nn/ensemble_ranks.h"
#include "src/nn/evaluate.h"

bool ensemble_is_concurrent(const struct compute *compute) {
    return !compute->device.driver->host_memory;
}

struct ensemble_part *ensemble_part_at(struct ensemble *ensemble, int index) {
    struct ensemble_part *const parts[ENSEMBLE_PARTS] = {
        [ENSEMBLE_TEST] = &ensemble->test,
        [ENSEMBLE_TEST_AVERAGE] = &ensemble->test_average,
        [ENSEMBLE_VALIDATION] = &ensemble->validation,
        [ENSEMBLE_VALIDATION_AVERAGE] = &ensemble->validation_average,
    };
    return parts[index];
}

/* --- open and close --- */

/* Opens the committees of the weights and, if there is one, of their moving average. */
static enum status open_parts(struct ensemble_part *part, struct ensemble_part *average,
                              const struct ensemble *ensemble, size_t images) {
    const struct layer_list *layers = &ensemble->config->layers;
    const size_t classes = layers->width[layers->count - 1];
    const enum status status = committee_open(&part->committee, ensemble->count, images, classes);
    if (status || !(ensemble->config->ema_decay > 0)) return status;
    return committee_open(&average->committee, ensemble->count, images, classes);
}

static enum status open_all(struct ensemble *ensemble, struct compute *compute) {
    ensemble->member = calloc(ensemble->count, sizeof *ensemble->member);
    ensemble->lock = calloc(1, sizeof(pthread_mutex_t));
    if (!ensemble->member || !ensemble->lock || pthread_mutex_init(ensemble->lock, NULL) != 0)
        return status_set(STATUS_FAILED, "out of memory");
    enum status status = STATUS_OK;
    if (ensemble->data->test.count)
        status = open_parts(&ensemble->test, &ensemble->test_average, ensemble, ensemble->data->test.count);
    if (!status && ensemble->config->validation)
        status = open_parts(&ensemble->validation, &ensemble->validation_average, ensemble,
                            (size_t)ensemble->config->validation);
    for (size_t m = 0; m < ensemble->count && !status; m++) {
        ensemble->member[m].ensemble = ensemble;
        status = member_config(&ensemble->member[m], ensemble->config, m);
    }
    const size_t stride = ensemble->concurrent ? ensemble_stride(ensemble) : ensemble->count;
    for (size_t m = ensemble->first; m < ensemble->count && !status; m += stride)
        status = member_open(&ensemble->member[m], compute);
    return status;
}

enum status ensemble_open(struct ensemble *ensemble, struct compute *compute, const struct config *config,
                          const struct dataset_pair *data, struct comm *comm, bool concurrent,
                          double started) {
    *ensemble = (struct ensemble){.config = config,
                                  .data = data,
                                  .comm = comm,
                                  .count = (size_t)config->ensemble,
                                  .first = comm_size(comm) > 1 ? (size_t)comm->rank : 0,
                                  .concurrent = concurrent};
    enum status status = alike_check(comm, config, data, 0);
    if (!status) status = open_all(ensemble, compute);
    if (status) ensemble_close(ensemble);
    ensemble->startup_seconds = clock_seconds() - started;
    return status;
}

void ensemble_close(struct ensemble *ensemble) {
    for (size_t m = 0; ensemble->member && m < ensemble->count; m++) {
        struct member *member = &ensemble->member[m];
        member_close(member);
        ensemble_free_history(member);
        for (int p = 0; p < ENSEMBLE_PARTS; p++) committee_close(&member->result[p]);
    }
    if (ensemble->lock) pthread_mutex_destroy(ensemble->lock);
    committee_close(&ensemble->validation.committee);
    committee_close(&ensemble->validation_average.committee);
    committee_close(&ensemble->test.committee);
    committee_close(&ensemble->test_average.committee);
    free(ensemble->lock);
    free(ensemble->member);
    *ensemble = (struct ensemble){0};
}

/* --- events, one member at a time --- */

static const struct ensemble_observer *lock_observer(const struct member *member) {
    pthread_mutex_lock(member->ensemble->lock);
    return member->ensemble->observer;
}

static void unlock_observer(const struct member *member) {
    pthread_mutex_unlock(member->ensemble->lock);
}

static void on_step(void *self, size_t step, double loss) {
    const struct ensemble_observer *observer = lock_observer(self);
    if (observer->step) observer->step(observer->self, self, step, loss);
    unlock_observer(self);
}

static void on_epoch(void *self, const struct epoch_record *record) {
    const struct ensemble_observer *observer = lock_observer(self);
    ((struct member *)self)->last = *record;
    if (observer->epoch) observer->epoch(observer->self, self);
    unlock_observer(self);
}

static void on_progress(void *self, size_t epoch, size_t step, size_t steps, double loss) {
    const struct ensemble_observer *observer = lock_observer(self);
    if (observer->progress) observer->progress(observer->self, self, epoch, step, steps, loss);
    unlock_observer(self);
}

static void on_warning(void *self, const char *message) {
    const struct ensemble_observer *observer = lock_observer(self);
    if (observer->warning) observer->warning(observer->self, self, message);
    unlock_observer(self);
}

/* --- training --- */

/* Other threads read the flag; a signal handler may write it. */
static void stop_all(const struct ensemble *ensemble) {
    __atomic_store_n(ensemble->stop, 1, __ATOMIC_RELAXED);
}

static bool is_stopped(const struct ensemble *ensemble) {
    return __atomic_load_n(ensemble->stop, __ATOMIC_RELAXED);
}

static void run_member(struct member *member) {
    const struct trainer_observer observer = {
        .self = member, .step = on_step, .epoch = on_epoch, .progress = on_progress, .warning = on_warning};
    member->trainer.stop = member->ensemble->stop;
    member->status = trainer_run(&member->trainer, &observer, &member->summary);
    if (!member->status) return;
    snprintf(member->message, sizeof member->message, "%s", status_message());
    if (!member->summary.done) stop_all(member->ensemble);
}

static void *run_thread(void *opaque) {
    struct member *member = opaque;
    struct device *device = &member->compute->device;
    process_pin_locale();
    if (device->driver->make_current) device->driver->make_current(device);
    run_member(member);
    return NULL;
}

/* Evaluates a trained member by itself. */
static enum status evaluate_member(struct ensemble *ensemble, struct member *member) {
    struct trainer *trainer = &member->trainer;
    struct committee *result = member->result;
    enum status status = STATUS_OK;
    if (!member->summary.done) return STATUS_OK;
    for (int p = 0; p < ENSEMBLE_PARTS && !status; p++) {
        const struct committee *like = &ensemble_part_at(ensemble, p)->committee;
        if (like->capacity) status = committee_open(&result[p], 1, like->count, like->classes);
    }
    if (!status && trainer->test.count)
        status =
            evaluate_members(trainer, &trainer->test, &result[ENSEMBLE_TEST], &result[ENSEMBLE_TEST_AVERAGE]);
    if (!status && trainer->validation.count)
        status = evaluate_members(trainer, &trainer->validation, &result[ENSEMBLE_VALIDATION],
                                  &result[ENSEMBLE_VALIDATION_AVERAGE]);
    return member_status(member, status);
}

static void add_to_committees(struct ensemble *ensemble, struct member *member) {
    for (int p = 0; p < ENSEMBLE_PARTS; p++) {
        struct committee *result = &member->result[p];
        if (result->members) committee_add_member(&ensemble_part_at(ensemble, p)->committee, result);
        committee_close(result);
    }
    if (member->summary.done && ensemble->observer->done)
        ensemble->observer->done(ensemble->observer->self, member);
}

/* Adds members to the committees in the order of their seeds, up to the first that has not ended. */
static void add_ended(struct ensemble *ensemble) {
    if (comm_size(ensemble->comm) > 1 && ensemble->comm->rank) return;
    while (ensemble->next < ensemble->count && ensemble->member[ensemble->next].ended)
        add_to_committees(ensemble, &ensemble->member[ensemble->next++]);
}

static enum status end_member(struct ensemble *ensemble, struct member *member) {
    const enum status status = evaluate_member(ensemble, member);
    member->ended = true;
    add_ended(ensemble);
    return status;
}

static enum status train_concurrently(struct ensemble *ensemble) {
    const size_t own = ensemble_own_members(ensemble), stride = ensemble_stride(ensemble);
    struct member *first = ensemble->member + ensemble->first;
    pthread_t *threads = calloc(own + 1, sizeof *threads);
    size_t running = 0;
    if (!threads) return status_set(STATUS_FAILED, "out of memory");
    const double start = clock_seconds();
    while (running < own &&
           pthread_create(&threads[running], NULL, run_thread, first + running * stride) == 0)
        running++;
    if (running < own) stop_all(ensemble);
    for (size_t m = 0; m < running; m++) pthread_join(threads[m], NULL);
    ensemble->seconds = clock_seconds() - start;
    free(threads);
    enum status added = STATUS_OK;
    for (size_t m = 0; m < own && !added; m++) added = end_member(ensemble, first + m * stride);
    if (running == own) return added;
    return status_set(STATUS_FAILED, "cannot create a thread for every member of the ensemble");
}

static enum status train_sequentially(struct ensemble *ensemble) {
    const size_t first = ensemble->first, stride = ensemble_stride(ensemble);
    struct compute *compute = first < ensemble->count ? ensemble->member[first].compute : NULL;
    enum status status = STATUS_OK;
    for (size_t m = first; m < ensemble->count && !status && !is_stopped(ensemble); m += stride) {
        struct member *member = &ensemble->member[m];
        const double start = clock_seconds();
        if (m > first) status = member_open(member, compute);
        const double opened = clock_seconds();
        ensemble->startup_seconds += opened - start;
        if (!status) run_member(member);
        ensemble->seconds += clock_seconds() - opened;
        if (!status) status = end_member(ensemble, member);
        member_close(member);
    }
    return status;
}

enum status ensemble_dry_run(struct ensemble *ensemble) {
    const size_t first = ensemble->first, stride = ensemble_stride(ensemble);
    struct compute *compute = first < ensemble->count ? ensemble->member[first].compute : NULL;
    enum status status = STATUS_OK;
    for (size_t m = first + stride; m < ensemble->count && !ensemble->concurrent && !status; m += stride) {
        member_close(&ensemble->member[m - stride]);
        status = member_open(&ensemble->member[m], compute);
    }
    return status;
}

static enum status finish_part(struct ensemble_part *part, const uint8_t *labels) {
    if (!part->committee.members) return STATUS_OK;
    part->evaluation = committee_evaluate(&part->committee, labels, NULL);
    return committee_accuracy(&part->committee, &part->accuracy);
}

/* The failure of the first member that failed; else STATUS_INTERRUPTED if any was stopped. */
static enum status members_status(const struct ensemble *ensemble) {
    enum status status = STATUS_OK;
    for (size_t m = 0; m < ensemble->count; m++) {
        const struct member *member = &ensemble->member[m];
        if (member->status && member->status != STATUS_INTERRUPTED)
            return status_set(member->status, "seed %lld: %s", (long long)member->config.seed,
                              member->message);
        if (member->status || !member->summary.done) status = STATUS_INTERRUPTED;
    }
    return status;
}

/* The time of an epoch of all members: the processes train at the same time. */
static double epoch_seconds(const struct ensemble *ensemble) {
    double longest = 0;
    for (size_t rank = 0; rank < ensemble_stride(ensemble); rank++) {
        double seconds = 0;
        for (size_t m = rank; m < ensemble->count; m += ensemble_stride(ensemble)) {
            const double median = ensemble->member[m].summary.median_epoch_seconds;
            seconds = ensemble->concurrent ? fmax(seconds, median) : seconds + median;
        }
        longest = fmax(longest, seconds);
    }
    return longest;
}

/* Rank 0 takes the members of the others in the order of their seeds. */
static enum status collect_members(struct ensemble *ensemble) {
    const double start = clock_seconds();
    enum status status = STATUS_OK;
    for (size_t m = 0; m < ensemble->count && !status; m++) {
        if (ensemble_rank_of(ensemble, m)) status = ensemble_receive_member(ensemble, &ensemble->member[m]);
        ensemble->member[m].ended = true; /* also one that was not started */
        if (!status) add_ended(ensemble);
    }
    if (ensemble_stride(ensemble) > 1) ensemble->seconds += clock_seconds() - start;
    ensemble->epoch_seconds = epoch_seconds(ensemble);
    return status;
}

static enum status evaluate_committees(struct ensemble *ensemble) {
    struct dataset train = ensemble->data->train; /* a view */
    const struct dataset validation = dataset_split(&train, (size_t)ensemble->config->validation);
    enum status status = finish_part(&ensemble->test, ensemble->data->test.labels);
    if (!status) status = finish_part(&ensemble->test_average, ensemble->data->test.labels);
    if (!status) status = finish_part(&ensemble->validation, validation.labels);
    if (!status) status = finish_part(&ensemble->validation_average, validation.labels);
    return status;
}

/* The failure of a member is one for rank 0 to report. */
static enum status send_members(struct ensemble *ensemble) {
    bool interrupted = false;
    for (size_t m = ensemble->first; m < ensemble->count; m += ensemble_stride(ensemble)) {
        struct member *member = &ensemble->member[m];
        if (!member->history) member->history = calloc(1, sizeof *member->history); /* it was not started */
        if (!member->history) return status_set(STATUS_FAILED, "out of memory");
        ensemble_send_member(ensemble, member);
        interrupted |= member->status == STATUS_INTERRUPTED;
    }
    return interrupted ? status_set(STATUS_INTERRUPTED, "interrupted") : STATUS_OK;
}

enum status ensemble_run(struct ensemble *ensemble, const struct ensemble_observer *observer,
                         volatile sig_atomic_t *stop) {
    const bool tells = comm_size(ensemble->comm) > 1 && ensemble->comm->rank;
    ensemble->observer = tells ? &ensemble_history : observer;
    ensemble->stop = stop;
    comm_share_stop(ensemble->comm, stop);
    enum status status = ensemble->concurrent ? train_concurrently(ensemble) : train_sequentially(ensemble);
    if (tells) return status ? status : send_members(ensemble);
    const enum status collected =
        status && ensemble_stride(ensemble) > 1 ? status : collect_members(ensemble);
    const enum status finished = evaluate_committees(ensemble);
    if (!status) status = collected ? collected : finished;
    return status ? status : members_status(ensemble);
}
