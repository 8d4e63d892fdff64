#include "src/cluster/step.h"

#include <stdio.h>
#include <string.h>

const struct kmeans_step *step_find(const struct device_driver *driver, const char *name) {
    const struct kmeans_step *const *step = driver->kmeans_steps ? driver->kmeans_steps->list : NULL;
    while (step && *step && strcmp((*step)->name, name) != 0) step++;
    return step ? *step : NULL;
}

static bool shares_memory(const struct stepper *stepper) {
    return stepper->gpu == stepper->device;
}

/* Memory of the GPU; NULL: none is left. */
static void *gpu_alloc(const struct stepper *stepper, size_t bytes) {
    return stepper->gpu->driver->alloc(stepper->gpu, bytes);
}

/* The points on the GPU as they are, in memory of their own unless they live there. */
static const void *raw_points(struct stepper *stepper, const struct points *points, void **own) {
    const void *from = points->bytes ? (const void *)points->bytes : points->values;
    const size_t bytes = points->count * points->features * (points->bytes ? 1 : dtype_size(points->dtype));
    if (shares_memory(stepper)) return from;
    *own = gpu_alloc(stepper, bytes);
    if (*own) stepper->gpu->driver->upload(stepper->gpu, *own, from, bytes);
    return *own;
}

/* call.x: the points as reals, by rows or by columns. */
static enum status copy_points(struct stepper *stepper, const struct points *points) {
    struct device *gpu = stepper->gpu;
    const struct device_driver *driver = gpu->driver;
    const size_t count = points->count, features = points->features,
                 bytes = count * features * dtype_size(points->dtype);
    void *raw = NULL, *rows = NULL;
    const void *x = raw_points(stepper, points, &raw);
    if (x && points->bytes) {
        rows = gpu_alloc(stepper, bytes);
        if (rows)
            driver->cluster_ops(gpu, points->dtype)
                ->rows(gpu->ops_context, count, features, true, x, NULL, rows);
        x = rows;
    }
    if (x && stepper->step->by_columns) {
        stepper->x = gpu_alloc(stepper, bytes);
        if (stepper->x)
            driver->kmeans_steps->transpose(gpu->ops_context, points->dtype, count, features, x, stepper->x);
        x = stepper->x;
    }
    stepper->call.x = x;
    const enum status status = driver->synchronize(gpu);
    if (!stepper->step->by_columns) stepper->x = rows ? rows : raw;
    if (rows != stepper->x) driver->free(gpu, rows);
    if (raw != stepper->x) driver->free(gpu, raw);
    return x ? status : STATUS_FAILED;
}

enum status stepper_open(struct stepper *stepper, struct compute *compute, const struct points *points,
                         size_t clusters, const char *name, unsigned block) {
    const bool offloaded = compute->residency == RESIDENCY_HOST;
    *stepper = (struct stepper){.device = &compute->device,
                                .gpu = offloaded ? &compute->offload.gpu : &compute->device};
    struct kmeans_step_call *call = &stepper->call;
    const struct device_driver *driver = stepper->gpu->driver;
    const struct kmeans_step *step = step_find(driver, name);
    if (!step)
        return status_set(
            STATUS_UNAVAILABLE,
            "step %s runs on a GPU, and backend '%s' on the %s: use --backend cublas or another "
            "GPU backend; steps gemm and nearest run on any",
            name, compute->name, driver->name);
    if (points->stream)
        return status_set(STATUS_UNAVAILABLE,
                          "step %s needs points that are not streamed: remove --residency", name);
    if (step->updates ? offloaded : !compute->device.driver->host_memory)
        return status_set(STATUS_UNAVAILABLE, "step %s updates the centres on the %s: use --residency %s",
                          name, step->updates ? "GPU" : "host", step->updates ? "device" : "host");
    stepper->step = step;
    stepper->stale = true;
    *call = (struct kmeans_step_call){.dtype = points->dtype,
                                      .rows = points->count,
                                      .features = points->features,
                                      .clusters = clusters,
                                      .block = block};
    const enum status status = copy_points(stepper, points);
    if (status) return status;
    call->changed = gpu_alloc(stepper, sizeof *call->changed);
    if (!call->changed) return STATUS_FAILED;
    if (step->scratch && !(call->scratch = gpu_alloc(stepper, step->scratch(call) * sizeof *call->scratch)))
        return STATUS_FAILED;
    if (shares_memory(stepper)) return STATUS_OK;
    stepper->centres = gpu_alloc(stepper, clusters * points->features * dtype_size(points->dtype));
    call->label = gpu_alloc(stepper, points->count * sizeof *call->label);
    return stepper->centres && call->label ? STATUS_OK : STATUS_FAILED;
}

void stepper_close(struct stepper *stepper) {
    if (!stepper->step) return;
    struct device *gpu = stepper->gpu;
    const bool own_labels = !shares_memory(stepper);
    void *const memory[] = {stepper->x, stepper->centres, stepper->call.changed, stepper->call.scratch,
                            own_labels ? stepper->call.label : NULL};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) gpu->driver->free(gpu, memory[i]);
    *stepper = (struct stepper){0};
}

void stepper_describe(const struct stepper *stepper, char *text, size_t size) {
    snprintf(text, size, "%s (%s; blocks of %u threads)", stepper->step->name, stepper->step->summary,
             stepper->call.block);
}

/* For points in host memory. The GPU has the labels of the last call, unless the host has changed them since:
   at the start of a run, or for a cluster without points. */
static void upload(struct stepper *stepper, const void *centres, const uint32_t *label) {
    const struct kmeans_step_call *call = &stepper->call;
    const struct device_driver *driver = stepper->gpu->driver;
    device_lap(stepper->device, PART_OTHER);
    driver->upload(stepper->gpu, stepper->centres, centres,
                   call->clusters * call->features * dtype_size(call->dtype));
    if (stepper->stale) driver->upload(stepper->gpu, call->label, label, call->rows * sizeof *label);
    stepper->stale = false;
    device_lap(stepper->device, PART_H2D);
}

enum status stepper_run(struct stepper *stepper, const struct nearest_centres *centres, uint32_t *label,
                        const struct cluster_sums *sums, uint64_t *changed) {
    struct device *gpu = stepper->gpu;
    const struct device_driver *driver = gpu->driver;
    const void *values = stepper->step->by_columns ? centres->transposed : centres->values;
    const bool copies = !shares_memory(stepper);
    struct kmeans_step_call call = stepper->call;
    if (copies) upload(stepper, values, label);
    call.centres = copies ? stepper->centres : values;
    if (!copies) call.label = label;
    if (sums && stepper->step->updates) {
        call.sums = sums->sums;
        call.count = sums->count;
    }
    driver->zero(gpu, call.changed, sizeof *call.changed);
    stepper->step->run(gpu->ops_context, &call);
    enum status status = copies ? driver->synchronize(gpu) : STATUS_OK;
    device_lap(stepper->device, PART_STEPS);
    driver->download(gpu, changed, call.changed, sizeof *changed);
    if (copies) driver->download(gpu, label, call.label, call.rows * sizeof *label);
    if (copies) device_lap(stepper->device, PART_D2H);
    return status ? status : driver->synchronize(gpu);
}
