#include "src/cluster/points.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Half of the cache, but at least as many rows as keep a GPU busy, up to 1 GiB. */
static size_t chunk_of_gpu(struct device *device, size_t row_bytes) {
    enum { LEAST = 4096, MOST = 1 << 18 };
    const size_t cache = device->driver->last_cache ? device->driver->last_cache(device) / 2 : 0,
                 rows = cache / row_bytes / NEAREST_BLOCK * NEAREST_BLOCK;
    const size_t room = ((size_t)1 << 30) / row_bytes / NEAREST_BLOCK * NEAREST_BLOCK,
                 least = room < NEAREST_BLOCK ? NEAREST_BLOCK : smaller(room, LEAST);
    return rows < least ? least : smaller(rows, MOST);
}

size_t points_chunk(struct device *device, size_t features, size_t clusters, enum gemm_dtype dtype,
                    int threads) {
    if (!device->driver->host_memory) return chunk_of_gpu(device, (features + clusters) * dtype_size(dtype));
    const size_t cache =
        ((size_t)1 << 20) * (size_t)threads / dtype_size(dtype); /* half of an L2 cache each */
    const size_t widest = features > clusters ? features : clusters;
    const size_t rows = cache / widest / NEAREST_BLOCK;
    return NEAREST_BLOCK * (rows < (size_t)threads ? (size_t)threads : smaller(rows, 256));
}

const void *points_rows(const struct points *points, struct device *device, size_t first,
                        const uint32_t *index, size_t count, void *buffer) {
    const size_t at = first * points->features;
    const void *from = points->bytes
                           ? (const void *)(points->bytes + (index ? 0 : at))
                           : (const char *)points->values + (index ? 0 : at) * dtype_size(points->dtype);
    if (!points->bytes && !index) return from;
    device->driver->cluster_ops(device, points->dtype)
        ->rows(device->ops_context, count, points->features, points->bytes != NULL, from, index, buffer);
    return buffer;
}

void points_update_norms(struct points *points, struct device *device) {
    const struct cluster_ops *ops = device->driver->cluster_ops(device, points->dtype);
    ops->norms(device->ops_context, points->count, points->features, points->values, points->norm);
}

/* Norms of pixels: the values are converted a chunk at a time. */
static enum status norms_of_bytes(struct points *points, struct device *device) {
    const struct cluster_ops *ops = device->driver->cluster_ops(device, points->dtype);
    const size_t chunk = points_chunk(device, points->features, 1, points->dtype, 1);
    void *buffer = device->driver->alloc(device, chunk * points->features * dtype_size(points->dtype));
    if (!buffer) return STATUS_FAILED;
    for (size_t first = 0; first < points->count; first += chunk) {
        const size_t rows = smaller(chunk, points->count - first);
        ops->norms(device->ops_context, rows, points->features,
                   points_rows(points, device, first, NULL, rows, buffer),
                   points->norm + first / NEAREST_BLOCK);
    }
    const enum status status = device->driver->synchronize(device);
    device->driver->free(device, buffer);
    return status;
}

static enum status open_points(struct points *points, struct device *device, enum gemm_dtype dtype,
                               size_t count, size_t features) {
    const size_t blocks = (count + NEAREST_BLOCK - 1) / NEAREST_BLOCK;
    *points = (struct points){.dtype = dtype, .count = count, .features = features};
    if (count >= NEAREST_NONE)
        return status_set(STATUS_BAD_DATA, "%zu points are too many: at most %u", count, NEAREST_NONE - 1);
    if (features == 0 || features > SIZE_MAX / 8 / (count + 1))
        return status_set(STATUS_BAD_DATA, "points of %zu features cannot be clustered", features);
    points->norm = device->driver->alloc(device, (blocks + 1) * sizeof *points->norm);
    return points->norm ? STATUS_OK : STATUS_FAILED;
}

enum status points_from_bytes(struct points *points, struct device *device, enum gemm_dtype dtype,
                              size_t count, size_t features, const uint8_t *bytes) {
    enum status status = open_points(points, device, dtype, count, features);
    if (status) return status;
    points->bytes = device->driver->alloc(device, count * features);
    if (!points->bytes) return STATUS_FAILED;
    device->driver->upload(device, points->bytes, bytes, count * features);
    return norms_of_bytes(points, device);
}

static enum status check_finite(enum gemm_dtype dtype, size_t count, size_t features, const void *values) {
    for (size_t r = 0; r < count; r++)
        for (size_t f = 0; f < features; f++)
            if (!isfinite(dtype_get(dtype, values, r * features + f)))
                return status_set(STATUS_BAD_DATA,
                                  "row %zu of the points is not finite: feature %zu is %g; remove the row", r,
                                  f, dtype_get(dtype, values, r * features + f));
    return STATUS_OK;
}

enum status points_from_values(struct points *points, struct device *device, enum gemm_dtype dtype,
                               size_t count, size_t features, const void *values) {
    enum status status = open_points(points, device, dtype, count, features);
    if (!status) status = check_finite(dtype, count, features, values);
    if (status) return status;
    const size_t bytes = count * features * dtype_size(dtype);
    points->values = device->driver->alloc(device, bytes);
    if (!points->values) return STATUS_FAILED;
    device->driver->upload(device, points->values, values, bytes);
    points_update_norms(points, device);
    return device->driver->synchronize(device);
}

void points_free(struct points *points, struct device *device) {
    device->driver->free(device, points->bytes);
    device->driver->free(device, points->values);
    device->driver->free(device, points->norm);
    *points = (struct points){0};
}
