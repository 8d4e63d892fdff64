/* The Gram matrices of windows.h, and their Cholesky factors R^T R = A^T A.

   Idea       the matrix of a window is that of the one before, plus the products of the new rows, minus those
              of the rows that left. The first window of a group takes half the flops of QR, the others take a
              fraction of them; but A^T A has the square of A's condition number. */
#include "src/window/windows_parts.h"

#include <math.h>
#include <stdlib.h>

enum { PRODUCT_ROWS = 256 /* of a block row of A^T A */ };

static char *element(const struct windows *windows, char *matrix, size_t row, size_t col) {
    return matrix + (row * windows->ld + col) * dtype_size(windows->shape.dtype);
}

static char *slot(const struct windows *windows, size_t i) {
    return element(windows, windows->levels[0].triangles, i * windows->shape.n, 0);
}

enum status windows_gram_open(struct windows *windows) {
    const size_t bytes = windows->triangle * dtype_size(windows->shape.dtype);
    struct windows_level *level = windows->levels;
    level->batch = windows->most =
        windows_batch(windows, bytes, 1, (size_t)windows->compute->threads, windows->shape.count);
    level->triangles = windows_alloc(windows, level->batch * windows->triangle);
    windows->current = windows_alloc(windows, windows->triangle);
    windows->least = malloc(level->batch * windows->shape.n * sizeof *windows->least);
    windows->most_squares = malloc(2 * windows->shape.n * sizeof *windows->most_squares);
    if (!windows->least || !windows->most_squares) return status_set(STATUS_FAILED, "out of memory");
    return level->triangles && windows->current ? STATUS_OK : STATUS_FAILED;
}

/* C (block [rows][cols] of every matrix) = alpha A^T B + beta C. */
static enum status multiply(struct windows *windows, size_t count, size_t m, size_t n, size_t k, double alpha,
                            const void *a, const void *b, size_t ld, size_t stride, double beta, void *c) {
    const struct gemm_call call = {.dtype = windows->shape.dtype,
                                   .op = GEMM_TN,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .alpha = alpha,
                                   .a = a,
                                   .lda = ld,
                                   .b = b,
                                   .ldb = ld,
                                   .beta = beta,
                                   .c = c,
                                   .ldc = windows->ld};
    const struct gemm_strides strides = {stride, stride, windows->triangle};
    const enum status status = compute_gemm_batch(windows->compute, &call, count, &strides);
    struct profile_slot lap = profile_gemm_slot(PART_GEMM_TN, 0, m, n, k);
    lap.flops *= (double)count;
    windows->compute->device.driver->lap(&windows->compute->device, lap);
    return status;
}

static size_t width_from(const struct windows *windows, size_t col, size_t most) {
    const size_t left = windows->shape.n - col;
    return left < most ? left : most;
}

/* `current` += alpha A^T A of rows of the data, by block rows from the diagonal on. */
static enum status add_rows(struct windows *windows, size_t row, size_t rows, double alpha) {
    const size_t size = dtype_size(windows->shape.dtype), cols = windows->shape.cols;
    const char *a = windows->a + row * windows->lda * size;
    size_t lda = windows->lda;
    enum status status = STATUS_OK;
    if (windows->scaled) {
        windows->ops->rows(windows->compute->device.ops_context, rows, rows, cols, a, lda, windows->scale,
                           windows->dense, windows->ld);
        a = windows->dense;
        lda = windows->ld;
    }
    for (size_t col = 0, width; col < windows->shape.n && !status; col += width) {
        width = width_from(windows, col, PRODUCT_ROWS);
        status = multiply(windows, 1, width, cols - col, rows, alpha, a + col * size, a + col * size, lda, 0,
                          1, element(windows, windows->current, col, col));
    }
    return status;
}

/* `current` becomes that of window k. */
static enum status slide(struct windows *windows, size_t k, bool first) {
    const struct windows_shape *shape = &windows->shape;
    struct device *device = &windows->compute->device;
    const size_t bytes = windows->triangle * dtype_size(shape->dtype), row = k * shape->stride;
    if (first) {
        if (windows->start)
            device->driver->copy(device, windows->current, windows->start, bytes);
        else
            device->driver->zero(device, windows->current, bytes);
        return add_rows(windows, row, shape->window, 1);
    }
    enum status status = add_rows(windows, row + shape->window - shape->stride, shape->stride, 1);
    return status ? status : add_rows(windows, row - shape->stride, shape->stride, -1);
}

/* --- factors --- */

static struct qr_triangles slots(struct windows *windows, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) windows->from[i] = windows->to[i] = slot(windows, first + i);
    return (struct qr_triangles){windows->from, windows->to, windows->ld};
}

static enum status not_definite(const struct windows *windows, size_t window, size_t column) {
    const size_t row = window * windows->shape.stride;
    struct device *device = &windows->compute->device;
    const enum status status = device->driver->synchronize(device); /* the cause may be an error of the GPU */
    if (status) return status;
    return status_set(STATUS_FAILED,
                      "window %zu (rows %zu to %zu): the Gram matrix is not positive definite at column %zu: "
                      "it has the square of the condition number; use another method, or add --ridge",
                      window, row, row + windows->shape.window - 1, column);
}

/* The pivots of slot `i` that are rounding errors. Each of the `moves` since the first window of the group
   rounds a diagonal element, which may have been larger than it is now. */
static void set_least(struct windows *windows, size_t i, size_t moves) {
    const size_t n = windows->shape.n;
    double *least = windows->least + i * n, *most = windows->most_squares;
    const double part = dtype_epsilon(windows->shape.dtype) * (4 + sqrt((double)moves));
    const struct qr_triangles r = slots(windows, i, 1);
    windows->ops->diagonals(windows->compute->device.ops_context, 1, n, &r, least);
    for (size_t j = 0; j < n; j++) {
        most[j] = moves ? fmax(most[j], least[j]) : least[j];
        least[j] = part * most[j];
    }
}

static enum status check_pivots(struct windows *windows, size_t first, size_t count,
                                const struct qr_triangles *r) {
    const size_t n = windows->shape.n;
    double *diagonal = windows->most_squares + n; /* the second half is for this */
    for (size_t i = 0; i < count; i++) {
        const struct qr_triangles one = {r->from + i, r->to + i, r->ld};
        windows->ops->diagonals(windows->compute->device.ops_context, 1, n, &one, diagonal);
        for (size_t j = 0; j < n; j++)
            if (!(diagonal[j] * diagonal[j] > windows->least[i * n + j]))
                return not_definite(windows, first + i, j);
    }
    return STATUS_OK;
}

/* The factors of windows first .. in the slots, block row by block row. */
static enum status factor(struct windows *windows, size_t first, size_t count) {
    const struct windows_shape *shape = &windows->shape;
    struct device *device = &windows->compute->device;
    const struct qr_triangles r = slots(windows, 0, count);
    enum status status = STATUS_OK;
    for (size_t col = 0, width; col < shape->n && !status; col += width) {
        width = width_from(windows, col, windows->shape.nb);
        char *above = element(windows, slot(windows, 0), 0, col);
        if (col)
            status = multiply(windows, count, width, shape->cols - col, col, -1, above, above, windows->ld,
                              windows->triangle, 1, element(windows, slot(windows, 0), col, col));
        if (status) return status;
        windows->ops->cholesky(device->ops_context, count, width, shape->cols - col, &r, col,
                               windows->column);
        device_lap(device, PART_PANEL);
        for (size_t i = 0; i < count; i++)
            if (windows->column[i] < width) return not_definite(windows, first + i, col + windows->column[i]);
    }
    status = check_pivots(windows, first, count, &r);
    return status ? status : windows_deliver(windows, first, count, &r);
}

enum status windows_gram_run(struct windows *windows) {
    const struct windows_shape *shape = &windows->shape;
    struct device *device = &windows->compute->device;
    const size_t bytes = windows->triangle * dtype_size(shape->dtype), batch = windows->levels[0].batch;
    enum status status = STATUS_OK;
    for (size_t k = 0, group = 0, start = 0; k < shape->count && !status; k++) {
        const bool first = k == windows_group_start(windows, group);
        if (first) start = k;
        group += first;
        status = slide(windows, k, first);
        device->driver->copy(device, slot(windows, k % batch), windows->current, bytes);
        set_least(windows, k % batch, k - start);
        device_lap(device, PART_BATCH);
        if (!status && (k % batch + 1 == batch || k + 1 == shape->count))
            status = factor(windows, k / batch * batch, k % batch + 1);
    }
    return status;
}
