/* Set-up of a training run: data, network, buffers, initial or restored weights, warm-up. */
#include <stdlib.h>

#include "src/nn/centre_layer.h"
#include "src/nn/data_parallel.h"
#include "src/nn/engine.h"
#include "src/nn/step_audit.h"

enum {
    EVALUATION_ROWS = 1000,      /* minimum rows of an evaluation pass: small batches would slow it */
    LIGHT_EVALUATION_ROWS = 128, /* fewer, but so many, if the backend's products then stay light */
    HOST_WARM_UP_ROWS = 128      /* enough to start every library and thread; a full batch may take seconds */
};

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static enum status open_samples(struct trainer *trainer, const struct dataset_pair *data) {
    struct device *device = &trainer->compute->device;
    const struct config *config = trainer->config;
    struct dataset train = data->train; /* a view: `data` owns the memory */
    const struct dataset validation = dataset_split(&train, (size_t)config->validation);
    enum status status = samples_open(&trainer->train, device, config, &train);
    if (!status) status = samples_open(&trainer->validation, device, config, &validation);
    if (!status) status = samples_open(&trainer->test, device, config, &data->test);
    if (!status) status = augmenter_open(&trainer->augmenter, device, config, &train, &trainer->train);
    return status;
}

/* Weights of the largest layer. */
static double most_weights(const struct layer_list *layers) {
    double most = 1;
    for (size_t l = 1; l < layers->count; l++) {
        const double weights = (double)layers->width[l - 1] * (double)layers->width[l];
        if (weights > most) most = weights;
    }
    return most;
}

size_t trainer_capacity(const struct config *config, const struct gemm_backend *backend, size_t batch,
                        size_t train, size_t test) {
    const size_t light = (size_t)(backend->light_multiplications / most_weights(&config->layers));
    const bool stays_light = config->dtype == GEMM_F32 && light >= LIGHT_EVALUATION_ROWS;
    const size_t least = stays_light ? smaller(light, EVALUATION_ROWS) : EVALUATION_ROWS;
    const size_t rows = smaller(least, train > test ? train : test);
    return batch > rows ? batch : rows;
}

static enum status open_network(struct trainer *trainer) {
    const struct config *config = trainer->config;
    const size_t capacity = trainer_capacity(config, trainer->compute->backend, trainer->batch,
                                             trainer->train.count, trainer->test.count);
    struct mlp *mlp = &trainer->mlp;
    enum status status = mlp_open(mlp, trainer->compute, config, capacity);
    if (!status) status = optimizer_open(&trainer->optimizer, mlp, config);
    if (!status) status = early_stopping_open(&trainer->stopping, mlp, &trainer->optimizer, config->patience);
    return status;
}

static enum status open_buffers(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const struct device_driver *driver = device->driver;
    const size_t steps = trainer->steps;
    const enum status status =
        epoch_feed_open(&trainer->feed, device, trainer->config, trainer->train.count, steps);
    if (status) return status;
    trainer->losses = driver->alloc(device, steps * sizeof *trainer->losses);
    trainer->tally = driver->alloc(device, sizeof *trainer->tally);
    if (!trainer->losses || !trainer->tally) return STATUS_FAILED;
    trainer->host_losses = calloc(steps, sizeof *trainer->host_losses);
    trainer->epoch_seconds = calloc(TRAINER_TIMED_EPOCHS, sizeof *trainer->epoch_seconds);
    return trainer->host_losses && trainer->epoch_seconds ? STATUS_OK
                                                          : status_set(STATUS_FAILED, "out of memory");
}

static enum status draw_weights(struct trainer *trainer) {
    const struct config *config = trainer->config;
    const enum init init = (enum init)config->init.choice;
    const enum status status =
        mlp_initialize(&trainer->mlp, init, config->init_range, (uint64_t)config->seed);
    if (status || init != INIT_KMEANS) return status;
    if (config_origin_of(config, "init") == FROM_CHECKPOINT) /* which names no file to read */
        return status_set(STATUS_USAGE, "the initial weights are those of '%s': give --init kmeans:%s",
                          config->init.file, config->init.file);
    return centre_layer_load(&trainer->mlp, config->init.file);
}

/* Draws the initial weights, or restores weights and state from the checkpoint. */
static enum status start_weights(struct trainer *trainer, const struct checkpoint *resume) {
    const struct config *config = trainer->config;
    if (!resume) return draw_weights(trainer);
    const enum status status = checkpoint_restore(resume, &trainer->mlp, &trainer->state);
    if (!config->patience) trainer->state.best = (struct best_epoch){0};
    return status ? status
                  : checkpoint_check_epoch(resume, config, &trainer->state, trainer->batch, trainer->steps);
}

/* Runs every kernel and thread once, on the first and the last batch. After a bad step no update changes a
   weight. */
static enum status warm_up(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    const struct tally frozen = {.bad_step = 1};
    size_t one = 1;
    enum status status;
    trainer_begin_epoch(trainer);
    device->driver->upload(device, trainer->tally, &frozen, sizeof frozen);
    if (device->driver->host_memory) {
        status = engine_gradients(trainer, 0, smaller(trainer->batch, HOST_WARM_UP_ROWS));
        optimizer_step(&trainer->optimizer, &trainer->mlp, trainer->feed.scalars, trainer->tally);
    } else {
        status = engine_eager.run(trainer, 0, &one);
        if (!status) status = engine_eager.run(trainer, trainer->steps - 1, &one);
        if (!status) status = mlp_forward(&trainer->mlp, trainer->mlp.capacity, NULL); /* evaluation */
    }
    if (status) return status;
    status = device->driver->synchronize(device);
    if (!status && trainer->engine->prepare) status = trainer->engine->prepare(trainer);
    epoch_feed_reset(&trainer->feed); /* so that the first epoch draws its order again and its time counts */
    return status ? status : device->driver->synchronize(device);
}

static enum status open_all(struct trainer *trainer, const struct dataset_pair *data,
                            const struct checkpoint *resume) {
    enum status status = open_samples(trainer, data);
    if (status) return status;
    trainer->batch = smaller((size_t)trainer->config->batch_size, trainer->train.count);
    trainer->steps = (trainer->train.count + trainer->batch - 1) / trainer->batch;
    status = open_network(trainer);
    if (!status) status = open_buffers(trainer);
    if (!status) status = start_weights(trainer, resume);
    if (!status) status = data_parallel_open(trainer);
    if (!status) status = data_parallel_join(trainer);
    if (!status) status = engine_select(trainer);
    return status ? status : warm_up(trainer);
}

enum status trainer_open(struct trainer *trainer, struct compute *compute, const struct config *config,
                         const struct dataset_pair *data, const struct checkpoint *resume) {
    *trainer = (struct trainer){.config = config, .compute = compute, .data = data};
    const enum status status = open_all(trainer, data, resume);
    struct profile *profile = compute->device.profile;
    if (status) {
        trainer_close(trainer);
        return status;
    }
    if (profile) { /* all of this was start-up */
        const double total = profile_total(profile), last = profile->last;
        *profile = (struct profile){.last = last};
        profile->seconds[PART_STARTUP] = total;
        profile_lap(profile, (struct profile_slot){.part = PART_STARTUP});
    }
    audit_start(&trainer->audit, (enum audit_mode)config->audit);
    compute->audit = &trainer->audit;
    step_audit_start(trainer);
    return STATUS_OK;
}

void trainer_close(struct trainer *trainer) {
    if (!trainer->compute) return;
    struct device *device = &trainer->compute->device;
    trainer->compute->audit = NULL;
    step_audit_stop(trainer);
    if (trainer->engine && trainer->engine->close) trainer->engine->close(trainer);
    augmenter_close(&trainer->augmenter, device);
    samples_close(&trainer->train, device);
    samples_close(&trainer->validation, device);
    samples_close(&trainer->test, device);
    if (trainer->mlp.compute) optimizer_close(&trainer->optimizer, &trainer->mlp);
    mlp_close(&trainer->mlp);
    data_parallel_close(trainer);
    epoch_feed_close(&trainer->feed, device);
    device->driver->free(device, trainer->losses);
    device->driver->free(device, trainer->tally);
    free(trainer->host_losses);
    free(trainer->epoch_seconds);
    *trainer = (struct trainer){0};
}
