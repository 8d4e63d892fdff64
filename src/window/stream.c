#include "src/window/stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/pages.h"

/* The readouts of a run. */
struct stream {
    struct readout *readout;
    const struct readout_images *images;
    const struct stream_options *options;
    struct sliding_history history;
    struct sliding sliding[STREAM_MOST];
    char *w;      /* device, [count][n][classes] */
    void *logits; /* device, [stride][classes] */
    void *host;   /* the same */
};

static size_t weight_bytes(const struct stream *stream) {
    const struct readout_shape *shape = &stream->readout->shape;
    return shape->n * shape->classes * dtype_size(shape->dtype);
}

/* --- memory --- */

static void close_stream(struct stream *stream) {
    struct device *device = &stream->readout->compute->device;
    for (size_t k = 0; k < stream->options->count; k++) sliding_close(&stream->sliding[k]);
    readout_free(stream->readout, &stream->history.values);
    device->driver->free(device, stream->w);
    device->driver->free(device, stream->logits);
    free(stream->host);
}

enum status stream_check(const struct stream_options *options, size_t images) {
    if (images / options->stride < 2)
        return status_set(STATUS_USAGE,
                          "a stream of %zu images has no two blocks of %zu: set a smaller --stride", images,
                          options->stride);
    for (size_t k = 0; k < options->count; k++)
        if (options->memory[k].window % options->stride)
            return status_set(STATUS_USAGE,
                              "a window of %zu images is no multiple of the stride: set --stride, such as "
                              "--stride %zu",
                              options->memory[k].window, options->memory[k].window);
    return STATUS_OK;
}

/* Blocks of a window; one that is longer than the stream has all of it. */
static size_t blocks_of(const struct stream *stream, size_t k) {
    const size_t blocks = stream->options->memory[k].window / stream->options->stride,
                 all = stream->images->samples->count / stream->options->stride;
    return blocks < all ? blocks : 0;
}

static enum status open_stream(struct stream *stream, double ridge) {
    struct device *device = &stream->readout->compute->device;
    const struct stream_options *options = stream->options;
    const struct readout_shape *shape = &stream->readout->shape;
    const size_t bytes = options->stride * shape->classes * dtype_size(shape->dtype);
    size_t most = 1;
    for (size_t k = 0; k < options->count; k++)
        if (blocks_of(stream, k) > most) most = blocks_of(stream, k);
    stream->history = (struct sliding_history){.blocks = most, .rows = options->stride};
    stream->history.values = readout_rows(stream->readout, most * options->stride);
    enum status status = stream->history.values.values ? STATUS_OK : STATUS_FAILED;
    for (size_t k = 0; k < options->count && !status; k++)
        status = sliding_open(&stream->sliding[k], stream->readout, &stream->history, blocks_of(stream, k),
                              options->memory[k].forgetting, ridge);
    if (status) return status;
    stream->w = device->driver->alloc(device, options->count * weight_bytes(stream));
    stream->logits = stream->w ? device->driver->alloc(device, bytes) : NULL;
    stream->host = stream->logits ? pages_alloc(bytes) : NULL;
    return stream->host ? STATUS_OK : STATUS_FAILED;
}

/* --- the ridge --- */

static enum status choose_ridge(struct stream *stream, struct stream_result *result) {
    const size_t stride = stream->options->stride;
    struct readout *readout = stream->readout;
    struct qr_matrix triangle = readout_triangles(readout, 1);
    enum status status = triangle.values ? STATUS_OK : STATUS_FAILED;
    if (!status) status = ridge_fit(readout, stream->images, (struct readout_part){0, stride}, &triangle);
    double mean = 0;
    if (!status) status = readout_mean_square(readout, &triangle, &mean);
    if (!status) status = ridge_grid(mean, &result->ridges);
    if (!status)
        status = ridge_choose(readout, stream->images, (struct readout_part){stride, stride}, &triangle,
                              &result->ridges);
    if (status == STATUS_FAILED) { /* a feature that is not finite is named first */
        char reason[512];
        snprintf(reason, sizeof reason, "%s", status_message());
        if (!features_check(stream->images->features, stream->images->samples, stream->images->labels, 0,
                            2 * stride, &readout->rows, readout->shape.rows))
            status_write("%s", reason);
    }
    result->ridge = result->ridges.value[result->ridges.best];
    readout_free(readout, &triangle);
    return status;
}

/* --- a block --- */

/* The rows of a block in the history. */
static struct qr_matrix block_at(const struct stream *stream, size_t block) {
    const struct sliding_history *history = &stream->history;
    struct qr_matrix rows = history->values;
    rows.values = (char *)rows.values + block % history->blocks * history->rows * rows.ld *
                                            dtype_size(stream->readout->shape.dtype);
    return rows;
}

static enum status predict(struct stream *stream, const struct qr_matrix *rows, size_t block, size_t k,
                           struct readout_score *score) {
    struct device *device = &stream->readout->compute->device;
    const struct readout_shape *shape = &stream->readout->shape;
    const size_t stride = stream->options->stride;
    const enum status status =
        readout_predict(stream->readout, rows, stride, stream->w + k * weight_bytes(stream), stream->logits);
    if (status) return status;
    device->driver->download(device, stream->host, stream->logits,
                             stride * shape->classes * dtype_size(shape->dtype));
    readout_add_score(score, shape->dtype, stride, shape->classes, stream->host,
                      stream->images->labels + block * stride);
    device_lap(device, PART_ELEMENTWISE);
    return STATUS_OK;
}

/* STATUS_FAILED of a window, with its images. */
static enum status name_window(const struct stream *stream, enum status status, size_t block, size_t k,
                               bool finite) {
    const size_t stride = stream->options->stride, window = stream->sliding[k].blocks,
                 first = window && block + 1 > window ? block + 1 - window : 0;
    if (!finite)
        status = features_check(stream->images->features, stream->images->samples, stream->images->labels,
                                first * stride, (block + 1 - first) * stride, &stream->readout->rows,
                                stream->readout->shape.rows);
    if (!finite && !status)
        status = status_set(STATUS_FAILED, "the triangle of the features overflows: use --dtype f64");
    return status_context(status, "images %zu to %zu", first * stride, (block + 1) * stride - 1);
}

static enum status run_block(struct stream *stream, size_t block, bool last, struct readout_score *scores) {
    const size_t stride = stream->options->stride;
    const struct qr_matrix rows = block_at(stream, block);
    enum status status = features_rows(stream->images->features, stream->images->samples,
                                       stream->images->labels, block * stride, stride, &rows);
    for (size_t k = 0; k < stream->options->count && !status; k++) {
        bool finite = true;
        if (block) status = predict(stream, &rows, block, k, &scores[k]);
        if (!status && !last) status = sliding_enter(&stream->sliding[k]);
        if (!status && !last) {
            status = sliding_solve(&stream->sliding[k], stream->w + k * weight_bytes(stream), &finite);
            if (status) status = name_window(stream, status, block, k, finite);
        }
    }
    return status;
}

static enum status run_blocks(struct stream *stream, const struct stream_observer *observer,
                              struct stream_result *result) {
    const struct stream_options *options = stream->options;
    const size_t blocks = stream->images->samples->count / options->stride;
    enum status status = STATUS_OK;
    for (size_t block = 0; block < blocks && !status; block++) {
        struct readout_score scores[STREAM_MOST] = {0};
        status = run_block(stream, block, block + 1 == blocks, scores);
        if (status || !block) continue;
        for (size_t k = 0; k < options->count; k++) {
            result->score[k].total += scores[k].total;
            result->score[k].correct += scores[k].correct;
            result->score[k].error += scores[k].error;
        }
        result->blocks++;
        observer->block(observer->self,
                        &(struct stream_record){block + 1, (block + 1) * options->stride, scores});
        if (options->stop && *options->stop) status = status_set(STATUS_INTERRUPTED, "interrupted");
    }
    return status;
}

enum status stream_run(struct readout *readout, const struct readout_images *images,
                       const struct stream_options *options, const struct stream_observer *observer,
                       struct stream_result *result) {
    struct stream stream = {.readout = readout, .images = images, .options = options};
    *result = (struct stream_result){.ridge = options->ridge};
    enum status status = STATUS_OK;
    if (options->ridge < 0) status = choose_ridge(&stream, result);
    if (!status) observer->ridge(observer->self, result);
    if (!status) status = open_stream(&stream, result->ridge);
    if (!status) status = run_blocks(&stream, observer, result);
    close_stream(&stream);
    return status;
}

bool stream_differs(const struct readout_score *a, const struct readout_score *b) {
    const double p = readout_accuracy(a), q = readout_accuracy(b);
    if (!a->total || !b->total) return false;
    return fabs(p - q) > 2 * sqrt(p * (1 - p) / (double)a->total + q * (1 - q) / (double)b->total);
}
