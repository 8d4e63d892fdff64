#include "src/nn/optimizer.h"

static enum status add_arena(struct optimizer *optimizer, struct mlp *mlp, const char *prefix,
                             void **memory) {
    struct device *device = &mlp->compute->device;
    *memory = device->driver->alloc(device, mlp->parameter_elements * dtype_size(mlp->dtype));
    if (!*memory) return status_context(STATUS_FAILED, "the optimiser keeps as much again as the weights");
    optimizer->arena[optimizer->arenas++] = (struct optimizer_arena){prefix, *memory};
    return STATUS_OK;
}

enum status optimizer_open(struct optimizer *optimizer, struct mlp *mlp, const struct config *config) {
    static const enum update_method methods[] = {
        [OPTIMIZER_SGD] = UPDATE_SGD, [OPTIMIZER_ADAM] = UPDATE_ADAM, [OPTIMIZER_ADAMW] = UPDATE_ADAMW};
    *optimizer = (struct optimizer){.update = {.method = methods[config->optimizer],
                                               .nesterov = config->nesterov,
                                               .momentum = config->momentum,
                                               .weight_decay = config->weight_decay,
                                               .beta1 = config->beta1,
                                               .beta2 = config->beta2,
                                               .epsilon = config->epsilon,
                                               .weights = mlp->parameters,
                                               .grad = mlp->gradients,
                                               .rounded = mlp->operands}};
    struct update *update = &optimizer->update;
    enum status status = STATUS_OK;
    if (update->method != UPDATE_SGD) {
        status = add_arena(optimizer, mlp, "optimizer.exp_avg.", &update->moment1);
        if (!status) status = add_arena(optimizer, mlp, "optimizer.exp_avg_sq.", &update->moment2);
    } else if (update->momentum > 0) {
        status = add_arena(optimizer, mlp, "optimizer.velocity.", &update->moment1);
    }
    return status;
}

void optimizer_close(struct optimizer *optimizer, struct mlp *mlp) {
    struct device *device = &mlp->compute->device;
    for (size_t i = 0; i < optimizer->arenas; i++) device->driver->free(device, optimizer->arena[i].memory);
    *optimizer = (struct optimizer){0};
}

void optimizer_step(struct optimizer *optimizer, struct mlp *mlp, const struct step_scalars *step,
                    const struct tally *guard) {
    struct device *device = &mlp->compute->device;
    device_range_begin(device, "update");
    mlp->ops->update(device->ops_context, mlp->parameter_elements, &optimizer->update, step, guard);
    device_range_end(device);
    device_lap(device, PART_OPTIMIZER);
}
