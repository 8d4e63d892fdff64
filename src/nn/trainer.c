#include "src/nn/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/rng.h"
#include "src/base/statistics.h"
#include "src/base/text.h"
#include "src/nn/diagnose.h"
#include "src/nn/engine.h"
#include "src/nn/evaluate.h"

enum {
    TIMED_EPOCHS = 1 << 16, /* the last ones, for the median */
    EVALUATION_ROWS =
        1000, /* at least this many rows a pass, so that small batches do not slow the evaluation */
    WARM_UP_ROWS =
        128 /* enough on the host to start every library and thread; a full batch may take seconds */
};

static size_t at_most(size_t value, size_t limit) {
    return value < limit ? value : limit;
}

/* --- set-up --- */

static enum status open_samples(struct trainer *trainer, const struct dataset_pair *data) {
    struct device *device = &trainer->compute->device;
    struct dataset train = data->train; /* views: the pair keeps what it owns */
    const struct dataset validation = dataset_split(&train, (size_t)trainer->config->validation);
    const struct config *config = trainer->config;
    enum status status = samples_open(&trainer->train, device, config, &train);
    if (!status) status = samples_open(&trainer->validation, device, config, &validation);
    if (!status) status = samples_open(&trainer->test, device, config, &data->test);
    return status ? status : augmenter_open(&trainer->augmenter, device, config, &train, &trainer->train);
}

static enum status open_epoch_buffers(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const struct device_driver *driver = device->driver;
    const size_t steps = trainer->steps, images = trainer->train.count;
    trainer->order = driver->alloc(device, images * sizeof *trainer->order);
    trainer->scalars = driver->alloc(device, steps * sizeof *trainer->scalars);
    trainer->losses = driver->alloc(device, steps * sizeof *trainer->losses);
    trainer->tally = driver->alloc(device, sizeof *trainer->tally);
    if (!trainer->order || !trainer->scalars || !trainer->losses || !trainer->tally) return STATUS_FAILED;
    if (driver->prefetch_upload) {
        trainer->prefetched_order = driver->alloc(device, images * sizeof *trainer->order);
        trainer->prefetched_scalars = driver->alloc(device, steps * sizeof *trainer->scalars);
        if (!trainer->prefetched_order || !trainer->prefetched_scalars) return STATUS_FAILED;
    }

    trainer->host_order = malloc(images * sizeof *trainer->host_order);
    trainer->host_scalars = malloc(steps * sizeof *trainer->host_scalars);
    trainer->host_losses = calloc(steps, sizeof *trainer->host_losses);
    trainer->epoch_seconds = calloc(TIMED_EPOCHS, sizeof *trainer->epoch_seconds);
    if (!trainer->host_order || !trainer->host_scalars || !trainer->host_losses || !trainer->epoch_seconds)
        return status_set(STATUS_FAILED, "out of memory");
    return STATUS_OK;
}

/* Updates done before this epoch, which is the one in progress or, when that is done, the next. */
static uint64_t updates_before(const struct trainer *trainer, int64_t epoch) {
    const struct train_state *state = &trainer->state;
    return state->updates - (uint64_t)state->step + (uint64_t)(epoch - state->epoch) * trainer->steps;
}

/* The order of the images and the scalars of the steps of an epoch, in host memory. */
static void draw_epoch(struct trainer *trainer, int64_t epoch) {
    const size_t images = trainer->train.count;
    if (trainer->drawn == epoch) return;
    if (trainer->config->shuffle) {
        struct rng rng = rng_open((uint64_t)trainer->config->seed, RNG_SHUFFLE, (uint32_t)epoch);
        rng_permutation(&rng, trainer->host_order, images);
    } else {
        for (size_t i = 0; i < images; i++) trainer->host_order[i] = (uint32_t)i;
    }
    schedule_epoch(trainer->config, (size_t)epoch, trainer->steps, updates_before(trainer, epoch),
                   trainer->host_scalars);
    trainer->drawn = epoch;
    device_lap(&trainer->compute->device, PART_BATCH);
}

/* Draws the next epoch and starts its upload while the device works on this one. */
static void prefetch_epoch(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const int64_t next = trainer->state.epoch + 1;
    if (next >= trainer->config->epochs) return;
    draw_epoch(trainer, next);
    if (!trainer->prefetched_order || trainer->prefetched_epoch == next) return;
    device->driver->prefetch_upload(device, trainer->prefetched_order, trainer->host_order,
                                    trainer->train.count * sizeof *trainer->order);
    device->driver->prefetch_upload(device, trainer->prefetched_scalars, trainer->host_scalars,
                                    trainer->steps * sizeof *trainer->scalars);
    augmenter_prefetch(&trainer->augmenter, device, &trainer->train, next);
    trainer->prefetched_epoch = next;
}

void trainer_begin_epoch(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const struct device_driver *driver = device->driver;
    const size_t order = trainer->train.count * sizeof *trainer->order,
                 scalars = trainer->steps * sizeof *trainer->scalars;
    const struct tally none = {0};
    if (trainer->prefetched_order && trainer->prefetched_epoch == trainer->state.epoch) {
        driver->prefetch_commit(device, trainer->order, trainer->prefetched_order, order);
        driver->prefetch_commit(device, trainer->scalars, trainer->prefetched_scalars, scalars);
    } else {
        draw_epoch(trainer, trainer->state.epoch);
        driver->upload(device, trainer->order, trainer->host_order, order);
        driver->upload(device, trainer->scalars, trainer->host_scalars, scalars);
    }
    if (memcmp(&trainer->state.tally, &none, sizeof none) == 0) {
        driver->zero(device, trainer->tally, sizeof none);
    } else {
        driver->upload(device, trainer->tally, &trainer->state.tally, sizeof none);
    }
    device_lap(device, PART_BATCH);
    augmenter_begin(&trainer->augmenter, device, &trainer->train, trainer->state.epoch);
}

/* Every kernel and thread once, on the first images and the last batch; the weights stay as they are. */
static enum status warm_up(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const struct tally frozen = {.bad_step = 1};
    const size_t last = trainer->steps - 1;
    trainer_begin_epoch(trainer);
    enum status status = engine_gradients(
        trainer, 0, at_most(trainer->batch, device->driver->host_memory ? WARM_UP_ROWS : trainer->batch));
    if (!status && !device->driver->host_memory)
        status = engine_gradients(trainer, last, engine_rows(trainer, last));
    if (!status && !device->driver->host_memory)
        status = mlp_forward(&trainer->mlp, trainer->mlp.capacity, NULL); /* evaluation */
    if (status) return status;
    device->driver->upload(device, trainer->tally, &frozen, sizeof frozen);
    optimizer_step(&trainer->optimizer, &trainer->mlp, trainer->scalars, trainer->tally);
    status = device->driver->synchronize(device);
    if (!status && trainer->engine->prepare) status = trainer->engine->prepare(trainer);
    trainer->drawn = trainer->prefetched_epoch = -1; /* the first epoch pays for its own order */
    return status ? status : device->driver->synchronize(device);
}

static enum status open_all(struct trainer *trainer, const struct dataset_pair *data,
                            const struct checkpoint *resume) {
    const struct config *config = trainer->config;
    enum status status = open_samples(trainer, data);
    if (status) return status;
    trainer->batch = at_most((size_t)config->batch_size, trainer->train.count);
    trainer->steps = (trainer->train.count + trainer->batch - 1) / trainer->batch;
    const size_t largest =
        trainer->train.count > trainer->test.count ? trainer->train.count : trainer->test.count;
    const size_t rows = at_most(EVALUATION_ROWS, largest);
    status = mlp_open(&trainer->mlp, trainer->compute, config, trainer->batch > rows ? trainer->batch : rows);
    if (!status) status = optimizer_open(&trainer->optimizer, &trainer->mlp, config);
    if (!status)
        status =
            early_stopping_open(&trainer->stopping, &trainer->mlp, &trainer->optimizer, config->patience);
    if (!status) status = open_epoch_buffers(trainer);
    if (!status && !resume)
        status = mlp_initialize(&trainer->mlp, (enum init)config->init, config->init_range,
                                (uint64_t)config->seed);
    if (!status && resume) status = checkpoint_restore(resume, &trainer->mlp, &trainer->state);
    if (!config->patience) trainer->state.best = (struct best_epoch){0};
    if (!status && resume)
        status = checkpoint_check_epoch(resume, config, &trainer->state, trainer->batch, trainer->steps);
    if (!status) status = engine_select(trainer, &trainer->engine);
    return status ? status : warm_up(trainer);
}

enum status trainer_open(struct trainer *trainer, struct compute *compute, const struct config *config,
                         const struct dataset_pair *data, const struct checkpoint *resume) {
    *trainer = (struct trainer){.config = config, .compute = compute, .drawn = -1, .prefetched_epoch = -1};
    const enum status status = open_all(trainer, data, resume);
    if (status) {
        trainer_close(trainer);
    } else if (compute->device.profile) {
        struct profile *profile =
            compute->device.profile; /* all of it was start-up, whatever it was called */
        const double total = profile_total(profile), last = profile->last;
        *profile = (struct profile){.last = last};
        profile->seconds[PART_STARTUP] = total;
        profile_lap(profile, (struct profile_slot){.part = PART_STARTUP});
    }
    return status;
}

void trainer_close(struct trainer *trainer) {
    if (!trainer->compute) return;
    struct device *device = &trainer->compute->device;
    if (trainer->engine && trainer->engine->close) trainer->engine->close(trainer);
    augmenter_close(&trainer->augmenter, device);
    samples_close(&trainer->train, device);
    samples_close(&trainer->validation, device);
    samples_close(&trainer->test, device);
    if (trainer->mlp.compute) optimizer_close(&trainer->optimizer, &trainer->mlp);
    mlp_close(&trainer->mlp);
    device->driver->free(device, trainer->order);
    device->driver->free(device, trainer->scalars);
    device->driver->free(device, trainer->losses);
    device->driver->free(device, trainer->tally);
    device->driver->free(device, trainer->prefetched_order);
    device->driver->free(device, trainer->prefetched_scalars);
    free(trainer->host_order);
    free(trainer->host_scalars);
    free(trainer->host_losses);
    free(trainer->epoch_seconds);
    *trainer = (struct trainer){0};
}

/* --- the loop --- */

static enum status run_steps(struct trainer *trainer, const struct trainer_observer *observer) {
    struct device *device = &trainer->compute->device;
    struct train_state *state = &trainer->state;
    while ((size_t)state->step < trainer->steps) {
        if (trainer->stop && __atomic_load_n(trainer->stop, __ATOMIC_RELAXED)) return STATUS_INTERRUPTED;
        const size_t stride = trainer->engine->stride ? trainer->engine->stride : device->driver->steps_ahead;
        size_t count = at_most(stride, trainer->steps - (size_t)state->step);
        const enum status status = trainer->engine->run(trainer, (size_t)state->step, &count);
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
        device_lap(device, PART_OTHER);
    }
    return device->driver->synchronize(device);
}

/* The losses of the steps from `first` on that --log-steps asks for. */
static void report_steps(struct trainer *trainer, const struct trainer_observer *observer, size_t first) {
    struct device *device = &trainer->compute->device;
    const size_t before = (size_t)trainer->state.epoch * trainer->steps;
    const size_t wanted = (size_t)trainer->config->log_steps;
    if (!observer->step || before + first >= wanted) return;
    device->driver->download(device, trainer->host_losses, trainer->losses,
                             trainer->steps * sizeof *trainer->losses);
    for (size_t s = first; s < (size_t)trainer->state.step && before + s < wanted; s++)
        observer->step(observer->self, before + s + 1, trainer->host_losses[s]);
}

static bool evaluation_due(const struct config *config, int64_t epoch) {
    const int64_t every = config->evaluate_every;
    return epoch == config->epochs || (every && epoch % every == 0);
}

/* Patience ends a run only where there was a look at how good it is. */
static bool patience_has_run_out(const struct trainer *trainer) {
    return early_stopping_due(&trainer->stopping, &trainer->state) &&
           evaluation_due(trainer->config, trainer->state.epoch);
}

static enum status run_epoch(struct trainer *trainer, const struct trainer_observer *observer) {
    struct device *device = &trainer->compute->device;
    struct train_state *state = &trainer->state;
    struct profile idle = {0}, *profile = device->profile ? device->profile : &idle;
    const struct profile before = *profile;
    const size_t first = (size_t)state->step;
    const uint64_t images_before = state->tally.images;

    device_range_begin(device, "epoch");
    trainer_begin_epoch(trainer);
    enum status status = run_steps(trainer, observer);
    device_range_end(device);
    report_steps(trainer, observer, first);
    if (status) return status;

    struct epoch_record record = {.epoch = (size_t)state->epoch + 1,
                                  .train_loss = state->tally.loss_sum / (double)state->tally.images,
                                  .train_correct = state->tally.correct,
                                  .train_images = state->tally.images};
    const bool evaluated = evaluation_due(trainer->config, state->epoch + 1);
    if (evaluated) status = evaluate_epoch(trainer, &record);
    if (status) return status;
    record.time = profile_since(profile, &before);
    record.seconds = profile_training(&record.time);
    record.images_per_second =
        record.seconds > 0 ? (double)(state->tally.images - images_before) / record.seconds : 0;
    if (first == 0) /* the rest of an interrupted epoch is no epoch */
        trainer->epoch_seconds[trainer->epochs_done++ % TIMED_EPOCHS] = record.seconds;
    if (evaluated)
        early_stopping_look(&trainer->stopping, &trainer->mlp, &trainer->optimizer, state->epoch + 1,
                            record.average.total ? &record.average : &record.evaluation, &state->best);
    *state = (struct train_state){.epoch = state->epoch + 1, .updates = state->updates, .best = state->best};
    if (observer->epoch) observer->epoch(observer->self, &record);
    device_lap(device, PART_OTHER);
    return STATUS_OK;
}

static void save_on_the_way(struct trainer *trainer, const struct trainer_observer *observer) {
    const int64_t every = trainer->config->save_every;
    const bool due =
        every && trainer->state.epoch % every == 0 && trainer->state.epoch < trainer->config->epochs;
    if (!trainer->config->save[0] || !due) return;
    if (trainer_save(trainer, trainer->config->save) && observer->warning)
        observer->warning(observer->self, status_message());
}

static void fill_summary(const struct trainer *trainer, bool interrupted, struct run_summary *summary) {
    const struct profile *profile = trainer->compute->device.profile;
    const size_t timed = at_most(trainer->epochs_done, TIMED_EPOCHS);
    *summary =
        (struct run_summary){.done = true,
                             .epochs = trainer->epochs_done,
                             .test = trainer->last_test,
                             .average = trainer->last_average,
                             .stopped_early = patience_has_run_out(trainer),
                             .best_epoch = interrupted ? 0 : trainer->state.best.epoch,
                             .median_epoch_seconds = statistics_of(trainer->epoch_seconds, timed).median,
                             .interrupted = interrupted};
    if (profile) summary->time = *profile;
}

enum status trainer_run(struct trainer *trainer, const struct trainer_observer *observer,
                        struct run_summary *summary) {
    enum status status = STATUS_OK;
    *summary = (struct run_summary){0};
    if (trainer->notice[0] && observer->warning) observer->warning(observer->self, trainer->notice);
    device_lap(&trainer->compute->device, PART_STARTUP); /* whatever the caller did since trainer_open */
    while (trainer->state.epoch < trainer->config->epochs && !status && !patience_has_run_out(trainer)) {
        status = run_epoch(trainer, observer);
        if (!status) save_on_the_way(trainer, observer);
    }
    if (status && status != STATUS_INTERRUPTED) return status;
    if (!status) {
        early_stopping_restore(&trainer->stopping, &trainer->mlp, &trainer->optimizer, &trainer->state.best);
        trainer->tested &= trainer->state.best.epoch == 0; /* tested were the last ones */
    }
    /* first, since the test costs time and may be interrupted for good */
    const enum status saved =
        trainer->config->save[0] ? trainer_save(trainer, trainer->config->save) : STATUS_OK;
    const enum status tested = evaluate_test(trainer);
    if (tested) return tested;
    fill_summary(trainer, status == STATUS_INTERRUPTED, summary);
    return saved ? saved : status;
}

enum status trainer_save(struct trainer *trainer, const char *path) {
    struct profile *profile = trainer->compute->device.profile;
    trainer->compute->device.driver->synchronize(&trainer->compute->device);
    if (profile) profile_divert(profile, PART_CHECKPOINT);
    const enum status status = checkpoint_save(path, &trainer->mlp, trainer->config, &trainer->state);
    if (profile) profile_restore(profile);
    return status;
}
