/* The quality of the result of ./train kmeans. */
#include <stdlib.h>

#include "src/cmd/kmeans.h"

/* Labels and inertia of a part other than the training part. */
static enum status label_part(struct kmeans_job *job, struct kmeans_part *part) {
    const struct points *points = part->points;
    const double scale = job->sets.scale;
    struct device *device = &job->compute.device;
    const struct device_driver *driver = device->driver;
    struct assigner assigner;
    struct nearest_counts counts;
    const size_t bytes = points->count * sizeof(uint32_t), clusters = job->options.clusters;
    uint32_t *label = driver->alloc(device, bytes);
    double *squared = driver->alloc(device, points->count * sizeof *squared);
    double *copy = malloc(points->count * sizeof *copy);
    part->own = malloc(bytes);
    enum status status =
        label && squared && copy && part->own ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    const enum status opened =
        assigner_open(&assigner, &job->compute, points, clusters, job->options.certify, job->options.engine);
    if (!status) status = opened;
    if (!status) {
        driver->upload(device, assigner.centres.values, job->result.state.values,
                       clusters * points->features * dtype_size(points->dtype));
        assigner_set_centres(&assigner, clusters);
        status = assigner_run(&assigner, points, label, &counts);
    }
    if (!status) status = assigner_distances(&assigner, points, label, squared);
    if (!status) {
        driver->download(device, part->own, label, bytes);
        driver->download(device, copy, squared, points->count * sizeof *copy);
        for (size_t i = 0; i < points->count; i++) part->inertia += copy[i] * scale * scale;
    }
    part->label = part->own;
    assigner_close(&assigner);
    driver->free(device, label);
    driver->free(device, squared);
    free(copy);
    return status;
}

static enum status find_majority(struct kmeans_job *job) {
    const struct points *points = &job->sets.train;
    const size_t clusters = job->options.clusters;
    if (!points->label) return STATUS_OK;
    uint64_t *scratch = malloc(quality_scratch(clusters) * sizeof *scratch);
    job->majority = malloc(clusters);
    if (scratch && job->majority)
        quality_majority(job->result.label, points->label, points->count, clusters, scratch, job->majority);
    free(scratch);
    return scratch && job->majority ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

enum status kmeans_measure_quality(struct kmeans_job *job) {
    enum status status = find_majority(job);
    profile_divert(&job->profile, PART_EVALUATION);
    for (size_t p = 0; p < KMEANS_PARTS && !status; p++) {
        struct kmeans_part *part = &job->part[p];
        if (!part->points) continue;
        part->label = job->result.label;
        part->inertia = p ? 0 : job->result.inertia;
        if (p) status = label_part(job, part);
        if (!status && job->majority)
            status = quality_measure(part->label, part->points->label, part->points->count,
                                     job->options.clusters, job->majority, &part->quality);
    }
    profile_restore(&job->profile);
    return status;
}
