#include "src/cluster/point_stream.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"

static const size_t CHUNK_BYTES = (size_t)32 << 20; /* 0.6 ms at 55 GB/s: kernels start in a tenth of that */

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t row_bytes(const struct points *points) {
    return points->features * (points->bytes ? 1 : dtype_size(points->dtype));
}

static const char *memory_of(const struct points *points, size_t row) {
    return (points->bytes ? (const char *)points->bytes : (const char *)points->values) +
           row * row_bytes(points);
}

/* Rows first .. first + count - 1 of the points, whose copy is in `memory`. */
static struct points part_of(const struct points *points, size_t first, size_t count, void *memory) {
    struct points part = *points;
    part.stream = NULL;
    part.count = count;
    if (points->bytes) part.bytes = memory;
    if (points->values) part.values = memory;
    part.norm = points->norm + first / NEAREST_BLOCK;
    return part;
}

/* --- open and close --- */

bool point_stream_usable(const struct device *device) {
    return device->driver->stage_upload && device->driver->alloc_pinned;
}

void *point_stream_alloc(struct device *device, bool pinned, size_t bytes) {
    void *memory = pinned ? device->driver->alloc_pinned(device, bytes) : pages_alloc(bytes);
    if (!memory && pinned)
        status_write("%s; without --pin the points need no page-locked memory", status_message());
    return memory;
}

void point_stream_release(struct device *device, bool pinned, void *memory) {
    if (pinned) {
        device->driver->free_pinned(device, memory);
    } else {
        free(memory);
    }
}

static void close_buffers(struct point_stream *stream, struct device *device) {
    for (unsigned i = 0; i < 2; i++) {
        if (stream->buffer[i]) device->driver->stage_wait(device, i);
        if (stream->staging[i]) device->driver->free_pinned(device, stream->staging[i]);
        device->driver->free(device, stream->buffer[i]);
        stream->buffer[i] = stream->staging[i] = NULL;
    }
}

static enum status open_buffers(const struct points *points, struct device *device, size_t rows) {
    struct point_stream *stream = points->stream;
    const size_t blocks = (rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK;
    stream->place.chunk = (blocks ? blocks : 1) * NEAREST_BLOCK;
    for (size_t i = 0; i < 2; i++) {
        const size_t bytes = stream->place.chunk * row_bytes(points);
        stream->buffer[i] = device->driver->alloc(device, bytes);
        if (stream->buffer[i]) stream->staging[i] = device->driver->alloc_pinned(device, bytes);
        if (!stream->staging[i]) return STATUS_FAILED;
    }
    return STATUS_OK;
}

/* Before the buffers are used for anything but the next pass. */
static void discard_ahead(struct point_stream *stream, struct device *device) {
    for (unsigned stage = 0; stage < stream->ahead; stage++) {
        device->driver->stage_acquire(device, stage);
        device->driver->stage_release(device, stage);
    }
    stream->ahead = 0;
}

enum status point_stream_begin(const struct points *points, struct device *device, size_t multiple) {
    const size_t chunk = points->stream->place.chunk;
    points->stream->repeats = true;
    if (chunk % multiple == 0) return STATUS_OK;
    close_buffers(points->stream, device);
    return open_buffers(points, device, (chunk + multiple - 1) / multiple * multiple);
}

void point_stream_end(const struct points *points, struct device *device) {
    discard_ahead(points->stream, device);
    points->stream->repeats = false;
}

/* A page-locked copy of the points, which the stream owns. */
static enum status pin(struct points *points, struct device *device) {
    const size_t bytes = points->count * row_bytes(points);
    void *copy = point_stream_alloc(device, true, bytes);
    if (!copy) return STATUS_FAILED;
    memcpy(copy, memory_of(points, 0), bytes);
    points->stream->owned = copy;
    if (points->bytes) points->bytes = copy;
    if (points->values) points->values = copy;
    return STATUS_OK;
}

enum status points_on_host(struct points *points, struct device *device, enum gemm_dtype dtype, size_t count,
                           size_t features, bool bytes, void *memory, bool owned,
                           const struct point_place *place) {
    struct point_stream *stream = calloc(1, sizeof *stream);
    enum status status = points_open(points, device, dtype, count, features);
    if (stream) {
        *stream = (struct point_stream){.place = *place, .owned = owned ? memory : NULL};
    } else {
        if (owned) point_stream_release(device, place->pinned, memory);
        return status_set(STATUS_FAILED, "out of memory");
    }
    points->stream = stream;
    points->bytes = bytes ? memory : NULL;
    points->values = bytes ? NULL : memory;
    if (!status) status = points_check(points);
    if (!status && place->pinned && !owned) status = pin(points, device);
    const size_t rows = place->chunk ? place->chunk : CHUNK_BYTES / (features ? row_bytes(points) : 1);
    if (!status) status = open_buffers(points, device, smaller(rows, count));
    return status ? status : points_update_norms(points, device);
}

void point_stream_close(struct points *points, struct device *device) {
    struct point_stream *stream = points->stream;
    close_buffers(stream, device);
    if (stream->owned) point_stream_release(device, stream->place.pinned, stream->owned);
    free(stream);
    points->stream = NULL;
    points->bytes = NULL;
    points->values = NULL;
}

/* --- copies --- */

/* One thread copies 5 to 10 GB/s, less than PCIe. */
static void copy_by_threads(void *to, const void *from, size_t bytes, int threads) {
    enum { PIECE = 1 << 20 };
    (void)threads; /* without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t at = 0; at < bytes; at += PIECE)
        memcpy((char *)to + at, (const char *)from + at, smaller(PIECE, bytes - at));
}

/* Starts to copy chunk `c` to its buffer. Page-locked staging buffers, which are as large as a chunk, are
   enough for the full rate, and the pages of all points need not be locked. */
static void upload_chunk(const struct points *points, struct device *device, size_t c) {
    struct point_stream *stream = points->stream;
    const size_t first = c * stream->place.chunk,
                 bytes = smaller(stream->place.chunk, points->count - first) * row_bytes(points);
    const void *from = memory_of(points, first);
    if (!stream->place.pinned) {
        device->driver->stage_wait(device, c % 2);
        copy_by_threads(stream->staging[c % 2], from, bytes, stream->place.threads);
        from = stream->staging[c % 2];
    }
    device->driver->stage_upload(device, c % 2, stream->buffer[c % 2], from, bytes);
    stream->uploaded += bytes;
}

/* Uploads the first chunks of a pass, unless the last one did. */
static void upload_first(const struct points *points, struct device *device, size_t chunks) {
    struct point_stream *stream = points->stream;
    if (stream->ahead && stream->ahead_of == memory_of(points, 0) && stream->ahead_count == points->count)
        return;
    discard_ahead(stream, device);
    for (; stream->ahead < 2 && stream->ahead < chunks; stream->ahead++)
        upload_chunk(points, device, stream->ahead);
    stream->ahead_of = memory_of(points, 0);
    stream->ahead_count = points->count;
}

enum status point_stream_pass(const struct points *points, struct device *device,
                              const struct points_visitor *visitor) {
    struct point_stream *stream = points->stream;
    const size_t chunk = stream->place.chunk, chunks = (points->count + chunk - 1) / chunk;
    enum status status = STATUS_OK;
    device_lap(device, PART_OTHER);
    upload_first(points, device, chunks);
    stream->ahead = 0;
    for (size_t c = 0; c < chunks && !status; c++) {
        const size_t first = c * chunk, rows = smaller(chunk, points->count - first);
        const struct points part = part_of(points, first, rows, stream->buffer[c % 2]);
        device->driver->stage_acquire(device, c % 2);
        device_lap(device, PART_H2D); /* the time that the device waited */
        status = visitor->visit(visitor->self, &part, first);
        device->driver->stage_release(device, c % 2);
        device_lap(device, PART_OPTIMIZER);
        if (c + 2 < chunks && !status) upload_chunk(points, device, c + 2);
    }
    if (!status && stream->repeats) upload_first(points, device, chunks);
    if (status) stream->ahead = smaller(2, chunks);
    if (status) discard_ahead(stream, device); /* what was not visited */
    return status;
}

struct points point_stream_rows(const struct points *points, struct device *device, size_t first,
                                size_t count, void *buffer) {
    if (buffer == points->stream->buffer[0]) discard_ahead(points->stream, device);
    device->driver->upload(device, buffer, memory_of(points, first), count * row_bytes(points));
    return part_of(points, first, count, buffer);
}

static void gather_rows(const struct points *points, const uint32_t *index, size_t count, char *to) {
    const size_t bytes = row_bytes(points);
#pragma omp parallel for schedule(static) num_threads(points->stream->place.threads)
    for (size_t i = 0; i < count; i++) memcpy(to + i * bytes, memory_of(points, index[i]), bytes);
}

void point_stream_gather(const struct points *points, struct device *device, const uint32_t *index,
                         size_t count, void *values) {
    struct point_stream *stream = points->stream;
    const struct cluster_ops *ops = device->driver->cluster_ops(device, points->dtype);
    const size_t chunk = stream->place.chunk, bytes = row_bytes(points),
                 size = points->features * dtype_size(points->dtype);
    device_lap(device, PART_OTHER);
    discard_ahead(stream, device);
    for (size_t first = 0, c = 0; first < count; first += chunk, c++) {
        const unsigned stage = c % 2;
        const size_t rows = smaller(chunk, count - first);
        device->driver->stage_wait(device, stage);
        gather_rows(points, index + first, rows, stream->staging[stage]);
        device->driver->stage_upload(device, stage, stream->buffer[stage], stream->staging[stage],
                                     rows * bytes);
        device->driver->stage_acquire(device, stage);
        device_lap(device, PART_H2D);
        ops->rows(device->ops_context, rows, points->features, points->bytes != NULL, stream->buffer[stage],
                  NULL, (char *)values + first * size);
        device->driver->stage_release(device, stage);
        stream->uploaded += rows * bytes;
    }
}
