/* Engine graph: the steps of an epoch, captured once and replayed. */
#include <stdio.h>

#include "src/nn/engine.h"

bool engine_graph_available(const struct trainer *trainer, char *why, size_t size) {
    const struct device_driver *driver = trainer->compute->device.driver;
    if (!driver->begin_capture) {
        snprintf(why, size, "it needs a CUDA backend with --residency device, but tensors live on the %s",
                 driver->name);
    } else if (trainer->steps > ENGINE_MAX_STEPS) {
        snprintf(why, size, "it supports epochs of up to %d steps, and this one has %zu (--batch-size)",
                 ENGINE_MAX_STEPS, trainer->steps);
    } else {
        return true;
    }
    return false;
}

static bool open_graph(struct trainer *trainer, char *why, size_t size) {
    return engine_graph_available(trainer, why, size);
}

static enum status capture(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    struct audit *const audit = trainer->compute->audit;
    const bool gathers_ahead =
        device->driver->aside_begin && trainer->mlp.adversarial == 0 && trainer->parallel.parts == 1;
    enum status status = gathers_ahead ? mlp_open_next(&trainer->mlp) : STATUS_OK;
    if (!status) status = device->driver->begin_capture(device);
    if (status) return status;
    size_t all = trainer->steps;
    trainer->compute->audit = NULL;                             /* nothing is computed yet */
    trainer->mlp.updates_overlap = device->driver->aside_begin; /* engine eager times each product */
    status = engine_eager.run(trainer, 0, &all);
    trainer->mlp.updates_overlap = false;
    trainer->compute->audit = audit;
    const enum status ended = device->driver->end_capture(device, &trainer->engine_state);
    return status ? status : ended;
}

static enum status run(struct trainer *trainer, size_t first, size_t *count) {
    struct device *device = &trainer->compute->device;
    if (*count != trainer->steps) /* the rest of an interrupted epoch */
        return engine_eager.run(trainer, first, count);
    const enum status status = device->driver->replay(device, trainer->engine_state);
    device_lap(device, PART_STEPS);
    return status;
}

static void close_graph(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    if (trainer->engine_state) device->driver->free_graph(device, trainer->engine_state);
}

const struct engine engine_graph = {.name = "graph",
                                    .stride = ENGINE_MAX_STEPS,
                                    .open = open_graph,
                                    .prepare = capture,
                                    .run = run,
                                    .close = close_graph};
