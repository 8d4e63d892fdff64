#include "src/window/readout.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/pages.h"

enum {
    ALIGNED = 16, /* elements: rows start at addresses of vectors */
    WIDTH = 1024, /* rows of a triangle that enter another one together */
    TOGETHER = 8, /* triangles, on a GPU */
    READ = 128    /* rows of a triangle that the host reads at a time */
};

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t size_of(const struct readout *readout) {
    return dtype_size(readout->shape.dtype);
}

static size_t columns_of(const struct readout *readout) {
    return readout->shape.n + readout->shape.classes;
}

static struct device *device_of(const struct readout *readout) {
    return &readout->compute->device;
}

/* --- memory --- */

static enum status make_identity(struct readout *readout) {
    struct device *device = device_of(readout);
    const size_t width = readout->width, bytes = width * width * size_of(readout);
    void *values = calloc(bytes, 1);
    if (!values) return status_set(STATUS_FAILED, "out of memory");
    readout->identity = device->driver->alloc(device, bytes);
    for (size_t i = 0; i < width; i++) dtype_set(readout->shape.dtype, values, i * width + i, 1);
    if (readout->identity) device->driver->upload(device, readout->identity, values, bytes);
    free(values);
    return readout->identity ? STATUS_OK : STATUS_FAILED;
}

enum status readout_open(struct readout *readout, struct compute *compute,
                         const struct readout_shape *shape) {
    struct device *device = &compute->device;
    *readout = (struct readout){.compute = compute, .shape = *shape};
    readout->width = WIDTH;
    readout->shape.rows = shape->rows > readout->width ? shape->rows : readout->width;
    readout->together =
        device->driver->host_memory ? 1 : smaller(readout->shape.rows / readout->width, TOGETHER);
    readout->ld = (columns_of(readout) + ALIGNED - 1) / ALIGNED * ALIGNED;
    const struct qr_shape qr = {.dtype = shape->dtype,
                                .batch = readout->together,
                                .rows = readout->shape.rows,
                                .n = shape->n,
                                .cols = readout->ld};
    const enum status status = qr_open(&readout->qr, compute, &qr);
    if (status) return status;
    readout->rows = readout_rows(readout, readout->shape.rows);
    return readout->rows.values ? make_identity(readout) : STATUS_FAILED;
}

void readout_close(struct readout *readout) {
    if (!readout->compute) return;
    readout_free(readout, &readout->rows);
    device_of(readout)->driver->free(device_of(readout), readout->identity);
    qr_close(&readout->qr);
    *readout = (struct readout){0};
}

static struct qr_matrix allocate(struct readout *readout, size_t count, size_t stride) {
    struct device *device = device_of(readout);
    struct qr_matrix matrix = {.ld = readout->ld, .stride = stride};
    matrix.values = device->driver->alloc(device, count * stride * size_of(readout));
    return matrix;
}

struct qr_matrix readout_triangles(struct readout *readout, size_t count) {
    return allocate(readout, count, readout->shape.n * readout->ld);
}

struct qr_matrix readout_rows(struct readout *readout, size_t count) {
    return allocate(readout, count, readout->ld);
}

void readout_free(struct readout *readout, struct qr_matrix *matrix) {
    device_of(readout)->driver->free(device_of(readout), matrix->values);
    matrix->values = NULL;
}

struct qr_matrix readout_triangle_at(const struct readout *readout, const struct qr_matrix *triangles,
                                     size_t number) {
    struct qr_matrix triangle = *triangles;
    triangle.values = (char *)triangles->values + number * triangles->stride * size_of(readout);
    return triangle;
}

void readout_zero(struct readout *readout, const struct qr_matrix *triangle) {
    device_of(readout)->driver->zero(device_of(readout), triangle->values,
                                     triangle->stride * size_of(readout));
}

void readout_copy(struct readout *readout, const struct qr_matrix *from, const struct qr_matrix *to) {
    device_of(readout)->driver->copy(device_of(readout), to->values, from->values,
                                     from->stride * size_of(readout));
}

/* --- rows that enter --- */

enum status readout_append(struct readout *readout, const struct qr_matrix *triangle,
                           const struct qr_matrix *rows, size_t count) {
    const void *const from = triangle->values;
    void *const to = triangle->values;
    const struct qr_triangles r = {&from, &to, triangle->ld};
    return qr_append(&readout->qr, 1, count, false, &r, rows);
}

/* Rows whose first `col` elements are zero, given from there on, enter `count` triangles: the columns before
   do not change. Row i has `i` zeros more. */
static enum status append_from(struct readout *readout, const struct qr_matrix *triangles, size_t count,
                               size_t col, const struct qr_matrix *rows, size_t of_each) {
    const void *from[TOGETHER];
    void *to[TOGETHER];
    for (size_t k = 0; k < count; k++)
        from[k] = to[k] = (char *)triangles->values +
                          (k * triangles->stride + col * triangles->ld + col) * size_of(readout);
    const struct qr_triangles r = {from, to, triangles->ld};
    struct qr rest = readout->qr;
    rest.shape.n -= col;
    rest.shape.cols -= col;
    return qr_append(&rest, count, of_each, true, &r, rows);
}

enum status readout_merge(struct readout *readout, const struct qr_matrix *to, const struct qr_matrix *from) {
    struct device *device = device_of(readout);
    const void *const values = from->values;
    const struct qr_triangles r = {&values, NULL, from->ld};
    enum status status = STATUS_OK;
    for (size_t col = 0; col < readout->shape.n && !status; col += readout->width) {
        const size_t count = smaller(readout->width, readout->shape.n - col);
        readout->qr.ops->block(device->ops_context, 1, count, readout->ld - col, &r, col, col,
                               &readout->rows);
        device_lap(device, PART_ELEMENTWISE);
        status = append_from(readout, to, 1, col, &readout->rows, count);
    }
    return status;
}

/* Of at most `together` triangles, without the first row: the bias has no ridge. */
static enum status add_ridges(struct readout *readout, const struct qr_matrix *triangles, size_t count,
                              const double *ridge) {
    struct device *device = device_of(readout);
    const size_t width = readout->width, size = size_of(readout);
    enum status status = STATUS_OK;
    double root[WIDTH];
    for (size_t col = 0; col < readout->shape.n && !status; col += width) {
        const size_t cols = smaller(width, readout->shape.n - col), skipped = col == 0,
                     of_each = cols - skipped;
        const struct qr_matrix rows = {readout->rows.values, readout->ld, of_each * readout->ld};
        const char *from = (const char *)readout->identity + skipped * width * size;
        if (!of_each) continue;
        device->driver->zero(device, rows.values, count * rows.stride * size);
        for (size_t k = 0; k < count; k++) {
            for (size_t j = 0; j < cols; j++) root[j] = sqrt(ridge[k]);
            readout->qr.ops->rows(device->ops_context, of_each, of_each, cols, from, width, root,
                                  (char *)rows.values + k * rows.stride * size, rows.ld);
        }
        device_lap(device, PART_ELEMENTWISE);
        status = append_from(readout, triangles, count, col, &rows, of_each);
    }
    return status;
}

enum status readout_add_ridges(struct readout *readout, const struct qr_matrix *triangles, size_t count,
                               const double *ridge) {
    enum status status = STATUS_OK;
    for (size_t k = 0, some; k < count && !status; k += some) {
        const struct qr_matrix part = readout_triangle_at(readout, triangles, k);
        some = smaller(count - k, readout->together);
        if (some > 1 || ridge[k] > 0) status = add_ridges(readout, &part, some, ridge + k);
    }
    return status;
}

/* --- the solution --- */

/* Row 0 of R is sqrt(m) times the means: without it, the norms are those of centred columns. */
enum status readout_mean_square(struct readout *readout, const struct qr_matrix *triangle, double *mean) {
    struct device *device = device_of(readout);
    const size_t n = readout->shape.n, row = triangle->ld * size_of(readout);
    void *rows = pages_alloc(READ * row);
    if (!rows) return STATUS_FAILED;
    double sum = 0;
    for (size_t first = 0; first < n; first += READ) {
        const size_t end = smaller(first + READ, n);
        device->driver->download(device, rows, (const char *)triangle->values + first * row,
                                 (end - first) * row);
        for (size_t i = first > 0 ? first : 1; i < end; i++)
            for (size_t j = i; j < n; j++) {
                const double value = dtype_get(readout->shape.dtype, rows, (i - first) * triangle->ld + j);
                sum += value * value;
            }
    }
    *mean = sum / (double)(n - 1);
    free(rows);
    return STATUS_OK;
}

enum status readout_solve(struct readout *readout, const struct qr_matrix *triangle, void *w, bool *finite) {
    struct device *device = device_of(readout);
    const size_t n = readout->shape.n, size = size_of(readout);
    const double limit = dtype_epsilon(readout->shape.dtype) * sqrt((double)n);
    const void *const from = triangle->values;
    const struct qr_triangles r = {&from, NULL, triangle->ld};
    size_t column;
    readout->qr.ops->deficient(device->ops_context, 1, n, &r, limit, NULL, &column);
    if (column == n)
        readout->qr.ops->solve(device->ops_context, n, columns_of(readout), from, triangle->ld, w);
    device_lap(device, PART_ELEMENTWISE);
    *finite = true;
    if (column == n) return STATUS_OK;
    const enum status status = device->driver->synchronize(device); /* the cause may be an error of the GPU */
    if (status) return status;
    union {
        float f32;
        double f64;
    } diagonal;
    device->driver->download(device, &diagonal,
                             (const char *)triangle->values + column * (triangle->ld + 1) * size, size);
    *finite = isfinite(dtype_get(readout->shape.dtype, &diagonal, 0));
    if (!column) return status_set(STATUS_FAILED, "no row has entered, or a value is not finite");
    return status_set(STATUS_FAILED,
                      "feature %zu is a sum of multiples of features before it, so that the least squares "
                      "have no single solution: use --ridge, such as --ridge 1, or a larger one",
                      column - 1);
}

enum status readout_predict(struct readout *readout, const struct qr_matrix *rows, size_t count,
                            const void *w, void *logits) {
    const size_t n = readout->shape.n, classes = readout->shape.classes;
    const struct gemm_call call = {.dtype = readout->shape.dtype,
                                   .op = GEMM_NN,
                                   .m = count,
                                   .n = classes,
                                   .k = n,
                                   .alpha = 1,
                                   .a = rows->values,
                                   .lda = rows->ld,
                                   .b = w,
                                   .ldb = classes,
                                   .c = logits,
                                   .ldc = classes};
    const enum status status = compute_gemm(readout->compute, &call);
    device_of(readout)->driver->lap(device_of(readout),
                                    profile_gemm_slot(PART_GEMM_NN, 1, count, classes, n));
    return status;
}

void readout_add_score(struct readout_score *score, enum gemm_dtype dtype, size_t count, size_t classes,
                       const void *logits, const uint8_t *labels) {
    for (size_t i = 0; i < count; i++) {
        size_t best = 0;
        for (size_t j = 0; j < classes; j++) {
            const double logit = dtype_get(dtype, logits, i * classes + j),
                         error = logit - (labels[i] == j ? 1 : 0);
            score->error += error * error;
            if (logit > dtype_get(dtype, logits, i * classes + best)) best = j;
        }
        score->correct += best == labels[i];
    }
    score->total += count;
}

double readout_accuracy(const struct readout_score *score) {
    return score->total ? (double)score->correct / (double)score->total : 0;
}
