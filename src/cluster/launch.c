/* Iterations of Lloyd's algorithm in one call of the backend (kernels/nearest.h, lloyd). */
#include <stdlib.h>
#include <string.h>

#include "src/backend/audit.h"
#include "src/cluster/kmeans.h"

enum { FIRST_ITERATIONS = 2 };          /* of the first launch; the next ones have as many as fit into */
static const double MOST_SECONDS = 0.1; /* since Ctrl-C waits for the end of a launch */

/* An audit of all labels needs every pass. */
static bool can_launch(const struct kmeans *run) {
    const struct assigner *assigner = &run->assigner;
    const struct gemm_nearest *slot = run->compute->backend->nearest;
    const struct audit *audit = run->compute->audit;
    return !run->step.step && assigner->fused && assigner->in_range && slot->lloyd && !run->options->batch &&
           !run->points->stream && assigner->bytes == (run->points->bytes != NULL) &&
           assigner->bounds != BOUNDS_ON && !(audit && audit->mode == AUDIT_ALL);
}

/* The labels belong to the centres before the last move. */
static enum status audit_labels(struct kmeans *run, bool moved) {
    struct nearest_centres *centres = &run->assigner.centres;
    void *values = centres->values;
    if (moved) centres->values = run->values_before;
    const enum status status = assigner_audit(&run->assigner, run->points, run->label);
    centres->values = values;
    return status;
}

enum status kmeans_launch(struct kmeans *run, size_t most, size_t *done) {
    struct device *device = &run->compute->device;
    const struct kmeans_options *options = run->options;
    const struct points *points = run->points;
    enum status status = STATUS_OK;
    *done = 0;
    if (!can_launch(run)) return STATUS_OK;
    if (run->split) status = kmeans_fill_split(run);
    run->was_split = run->split;
    if (status) return status;
    if (!run->launch) run->launch = FIRST_ITERATIONS;
    const struct nearest_call call = assigner_points(&run->assigner, points, run->label);
    const struct cluster_rows rows = kmeans_rows(run, points, run->label, points->bytes ? run->before : NULL);
    const struct nearest_lloyd lloyd = {.points = &call,
                                        .centres = &run->assigner.centres,
                                        .values_before = run->values_before,
                                        .sums = &run->sums,
                                        .mean = run->mean,
                                        .cost = run->cost,
                                        .shift = run->shift,
                                        .rows = &rows,
                                        .iterations = most < run->launch ? most : run->launch,
                                        .few_changes = options->change_limit * (double)points->count,
                                        .least_shift = options->tolerance * run->variance,
                                        .stop_at_empty = options->empty != EMPTY_KEEP};
    const double start = clock_seconds();
    status = assigner_lloyd(&run->assigner, &lloyd, run->launched, done);
    device_lap(device, PART_STEPS);
    if (status || !*done) return status;
    if (*done > 1) run->was_split = false;
    const double fit = MOST_SECONDS * (double)*done / (clock_seconds() - start);
    run->launch = fit < 1 ? 1 : fit > NEAREST_ITERATIONS ? NEAREST_ITERATIONS : (size_t)fit;
    struct nearest_iteration *last = &run->launched[*done - 1];
    const bool moved = !(last->empty && lloyd.stop_at_empty);
    status = audit_labels(run, moved);
    if (moved) {
        run->split = false;
        assigner_set_centres(&run->assigner, run->sums.clusters);
    } else if (!status) {
        struct kmeans_record record = {0};
        status = kmeans_move(run, &record);
        last->shift = record.shift;
        last->cost = record.inertia - run->spread;
    }
    return status;
}

/* --- verification --- */

/* What two iterations leave, on the host. */
struct snapshot {
    void *memory;
    size_t bytes;
};

static void download(struct kmeans *run, struct snapshot *shot, const void *from, size_t bytes) {
    run->compute->device.driver->download(&run->compute->device, (char *)shot->memory + shot->bytes, from,
                                          bytes);
    shot->bytes += bytes;
}

static enum status take_snapshot(struct kmeans *run, struct snapshot *shot) {
    const size_t clusters = run->sums.clusters, elements = clusters * run->points->features,
                 values = elements * dtype_size(run->points->dtype),
                 labels = run->points->count * sizeof *run->label;
    *shot = (struct snapshot){
        .memory = malloc(values + elements * sizeof(double) + clusters * sizeof(uint64_t) + labels)};
    if (!shot->memory) return status_set(STATUS_FAILED, "out of memory");
    download(run, shot, run->assigner.centres.values, values);
    download(run, shot, run->sums.sums, elements * sizeof(double));
    download(run, shot, run->sums.count, clusters * sizeof(uint64_t));
    download(run, shot, run->label, labels);
    return run->compute->device.driver->synchronize(&run->compute->device);
}

/* Back to the centres `values`, and the labels of options->start if there is one. */
static enum status rewind_run(struct kmeans *run, const void *values) {
    const size_t bytes = run->sums.clusters * run->points->features * dtype_size(run->points->dtype);
    struct device *device = &run->compute->device;
    enum status status = kmeans_reset(run);
    if (!status && run->options->start) status = kmeans_restore(run, run->options->start);
    if (!status) device->driver->upload(device, run->assigner.centres.values, values, bytes);
    if (!status) assigner_set_centres(&run->assigner, run->sums.clusters);
    return status;
}

enum { VERIFIED = 2 }; /* iterations */

static enum status run_steps(struct kmeans *run) {
    enum status status = STATUS_OK;
    for (int i = 0; i < VERIFIED && !status; i++) {
        struct kmeans_record record = {0};
        status = kmeans_lloyd(run, &record);
    }
    return status;
}

static enum status run_launches(struct kmeans *run) {
    enum status status = STATUS_OK;
    for (size_t i = 0, done; i < VERIFIED && !status; i += done) {
        status = kmeans_launch(run, VERIFIED - i, &done);
        if (!status && !done) return status_set(STATUS_UNAVAILABLE, "not for these points");
    }
    return status;
}

enum status kmeans_verify_launch(struct kmeans *run) {
    struct snapshot steps = {0}, launches = {0};
    struct device *device = &run->compute->device;
    const size_t bytes = run->sums.clusters * run->points->features * dtype_size(run->points->dtype);
    if (!can_launch(run)) return STATUS_OK;
    void *centres = malloc(bytes);
    if (!centres) return status_set(STATUS_FAILED, "out of memory");
    device->driver->download(device, centres, run->assigner.centres.values, bytes);
    enum status status = run_steps(run);
    if (!status) status = take_snapshot(run, &steps);
    if (!status) status = rewind_run(run, centres);
    if (!status) status = run_launches(run);
    const bool none = status == STATUS_UNAVAILABLE;
    if (!status) status = take_snapshot(run, &launches);
    if (!status && memcmp(steps.memory, launches.memory, steps.bytes) != 0)
        status = status_set(
            STATUS_VERIFY_FAILED,
            "two iterations in one launch give other labels, sums or centres than step by step: use "
            "--engine eager");
    if (!status || none) status = rewind_run(run, centres);
    free(centres);
    free(steps.memory);
    free(launches.memory);
    return status;
}
