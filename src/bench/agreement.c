#include "src/bench/agreement.h"

#include <stdlib.h>

#include "src/backend/registry.h"
#include "src/nn/engine.h"

enum { MOST_ROWS = 256, MOST_STEPS = 16, LEAST_STEPS = 3 };
static const double MOST_FLOPS = 1e10;

static double flops_of_step(const struct layer_list *layers, size_t rows) {
    double weights = 0;
    for (size_t l = 0; l + 1 < layers->count; l++)
        weights += (double)layers->width[l] * (double)layers->width[l + 1];
    return 6 * weights * (double)rows;
}

void agreement_plan(struct agreement *agreement, const struct config *config,
                    const struct dataset_pair *data) {
    const size_t images = data->train.count - (size_t)config->validation;
    size_t rows = (size_t)config->batch_size < MOST_ROWS ? (size_t)config->batch_size : MOST_ROWS;
    if (rows > images) rows = images;
    const double affordable = MOST_FLOPS / flops_of_step(&config->layers, rows);
    const size_t steps = affordable < LEAST_STEPS  ? LEAST_STEPS
                         : affordable > MOST_STEPS ? MOST_STEPS
                                                   : (size_t)affordable;
    const size_t steps_per_epoch = (images + rows - 1) / rows;
    *agreement = (struct agreement){.config = *config, .rows = rows, .steps = steps};
    struct config *reference = &agreement->config;
    reference->batch_size = (int64_t)rows;
    reference->epochs = (int64_t)((steps + steps_per_epoch - 1) / steps_per_epoch);
    snprintf(reference->backend, sizeof reference->backend, "serial"); /* without options */
    reference->dtype = GEMM_F64;
    reference->precision = GEMM_TRUE;
    reference->engine = ENGINE_EAGER;
    reference->residency = RESIDENCY_DEVICE;
}

/* --- a backend in a training of its own --- */

enum status agreement_open_side(struct agreement_side *side, const struct config *config,
                                const struct gemm_backend *backend, const struct dataset_pair *data) {
    struct config *own = &side->config;
    *own = *config;
    own->log[0] = own->csv[0] = own->save[0] = own->save_init[0] = own->resume[0] = '\0';
    own->ensemble = 1;
    const struct compute_options options = config_compute(own);
    enum status status = compute_open(&side->compute, backend, &options);
    if (!status) status = trainer_open(&side->trainer, &side->compute, own, data, NULL);
    if (!status && side->trainer.notice[0]) /* the requested engine is not available */
        status = status_set(STATUS_UNAVAILABLE, "%s", side->trainer.notice);
    if (!status) trainer_begin_epoch(&side->trainer);
    return status;
}

enum status agreement_open_reference(struct agreement_side *side, const struct config *config,
                                     const struct dataset_pair *data) {
    const struct gemm_backend *loops;
    enum status status = registry_find("openmp", &loops); /* bit-identical to serial */
    if (status) status = registry_find("serial", &loops);
    return status ? status : agreement_open_side(side, config, loops, data);
}

void agreement_close_side(struct agreement_side *side) {
    trainer_close(&side->trainer);
    compute_close(&side->compute);
}

/* --- the comparison --- */

/* Two trainings in lockstep, and a third in float64 for steps that are beyond their bound. */
struct pair {
    struct agreement_side reference, other, exact;
    const struct config *exact_config; /* NULL: the reference is in float64 itself */
    const struct dataset_pair *data;
    struct lockstep lockstep;
};

static struct trainer *exact_trainer(void *self) {
    struct pair *pair = self;
    struct trainer *exact = &pair->exact.trainer;
    const struct trainer *reference = &pair->reference.trainer;
    if (!pair->exact_config) return &pair->reference.trainer;
    if (!pair->exact.compute.backend &&
        agreement_open_reference(&pair->exact, pair->exact_config, pair->data)) {
        agreement_close_side(&pair->exact);
        return NULL;
    }
    if (exact->state.epoch != reference->state.epoch) {
        exact->state = reference->state;
        trainer_begin_epoch(exact);
    }
    return exact;
}

/* Both sides are open. */
static enum status run_lockstep(struct pair *pair, const struct lockstep_bound *bound, size_t steps) {
    struct lockstep *lockstep = &pair->lockstep;
    struct trainer *const trainers[] = {&pair->reference.trainer, &pair->other.trainer};
    const size_t in_epoch = trainers[0]->steps;
    *lockstep = (struct lockstep){.reference = trainers[0],
                                  .other = trainers[1],
                                  .bound = *bound,
                                  .halve = true,
                                  .exact = exact_trainer,
                                  .self = pair};
    enum status status = lockstep_open(lockstep);
    for (size_t step = 0; step < steps && !status; step++) {
        if (step && step % in_epoch == 0)
            for (int t = 0; t < 2; t++) {
                trainers[t]->state =
                    (struct train_state){.epoch = (int64_t)(step / in_epoch), .updates = step};
                trainer_begin_epoch(trainers[t]);
            }
        status = lockstep_step(lockstep, step % in_epoch);
    }
    lockstep_close(lockstep);
    return status;
}

static void close_pair(struct pair *pair) {
    agreement_close_side(&pair->reference);
    agreement_close_side(&pair->other);
    agreement_close_side(&pair->exact);
    free(pair);
}

static enum status compare_with_reference(const struct agreement *agreement, const struct config *config,
                                          const struct gemm_backend *backend, const struct dataset_pair *data,
                                          struct drift *drift) {
    const struct lockstep_bound bound = lockstep_bound(config);
    struct pair *pair = calloc(1, sizeof *pair);
    if (!pair) return status_set(STATUS_FAILED, "out of memory");
    struct config few = *config;
    few.batch_size = agreement->config.batch_size;
    few.epochs = agreement->config.epochs;
    pair->data = data;
    enum status status = agreement_open_reference(&pair->reference, &agreement->config, data);
    if (status) status = status_context(status, "the float64 reference");
    if (!status) status = agreement_open_side(&pair->other, &few, backend, data);
    if (!status) status = run_lockstep(pair, &bound, agreement->steps);
    const struct lockstep_seen *seen = &pair->lockstep.seen;
    *drift = (struct drift){.relative = seen->drift,
                            .step = status == STATUS_VERIFY_FAILED ? seen->steps : seen->worst,
                            .tolerance = bound.loss};
    close_pair(pair);
    return status;
}

/* If the backend runs fused steps on batches of more than MOST_ROWS images, compares the first with those of
   engine eager, whose products were verified in these shapes. */
static enum status compare_large_batches(const struct agreement *agreement, const struct config *config,
                                         const struct gemm_backend *backend,
                                         const struct dataset_pair *data) {
    enum { STEPS = 2 };
    const bool fused = backend->fused && (config->engine == ENGINE_AUTO || config->engine == ENGINE_FUSED);
    if (!fused || (size_t)config->batch_size <= agreement->rows) return STATUS_OK;
    const struct lockstep_bound bound = lockstep_bound(config);
    struct pair *pair = calloc(1, sizeof *pair);
    if (!pair) return status_set(STATUS_FAILED, "out of memory");
    struct config eager = *config, exact = agreement->config;
    eager.engine = ENGINE_EAGER;
    exact.batch_size = config->batch_size;
    pair->exact_config = &exact;
    pair->data = data;
    enum status status = agreement_open_side(&pair->reference, &eager, backend, data);
    if (!status) status = agreement_open_side(&pair->other, config, backend, data);
    const size_t most = pair->other.trainer.steps * (size_t)config->epochs;
    if (!status) status = run_lockstep(pair, &bound, most < STEPS ? most : STEPS);
    close_pair(pair);
    return status ? status_context(status, "engine fused against eager") : STATUS_OK;
}

enum status agreement_check(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct drift *drift) {
    const enum status status = compare_with_reference(agreement, config, backend, data, drift);
    return status ? status : compare_large_batches(agreement, config, backend, data);
}
