#include "src/bench/agreement.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/registry.h"

enum { MOST_ROWS = 256, MOST_STEPS = 50, LEAST_STEPS = 4 };
static const double MOST_FLOPS = 5e10;

/* Larger than the drift of float32 on the reference loops in any config of this project. */
static const double USUAL_DRIFT = 1e-6;
static const double MOST_GROWTH = 10; /* beyond it, agreement proves nothing: such steps are cut */

/* Ten times the usual drift of float32; as generous in the other precisions. */
double agreement_tolerance(const struct agreement *agreement, enum gemm_dtype dtype,
                           enum gemm_precision precision) {
    const double usual = dtype == GEMM_F64 ? 1e-12 : precision == GEMM_TRUE ? 10 * USUAL_DRIFT : 2e-2;
    return agreement->growth * usual;
}

static double flops_of_step(const struct layer_list *layers, size_t rows) {
    double weights = 0;
    for (size_t l = 0; l + 1 < layers->count; l++)
        weights += (double)layers->width[l] * (double)layers->width[l + 1];
    return 6 * weights * (double)rows;
}

/* The recipe with the batch size and the epochs that the compared steps need. */
static struct config shorten(const struct config *config, const struct agreement *agreement, size_t images) {
    struct config few = *config;
    const size_t steps_per_epoch = (images + agreement->rows - 1) / agreement->rows;
    few.batch_size = (int64_t)agreement->rows;
    few.epochs = (int64_t)((agreement->steps + steps_per_epoch - 1) / steps_per_epoch);
    return few;
}

/* The losses of the first steps; NaN where one is missing. */
static enum status run_losses(size_t steps, const struct config *config, const struct gemm_backend *backend,
                              const struct dataset_pair *data, double *losses) {
    struct run_result result;
    const struct run_limits limits = {.steps = steps, .losses = losses};
    struct dataset_pair training = *data; /* a view */
    training.test.count = 0;              /* no evaluation */
    for (size_t s = 0; s < steps; s++) losses[s] = NAN;
    const enum status status = run_training(config, backend, &training, &limits, &result);
    if (!status) run_close(&result);
    return status && result.diverged ? STATUS_VERIFY_FAILED : status; /* the reference did not diverge */
}

static enum status measure_drift(const struct agreement *agreement, const struct config *config,
                                 const struct gemm_backend *backend, const struct dataset_pair *data,
                                 struct drift *drift) {
    const struct config few = shorten(config, agreement, data->train.count - (size_t)config->validation);
    double *losses = malloc(agreement->steps * sizeof *losses);
    *drift = (struct drift){.tolerance = agreement_tolerance(agreement, (enum gemm_dtype)config->dtype,
                                                             (enum gemm_precision)config->precision)};
    if (!losses) return status_set(STATUS_FAILED, "out of memory");
    const enum status status = run_losses(agreement->steps, &few, backend, data, losses);
    for (size_t s = 0; s < agreement->steps && !status; s++) {
        const double relative = fabs(losses[s] - agreement->losses[s]) / fabs(agreement->losses[s]);
        if (relative <= drift->relative) continue;
        drift->relative = isnan(relative) ? INFINITY : relative;
        drift->step = s + 1;
    }
    free(losses);
    return status;
}

/* Cuts the steps from the first in which float32 on the reference loops is too far from float64. */
static void cut_steps(struct agreement *agreement) {
    for (size_t s = 0; s < agreement->steps; s++) {
        const double drift = fabs(agreement->single[s] - agreement->losses[s]) / fabs(agreement->losses[s]);
        if (s && !(drift <= MOST_GROWTH * USUAL_DRIFT)) {
            agreement->steps = s;
        } else if (drift > agreement->growth * USUAL_DRIFT) {
            agreement->growth = drift / USUAL_DRIFT;
        }
    }
}

enum status agreement_open(struct agreement *agreement, const struct config *config,
                           const struct dataset_pair *data) {
    *agreement = (struct agreement){
        .rows = (size_t)config->batch_size < MOST_ROWS ? (size_t)config->batch_size : MOST_ROWS};
    const size_t images = data->train.count - (size_t)config->validation;
    if (agreement->rows > images) agreement->rows = images;
    const double affordable = MOST_FLOPS / flops_of_step(&config->layers, agreement->rows);
    agreement->steps = affordable < LEAST_STEPS  ? LEAST_STEPS
                       : affordable > MOST_STEPS ? MOST_STEPS
                                                 : (size_t)affordable;
    agreement->config = shorten(config, agreement, images);
    snprintf(agreement->config.backend, sizeof agreement->config.backend, "serial"); /* without options */
    agreement->config.dtype = GEMM_F64;
    agreement->config.precision = GEMM_TRUE;
    agreement->config.engine = ENGINE_AUTO;
    agreement->config.residency = RESIDENCY_DEVICE;
    agreement->losses = calloc(2 * agreement->steps, sizeof *agreement->losses);
    agreement->single = agreement->losses + agreement->steps;
    if (!agreement->losses) return status_set(STATUS_FAILED, "out of memory");

    agreement->growth = 1;
    const struct gemm_backend *loops;
    struct config single = agreement->config;
    single.dtype = GEMM_F32;
    enum status status = registry_find("openmp", &loops); /* bit-identical to serial */
    if (status) status = registry_find("serial", &loops);
    if (!status) status = run_losses(agreement->steps, &agreement->config, loops, data, agreement->losses);
    if (!status) status = run_losses(agreement->steps, &single, loops, data, agreement->single);
    if (!status) {
        cut_steps(agreement);
        return STATUS_OK;
    }
    agreement_close(agreement);
    return status_context(status, "the float64 reference: ");
}

void agreement_close(struct agreement *agreement) {
    free(agreement->losses);
    *agreement = (struct agreement){0};
}

/* The curve has batches of at most MOST_ROWS images. If the backend runs fused steps on larger batches,
   compares their first losses with those of engine eager, whose products were verified in these shapes. */
static enum status check_large_batches(const struct agreement *agreement, const struct config *config,
                                       const struct gemm_backend *backend, const struct dataset_pair *data) {
    enum { STEPS = 2 }; /* the second depends on the first update */
    const bool fused = backend->fused && (config->engine == ENGINE_AUTO || config->engine == ENGINE_FUSED);
    if (!fused || (size_t)config->batch_size <= agreement->rows) return STATUS_OK;
    const double tolerance = agreement_tolerance(agreement, (enum gemm_dtype)config->dtype,
                                                 (enum gemm_precision)config->precision);
    struct config eager = *config;
    double losses[STEPS], wanted[STEPS];
    eager.engine = ENGINE_EAGER;
    enum status status = run_losses(STEPS, config, backend, data, losses);
    if (!status) status = run_losses(STEPS, &eager, backend, data, wanted);
    for (size_t s = 0; s < STEPS && !status; s++) {
        const double off = fabs(losses[s] - wanted[s]) / fabs(wanted[s]);
        const bool missing = isnan(wanted[s]) && isnan(losses[s]); /* the training has one step */
        if (off <= tolerance || missing) continue;
        status = status_set(
            STATUS_VERIFY_FAILED,
            "engine fused: the loss of step %zu is off by %.1e of what eager gives; %.0e is allowed", s + 1,
            off, tolerance);
    }
    return status;
}

enum status agreement_check(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct drift *drift) {
    const enum status status = measure_drift(agreement, config, backend, data, drift);
    if (status) return status;
    if (drift->relative <= drift->tolerance) return check_large_batches(agreement, config, backend, data);
    return status_set(
        STATUS_VERIFY_FAILED,
        "the loss of step %zu is off by %.1e of what float64 on one thread gives; %.0e is allowed",
        drift->step, drift->relative, drift->tolerance);
}
