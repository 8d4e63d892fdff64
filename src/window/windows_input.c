/* What goes into windows.h and what comes out: finite values, scales, rank. */
#include "src/window/windows_parts.h"

#include <math.h>

/* --- finite values --- */

static void measure(const struct windows *windows, size_t row, size_t rows, double *largest) {
    const size_t size = dtype_size(windows->shape.dtype);
    windows->ops->largest(windows->compute->device.ops_context, rows, windows->shape.cols,
                          windows->a + row * windows->lda * size, windows->lda, largest);
}

/* The first column whose largest magnitude is not finite; cols: none. */
static size_t infinite_column(const struct windows *windows, const double *largest) {
    size_t j = 0;
    while (j < windows->shape.cols && isfinite(largest[j])) j++;
    return j;
}

/* Halves rows first .. first + rows - 1, which have such a value, down to the first row. */
static enum status not_finite(struct windows *windows, size_t first, size_t rows) {
    const struct windows_shape *shape = &windows->shape;
    while (rows > 1) {
        const size_t half = rows / 2;
        measure(windows, first, half, windows->largest);
        const bool found = infinite_column(windows, windows->largest) < shape->cols;
        first += found ? 0 : half;
        rows = found ? half : rows - half;
    }
    measure(windows, first, 1, windows->largest);
    const size_t window = first < shape->window ? 0 : (first - shape->window) / shape->stride + 1;
    return status_set(STATUS_FAILED,
                      "window %zu has a value that is not finite, at row %zu and column %zu of the data: "
                      "remove or replace that row",
                      window, first, infinite_column(windows, windows->largest));
}

/* --- scales --- */

/* Magnitudes whose squares, and those of values an epsilon as large, are normal numbers of the dtype. */
static bool is_safe(enum gemm_dtype dtype, double magnitude) {
    return dtype == GEMM_F32 ? magnitude > 0x1p-30 && magnitude < 0x1p50
                             : magnitude > 0x1p-400 && magnitude < 0x1p480;
}

static enum status choose_scales(struct windows *windows) {
    const struct windows_shape *shape = &windows->shape;
    windows->scaled = false;
    for (size_t j = 0; j < shape->cols; j++) {
        const double ridge = j < shape->n ? sqrt(shape->ridge) : 0,
                     largest = fmax(windows->largest[j], ridge),
                     norm = hypot(sqrt((double)shape->window) * windows->largest[j], ridge);
        int exponent = 0;
        if (largest > 0 && !is_safe(shape->dtype, largest)) frexp(largest, &exponent);
        if (norm > (shape->dtype == GEMM_F32 ? 0x1p127 : 0x1p1023))
            return status_set(STATUS_FAILED,
                              "column %zu of the data has values up to %.3g: the norm of %zu rows is no %s "
                              "number; divide the column by a constant",
                              j, largest, shape->window, dtype_name(shape->dtype));
        windows->scale[j] = ldexp(1, -exponent);
        windows->unscale[j] = ldexp(1, exponent);
        windows->bound[j] = norm * windows->scale[j];
        windows->scaled |= exponent != 0;
    }
    return STATUS_OK;
}

/* The memory that only scaled runs need. */
static enum status open_scaled(struct windows *windows) {
    if (!windows->scaled_back)
        windows->scaled_back = windows_alloc(windows, windows->most * windows->triangle);
    if (!windows->dense) windows->dense = windows_alloc(windows, windows->shape.window * windows->ld);
    return windows->scaled_back && windows->dense ? STATUS_OK : STATUS_FAILED;
}

enum status windows_measure(struct windows *windows) {
    const struct windows_shape *shape = &windows->shape;
    const bool gaps = shape->stride > shape->window; /* rows of no window are not read */
    const size_t pieces = gaps ? shape->count : 1, rows = gaps ? shape->window : windows_rows(shape);
    double *piece = windows->unscale;
    for (size_t j = 0; j < shape->cols; j++) windows->largest[j] = 0;
    for (size_t i = 0; i < pieces; i++) {
        measure(windows, i * shape->stride, rows, piece);
        if (infinite_column(windows, piece) < shape->cols)
            return not_finite(windows, i * shape->stride, rows);
        for (size_t j = 0; j < shape->cols; j++) windows->largest[j] = fmax(windows->largest[j], piece[j]);
    }
    enum status status = choose_scales(windows);
    if (!status && windows->scaled) status = open_scaled(windows);
    return status ? status : windows_start(windows);
}

/* Element (j, j) of R is sqrt(ridge) times the scale of column j, that of R^T R its square. */
enum status windows_start(struct windows *windows) {
    const struct windows_shape *shape = &windows->shape;
    struct device *device = &windows->compute->device;
    const size_t size = dtype_size(shape->dtype);
    for (size_t j = 0; windows->start && j < shape->n; j++) {
        const double root = sqrt(shape->ridge) * windows->scale[j];
        const double element = windows->method == WINDOWS_GRAM ? root * root : root;
        const float narrow = (float)element;
        device->driver->upload(device, windows->start + j * (windows->ld + 1) * size,
                               shape->dtype == GEMM_F32 ? (const void *)&narrow : &element, size);
    }
    return STATUS_OK;
}

/* --- triangles --- */

/* A diagonal element of R is the distance of a column from the span of those before it, relative to its norm.
   Measured on dependent columns (float32, n 4 to 1024, each orthogonal method): up to 3 epsilons, and at most
   half of this bound. */
static double tolerance(const struct windows_shape *shape) {
    return sqrt((double)shape->n) * dtype_epsilon(shape->dtype);
}

static enum status no_full_rank(const struct windows *windows, size_t window, size_t column) {
    const struct windows_shape *shape = &windows->shape;
    const double noise = 10 * tolerance(shape) * windows->bound[column] * windows->unscale[column],
                 ridge = noise > 0 ? noise * noise : 1;
    return status_set(STATUS_FAILED,
                      "window %zu (rows %zu to %zu) has no full rank at column %zu: it is zero or depends on "
                      "those before it; remove it, or add --ridge %.0e",
                      window, window * shape->stride, window * shape->stride + shape->window - 1, column,
                      pow(10, ceil(log10(ridge))));
}

/* R of the columns as they are in the data. */
static struct qr_triangles scale_back(struct windows *windows, size_t count, const struct qr_triangles *r) {
    const struct windows_shape *shape = &windows->shape;
    for (size_t i = 0; i < count; i++) {
        windows->to[i] = windows->scaled_back + i * windows->triangle * dtype_size(shape->dtype);
        windows->ops->rows(windows->compute->device.ops_context, shape->n, shape->n, shape->cols, r->from[i],
                           r->ld, windows->unscale, windows->to[i], windows->ld);
        windows->from[i] = windows->to[i];
    }
    return (struct qr_triangles){windows->from, windows->to, windows->ld};
}

enum status windows_deliver(struct windows *windows, size_t first, size_t count,
                            const struct qr_triangles *r) {
    const struct windows_shape *shape = &windows->shape;
    struct device *device = &windows->compute->device;
    windows->ops->deficient(device->ops_context, count, shape->n, r, tolerance(shape), windows->bound,
                            windows->column);
    for (size_t i = 0; i < count; i++) {
        if (windows->column[i] == shape->n) continue;
        const enum status status =
            device->driver->synchronize(device); /* the cause may be an error of the GPU */
        return status ? status : no_full_rank(windows, first + i, windows->column[i]);
    }
    const struct qr_triangles back = windows->scaled ? scale_back(windows, count, r) : *r;
    device_lap(device, PART_ELEMENTWISE);
    return windows->visitor->visit(windows->visitor->self, first, count, &back);
}
