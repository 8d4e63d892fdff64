#include "src/nn/engine.h"

enum status engine_gradients(struct trainer *trainer, size_t step, size_t rows) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    const struct mlp_layer *last = mlp_last(mlp);

    mlp->ops->gather(device->ops_context, rows, trainer->train.features, trainer->train.images,
                     trainer->train.labels, trainer->order + step * trainer->batch, mlp->input, mlp->labels);
    device->driver->lap(device, PART_BATCH);
    const enum status status = mlp_forward(mlp, rows);
    if (status) return status;
    mlp->ops->softmax_cross_entropy(device->ops_context, rows, last->out, last->output, mlp->labels,
                                    last->grad, trainer->losses + step, trainer->tally);
    device->driver->lap(device, PART_ELEMENTWISE);
    return mlp_backward(mlp, rows);
}

static enum status eager_run(struct trainer *trainer, size_t first, size_t count) {
    for (size_t step = first; step < first + count; step++) {
        const enum status status = engine_gradients(trainer, step, engine_rows(trainer, step));
        if (status) return status;
        optimizer_step(&trainer->optimizer, &trainer->mlp, trainer->rates + step, trainer->tally);
    }
    return STATUS_OK;
}

const struct engine engine_eager = {.name = "eager", .stride = 1, .run = eager_run};

const struct engine *engine_select(enum engine_choice choice) {
    switch (choice) {
    case ENGINE_AUTO:
    case ENGINE_EAGER:
        break;
    }
    return &engine_eager;
}
