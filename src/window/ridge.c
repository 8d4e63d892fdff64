#include "src/window/ridge.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/pages.h"

static const double LEAST_RELATIVE = 1e-6;
enum { GRID = 7 /* up to 1 */ };

enum status ridge_fit(struct readout *readout, const struct readout_images *images, struct readout_part part,
                      const struct qr_matrix *triangle) {
    enum status status = STATUS_OK;
    for (size_t done = 0; done < part.count && !status; done += readout->shape.rows) {
        const size_t left = part.count - done, rows = left < readout->shape.rows ? left : readout->shape.rows;
        status = features_rows(images->features, images->samples, images->labels, part.first + done, rows,
                               &readout->rows);
        if (!status) status = readout_append(readout, triangle, &readout->rows, rows);
    }
    return status;
}

/* --- scores --- */

struct scoring {
    void *logits; /* device, [shape.rows][classes] */
    void *host;   /* the same */
};

static enum status score_rows(struct readout *readout, const struct scoring *scoring, const uint8_t *labels,
                              size_t rows, const void *w, struct readout_score *score) {
    struct device *device = &readout->compute->device;
    const struct readout_shape *shape = &readout->shape;
    const enum status status = readout_predict(readout, &readout->rows, rows, w, scoring->logits);
    if (status) return status;
    device->driver->download(device, scoring->host, scoring->logits,
                             rows * shape->classes * dtype_size(shape->dtype));
    readout_add_score(score, shape->dtype, rows, shape->classes, scoring->host, labels);
    device_lap(device, PART_ELEMENTWISE);
    return STATUS_OK;
}

static enum status score_part(struct readout *readout, const struct readout_images *images,
                              struct readout_part part, const struct scoring *scoring, const char *w,
                              size_t count, struct readout_score *scores) {
    const struct readout_shape *shape = &readout->shape;
    enum status status = STATUS_OK;
    for (size_t done = 0; done < part.count && !status; done += shape->rows) {
        const size_t left = part.count - done, rows = left < shape->rows ? left : shape->rows,
                     first = part.first + done;
        status =
            features_rows(images->features, images->samples, images->labels, first, rows, &readout->rows);
        for (size_t k = 0; k < count && !status; k++)
            status = score_rows(readout, scoring, images->labels + first, rows,
                                w + k * shape->n * shape->classes * dtype_size(shape->dtype), &scores[k]);
    }
    return status;
}

enum status ridge_score(struct readout *readout, const struct readout_images *images,
                        struct readout_part part, const void *w, size_t count, struct readout_score *scores) {
    struct device *device = &readout->compute->device;
    const size_t bytes = readout->shape.rows * readout->shape.classes * dtype_size(readout->shape.dtype);
    struct scoring scoring = {device->driver->alloc(device, bytes), pages_alloc(bytes)};
    enum status status = scoring.logits && scoring.host ? STATUS_OK : STATUS_FAILED;
    for (size_t k = 0; k < count; k++) scores[k] = (struct readout_score){0};
    if (!status) status = score_part(readout, images, part, &scoring, w, count, scores);
    device->driver->free(device, scoring.logits);
    free(scoring.host);
    return status;
}

/* --- the choice --- */

enum status ridge_grid(double mean, struct ridges *ridges) {
    if (!isfinite(mean)) return status_set(STATUS_FAILED, "a feature is not finite");
    if (!(mean > 0))
        return status_set(STATUS_FAILED, "all features are the same for all images: there is nothing to fit");
    *ridges = (struct ridges){.count = GRID};
    for (size_t k = 0; k < GRID; k++) {
        ridges->relative[k] = LEAST_RELATIVE * pow(10, (double)k);
        ridges->value[k] = ridges->relative[k] * mean;
    }
    return STATUS_OK;
}

static bool is_better(const struct readout_score *a, const struct readout_score *b) {
    return a->correct != b->correct ? a->correct > b->correct : a->error <= b->error;
}

/* Solves with the ridges that leave full rank, which stay in the list. `work` has readout->together
   triangles. */
static enum status solve_all(struct readout *readout, const struct qr_matrix *triangle,
                             const struct qr_matrix *work, struct ridges *ridges, char *w) {
    const size_t bytes = readout->shape.n * readout->shape.classes * dtype_size(readout->shape.dtype),
                 count = ridges->count;
    size_t solved = 0;
    enum status status = STATUS_OK;
    for (size_t first = 0, some; first < count; first += some) {
        some = count - first < readout->together ? count - first : readout->together;
        for (size_t k = 0; k < some; k++) {
            const struct qr_matrix copy = readout_triangle_at(readout, work, k);
            readout_copy(readout, triangle, &copy);
        }
        status = readout_add_ridges(readout, work, some, ridges->value + first);
        if (status) return status;
        for (size_t k = first; k < first + some; k++) {
            const struct qr_matrix one = readout_triangle_at(readout, work, k - first);
            bool finite;
            status = readout_solve(readout, &one, w + solved * bytes, &finite);
            if (status) continue;
            ridges->value[solved] = ridges->value[k];
            ridges->relative[solved++] = ridges->relative[k];
        }
    }
    ridges->count = solved;
    return solved ? STATUS_OK : status;
}

enum status ridge_choose(struct readout *readout, const struct readout_images *images,
                         struct readout_part part, const struct qr_matrix *triangle, struct ridges *ridges) {
    struct device *device = &readout->compute->device;
    const size_t bytes = readout->shape.n * readout->shape.classes * dtype_size(readout->shape.dtype);
    struct qr_matrix work = readout_triangles(readout, readout->together);
    void *w = device->driver->alloc(device, ridges->count * bytes);
    enum status status = work.values && w ? STATUS_OK : STATUS_FAILED;
    if (!status) status = solve_all(readout, triangle, &work, ridges, w);
    if (!status) status = ridge_score(readout, images, part, w, ridges->count, ridges->score);
    ridges->best = 0;
    for (size_t k = 1; k < ridges->count && !status; k++)
        if (is_better(&ridges->score[k], &ridges->score[ridges->best])) ridges->best = k;
    readout_free(readout, &work);
    device->driver->free(device, w);
    return status;
}
