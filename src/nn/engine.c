#include "src/nn/engine.h"

enum status engine_gradients(struct trainer *trainer, size_t step, size_t rows) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    const struct mlp_layer *last = mlp_last(mlp);

    mlp->ops->gather(device->ops_context, rows, trainer->train.features, trainer->train.images,
                     trainer->train.labels, trainer->order + step * trainer->batch, mlp->input, mlp->labels);
    device_lap(device, PART_BATCH);
    const enum status status = mlp_forward(mlp, rows);
    if (status) return status;
    mlp->ops->softmax_cross_entropy(device->ops_context, rows, last->out, last->output, mlp->labels,
                                    last->grad, trainer->losses + step, trainer->tally);
    device_lap(device, PART_ELEMENTWISE);
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

const struct engine engine_eager = {.name = "eager", .run = eager_run};

/* --- graph --- */

/* A node takes about a kilobyte, and a step a dozen nodes. */
enum { LONGEST_GRAPH = 4096 };

static enum status graph_prepare(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    enum status status = device->driver->begin_capture(device);
    if (status) return status;
    status = eager_run(trainer, 0, trainer->steps);
    const enum status ended = device->driver->end_capture(device, &trainer->graph);
    return status ? status : ended;
}

static enum status graph_run(struct trainer *trainer, size_t first, size_t count) {
    struct device *device = &trainer->compute->device;
    if (count != trainer->steps)
        return eager_run(trainer, first, count); /* the rest of an interrupted epoch */
    const enum status status = device->driver->replay(device, trainer->graph);
    device_lap(device, PART_GRAPH);
    return status;
}

const struct engine engine_graph = {
    .name = "graph", .stride = LONGEST_GRAPH, .prepare = graph_prepare, .run = graph_run};

enum status engine_select(const struct trainer *trainer, const struct engine **engine) {
    const enum engine_choice choice = (enum engine_choice)trainer->config->engine;
    const char *device = trainer->compute->device.driver->name;
    const bool captures = trainer->compute->device.driver->begin_capture != NULL,
               fits = trainer->steps <= LONGEST_GRAPH;
    *engine = choice != ENGINE_EAGER && captures && fits ? &engine_graph : &engine_eager;
    if (choice != ENGINE_GRAPH || *engine == &engine_graph) return STATUS_OK;
    if (!captures)
        return status_set(STATUS_UNAVAILABLE,
                          "engine graph needs a device that captures graphs, and tensors live on the %s: use "
                          "--engine eager, or a CUDA backend with --residency device",
                          device);
    return status_set(
        STATUS_UNAVAILABLE,
        "engine graph takes epochs of up to %d steps, and this one has %zu: use --engine eager, or a "
        "larger --batch-size",
        LONGEST_GRAPH, trainer->steps);
}
