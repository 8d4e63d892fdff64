#include "src/cluster/points.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/cluster/point_stream.h"

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

/* --- rows --- */

enum status points_pass(const struct points *points, struct device *device,
                        const struct points_visitor *visitor) {
    return points->stream ? point_stream_pass(points, device, visitor)
                          : visitor->visit(visitor->self, points, 0);
}

struct points points_row(const struct points *points, struct device *device, size_t row, void *buffer) {
    if (points->stream) return point_stream_rows(points, device, row, 1, buffer);
    struct points one = *points;
    const size_t at = row * points->features;
    one.count = 1;
    if (points->bytes) one.bytes = points->bytes + at;
    if (points->values) one.values = (char *)points->values + at * dtype_size(points->dtype);
    return one;
}

const void *points_rows(const struct points *points, struct device *device, size_t first, size_t count,
                        void *buffer) {
    const struct cluster_ops *ops = device->driver->cluster_ops(device, points->dtype);
    const size_t at = first * points->features;
    if (!points->bytes)
        return points->stream ? point_stream_rows(points, device, first, count, buffer).values
                              : (const char *)points->values + at * dtype_size(points->dtype);
    const uint8_t *bytes =
        points->stream ? point_stream_rows(points, device, first, count, points->stream->buffer[0]).bytes
                       : points->bytes + at;
    ops->rows(device->ops_context, count, points->features, true, bytes, NULL, buffer);
    if (points->stream) device->driver->stage_release(device, 0);
    return buffer;
}

void points_gather(const struct points *points, struct device *device, const uint32_t *index, size_t count,
                   uint32_t *scratch, void *values) {
    if (points->stream) {
        point_stream_gather(points, device, index, count, values);
        return;
    }
    device->driver->upload(device, scratch, index, count * sizeof *index);
    device->driver->cluster_ops(device, points->dtype)
        ->rows(device->ops_context, count, points->features, points->bytes != NULL,
               points->bytes ? (const void *)points->bytes : points->values, scratch, values);
}

/* --- norms --- */

struct norms {
    struct device *device;
    void *buffer; /* device: a chunk of pixels as values; NULL: the points are values */
    size_t chunk;
};

static enum status add_norms(void *self, const struct points *part, size_t first) {
    const struct norms *norms = self;
    struct device *device = norms->device;
    (void)first;
    for (size_t from = 0; from < part->count; from += norms->chunk) {
        const size_t rows = smaller(norms->chunk, part->count - from);
        device->driver->cluster_ops(device, part->dtype)
            ->norms(device->ops_context, rows, part->features,
                    points_rows(part, device, from, rows, norms->buffer), part->norm + from / NEAREST_BLOCK);
    }
    return STATUS_OK;
}

/* Pixels are converted a chunk at a time. */
enum status points_update_norms(struct points *points, struct device *device) {
    struct norms norms = {.device = device, .chunk = points->count};
    if (points->bytes) {
        norms.chunk = points_chunk(device, points->features, 1, points->dtype, 1);
        norms.buffer =
            device->driver->alloc(device, norms.chunk * points->features * dtype_size(points->dtype));
        if (!norms.buffer) return STATUS_FAILED;
    }
    const struct points_visitor visitor = {.self = &norms, .visit = add_norms};
    enum status status = points_pass(points, device, &visitor);
    if (norms.buffer || points->stream) {
        const enum status waited = device->driver->synchronize(device);
        if (!status) status = waited;
    }
    device->driver->free(device, norms.buffer);
    return status;
}

/* --- open and close --- */

enum status points_open(struct points *points, struct device *device, enum gemm_dtype dtype, size_t count,
                        size_t features) {
    const size_t blocks = (count + NEAREST_BLOCK - 1) / NEAREST_BLOCK;
    *points = (struct points){.dtype = dtype, .count = count, .features = features};
    if (count >= NEAREST_NONE)
        return status_set(STATUS_BAD_DATA, "%zu points are too many: at most %u", count, NEAREST_NONE - 1);
    if (features == 0 || features > SIZE_MAX / 8 / (count + 1))
        return status_set(STATUS_BAD_DATA, "points of %zu features cannot be clustered", features);
    points->norm = device->driver->alloc(device, (blocks + 1) * sizeof *points->norm);
    return points->norm ? STATUS_OK : STATUS_FAILED;
}

static bool is_finite_row(const struct points *points, size_t row) {
    for (size_t f = 0; f < points->features; f++)
        if (!isfinite(dtype_get(points->dtype, points->values, row * points->features + f))) return false;
    return true;
}

enum status points_check(const struct points *points) {
    size_t row = points->count;
    if (!points->values) return STATUS_OK;
#pragma omp parallel for schedule(static) reduction(min : row)
    for (size_t r = 0; r < points->count; r++)
        if (r < row && !is_finite_row(points, r)) row = r;
    for (size_t f = 0; row < points->count && f < points->features; f++) {
        const double value = dtype_get(points->dtype, points->values, row * points->features + f);
        if (!isfinite(value))
            return status_set(STATUS_BAD_DATA,
                              "row %zu of the points is not finite: feature %zu is %g; remove the row", row,
                              f, value);
    }
    return STATUS_OK;
}

const char *points_residency(const struct points *points) {
    if (!points->stream) return "device";
    return points->stream->place.pinned ? "host (pinned)" : "host (pageable)";
}

/* Device memory with a copy of `from`. */
static void *upload_points(struct device *device, const void *from, size_t bytes) {
    void *memory = device->driver->alloc(device, bytes);
    if (memory) device->driver->upload(device, memory, from, bytes);
    if (!memory && point_stream_usable(device))
        status_write("%s; --residency host streams the points from host memory", status_message());
    return memory;
}

enum status points_from_bytes(struct points *points, struct device *device, enum gemm_dtype dtype,
                              size_t count, size_t features, const uint8_t *bytes) {
    enum status status = points_open(points, device, dtype, count, features);
    if (status) return status;
    points->bytes = upload_points(device, bytes, count * features);
    return points->bytes ? points_update_norms(points, device) : STATUS_FAILED;
}

enum status points_from_values(struct points *points, struct device *device, enum gemm_dtype dtype,
                               size_t count, size_t features, const void *values) {
    const struct points given = {
        .dtype = dtype, .count = count, .features = features, .values = (void *)(uintptr_t)values};
    enum status status = points_open(points, device, dtype, count, features);
    if (!status) status = points_check(&given);
    if (status) return status;
    points->values = upload_points(device, values, count * features * dtype_size(dtype));
    if (!points->values) return STATUS_FAILED;
    status = points_update_norms(points, device);
    return status ? status : device->driver->synchronize(device);
}

void points_free(struct points *points, struct device *device) {
    if (points->stream) point_stream_close(points, device);
    device->driver->free(device, points->bytes);
    device->driver->free(device, points->values);
    device->driver->free(device, points->norm);
    *points = (struct points){0};
}
