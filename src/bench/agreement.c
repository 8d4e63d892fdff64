#include "src/bench/agreement.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/registry.h"

enum { MOST_ROWS = 256, MOST_STEPS = 50, LEAST_STEPS = 4 };
static const double MOST_FLOPS = 2e11;

/* Chosen from what correct backends show: a hundred times the largest drift of the configs (tests/test_agreement.c holds them to it). */
double agreement_tolerance(enum gemm_dtype dtype, enum gemm_precision precision) {
    if (dtype == GEMM_F64) return 1e-12;
    return precision == GEMM_TRUE ? 1e-5 : 2e-2;
}

static double flops_of_step(const struct layer_list *layers, size_t rows) {
    double weights = 0;
    for (size_t l = 0; l + 1 < layers->count; l++)
        weights += (double)layers->width[l] * (double)layers->width[l + 1];
    return 6 * weights * (double)rows;
}

/* The recipe, cut to the steps that are compared. */
static struct config cut(const struct config *config, const struct agreement *agreement, size_t images) {
    struct config few = *config;
    const size_t steps_per_epoch = (images + agreement->rows - 1) / agreement->rows;
    few.batch_size = (int64_t)agreement->rows;
    few.epochs = (int64_t)((agreement->steps + steps_per_epoch - 1) / steps_per_epoch);
    return few;
}

enum status agreement_open(struct agreement *agreement, const struct config *config,
                           const struct dataset_pair *data) {
    const struct gemm_backend *serial;
    *agreement = (struct agreement){
        .rows = (size_t)config->batch_size < MOST_ROWS ? (size_t)config->batch_size : MOST_ROWS};
    const size_t images = data->train.count - (size_t)config->validation;
    if (agreement->rows > images) agreement->rows = images;
    const double affordable = MOST_FLOPS / flops_of_step(&config->layers, agreement->rows);
    agreement->steps = affordable < LEAST_STEPS  ? LEAST_STEPS
                       : affordable > MOST_STEPS ? MOST_STEPS
                                                 : (size_t)affordable;
    agreement->config = cut(config, agreement, images);
    agreement->config.dtype = GEMM_F64;
    agreement->config.precision = GEMM_TRUE;
    agreement->config.engine = ENGINE_AUTO;
    agreement->config.residency = RESIDENCY_DEVICE;
    agreement->losses = calloc(agreement->steps, sizeof *agreement->losses);
    if (!agreement->losses) return status_set(STATUS_FAILED, "out of memory");

    struct run_result result;
    const struct run_limits limits = {.steps = agreement->steps, .losses = agreement->losses};
    enum status status = registry_find("openmp", &serial); /* the same bits on any number of threads */
    if (status) status = registry_find("serial", &serial);
    if (!status) status = run_training(&agreement->config, serial, data, &limits, &result);
    if (status) {
        agreement_close(agreement);
        return status_context(status, "the float64 reference: ");
    }
    run_close(&result);
    return STATUS_OK;
}

void agreement_close(struct agreement *agreement) {
    free(agreement->losses);
    *agreement = (struct agreement){0};
}

enum status agreement_check(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct drift *drift) {
    const struct config few = cut(config, agreement, data->train.count - (size_t)config->validation);
    double *losses = malloc(agreement->steps * sizeof *losses);
    struct run_result result;
    *drift = (struct drift){.tolerance = agreement_tolerance((enum gemm_dtype)config->dtype,
                                                             (enum gemm_precision)config->precision)};
    if (!losses) return status_set(STATUS_FAILED, "out of memory");
    for (size_t s = 0; s < agreement->steps; s++) losses[s] = NAN; /* none may be missing */
    const struct run_limits limits = {.steps = agreement->steps, .losses = losses};
    const enum status status = run_training(&few, backend, data, &limits, &result);
    if (!status) {
        for (size_t s = 0; s < agreement->steps; s++) {
            const double relative = fabs(losses[s] - agreement->losses[s]) / fabs(agreement->losses[s]);
            if (relative <= drift->relative) continue;
            drift->relative = isnan(relative) ? INFINITY : relative;
            drift->step = s + 1;
        }
        run_close(&result);
    }
    free(losses);
    if (status || drift->relative <= drift->tolerance) return status;
    return status_set(
        STATUS_VERIFY_FAILED,
        "the loss of step %zu is off by %.1e of what float64 on one thread gives; %.0e is allowed",
        drift->step, drift->relative, drift->tolerance);
}
