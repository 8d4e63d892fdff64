/* The state of a run, and one iteration. */
#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"
#include "src/base/rng.h"
#include "src/cluster/kmeans.h"
#include "src/cluster/point_stream.h"

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* --- memory --- */

void kmeans_close(struct kmeans *run) {
    struct device *device = &run->compute->device;
    void *const memory[] = {run->sums.sums, run->report, run->label,      run->before,       run->moved,
                            run->slices,    run->mean,   run->batch_rows, run->values_before};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device->driver->free(device, memory[i]);
    if (run->points->stream) point_stream_end(run->points, device);
    stepper_close(&run->step);
    assigner_close(&run->assigner);
    points_free(&run->batch, device);
    free(run->order);
    free(run->host_report);
}

static enum status open_batch(struct kmeans *run) {
    const struct points *points = run->points;
    const size_t rows = run->options->batch;
    struct device *device = &run->compute->device;
    const struct device_driver *driver = device->driver;
    run->batch = (struct points){.dtype = points->dtype, .features = points->features, .count = rows};
    run->batch.values = driver->alloc(device, rows * points->features * dtype_size(points->dtype));
    run->batch.norm = driver->alloc(device, (rows / NEAREST_BLOCK + 1) * sizeof *run->batch.norm);
    run->batch_rows = driver->alloc(device, rows * sizeof *run->batch_rows);
    run->order = pages_alloc(points->count * sizeof *run->order);
    return run->batch.values && run->batch.norm && run->batch_rows && run->order ? STATUS_OK : STATUS_FAILED;
}

static enum status open_report(struct kmeans *run) {
    const size_t clusters = run->sums.clusters, bytes = 3 * clusters * sizeof *run->report;
    struct device *device = &run->compute->device;
    _Static_assert(sizeof(uint64_t) == sizeof(double), "parts of the report");
    run->report = device->driver->alloc(device, bytes);
    run->host_report = malloc(bytes);
    if (!run->report) return STATUS_FAILED;
    if (!run->host_report) return status_set(STATUS_FAILED, "out of memory");
    run->sums.count = (void *)run->report;
    run->cost = run->report + clusters;
    run->shift = run->cost + clusters;
    run->host_count = (void *)run->host_report;
    run->host_cost = run->host_report + clusters;
    run->host_shift = run->host_cost + clusters;
    run->values_before =
        device->driver->alloc(device, clusters * run->sums.features * dtype_size(run->points->dtype));
    return run->values_before ? STATUS_OK : STATUS_FAILED;
}

enum status kmeans_open(struct kmeans *run) {
    const struct points *points = run->points;
    const struct kmeans_options *options = run->options;
    const size_t clusters = options->clusters, features = points->features, count = points->count;
    struct device *device = &run->compute->device;
    const struct device_driver *driver = device->driver;
    if (clusters > count)
        return status_set(STATUS_USAGE,
                          "%zu clusters need as many points, and there are %zu: lower --clusters", clusters,
                          count);
    /* a mini-batch is gathered as reals */
    enum status status = assigner_open(&run->assigner, run->compute, points, clusters, options->precision,
                                       options->batch ? ENGINE_EAGER : options->engine, options->bounds);
    if (!status && points->stream)
        status = point_stream_begin(points, device, cluster_part_rows(count, clusters, features));
    if (!status && options->step)
        status = stepper_open(&run->step, run->compute, points, clusters, options->step, options->block);
    if (status) return status;
    run->sums = (struct cluster_sums){.clusters = clusters, .features = features};
    run->sums.sums = driver->alloc(device, clusters * features * sizeof(double));
    run->label = driver->alloc(device, count * sizeof *run->label);
    run->before = driver->alloc(device, count * sizeof *run->before);
    run->moved =
        driver->alloc(device, (points->stream ? points->stream->place.chunk : count) * sizeof *run->moved);
    run->slices = driver->alloc(device, (cluster_scratch(count, clusters, features) + 1) * sizeof(double));
    run->mean = driver->alloc(device, features * sizeof(double));
    if (!run->sums.sums || !run->label || !run->before || !run->moved || !run->slices || !run->mean)
        return STATUS_FAILED;
    status = open_report(run);
    return !status && options->batch ? open_batch(run) : status;
}

/* --- sums --- */

static double sum_clusters(const struct kmeans *run, const double *values) {
    double lane[NEAREST_LANES] = {0};
    for (size_t j = 0; j < run->sums.clusters; j++) lane[j % NEAREST_LANES] += values[j];
    return nearest_add_lanes(lane);
}

enum status kmeans_distances(struct kmeans *run, const struct points *points, const uint32_t *label,
                             double *squared) {
    struct device *device = &run->compute->device;
    const size_t bytes = points->count * sizeof *squared;
    if (device->driver->host_memory) return assigner_distances(&run->assigner, points, label, squared);
    double *memory = device->driver->alloc(device, bytes);
    const enum status status =
        memory ? assigner_distances(&run->assigner, points, label, memory) : STATUS_FAILED;
    if (!status) device->driver->download(device, squared, memory, bytes);
    device->driver->free(device, memory);
    return status;
}

enum status kmeans_inertia(struct kmeans *run, const struct points *points, const uint32_t *label,
                           double *inertia) {
    double *squared = pages_alloc(points->count * sizeof *squared);
    const enum status status = squared ? kmeans_distances(run, points, label, squared) : STATUS_FAILED;
    *inertia = 0;
    for (size_t i = 0; !status && i < points->count; i++) *inertia += squared[i];
    free(squared);
    return status;
}

struct cluster_rows kmeans_rows(const struct kmeans *run, const struct points *points, const uint32_t *label,
                                const uint32_t *before) {
    return (struct cluster_rows){.count = points->count,
                                 .total = points->count,
                                 .bytes = points->bytes != NULL,
                                 .x = points->bytes ? (const void *)points->bytes : points->values,
                                 .label = label,
                                 .before = before,
                                 .moved = run->moved,
                                 .slices = run->slices};
}

/* The rows to add: see kmeans_add_rows. */
struct addition {
    struct kmeans *run;
    const uint32_t *label, *before;
    size_t total;
};

static enum status add_part(void *self, const struct points *part, size_t first) {
    const struct addition *addition = self;
    const struct kmeans *run = addition->run;
    struct device *device = &run->compute->device;
    struct cluster_rows rows =
        kmeans_rows(run, part, addition->label + first, addition->before ? addition->before + first : NULL);
    rows.first = first;
    rows.total = addition->total;
    run->assigner.ops->sum(device->ops_context, &rows, &run->sums);
    return STATUS_OK;
}

void kmeans_add_rows(struct kmeans *run, const struct points *points, const uint32_t *label,
                     const uint32_t *before) {
    struct addition addition = {run, label, before, points->count};
    const struct points_visitor visitor = {.self = &addition, .visit = add_part};
    points_pass(points, &run->compute->device, &visitor);
}

void kmeans_clear_sums(struct kmeans *run) {
    struct device *device = &run->compute->device;
    device->driver->zero(device, run->sums.sums,
                         run->sums.clusters * run->sums.features * sizeof *run->sums.sums);
    device->driver->zero(device, run->sums.count, run->sums.clusters * sizeof *run->sums.count);
}

/* Sums the squared distances from centre 0, and hashes their bits as FNV-1a does, but by words. */
static enum status measure_spread(struct kmeans *run) {
    const size_t count = run->points->count;
    double *squared = pages_alloc(count * sizeof *squared);
    const enum status status = squared ? kmeans_distances(run, run->points, NULL, squared) : STATUS_FAILED;
    run->spread = 0;
    run->fingerprint = 0xcbf29ce484222325;
    for (size_t i = 0; !status && i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &squared[i], sizeof bits);
        run->spread += squared[i];
        run->fingerprint = ((run->fingerprint ^ bits) * 0x100000001b3) ^ (run->fingerprint >> 32);
    }
    free(squared);
    return status;
}

/* Mean and variance of the points, and the sum of their squared distances from the mean. One cluster. */
enum status kmeans_measure(struct kmeans *run) {
    struct device *device = &run->compute->device;
    const size_t features = run->points->features, bytes = features * sizeof(double);
    double *mean = malloc(bytes);
    void *rounded = malloc(bytes);
    enum status status = mean && rounded ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) {
        device->driver->zero(device, run->label, run->points->count * sizeof *run->label);
        kmeans_clear_sums(run);
        kmeans_add_rows(run, run->points, run->label, NULL);
        device->driver->download(device, mean, run->sums.sums, bytes);
        for (size_t f = 0; f < features; f++) {
            mean[f] /= (double)run->points->count;
            dtype_set(run->points->dtype, rounded, f, mean[f]);
            mean[f] = dtype_get(run->points->dtype, rounded, f);
        }
        device->driver->upload(device, run->mean, mean, bytes);
        device->driver->upload(device, run->assigner.centres.values, rounded,
                               features * dtype_size(run->points->dtype));
        status = measure_spread(run);
    }
    run->variance = run->spread / (double)run->points->count / (double)features;
    free(mean);
    free(rounded);
    return status;
}

/* --- one iteration --- */

static void compute_means(struct kmeans *run) {
    run->assigner.ops->means(run->compute->device.ops_context, &run->sums, run->assigner.centres.values,
                             run->shift);
}

/* Copies counts, costs and shifts to the host. Returns the number of clusters without points. */
static size_t read_report(struct kmeans *run) {
    struct device *device = &run->compute->device;
    size_t empty = 0;
    device->driver->download(device, run->host_report, run->report,
                             3 * run->sums.clusters * sizeof *run->report);
    for (size_t j = 0; j < run->sums.clusters; j++) empty += run->host_count[j] == 0;
    return empty;
}

/* Moves the centres, after the rows were added. A mini-batch leaves empty clusters where they are. `far`
   needs the counts before the means: a GPU computes these ahead, and takes them back if a cluster is empty,
   so that the host waits once. */
static enum status move_centres(struct kmeans *run, struct kmeans_record *record) {
    struct device *device = &run->compute->device;
    const enum kmeans_empty empty = run->options->batch ? EMPTY_KEEP : run->options->empty;
    const bool far = empty == EMPTY_FAR, ahead = !far || !device->driver->host_memory;
    const size_t bytes = run->sums.clusters * run->sums.features * dtype_size(run->points->dtype);
    void *values = run->assigner.centres.values;
    enum status status = STATUS_OK;
    if (far && ahead) device->driver->copy(device, run->values_before, values, bytes);
    if (ahead) compute_means(run);
    record->empty = read_report(run);
    if (far && record->empty && ahead) device->driver->copy(device, values, run->values_before, bytes);
    if (far && record->empty) status = kmeans_fill_far(run);
    if (status) return status;
    if (far && (record->empty || !ahead)) {
        compute_means(run);
        read_report(run);
    }
    record->shift += sum_clusters(run, run->host_shift);
    run->split = record->empty && empty == EMPTY_SPLIT;
    assigner_set_centres(&run->assigner, run->sums.clusters);
    return STATUS_OK;
}

enum status kmeans_move(struct kmeans *run, struct kmeans_record *record) {
    struct device *device = &run->compute->device;
    run->assigner.ops->costs(device->ops_context, &run->sums, run->mean, run->assigner.centres.values,
                             run->cost);
    const enum status status = move_centres(run, record);
    record->inertia = run->spread + sum_clusters(run, run->host_cost);
    device_lap(device, PART_OPTIMIZER);
    return status;
}

enum status kmeans_label(struct kmeans *run, const struct cluster_sums *sums,
                         const struct points_visitor *then, struct nearest_counts *counts) {
    if (!run->step.step) return assigner_run(&run->assigner, run->points, run->label, then, counts);
    *counts = (struct nearest_counts){0};
    return stepper_run(&run->step, &run->assigner.centres, run->label, sums, &counts->changed);
}

enum status kmeans_lloyd(struct kmeans *run, struct kmeans_record *record) {
    struct device *device = &run->compute->device;
    const bool by_step = run->step.step && run->step.step->updates;
    /* only the sums of pixels can be updated without error */
    const bool updated = run->points->bytes && !by_step;
    enum status status = run->split ? kmeans_fill_split(run) : STATUS_OK;
    run->was_split = run->split;
    if (updated)
        device->driver->copy(device, run->before, run->label, run->points->count * sizeof *run->label);
    struct addition addition = {run, run->label, updated ? run->before : NULL, run->points->count};
    const struct points_visitor add = {.self = &addition, .visit = add_part};
    if (!updated) kmeans_clear_sums(run);
    if (!status) status = kmeans_label(run, &run->sums, run->points->stream ? &add : NULL, &record->counts);
    if (!status) status = assigner_audit(&run->assigner, run->points, run->label);
    if (status) return status;
    if (!by_step && !run->points->stream) kmeans_add_rows(run, run->points, run->label, addition.before);
    return kmeans_move(run, record);
}

void kmeans_add_counts(struct nearest_counts *to, const struct nearest_counts *counts) {
    to->changed += counts->changed;
    to->ambiguous += counts->ambiguous;
    to->exact += counts->exact;
    to->uncertified += counts->uncertified;
}

/* Each restart has a seed of its own; the first, that of the run. */
static struct rng order_of(uint64_t seed, size_t restart, size_t iteration) {
    return rng_open(seed + ((uint64_t)(restart - 1) << 40), RNG_SHUFFLE, (uint32_t)iteration);
}

/* A pass over the points in mini-batches. The sums go on from batch to batch, so that a centre is the mean of
   all points that it ever got. */
enum status kmeans_batches(struct kmeans *run, struct kmeans_record *record) {
    struct device *device = &run->compute->device;
    const size_t count = run->points->count;
    struct rng rng = order_of(run->options->seed, record->restart, record->iteration);
    enum status status = STATUS_OK;
    rng_permutation(&rng, run->order, count);
    for (size_t first = 0; first < count && !status; first += run->options->batch) {
        struct nearest_counts counts;
        double inertia = 0;
        struct points *batch = &run->batch;
        batch->count = smaller(run->options->batch, count - first);
        points_gather(run->points, device, run->order + first, batch->count, run->batch_rows, batch->values);
        points_update_norms(batch, device);
        device_lap(device, PART_BATCH);
        status = assigner_run(&run->assigner, batch, run->label + first, NULL, &counts);
        if (!status) status = kmeans_inertia(run, batch, run->label + first, &inertia);
        if (status) break;
        kmeans_add_rows(run, batch, run->label + first, NULL);
        status = move_centres(run, record);
        device_lap(device, PART_OPTIMIZER);
        kmeans_add_counts(&record->counts, &counts);
        record->inertia += inertia;
    }
    record->counts.changed = count; /* the labels before are of other points */
    return status;
}
