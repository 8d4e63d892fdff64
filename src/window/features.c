#include "src/window/features.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/pages.h"

enum status features_open(struct features *features, struct mlp *mlp) {
    struct device *device = &mlp->compute->device;
    *features =
        (struct features){.mlp = mlp, .count = mlp->layer[mlp->depth - 2].out, .classes = mlp_last(mlp)->out};
    const size_t bytes = FEATURES_BATCH * (1 + features->classes) * dtype_size(mlp->dtype);
    if (device->driver->qr_ops) features->ops = device->driver->qr_ops(device, mlp->dtype);
    if (!features->ops)
        return status_set(STATUS_UNAVAILABLE,
                          "a readout has no kernels for the device '%s': use a backend on the host",
                          device->driver->name);
    features->targets = device->driver->alloc(device, bytes);
    features->staging = features->targets ? pages_alloc(bytes) : NULL;
    return features->staging ? STATUS_OK : STATUS_FAILED;
}

void features_close(struct features *features) {
    if (!features->mlp) return;
    struct device *device = &features->mlp->compute->device;
    device->driver->free(device, features->targets);
    free(features->staging);
    *features = (struct features){0};
}

/* The constant and the one-hot targets of one batch, into the first and the last columns of `to`. */
static void put_targets(struct features *features, const uint8_t *labels, size_t rows, char *to, size_t ld) {
    struct device *device = &features->mlp->compute->device;
    const enum gemm_dtype dtype = features->mlp->dtype;
    const size_t width = 1 + features->classes, size = dtype_size(dtype);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < width; j++)
            dtype_set(dtype, features->staging, i * width + j, j == 0 || labels[i] == j - 1 ? 1 : 0);
    device->driver->upload(device, features->targets, features->staging, rows * width * size);
    features->ops->rows(device->ops_context, rows, rows, 1, features->targets, width, NULL, to, ld);
    features->ops->rows(device->ops_context, rows, rows, features->classes,
                        (const char *)features->targets + size, width, NULL,
                        to + (1 + features->count) * size, ld);
}

static enum status put_batch(struct features *features, const struct samples *samples, const uint8_t *labels,
                             size_t first, size_t rows, char *to, size_t ld) {
    struct mlp *mlp = features->mlp;
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *hidden = &mlp->layer[mlp->depth - 2];
    mlp->ops->gather(device->ops_context, rows, samples->features, samples->range,
                     samples->images + first * samples->features, samples->labels + first, NULL, mlp->input,
                     mlp->labels);
    device_lap(device, PART_BATCH);
    const enum status status = mlp_forward_hidden(mlp, rows);
    if (status) return status;
    features->ops->rows(device->ops_context, rows, rows, features->count, hidden->output, hidden->ld, NULL,
                        to + dtype_size(mlp->dtype), ld);
    put_targets(features, labels + first, rows, to, ld);
    device_lap(device, PART_BATCH);
    return STATUS_OK;
}

enum status features_rows(struct features *features, const struct samples *samples, const uint8_t *labels,
                          size_t first, size_t count, const struct qr_matrix *to) {
    const size_t bytes = to->ld * dtype_size(features->mlp->dtype);
    const double start = clock_seconds();
    enum status status = STATUS_OK;
    for (size_t done = 0; done < count && !status; done += FEATURES_BATCH) {
        const size_t left = count - done, rows = left < FEATURES_BATCH ? left : FEATURES_BATCH;
        status = put_batch(features, samples, labels, first + done, rows, (char *)to->values + done * bytes,
                           to->ld);
    }
    features->seconds += clock_seconds() - start;
    return status;
}

/* The first of these rows with a feature that is not finite. */
static enum status name_value(const struct features *features, size_t first, size_t count,
                              const struct qr_matrix *rows) {
    struct device *device = &features->mlp->compute->device;
    const enum gemm_dtype dtype = features->mlp->dtype;
    const size_t bytes = rows->ld * dtype_size(dtype);
    void *row = malloc(bytes);
    enum status status = row ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < count && !status; i++) {
        device->driver->download(device, row, (const char *)rows->values + i * bytes,
                                 (1 + features->count) * dtype_size(dtype));
        for (size_t j = 1; j <= features->count && !status; j++)
            if (!isfinite(dtype_get(dtype, row, j)))
                status =
                    status_set(STATUS_FAILED,
                               "feature %zu of image %zu is not finite: its hidden layer overflows, or has "
                               "such weights",
                               j - 1, first + i);
    }
    free(row);
    return status;
}

enum status features_check(struct features *features, const struct samples *samples, const uint8_t *labels,
                           size_t first, size_t count, const struct qr_matrix *rows, size_t room) {
    enum status status = STATUS_OK;
    for (size_t done = 0; done < count && !status; done += room) {
        const size_t left = count - done, now = left < room ? left : room;
        status = features_rows(features, samples, labels, first + done, now, rows);
        if (!status) status = name_value(features, first + done, now, rows);
    }
    return status;
}
