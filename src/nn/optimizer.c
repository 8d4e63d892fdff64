#include "src/nn/optimizer.h"

/* Adds the state of the rule and the moving average. */
static enum status add_state(struct optimizer *optimizer, struct mlp *mlp, double ema_decay) {
    struct update *update = &optimizer->update;
    enum status status = STATUS_OK;
    if (uses_second_moment(update->method)) {
        status = mlp_add_state(mlp, "optimizer.exp_avg.", MISSING_IS_AN_ERROR, &update->moment1);
        if (!status)
            status = mlp_add_state(mlp, "optimizer.exp_avg_sq.", MISSING_IS_AN_ERROR, &update->moment2);
    } else if (update->momentum > 0) {
        status = mlp_add_state(mlp, "optimizer.velocity.", MISSING_IS_AN_ERROR, &update->moment1);
    }
    if (!status && ema_decay > 0)
        status = mlp_add_state(mlp, "ema.", MISSING_COPIES_WEIGHTS, &optimizer->average);
    update->average = optimizer->average;
    return status;
}

enum status optimizer_open(struct optimizer *optimizer, struct mlp *mlp, const struct config *config) {
    *optimizer = (struct optimizer){.update = {.method = (enum update_method)config->optimizer,
                                               .nesterov = config->nesterov,
                                               .momentum = config->momentum,
                                               .weight_decay = config->weight_decay,
                                               .beta1 = config->beta1,
                                               .beta2 = config->beta2,
                                               .epsilon = config->epsilon,
                                               .weights = mlp->parameters,
                                               .grad = mlp->gradients,
                                               .rounded = mlp->low_precision},
                                    .clip_norm = config->clip_norm,
                                    .max_norm = config->max_norm};
    struct device *device = &mlp->compute->device;
    struct update *update = &optimizer->update;
    if (optimizer->clip_norm > 0) {
        update->clip = optimizer->clip = device->driver->alloc(device, sizeof *optimizer->clip);
        if (!optimizer->clip) return STATUS_FAILED;
    }
    const enum status status = add_state(optimizer, mlp, config->ema_decay);
    if (optimizer->max_norm > 0) {
        optimizer->after_max_norm = (struct update){.method = UPDATE_NONE,
                                                    .weights = update->weights,
                                                    .average = update->average,
                                                    .rounded = update->rounded};
        update->average = update->rounded = NULL;
    }
    return status;
}

void optimizer_close(struct optimizer *optimizer, struct mlp *mlp) {
    struct device *device = &mlp->compute->device;
    device->driver->free(device, optimizer->clip);
    *optimizer = (struct optimizer){0};
}

bool optimizer_divides(const struct optimizer *optimizer) {
    return !optimizer->clip && optimizer->max_norm == 0;
}

void optimizer_step_part(struct optimizer *optimizer, struct mlp *mlp, size_t first, size_t count,
                         const struct step_scalars *step, const struct tally *guard) {
    struct device *device = &mlp->compute->device;
    const struct update part = mlp_update_from(mlp, &optimizer->update, first);
    if (!count) return;
    device_range_begin(device, "update");
    mlp->ops->update(device->ops_context, count, &part, step, guard);
    device_range_end(device);
    device_lap(device, PART_OPTIMIZER);
}

/* Updates all parameters except those that mlp_backward has already updated. */
static void update_rest(struct optimizer *optimizer, struct mlp *mlp, const struct step_scalars *step,
                        const struct tally *guard) {
    struct mlp_range left[MLP_MAX_RANGES];
    const size_t count = mlp_ranges_left(mlp, left);
    for (size_t i = 0; i < count; i++)
        optimizer_step_part(optimizer, mlp, left[i].first, left[i].count, step, guard);
}

void optimizer_step(struct optimizer *optimizer, struct mlp *mlp, const struct step_scalars *step,
                    const struct tally *guard) {
    struct device *device = &mlp->compute->device;
    const struct ops *ops = mlp->ops;
    const size_t count = mlp->parameter_elements;
    if (optimizer_divides(optimizer)) {
        update_rest(optimizer, mlp, step, guard);
        return;
    }
    device_range_begin(device, "update");
    if (optimizer->clip)
        ops->clip_norm(device->ops_context, count, mlp->gradients, optimizer->clip_norm, optimizer->clip);
    ops->update(device->ops_context, count, &optimizer->update, step, guard);
    if (optimizer->max_norm > 0) {
        for (size_t l = 0; l < mlp->depth; l++)
            ops->max_norm(device->ops_context, mlp->layer[l].in, mlp->layer[l].ld, optimizer->max_norm, guard,
                          mlp->layer[l].weight);
        if (optimizer->after_max_norm.average || optimizer->after_max_norm.rounded)
            ops->update(device->ops_context, count, &optimizer->after_max_norm, step, guard);
    }
    device_range_end(device);
    device_lap(device, PART_OPTIMIZER);
}
