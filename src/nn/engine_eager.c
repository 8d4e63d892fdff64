/* Engine eager: one training step, op by op. */
#include "src/nn/engine.h"

/* Forward pass, loss and backward pass of `input`: the images of the batch or, in the second pass, the
   attacked images. */
static enum status forward_backward(struct trainer *trainer, size_t step, size_t rows, bool attacked) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    const struct mlp_layer *last = mlp_last(mlp);
    const struct step_scalars *scalars = trainer->feed.scalars + step;
    const enum status status = mlp_forward(mlp, rows, scalars);
    if (status) return status;
    mlp->ops->softmax_cross_entropy(device->ops_context, rows, last->out, trainer->config->label_smoothing,
                                    last->output, mlp->labels, last->grad,
                                    attacked ? NULL : trainer->losses + step, trainer->tally, !attacked);
    device_lap(device, PART_ELEMENTWISE);
    return mlp_backward(mlp, rows, scalars, attacked ? 0.5 : 0);
}

enum status engine_gradients(struct trainer *trainer, size_t step, size_t rows) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    const struct samples *train = &trainer->train;
    mlp->ops->gather(device->ops_context, rows, train->features, train->range, train->images, train->labels,
                     trainer->feed.order + step * trainer->batch, mlp->input, mlp->labels);
    device_lap(device, PART_BATCH);
    enum status status = forward_backward(trainer, step, rows, false);
    if (mlp->adversarial == 0) return status;
    if (!status) status = mlp_attack(mlp, rows);
    return status ? status : forward_backward(trainer, step, rows, true);
}

static enum status run(struct trainer *trainer, size_t first, size_t *count) {
    for (size_t step = first; step < first + *count; step++) {
        const enum status status = engine_gradients(trainer, step, engine_rows(trainer, step));
        if (status) return status;
        optimizer_step(&trainer->optimizer, &trainer->mlp, trainer->feed.scalars + step, trainer->tally);
    }
    return STATUS_OK;
}

const struct engine engine_eager = {.name = "eager", .run = run};
