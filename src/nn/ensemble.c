#include "src/nn/ensemble.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/process.h"
#include "src/nn/evaluate.h"

/* --- members --- */

enum status ensemble_path(const struct config *config, const char *path, char *text, size_t size) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    const size_t stem = dot && dot > name ? (size_t)(dot - path) : strlen(path);
    const int length =
        config->ensemble == 1 || !path[0]
            ? snprintf(text, size, "%s", path)
            : snprintf(text, size, "%.*s-seed%lld%s", (int)stem, path, (long long)config->seed, path + stem);
    if (length >= 0 && (size_t)length < size) return STATUS_OK;
    return status_set(STATUS_USAGE, "the name '%s' is too long to add the seed of a member", path);
}

/* The common config with the seed and the files of this member. */
static enum status member_config(struct member *member, const struct config *config, size_t index) {
    struct config *own = &member->config;
    *own = *config;
    own->seed += (int64_t)index;
    enum status status = ensemble_path(own, config->save, own->save, sizeof own->save);
    if (!status) status = ensemble_path(own, config->save_init, own->save_init, sizeof own->save_init);
    if (!status) status = ensemble_path(own, config->resume, own->resume, sizeof own->resume);
    return status;
}

bool ensemble_is_concurrent(const struct compute *compute) {
    return !compute->device.driver->host_memory;
}

static enum status with_seed(const struct member *member, enum status status) {
    return status ? status_context(status, "seed %lld", (long long)member->config.seed) : STATUS_OK;
}

static enum status open_trainer(struct member *member) {
    const struct ensemble *ensemble = member->ensemble;
    const struct config *config = &member->config;
    struct checkpoint checkpoint = {0};
    const bool resume =
        config->resume[0] && (member == ensemble->member || access(config->resume, F_OK) == 0);
    profile_start(&member->profile);
    member->compute->device.profile = &member->profile;
    enum status status = resume ? checkpoint_open(&checkpoint, config->resume) : STATUS_OK;
    if (!status)
        status = trainer_open(&member->trainer, member->compute, config, ensemble->data,
                              resume ? &checkpoint : NULL);
    if (!status && config->save_init[0])
        status = checkpoint_save(config->save_init, &member->trainer.mlp, config, ensemble->data, NULL);
    if (resume) checkpoint_close(&checkpoint);
    if (member > ensemble->member) member->trainer.notice[0] = '\0'; /* the first member reports it */
    return with_seed(member, status);
}

static enum status open_member(struct member *member, struct compute *first) {
    const bool own = member->ensemble->concurrent && member > member->ensemble->member;
    const struct compute_options options = config_compute(&member->config);
    member->compute = own ? &member->own : first;
    const enum status status = own ? compute_open(&member->own, first->backend, &options) : STATUS_OK;
    return status ? with_seed(member, status) : open_trainer(member);
}

static void close_member(struct member *member) {
    trainer_close(&member->trainer);
    if (member->compute) member->compute->device.profile = NULL;
    if (member->compute == &member->own) compute_close(&member->own);
    member->compute = NULL;
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
        if (!status && (m == 0 || ensemble->concurrent)) status = open_member(&ensemble->member[m], compute);
    }
    return status;
}

enum status ensemble_open(struct ensemble *ensemble, struct compute *compute, const struct config *config,
                          const struct dataset_pair *data, bool concurrent, double started) {
    *ensemble = (struct ensemble){
        .config = config, .data = data, .count = (size_t)config->ensemble, .concurrent = concurrent};
    const enum status status = open_all(ensemble, compute);
    if (status) ensemble_close(ensemble);
    ensemble->startup_seconds = clock_seconds() - started;
    return status;
}

void ensemble_close(struct ensemble *ensemble) {
    for (size_t m = 0; ensemble->member && m < ensemble->count; m++) close_member(&ensemble->member[m]);
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

/* Adds a trained member to the committees. */
static enum status add_to_committees(struct ensemble *ensemble, struct member *member) {
    struct trainer *trainer = &member->trainer;
    if (!member->summary.done) return STATUS_OK;
    enum status status = STATUS_OK;
    if (trainer->test.count)
        status = evaluate_members(trainer, &trainer->test, &ensemble->test.committee,
                                  &ensemble->test_average.committee);
    if (!status && trainer->validation.count)
        status = evaluate_members(trainer, &trainer->validation, &ensemble->validation.committee,
                                  &ensemble->validation_average.committee);
    if (!status && ensemble->observer->done) ensemble->observer->done(ensemble->observer->self, member);
    return with_seed(member, status);
}

static enum status train_concurrently(struct ensemble *ensemble) {
    pthread_t *threads = calloc(ensemble->count, sizeof *threads);
    size_t running = 0;
    if (!threads) return status_set(STATUS_FAILED, "out of memory");
    const double start = clock_seconds();
    while (running < ensemble->count &&
           pthread_create(&threads[running], NULL, run_thread, &ensemble->member[running]) == 0)
        running++;
    if (running < ensemble->count) stop_all(ensemble);
    for (size_t m = 0; m < running; m++) pthread_join(threads[m], NULL);
    ensemble->seconds = clock_seconds() - start;
    free(threads);
    enum status added = STATUS_OK;
    for (size_t m = 0; m < ensemble->count && !added; m++)
        added = add_to_committees(ensemble, &ensemble->member[m]);
    if (running == ensemble->count) return added;
    return status_set(STATUS_FAILED, "cannot create a thread for every member of the ensemble");
}

static enum status train_sequentially(struct ensemble *ensemble) {
    struct compute *compute = ensemble->member[0].compute;
    enum status status = STATUS_OK;
    for (size_t m = 0; m < ensemble->count && !status && !*ensemble->stop; m++) {
        struct member *member = &ensemble->member[m];
        const double start = clock_seconds();
        if (m) status = open_member(member, compute);
        const double opened = clock_seconds();
        ensemble->startup_seconds += opened - start;
        if (!status) run_member(member);
        ensemble->seconds += clock_seconds() - opened;
        if (!status) status = add_to_committees(ensemble, member);
        close_member(member);
    }
    return status;
}

enum status ensemble_dry_run(struct ensemble *ensemble) {
    struct compute *compute = ensemble->member[0].compute;
    enum status status = STATUS_OK;
    for (size_t m = 1; m < ensemble->count && !ensemble->concurrent && !status; m++) {
        close_member(&ensemble->member[m - 1]);
        status = open_member(&ensemble->member[m], compute);
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

enum status ensemble_run(struct ensemble *ensemble, const struct ensemble_observer *observer,
                         volatile sig_atomic_t *stop) {
    ensemble->observer = observer;
    ensemble->stop = stop;
    enum status status = ensemble->concurrent ? train_concurrently(ensemble) : train_sequentially(ensemble);
    for (size_t m = 0; m < ensemble->count; m++) {
        const double median = ensemble->member[m].summary.median_epoch_seconds;
        ensemble->epoch_seconds =
            ensemble->concurrent ? fmax(ensemble->epoch_seconds, median) : ensemble->epoch_seconds + median;
    }
    struct dataset train = ensemble->data->train; /* a view */
    const struct dataset validation = dataset_split(&train, (size_t)ensemble->config->validation);
    enum status finished = finish_part(&ensemble->test, ensemble->data->test.labels);
    if (!finished) finished = finish_part(&ensemble->test_average, ensemble->data->test.labels);
    if (!finished) finished = finish_part(&ensemble->validation, validation.labels);
    if (!finished) finished = finish_part(&ensemble->validation_average, validation.labels);
    if (!status) status = finished;
    return status ? status : members_status(ensemble);
}
