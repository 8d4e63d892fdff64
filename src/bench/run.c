#include "src/bench/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/core_use.h"
#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/base/memory.h"
#include "src/base/progress.h"
#include "src/base/statistics.h"
#include "src/nn/engine.h"

struct run {
    struct config config;
    struct profile profile;
    struct compute compute;
    struct trainer trainer;
    const struct run_limits *limits;
    struct run_result *result;
    size_t room; /* of result->epoch_seconds */
    double started;
    struct energy_watch energy;
    volatile sig_atomic_t stop;
};

static void on_step(void *self, size_t step, double loss) {
    const struct run *run = self;
    if (run->limits->losses && step <= run->limits->steps) run->limits->losses[step - 1] = loss;
}

static void on_epoch(void *self, const struct epoch_record *record) {
    struct run *run = self;
    if (run->result->epochs < run->room) run->result->epoch_seconds[run->result->epochs++] = record->seconds;
    if (run->energy.meter && energy_watch_epoch(&run->energy)) run->stop = 1;
}

static void on_progress(void *self, size_t epoch, size_t step, size_t steps, double loss) {
    struct run *run = self;
    const struct run_limits *limits = run->limits;
    (void)loss;
    progress_beat();
    run->result->steps = (epoch - 1) * steps + step;
    if (limits->steps && run->result->steps >= limits->steps) run->stop = 1;
    if (limits->seconds > 0 && clock_seconds() - run->started > limits->seconds) run->stop = 1;
}

static enum status open_run(struct run *run, const struct gemm_backend *backend,
                            const struct dataset_pair *data) {
    struct config *config = &run->config;
    config->log[0] = config->csv[0] = config->save[0] = config->save_init[0] = config->resume[0] = '\0';
    config->ensemble = 1;
    config->log_steps = run->limits->losses ? (int64_t)run->limits->steps : 0;
    run->room = (size_t)(config->epochs < 1 << 16 ? config->epochs : 1 << 16);
    run->result->epoch_seconds = calloc(run->room + 1, sizeof *run->result->epoch_seconds);
    if (!run->result->epoch_seconds) return status_set(STATUS_FAILED, "out of memory");

    const struct compute_options options = config_compute(config);
    profile_start(&run->profile);
    enum status status = compute_open(&run->compute, backend, &options);
    if (status) return status;
    run->compute.device.profile = &run->profile;
    status = trainer_open(&run->trainer, &run->compute, config, data, NULL);
    run->trainer.stop = &run->stop;
    return status;
}

static void describe(const struct run *run, struct run_result *result) {
    const struct trainer *trainer = &run->trainer;
    memcpy(result->description, run->compute.description, sizeof result->description);
    memcpy(result->gpu, run->compute.gpu, sizeof result->gpu);
    snprintf(result->device, sizeof result->device, "%s", run->compute.device.driver->name);
    snprintf(result->engine, sizeof result->engine, "%s", trainer->engine->name);
    snprintf(result->residency, sizeof result->residency, "%s", compute_residency(&run->compute));
    snprintf(result->precision, sizeof result->precision, "%s",
             compute_precision(&run->compute, trainer->mlp.dtype));
    result->threads = run->compute.threads;
    result->images_per_epoch = trainer->train.count;
    result->batch = trainer->batch;
    result->steps_per_epoch = trainer->steps;
}

static enum status train(struct run *run) {
    const struct trainer_observer observer = {
        .self = run, .step = on_step, .epoch = on_epoch, .progress = on_progress};
    struct run_summary summary;
    describe(run, run->result);
    run->started = clock_seconds();
    if (run->limits->energy.least > 0 &&
        energy_watch_open(&run->energy, energy_meter_of(&run->compute), &run->limits->energy,
                          &run->result->energy) != STATUS_OK)
        return STATUS_UNAVAILABLE;
    const enum status status = trainer_run(&run->trainer, &observer, &summary);
    if (run->energy.failed) return STATUS_UNAVAILABLE;
    run->result->diverged = run->trainer.state.tally.bad_step != 0;
    if (status && status != STATUS_INTERRUPTED) return status;
    const struct train_state *state = &run->trainer.state;
    run->result->limited = status == STATUS_INTERRUPTED;
    run->result->test = summary.test;
    run->result->time = summary.time;
    run->result->calls_audited = summary.audited;
    run->result->steps_audited = summary.steps_audited;
    run->result->seconds = profile_training(&summary.time);
    run->result->images = (uint64_t)state->epoch * run->trainer.train.count + (uint64_t)state->tally.images;
    return core_use_check_clock(); /* before the backend is closed, which could set it right */
}

enum status run_training(const struct config *config, const struct gemm_backend *backend,
                         const struct dataset_pair *data, const struct run_limits *limits,
                         struct run_result *result) {
    struct run *run = calloc(1, sizeof *run);
    *result = (struct run_result){0};
    if (!run) return status_set(STATUS_FAILED, "out of memory");
    run->config = *config;
    run->limits = limits;
    run->result = result;
    /* each run starts with a fresh device, as a process does; but a plug-in may keep state on the device */
    const struct device_driver *driver = registry_device(backend->device);
    const bool fresh = driver->reset && !plugin_path(backend);
    if (fresh) driver->reset();
    enum status status = open_run(run, backend, data);
    if (!status && run->trainer.notice[0]) /* the requested engine is not available */
        status = status_set(STATUS_UNAVAILABLE, "%s", run->trainer.notice);
    if (!status) status = train(run);
    energy_watch_close(&run->energy);
    trainer_close(&run->trainer);
    compute_close(&run->compute);
    if (fresh) driver->reset();
    free(run);
    if (status) {
        const bool diverged = result->diverged;
        run_close(result);
        result->diverged = diverged;
    }
    return status;
}

void run_close(struct run_result *result) {
    free(result->epoch_seconds);
    *result = (struct run_result){0};
}

/* --- figures of a result --- */

static double epochs_done(const struct run_result *result) {
    return (double)result->images / (double)result->images_per_epoch;
}

double run_epoch_seconds(const struct run_result *result) {
    if (result->epochs == 0) return result->images ? result->seconds / epochs_done(result) : 0;
    double *sorted = memory_resize(NULL, result->epochs * sizeof *sorted);
    if (!sorted) return (double)NAN; /* memory.h notes it: the exit code is 1 */
    memcpy(sorted, result->epoch_seconds, result->epochs * sizeof *sorted);
    const double median = statistics_of(sorted, result->epochs).median;
    free(sorted);
    return median;
}

double run_transfer_ratio(const struct run_result *result) {
    return profile_transfer_ratio(&result->time);
}

double run_part_seconds(const struct run_result *result, enum profile_part part) {
    return result->images ? result->time.seconds[part] / epochs_done(result) : 0;
}

double run_gemm_rate(const struct run_result *result) {
    double flops = 0, seconds = 0;
    for (int op = 0; op < PROFILE_OPS; op++)
        for (size_t l = 0; l < PROFILE_MAX_LAYERS; l++) {
            flops += result->time.gemm[op][l].flops;
            seconds += result->time.gemm[op][l].seconds;
        }
    return seconds > 0 ? flops / seconds : 0;
}
