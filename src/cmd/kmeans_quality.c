/* The quality of the result of ./train kmeans. */
#include <stdlib.h>

#include "src/base/pages.h"
#include "src/cmd/kmeans.h"

/* Labels of a part other than the training part, whose labels are known, and squared[i] of its points. */
static enum status label_part(struct kmeans_job *job, struct kmeans_part *part, double *squared) {
    const struct points *points = part->points;
    struct device *device = &job->compute.device;
    const struct device_driver *driver = device->driver;
    struct assigner assigner;
    struct nearest_counts counts;
    const bool known = part->label != NULL;
    const size_t bytes = points->count * sizeof(uint32_t), clusters = job->options.clusters;
    uint32_t *label = driver->alloc(device, bytes);
    double *distance = driver->alloc(device, points->count * sizeof *distance);
    if (!known) part->label = part->own = malloc(bytes);
    enum status status =
        label && distance && part->label ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    const enum status opened =
        assigner_open(&assigner, &job->compute, points, clusters, job->options.precision, job->options.engine,
                      BOUNDS_OFF); /* for one pass they do not pay */
    if (!status) status = opened;
    if (!status) {
        driver->upload(device, assigner.centres.values, job->result.state.values,
                       clusters * points->features * dtype_size(points->dtype));
        assigner_set_centres(&assigner, clusters);
        if (known) driver->upload(device, label, part->label, bytes);
        if (!known) status = assigner_run(&assigner, points, label, NULL, &counts);
    }
    if (!status) status = assigner_distances(&assigner, points, label, distance);
    if (!status) {
        if (!known) driver->download(device, part->own, label, bytes);
        driver->download(device, squared, distance, points->count * sizeof *squared);
    }
    assigner_close(&assigner);
    driver->free(device, label);
    driver->free(device, distance);
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

/* The medoids of the training part, and their classes, if it has any. */
static enum status find_medoids(struct kmeans_job *job, const double *squared) {
    const struct points *points = &job->sets.train;
    const size_t clusters = job->options.clusters;
    job->medoid = malloc(clusters * sizeof *job->medoid);
    job->medoid_class = points->label ? calloc(clusters, 1) : NULL;
    if (!job->medoid || (points->label && !job->medoid_class))
        return status_set(STATUS_FAILED, "out of memory");
    quality_medoids(job->result.label, squared, points->count, clusters, job->medoid);
    for (size_t j = 0; j < clusters && points->label; j++)
        if (job->medoid[j] != QUALITY_NO_POINT) job->medoid_class[j] = points->label[job->medoid[j]];
    return STATUS_OK;
}

static enum status measure_part(struct kmeans_job *job, size_t p) {
    struct kmeans_part *part = &job->part[p];
    const struct points *points = part->points;
    const double scale = job->sets.scale;
    double *squared = pages_alloc(points->count * sizeof *squared);
    part->label = p ? NULL : job->result.label;
    enum status status = squared ? label_part(job, part, squared) : STATUS_FAILED;
    for (size_t i = 0; p && !status && i < points->count; i++) part->inertia += squared[i] * scale * scale;
    if (!p) part->inertia = job->result.inertia;
    if (!p && !status) status = find_medoids(job, squared);
    free(squared);
    if (status || !job->majority) return status;
    part->accuracy = quality_accuracy(part->label, points->label, points->count, job->majority);
    part->medoid_accuracy = quality_accuracy(part->label, points->label, points->count, job->medoid_class);
    return quality_measure(part->label, points->label, points->count, job->options.clusters, &part->quality);
}

enum status kmeans_measure_quality(struct kmeans_job *job) {
    enum status status = find_majority(job);
    profile_divert(&job->profile, PART_EVALUATION);
    for (size_t p = 0; p < KMEANS_PARTS && !status; p++)
        if (job->part[p].points) status = measure_part(job, p);
    profile_restore(&job->profile);
    return status;
}
