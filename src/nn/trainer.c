/* The training loop, in the order of a run: steps, evaluation, checkpoints; then the epoch and the run. */
#include "src/nn/trainer.h"

#include <string.h>

#include "src/base/statistics.h"
#include "src/comm/comm.h"
#include "src/nn/data_parallel.h"
#include "src/nn/diagnose.h"
#include "src/nn/engine.h"
#include "src/nn/epoch_audit.h"
#include "src/nn/evaluate.h"
#include "src/nn/step_audit.h"

/* --- steps --- */

/* The number of updates before the first step of `epoch`, which is the epoch in progress or a later one. */
static uint64_t updates_before(const struct trainer *trainer, int64_t epoch) {
    const struct train_state *state = &trainer->state;
    return state->updates - (uint64_t)state->step + (uint64_t)(epoch - state->epoch) * trainer->steps;
}

void trainer_begin_epoch(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const struct tally zero = {0}, *tally = &trainer->state.tally;
    const int64_t epoch = trainer->state.epoch;
    if (memcmp(tally, &zero, sizeof zero) == 0) {
        device->driver->zero(device, trainer->tally, sizeof *tally);
    } else {
        device->driver->upload(device, trainer->tally, tally, sizeof *tally);
    }
    epoch_feed_begin(&trainer->feed, device, epoch, updates_before(trainer, epoch));
    augmenter_begin(&trainer->augmenter, device, &trainer->train, epoch);
}

/* Prepares the next epoch on the host and the copy stream while the device works on this one. */
static void prefetch_epoch(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const int64_t next = trainer->state.epoch + 1;
    if (next >= trainer->config->epochs) return;
    epoch_feed_prefetch(&trainer->feed, device, next, updates_before(trainer, next));
    augmenter_prefetch(&trainer->augmenter, device, &trainer->train, next);
}

/* All processes of a training stop after the same step. */
static bool is_stopped(struct trainer *trainer) {
    const struct engine *engine = trainer->engine;
    if (engine->may_end && !engine->may_end(trainer, (size_t)trainer->state.step)) return false;
    if (comm_size(trainer->compute->comm) > 1) return data_parallel_stops(trainer);
    return trainer->stop && __atomic_load_n(trainer->stop, __ATOMIC_RELAXED);
}

static enum status run_steps(struct trainer *trainer, const struct trainer_observer *observer) {
    struct device *device = &trainer->compute->device;
    struct train_state *state = &trainer->state;
    const size_t stride = trainer->engine->stride ? trainer->engine->stride : device->driver->steps_ahead;
    while ((size_t)state->step < trainer->steps) {
        if (is_stopped(trainer)) return STATUS_INTERRUPTED;
        const size_t left = trainer->steps - (size_t)state->step;
        size_t count = stride < left ? stride : left;
        const enum status status = step_audit_due(trainer, &count)
                                       ? step_audit_run(trainer, (size_t)state->step, &count)
                                       : trainer->engine->run(trainer, (size_t)state->step, &count);
        if (status) return status;
        trainer->tested = false;
        state->step += (int64_t)count;
        state->updates += count;
        if ((size_t)state->step == trainer->steps) prefetch_epoch(trainer);
        device->driver->download(device, &state->tally, trainer->tally, sizeof state->tally);
        if (state->tally.bad_step) return diagnose_divergence(trainer);
        if (observer->progress)
            observer->progress(observer->self, (size_t)state->epoch + 1, (size_t)state->step, trainer->steps,
                               state->tally.loss_sum / (double)state->tally.images);
        if ((size_t)state->step < trainer->steps) device_lap(device, PART_OTHER);
    }
    return device->driver->check(device); /* the download has waited */
}

/* Reports the losses for --log-steps, from step `first` of this epoch. */
static void report_losses(struct trainer *trainer, const struct trainer_observer *observer, size_t first) {
    struct device *device = &trainer->compute->device;
    const size_t before = (size_t)trainer->state.epoch * trainer->steps;
    const size_t limit = (size_t)trainer->config->log_steps;
    if (!observer->step || before + first >= limit) return;
    device->driver->download(device, trainer->host_losses, trainer->losses,
                             trainer->steps * sizeof *trainer->losses);
    for (size_t s = first; s < (size_t)trainer->state.step && before + s < limit; s++)
        observer->step(observer->self, before + s + 1, trainer->host_losses[s]);
}

/* --- evaluation --- */

static bool evaluation_due(const struct config *config, int64_t epoch) {
    const int64_t every = config->evaluate_every;
    return epoch == config->epochs || (every && epoch % every == 0);
}

/* Only an epoch with an evaluation can stop the run early. */
static bool stops_early(const struct trainer *trainer) {
    return early_stopping_due(&trainer->stopping, &trainer->state) &&
           evaluation_due(trainer->config, trainer->state.epoch);
}

/* --- checkpoints --- */

enum status trainer_save(struct trainer *trainer, const char *path) {
    struct device *device = &trainer->compute->device;
    device->driver->synchronize(device);
    if (device->profile) profile_divert(device->profile, PART_CHECKPOINT);
    const enum status status =
        checkpoint_save(path, &trainer->mlp, trainer->config, trainer->data, &trainer->state);
    if (device->profile) profile_restore(device->profile);
    return status;
}

/* Writes the checkpoint of --save-every. A failure is only a warning. */
static void save_periodically(struct trainer *trainer, const struct trainer_observer *observer) {
    const struct config *config = trainer->config;
    const int64_t epoch = trainer->state.epoch;
    if (!config->save[0] || !config->save_every || epoch % config->save_every || epoch >= config->epochs)
        return;
    if (trainer_save(trainer, config->save) && observer->warning)
        observer->warning(observer->self, status_message());
}

/* --- the loop --- */

/* Fills loss, accuracy and time of the training in `record`. `before` and `images` are the profile and the
   image count from the start of the epoch, or of the rest of it after a resume. */
static void measure_epoch(const struct trainer *trainer, const struct profile *before, uint64_t images,
                          struct epoch_record *record) {
    const struct tally *tally = &trainer->state.tally;
    const struct profile *profile = trainer->compute->device.profile;
    record->train_loss = tally->loss_sum / (double)tally->images;
    record->train_correct = tally->correct;
    record->train_images = tally->images;
    if (profile) record->time = profile_since(profile, before);
    record->seconds = profile_training(&record->time);
    if (record->seconds > 0) record->images_per_second = (double)(tally->images - images) / record->seconds;
}

static enum status run_epoch(struct trainer *trainer, const struct trainer_observer *observer) {
    struct device *device = &trainer->compute->device;
    struct train_state *state = &trainer->state;
    const struct profile before = device->profile ? *device->profile : (struct profile){0};
    const uint64_t images = state->tally.images;
    const size_t first = (size_t)state->step; /* not 0 if resumed within an epoch */
    struct epoch_record record = {.epoch = (size_t)state->epoch + 1};

    device_range_begin(device, "epoch");
    trainer_begin_epoch(trainer);
    epoch_audit_begin(trainer);
    enum status status = run_steps(trainer, observer);
    if (!status) status = epoch_audit_end(trainer);
    device_range_end(device);
    report_losses(trainer, observer, first);
    const bool evaluated = evaluation_due(trainer->config, state->epoch + 1);
    if (!status && evaluated) status = evaluate_epoch(trainer, &record);
    if (status) return status;

    measure_epoch(trainer, &before, images, &record);
    if (first == 0) /* the median is that of complete epochs */
        trainer->epoch_seconds[trainer->epochs_done++ % TRAINER_TIMED_EPOCHS] = record.seconds;
    if (evaluated)
        early_stopping_update(&trainer->stopping, &trainer->mlp, &trainer->optimizer, state->epoch + 1,
                              record.average.total ? &record.average : &record.evaluation, &state->best);
    *state = (struct train_state){.epoch = state->epoch + 1, .updates = state->updates, .best = state->best};
    if (observer->epoch) observer->epoch(observer->self, &record);
    device_lap(device, PART_EVALUATION); /* so the times of the records add up to that of the training */
    return STATUS_OK;
}

static struct run_summary summarize(const struct trainer *trainer, bool interrupted) {
    const struct profile *profile = trainer->compute->device.profile;
    const size_t done = trainer->epochs_done;
    const struct statistics epoch =
        statistics_of(trainer->epoch_seconds, done < TRAINER_TIMED_EPOCHS ? done : TRAINER_TIMED_EPOCHS);
    return (struct run_summary){.done = true,
                                .epochs = done,
                                .part = dataset_reported(trainer->data),
                                .test = trainer->last_test,
                                .average = trainer->last_average,
                                .stopped_early = stops_early(trainer),
                                .best_epoch = interrupted ? 0 : trainer->state.best.epoch,
                                .median_epoch_seconds = epoch.median,
                                .noisy = epoch.noisy,
                                .calls = trainer->audit.calls,
                                .audited = trainer->audit.checked,
                                .steps_audited = trainer->step_audit.checked,
                                .time = profile ? *profile : (struct profile){0},
                                .interrupted = interrupted};
}

enum status trainer_run(struct trainer *trainer, const struct trainer_observer *observer,
                        struct run_summary *summary) {
    const struct config *config = trainer->config;
    enum status status = STATUS_OK;
    *summary = (struct run_summary){0};
    if (trainer->notice[0] && observer->warning) observer->warning(observer->self, trainer->notice);
    device_lap(&trainer->compute->device, PART_STARTUP); /* the caller's work since trainer_open */
    while (!status && trainer->state.epoch < config->epochs && !stops_early(trainer)) {
        status = run_epoch(trainer, observer);
        if (!status) save_periodically(trainer, observer);
    }
    if (status && status != STATUS_INTERRUPTED) return status;
    if (!status) {
        early_stopping_restore(&trainer->stopping, &trainer->mlp, &trainer->optimizer, &trainer->state.best);
        if (trainer->state.best.epoch) trainer->tested = false; /* not of these weights */
    }
    /* Save first: the evaluation takes time, and a second signal may end the process. */
    const enum status saved = config->save[0] ? trainer_save(trainer, config->save) : STATUS_OK;
    enum status tested = evaluate_test(trainer);
    if (!tested) tested = data_parallel_compare(trainer);
    if (tested) return tested;
    *summary = summarize(trainer, status == STATUS_INTERRUPTED);
    return saved ? saved : status;
}
