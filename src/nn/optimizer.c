#include "src/nn/optimizer.h"

#include <math.h>

enum status optimizer_open(struct optimizer *optimizer, struct mlp *mlp, const struct config *config) {
    struct device *device = &mlp->compute->device;
    *optimizer = (struct optimizer){.momentum = config->momentum, .weight_decay = config->weight_decay};
    if (optimizer->momentum == 0) return STATUS_OK;
    optimizer->velocity = device->driver->alloc(device, mlp->parameter_elements * dtype_size(mlp->dtype));
    return optimizer->velocity ? STATUS_OK : STATUS_FAILED;
}

void optimizer_close(struct optimizer *optimizer, struct mlp *mlp) {
    if (optimizer->velocity) mlp->compute->device.driver->free(&mlp->compute->device, optimizer->velocity);
    optimizer->velocity = NULL;
}

void optimizer_step(struct optimizer *optimizer, struct mlp *mlp, const double *learning_rate,
                    const struct tally *guard) {
    struct device *device = &mlp->compute->device;
    device_range_begin(device, "update");
    mlp->ops->sgd(device->ops_context, mlp->parameter_elements, learning_rate, optimizer->momentum,
                  optimizer->weight_decay, guard, mlp->parameters, mlp->gradients, optimizer->velocity);
    mlp_parameters_changed(mlp);
    device_range_end(device);
    device_lap(device, PART_OPTIMIZER);
}

static double scheduled_rate(const struct config *config, double epoch, double step, double total_steps) {
    const double lr = config->learning_rate, warmup = (double)config->warmup_steps;
    if (step < warmup) return lr * (step + 1) / warmup;
    switch ((enum schedule)config->schedule) {
    case SCHEDULE_CONSTANT:
        return lr;
    case SCHEDULE_STEP:
        return lr * pow(config->lr_gamma, floor(epoch / (double)config->lr_step_epochs));
    case SCHEDULE_EXPONENTIAL:
        return lr * pow(config->lr_gamma, epoch);
    case SCHEDULE_COSINE: {
        const double progress = fmin((step - warmup) / fmax(total_steps - warmup, 1), 1);
        return config->lr_min + (lr - config->lr_min) * 0.5 * (1 + cos(3.14159265358979323846 * progress));
    }
    }
    return lr;
}

void optimizer_schedule(const struct config *config, size_t epoch, size_t steps_per_epoch, double *rates) {
    const double total = (double)config->epochs * (double)steps_per_epoch;
    for (size_t s = 0; s < steps_per_epoch; s++)
        rates[s] = scheduled_rate(config, (double)epoch, (double)(epoch * steps_per_epoch + s), total);
}
