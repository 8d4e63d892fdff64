#include "src/nn/centre_layer.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/pages.h"
#include "src/nn/safetensors.h"

/* The centres of a file, and the points of each. */
struct centres {
    const struct tensor *values, *counts; /* [clusters][features], [clusters] */
    double *mean;                         /* [features]: of all points */
};

static enum status find_tensors(const struct safetensors *file, struct centres *centres) {
    centres->values = safetensors_find(file, "layers.0.weight");
    centres->counts = safetensors_find(file, "kmeans.counts");
    if (centres->values && centres->counts && centres->values->rank == 2 && centres->counts->rank == 1 &&
        centres->counts->shape[0] == centres->values->shape[0])
        return STATUS_OK;
    return status_set(STATUS_BAD_DATA,
                      "'%s' has no centres of k-means: ./train kmeans --clusters K --save FILE writes them",
                      file->path);
}

static enum status check_shape(const struct mlp *mlp, const struct centres *centres, const char *path) {
    const size_t clusters = centres->values->shape[0], features = centres->values->shape[1];
    const struct mlp_layer *layer = &mlp->layer[0];
    if (mlp->depth < 2)
        return status_set(STATUS_USAGE, "init kmeans needs a hidden layer: set --layers %zu-%zu-%zu",
                          layer->in, clusters, layer->out);
    if (features != layer->in)
        return status_set(STATUS_USAGE,
                          "the centres of '%s' have %zu features, and the network %zu inputs: run ./train "
                          "kmeans on the same images",
                          path, features, layer->in);
    if (clusters == layer->out) return STATUS_OK;
    return status_set(
        STATUS_USAGE,
        "'%s' has %zu clusters, and the first hidden layer %zu units: set --layers %zu-%zu-..., "
        "or run ./train kmeans with --clusters %zu",
        path, clusters, layer->out, layer->in, clusters, layer->out);
}

static double value_at(const struct centres *centres, size_t cluster, size_t feature) {
    return dtype_get(centres->values->dtype, centres->values->data,
                     cluster * centres->values->shape[1] + feature);
}

/* The mean of the points is that of the centres with their numbers of points as weights. */
static enum status find_mean(struct centres *centres, const char *path) {
    const size_t clusters = centres->values->shape[0], features = centres->values->shape[1];
    double points = 0;
    centres->mean = calloc(features, sizeof *centres->mean);
    if (!centres->mean) return status_set(STATUS_FAILED, "out of memory");
    for (size_t j = 0; j < clusters; j++) {
        const double count = dtype_get(centres->counts->dtype, centres->counts->data, j);
        points += count;
        for (size_t f = 0; f < features; f++) centres->mean[f] += count * value_at(centres, j, f);
    }
    bool valid = points > 0;
    for (size_t f = 0; f < features; f++) {
        centres->mean[f] /= points;
        valid = valid && isfinite(centres->mean[f]);
    }
    return valid ? STATUS_OK
                 : status_set(STATUS_BAD_DATA, "the centres of '%s' are not finite, or have no points", path);
}

/* weight[in][ld]: column j becomes the direction of centre j. */
static void fill_weights(const struct mlp *mlp, const struct centres *centres, void *weight) {
    const struct mlp_layer *layer = &mlp->layer[0];
    for (size_t j = 0; j < layer->out; j++) {
        double squares = 0;
        for (size_t f = 0; f < layer->in; f++) {
            const double part = value_at(centres, j, f) - centres->mean[f];
            squares += part * part;
        }
        if (!(squares > 0)) continue;
        for (size_t f = 0; f < layer->in; f++)
            dtype_set(mlp->dtype, weight, f * layer->ld + j,
                      sqrt(2 / squares) * (value_at(centres, j, f) - centres->mean[f]));
    }
}

static enum status set_layer(struct mlp *mlp, const struct centres *centres) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *layer = &mlp->layer[0];
    const size_t bytes = layer->in * layer->ld * dtype_size(mlp->dtype);
    void *weight = pages_alloc(bytes);
    if (!weight) return STATUS_FAILED;
    device->driver->download(device, weight, layer->weight, bytes);
    fill_weights(mlp, centres, weight);
    device->driver->upload(device, layer->weight, weight, bytes);
    mlp_parameters_changed(mlp);
    free(weight);
    return STATUS_OK;
}

enum status centre_layer_load(struct mlp *mlp, const char *path) {
    struct safetensors file;
    struct centres centres = {0};
    enum status status = safetensors_read(&file, path);
    if (!status) status = find_tensors(&file, &centres);
    if (!status) status = check_shape(mlp, &centres, path);
    if (!status) status = find_mean(&centres, path);
    if (!status) status = set_layer(mlp, &centres);
    free(centres.mean);
    safetensors_free(&file);
    return status;
}
