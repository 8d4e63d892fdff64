/* The state at the beginning of a run: none, or that of an earlier run. */
#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"
#include "src/cluster/kmeans.h"

void kmeans_state_free(struct kmeans_state *state) {
    free(state->values);
    free(state->label);
    free(state->sums);
    free(state->members);
    *state = (struct kmeans_state){0};
}

enum status kmeans_reset(struct kmeans *run) {
    struct device *device = &run->compute->device;
    const size_t bytes = run->points->count * sizeof *run->label;
    uint32_t *none = pages_alloc(bytes);
    if (!none) return STATUS_FAILED;
    memset(none, 0xff, bytes); /* NEAREST_NONE */
    device->driver->upload(device, run->label, none, bytes);
    free(none);
    kmeans_clear_sums(run);
    run->split = false;
    run->step.stale = true;
    return STATUS_OK;
}

void kmeans_check_points(const struct kmeans *run) {
    struct kmeans_state *start = run->options->start;
    if (!start || !start->label) return;
    start->other_points = start->fingerprint != run->fingerprint;
    if (start->other_points) start->iteration = 0;
}

/* Lloyd's algorithm: the sums follow from the labels. */
static enum status restore_labels(struct kmeans *run, const uint32_t *label) {
    struct device *device = &run->compute->device;
    device->driver->upload(device, run->label, label, run->points->count * sizeof *label);
    run->step.stale = true;
    kmeans_add_rows(run, run->points, run->label, NULL);
    device->driver->download(device, run->host_count, run->sums.count,
                             run->sums.clusters * sizeof *run->host_count);
    for (size_t j = 0; j < run->sums.clusters; j++)
        run->split = run->split || (run->host_count[j] == 0 && run->options->empty == EMPTY_SPLIT);
    return device->driver->synchronize(device);
}

enum status kmeans_check_step(struct kmeans *run) {
    enum { LAST_ROWS = 1 << 16 };
    struct device *device = &run->compute->device;
    uint64_t changed;
    uint32_t *label = device->driver->alloc(device, run->points->count * sizeof *label);
    enum status status = label ? STATUS_OK : STATUS_FAILED;
    run->step.stale = true;
    if (!status) status = stepper_run(&run->step, &run->assigner.centres, label, NULL, &changed);
    if (!status) status = assigner_check_labels(&run->assigner, run->points, label, LAST_ROWS);
    run->step.stale = true;
    device->driver->free(device, label);
    return status == STATUS_VERIFY_FAILED ? status_context(status, "step %s", run->options->step) : status;
}

enum status kmeans_restore(struct kmeans *run, const struct kmeans_state *start) {
    struct device *device = &run->compute->device;
    const size_t clusters = run->sums.clusters, features = run->points->features;
    device->driver->upload(device, run->assigner.centres.values, start->values,
                           clusters * features * dtype_size(run->points->dtype));
    if (!run->options->batch)
        return start->label && start->iteration ? restore_labels(run, start->label) : STATUS_OK;
    device->driver->upload(device, run->sums.sums, start->sums, clusters * features * sizeof *start->sums);
    device->driver->upload(device, run->sums.count, start->members, clusters * sizeof *start->members);
    return STATUS_OK;
}
