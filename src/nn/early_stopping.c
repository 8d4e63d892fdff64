#include "src/nn/early_stopping.h"

enum status early_stopping_open(struct early_stopping *stopping, struct mlp *mlp,
                                const struct optimizer *optimizer, int64_t patience) {
    *stopping = (struct early_stopping){.patience = patience};
    if (!patience) return STATUS_OK;
    const enum status status = mlp_add_state(mlp, "best.", MISSING_IS_EMPTY, &stopping->best);
    if (status || !optimizer->average) return status;
    return mlp_add_state(mlp, "best.ema.", MISSING_IS_EMPTY, &stopping->average);
}

static void copy(const struct mlp *mlp, void *to, const void *from) {
    struct device *device = &mlp->compute->device;
    if (to) device->driver->copy(device, to, from, mlp->parameter_elements * dtype_size(mlp->dtype));
}

void early_stopping_update(const struct early_stopping *stopping, const struct mlp *mlp,
                           const struct optimizer *optimizer, int64_t epoch,
                           const struct evaluation *evaluation, struct best_epoch *best) {
    if (!stopping->patience) return;
    if (best->epoch && (evaluation->correct < best->correct ||
                        (evaluation->correct == best->correct && !(evaluation->loss < best->loss))))
        return;
    *best = (struct best_epoch){epoch, evaluation->correct, evaluation->loss};
    copy(mlp, stopping->best, mlp->parameters);
    copy(mlp, stopping->average, optimizer->average);
}

bool early_stopping_due(const struct early_stopping *stopping, const struct train_state *state) {
    return stopping->patience && state->best.epoch && state->epoch - state->best.epoch >= stopping->patience;
}

void early_stopping_restore(const struct early_stopping *stopping, struct mlp *mlp,
                            const struct optimizer *optimizer, const struct best_epoch *best) {
    if (!stopping->patience || !best->epoch) return;
    copy(mlp, mlp->parameters, stopping->best);
    if (stopping->average) copy(mlp, optimizer->average, stopping->average);
    mlp_parameters_changed(mlp);
}
