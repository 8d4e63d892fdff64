/* ./train kmeans --save, --resume. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/cmd/kmeans.h"
#include "src/device/dtype.h"

enum { MOST_TENSORS = 10, PROGRESS = 3 /* iteration, restart, scale of the points */ };

/* --- writing --- */

/* weight = scale c, bias = -|scale c|^2 / 2: the logits of the network rank the centres as distances do. */
static void fill_layer(const struct kmeans_job *job, void *weight, void *bias) {
    const struct points *points = &job->sets.train;
    const size_t features = points->features;
    for (size_t j = 0; j < job->options.clusters; j++) {
        double squares = 0;
        for (size_t f = 0; f < features; f++) {
            const size_t at = j * features + f;
            dtype_set(points->dtype, weight, at,
                      job->sets.scale * dtype_get(points->dtype, job->result.state.values, at));
            squares += dtype_get(points->dtype, weight, at) * dtype_get(points->dtype, weight, at);
        }
        dtype_set(points->dtype, bias, j, -squares / 2);
    }
}

static struct tensor tensor_of(const char *name, enum gemm_dtype dtype, size_t rows, size_t columns,
                               const void *data) {
    struct tensor tensor = {.dtype = dtype, .rank = columns ? 2 : 1, .shape = {rows, columns}, .data = data};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    return tensor;
}

/* The recipe of a network that is the linear layer. */
static enum status network_config(const struct kmeans_job *job, struct config *config) {
    char layers[64];
    *config = job->config;
    snprintf(layers, sizeof layers, "%zu-%zu", job->sets.train.features, job->options.clusters);
    const enum status status = config_set(config, "layers", layers, FROM_FLAG, "--save");
    snprintf(config->data, sizeof config->data, "%s", job->sets.name);
    return status;
}

/* Copies as float64; the caller frees them. NULL if memory ran out. */
static double *counts_as_reals(const uint64_t *values, size_t count) {
    double *reals = malloc(count * sizeof *reals);
    for (size_t i = 0; reals && i < count; i++) reals[i] = (double)values[i];
    return reals;
}

/* No point is -1. */
static double *rows_as_reals(const uint32_t *values, size_t count) {
    double *reals = malloc(count * sizeof *reals);
    for (size_t i = 0; reals && i < count; i++)
        reals[i] = values[i] == QUALITY_NO_POINT ? -1.0 : (double)values[i];
    return reals;
}

/* Appends the state to go on from, all float64; `kept` receives memory to free. False if memory ran out. */
static bool add_state(const struct kmeans_job *job, struct tensor *tensors, size_t *count, double **kept) {
    const struct kmeans_state *state = &job->result.state;
    const size_t clusters = job->options.clusters, points = job->sets.train.count;
    if (job->options.batch) {
        *kept = counts_as_reals(state->members, clusters);
        tensors[(*count)++] =
            tensor_of("kmeans.sums", GEMM_F64, clusters, job->sets.train.features, state->sums);
        tensors[(*count)++] = tensor_of("kmeans.members", GEMM_F64, clusters, 0, *kept);
    } else if (state->iteration) {
        *kept = rows_as_reals(state->label, points);
        tensors[(*count)++] = tensor_of("kmeans.last_labels", GEMM_F64, points, 0, *kept);
    } else {
        return true;
    }
    return *kept != NULL;
}

enum status kmeans_save(const struct kmeans_job *job) {
    const struct points *points = &job->sets.train;
    const struct kmeans_result *result = &job->result;
    const size_t clusters = job->options.clusters, size = dtype_size(points->dtype);
    const double progress[PROGRESS] = {(double)result->state.iteration, (double)result->state.restart,
                                       job->sets.scale};
    const double fingerprint[] = {(double)(result->state.fingerprint >> 32),
                                  (double)(result->state.fingerprint & UINT32_MAX)};
    struct config config;
    struct tensor tensors[MOST_TENSORS];
    size_t count = 0;
    if (!job->config.save[0]) return STATUS_OK;
    void *weight = malloc(clusters * points->features * size), *bias = malloc(clusters * size);
    double *counts = counts_as_reals(result->count, clusters),
           *labels = rows_as_reals(result->label, points->count),
           *medoids = rows_as_reals(job->medoid, clusters), *kept = NULL;
    /* those of float64 first: aligned */
    tensors[count++] = tensor_of("kmeans.counts", GEMM_F64, clusters, 0, counts);
    tensors[count++] = tensor_of("kmeans.labels", GEMM_F64, points->count, 0, labels);
    tensors[count++] = tensor_of("kmeans.medoids", GEMM_F64, clusters, 0, medoids);
    tensors[count++] = tensor_of("kmeans.progress", GEMM_F64, PROGRESS, 0, progress);
    tensors[count++] = tensor_of("kmeans.fingerprint", GEMM_F64, 2, 0, fingerprint);
    enum status status =
        weight && bias && counts && labels && medoids && add_state(job, tensors, &count, &kept)
            ? STATUS_OK
            : status_set(STATUS_FAILED, "out of memory");
    if (!status) status = network_config(job, &config);
    if (!status) {
        fill_layer(job, weight, bias);
        tensors[count++] =
            tensor_of("kmeans.centres", points->dtype, clusters, points->features, result->state.values);
        tensors[count++] = tensor_of("layers.0.weight", points->dtype, clusters, points->features, weight);
        tensors[count++] = tensor_of("layers.0.bias", points->dtype, clusters, 0, bias);
        const bool images = job->sets.images.train.count > 0;
        status = checkpoint_write(job->config.save, tensors, count, &config,
                                  images ? &job->sets.images : NULL, NULL);
    }
    void *const memory[] = {weight, bias, counts, labels, medoids, kept};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    return status;
}

/* --- reading --- */

static enum status no_state(const struct safetensors *file, const char *name) {
    return status_set(STATUS_BAD_DATA, "'%s' has no usable tensor %s of ./train kmeans --save", file->path,
                      name);
}

/* A tensor of this shape, whose values are finite; NULL if it is not. `columns` 0: rank 1. */
static const struct tensor *find_state(const struct safetensors *file, const char *name, size_t rows,
                                       size_t columns) {
    const struct tensor *tensor = safetensors_find(file, name);
    if (!tensor || tensor->rank != (columns ? 2 : 1) || tensor->shape[0] != rows ||
        (columns && tensor->shape[1] != columns))
        return NULL;
    for (size_t i = 0; i < tensor_elements(tensor); i++)
        if (!isfinite(dtype_get(tensor->dtype, tensor->data, i))) return NULL;
    return tensor;
}

/* The value as a whole number from 0 to `most`; false if it is none. */
static bool whole_at(const struct tensor *tensor, size_t index, double most, double *value) {
    *value = dtype_get(tensor->dtype, tensor->data, index);
    return *value >= 0 && *value <= most && *value == floor(*value);
}

enum status kmeans_open_resumed(struct kmeans_job *job) {
    struct config *config = &job->config;
    const struct safetensors *file = &job->resumed.file;
    static const char *const drawn[] = {"kmeans-init", "restarts"};
    if (!config->resume[0]) return STATUS_OK;
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
        if (config_origin_of(config, drawn[i]) != FROM_DEFAULT)
            return status_set(STATUS_USAGE, "%s is for new centres: remove it, or --resume", drawn[i]);
    enum status status = checkpoint_open(&job->resumed, config->resume);
    const struct tensor *centres = status ? NULL : safetensors_find(file, "kmeans.centres");
    if (!status && (!centres || centres->rank != 2 || !centres->shape[0] || centres->shape[0] > 10000000))
        status = no_state(file, "kmeans.centres");
    if (!status) status = checkpoint_recipe(&job->resumed, config);
    if (status) return status;
    if (config_origin_of(config, "clusters") != FROM_DEFAULT && (size_t)config->clusters != centres->shape[0])
        return status_set(STATUS_USAGE, "'%s' has %zu clusters, not %lld: remove --clusters, or --resume",
                          config->resume, centres->shape[0], (long long)config->clusters);
    config->clusters = (int64_t)centres->shape[0];
    job->resumed_batches = safetensors_find(file, "kmeans.sums") != NULL;
    return STATUS_OK;
}

/* The labels of the last iteration. With another number of points the centres are initial ones; kmeans_run
   finds other points of the same number. */
static enum status read_labels(struct kmeans_job *job) {
    const struct safetensors *file = &job->resumed.file;
    const size_t count = job->sets.train.count;
    const struct tensor *labels = find_state(file, "kmeans.last_labels", count, 0),
                        *fingerprint = find_state(file, "kmeans.fingerprint", 2, 0);
    double high, low;
    if (!labels) job->start.other_points = job->start.iteration > 0;
    if (!labels) job->start.iteration = 0;
    if (!labels) return STATUS_OK;
    if (!fingerprint || !whole_at(fingerprint, 0, UINT32_MAX, &high) ||
        !whole_at(fingerprint, 1, UINT32_MAX, &low))
        return no_state(file, "kmeans.fingerprint");
    job->start.fingerprint = (uint64_t)high << 32 | (uint64_t)low;
    job->start.label = malloc(count * sizeof *job->start.label);
    if (!job->start.label) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < count; i++) {
        double label;
        if (!whole_at(labels, i, (double)(job->options.clusters - 1), &label))
            return no_state(file, "kmeans.last_labels");
        job->start.label[i] = (uint32_t)label;
    }
    return STATUS_OK;
}

static enum status read_sums(struct kmeans_job *job) {
    const struct safetensors *file = &job->resumed.file;
    const size_t clusters = job->options.clusters, features = job->sets.train.features;
    const struct tensor *sums = find_state(file, "kmeans.sums", clusters, features),
                        *members = find_state(file, "kmeans.members", clusters, 0);
    if (!sums || sums->dtype != GEMM_F64) return no_state(file, "kmeans.sums");
    if (!members) return no_state(file, "kmeans.members");
    job->start.sums = malloc(clusters * features * sizeof *job->start.sums);
    job->start.members = malloc(clusters * sizeof *job->start.members);
    if (!job->start.sums || !job->start.members) return status_set(STATUS_FAILED, "out of memory");
    memcpy(job->start.sums, sums->data, clusters * features * sizeof *job->start.sums);
    for (size_t j = 0; j < clusters; j++) {
        double points;
        if (!whole_at(members, j, 0x1p53, &points)) return no_state(file, "kmeans.members");
        job->start.members[j] = (uint64_t)points;
    }
    return STATUS_OK;
}

enum status kmeans_read_resumed(struct kmeans_job *job) {
    const struct points *points = &job->sets.train;
    const struct safetensors *file = &job->resumed.file;
    const size_t bytes = job->options.clusters * points->features * dtype_size(points->dtype);
    double iteration, restart;
    if (!job->config.resume[0]) return STATUS_OK;
    const struct tensor *centres = safetensors_find(file, "kmeans.centres"),
                        *progress = find_state(file, "kmeans.progress", PROGRESS, 0);
    if (centres->shape[1] != points->features)
        return status_set(STATUS_USAGE, "the centres of '%s' have %zu features, and the points of %s %zu",
                          file->path, centres->shape[1], job->sets.name, points->features);
    if (centres->dtype != points->dtype)
        return status_set(STATUS_USAGE, "the centres of '%s' are %s: use --dtype %s", file->path,
                          dtype_name(centres->dtype), dtype_name(centres->dtype));
    if (!find_state(file, "kmeans.centres", job->options.clusters, points->features))
        return no_state(file, "kmeans.centres");
    if (!progress || !whole_at(progress, 0, 1e9, &iteration) || !whole_at(progress, 1, 1e6, &restart) ||
        restart < 1)
        return no_state(file, "kmeans.progress");
    if (dtype_get(progress->dtype, progress->data, 2) != job->sets.scale)
        return status_set(STATUS_USAGE, "'%s' has %s: its centres are in other units than the points of %s",
                          file->path, job->sets.scale == 1 ? "centres of images" : "no centres of images",
                          job->sets.name);
    job->start.iteration = (size_t)iteration;
    job->start.restart = (size_t)restart;
    job->start.values = malloc(bytes);
    if (!job->start.values) return status_set(STATUS_FAILED, "out of memory");
    memcpy(job->start.values, centres->data, bytes);
    job->options.start = &job->start;
    const enum status status = job->options.batch ? read_sums(job) : read_labels(job);
    checkpoint_close(&job->resumed);
    return status;
}
