#include "src/window/qr.h"

#include <stdlib.h>

#include "src/window/qr_host_panel.h"

/* Elements of a row of V^T are a multiple of this, so that its rows are aligned. */
enum { ALIGNED = 16 };

/* Bytes of A that the host multiplies twice in a row, and the fewest columns, if A is above WHOLE_BYTES. */
enum { WHOLE_BYTES = 17 << 20, CACHED_BYTES = 4 << 20, CACHED_COLUMNS = 128 };

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t aligned(size_t elements) {
    return (elements + ALIGNED - 1) / ALIGNED * ALIGNED;
}

size_t qr_block(const struct qr_ops *ops, size_t n) {
    if (ops->panel_width > QR_WIDTH) return ops->panel_width;
    return n >= 1024 ? QR_BLOCK : n >= 512 ? QR_BLOCK / 2 : QR_BLOCK / 4;
}

/* Is a panel made while the columns beyond it are still updated: on the host, or as one op on the device? */
static bool looks_ahead(const struct qr *qr) {
    return qr->shape.panels ||
           (qr->compute->device.driver->aside_begin && qr->shape.block <= qr->ops->panel_width);
}

/* --- memory --- */

static void *allocate(struct qr *qr, size_t elements) {
    struct device *device = &qr->compute->device;
    return device->driver->alloc(device, elements * dtype_size(qr->shape.dtype));
}

static enum status allocate_batch(struct qr *qr, size_t rows, size_t ld, struct qr_matrix *matrix) {
    *matrix = (struct qr_matrix){.ld = ld, .stride = rows * ld};
    matrix->values = allocate(qr, qr->shape.batch * matrix->stride);
    return matrix->values ? STATUS_OK : STATUS_FAILED;
}

static enum status too_many_rows(const struct qr *qr, size_t rows) {
    return status_set(STATUS_UNAVAILABLE,
                      "QR of %zu rows and %zu columns: a panel of the device '%s' has at most %zu rows", rows,
                      qr->shape.n, qr->compute->device.driver->name, qr->most_rows);
}

enum status qr_open(struct qr *qr, struct compute *compute, const struct qr_shape *shape) {
    struct device *device = &compute->device;
    *qr = (struct qr){.compute = compute, .shape = *shape};
    if (device->driver->qr_ops) qr->ops = device->driver->qr_ops(device, shape->dtype);
    if (!qr->ops)
        return status_set(STATUS_UNAVAILABLE,
                          "QR has no kernels for the device '%s': use a backend on the host",
                          device->driver->name);
    if (!qr->shape.block) qr->shape.block = qr_block(qr->ops, shape->n);
    qr->most_rows = qr->ops->panel_rows ? qr->ops->panel_rows(device->ops_context) : SIZE_MAX;
    if (shape->keeps_q && shape->rows > qr->most_rows) return too_many_rows(qr, shape->rows);
    const size_t block = qr->shape.block, rows = smaller(shape->rows, qr->most_rows),
                 kept = shape->keeps_q    ? (shape->n + block - 1) / block * block
                        : looks_ahead(qr) ? 2 * block
                                          : block;
    /* the panels of a triangle start with its rows */
    enum status status = allocate_batch(qr, kept, aligned(rows + block) + ALIGNED, &qr->vt);
    if (!status) status = allocate_batch(qr, kept, block, &qr->t);
    for (int i = 0; i < 2 && !status; i++)
        status = allocate_batch(qr, block, aligned(shape->cols), &qr->w[i]);
    if (status) return status;
    if (device->driver->host_memory) {
        const size_t most = smaller(shape->rows, QR_APPEND_ROWS);
        qr->append_scratch = allocate(qr, shape->batch * qr_append_scratch(most, shape->cols));
        qr->scratch = device->driver->alloc(device, shape->batch * qr_scratch(shape->rows) * sizeof(double));
        if (!qr->append_scratch || !qr->scratch) return STATUS_FAILED;
    }
    qr->from = malloc(2 * shape->batch * sizeof *qr->from);
    qr->to = malloc(2 * shape->batch * sizeof *qr->to);
    if (!qr->from || !qr->to) return status_set(STATUS_FAILED, "out of memory");
    return shape->panels ? qr_host_panel_open(&qr->host_panel, qr, shape->panels) : STATUS_OK;
}

void qr_close(struct qr *qr) {
    if (!qr->compute) return;
    struct device *device = &qr->compute->device;
    qr_host_panel_close(qr->host_panel);
    void *const memory[] = {qr->vt.values,   qr->t.values, qr->w[0].values,
                            qr->w[1].values, qr->scratch,  qr->append_scratch};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device->driver->free(device, memory[i]);
    free(qr->from);
    free(qr->to);
    *qr = (struct qr){0};
}

/* --- products --- */

static struct qr_matrix at(const struct qr *qr, const struct qr_matrix *matrix, size_t row, size_t col) {
    struct qr_matrix part = *matrix;
    part.values = (char *)part.values + (row * part.ld + col) * dtype_size(qr->shape.dtype);
    return part;
}

/* C = alpha op(A) B + beta C for each matrix of the batch. */
static enum status multiply(struct qr *qr, size_t count, enum gemm_op op, size_t m, size_t n, size_t k,
                            double alpha, struct qr_matrix a, struct qr_matrix b, double beta,
                            struct qr_matrix c) {
    const struct gemm_call call = {.dtype = qr->shape.dtype,
                                   .op = op,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .alpha = alpha,
                                   .a = a.values,
                                   .lda = a.ld,
                                   .b = b.values,
                                   .ldb = b.ld,
                                   .beta = beta,
                                   .c = c.values,
                                   .ldc = c.ld};
    const struct gemm_strides strides = {a.stride, b.stride, c.stride};
    const enum profile_part part = op == GEMM_NN ? PART_GEMM_NN : op == GEMM_TN ? PART_GEMM_TN : PART_GEMM_NT;
    const enum status status = compute_gemm_batch(qr->compute, &call, count, &strides);
    struct profile_slot slot = profile_gemm_slot(part, 0, m, n, k);
    slot.flops *= (double)count;
    qr->compute->device.driver->lap(&qr->compute->device, slot);
    return status;
}

/* --- panels --- */

/* Columns first .. first + cols - 1 become Q^T times them, with Q = I - V T V^T, or Q times them. */
static enum status apply_together(struct qr *qr, const struct qr_step *step, size_t first, size_t cols,
                                  bool transposed) {
    const size_t count = step->count, width = step->width, dense = step->r ? 0 : step->col;
    const size_t rows = step->rows - dense;
    const struct qr_matrix body = at(qr, step->a, dense, first), *w = qr->w;
    struct device *device = &qr->compute->device;
    void *context = device->ops_context;
    if (!cols) return STATUS_OK;
    if (step->r) qr->ops->block(context, count, width, cols, step->r, step->col, first, &w[0]);
    enum status status =
        multiply(qr, count, GEMM_NN, width, cols, rows, 1, step->vt, body, step->r ? 1 : 0, w[0]);
    if (!status)
        status = multiply(qr, count, transposed ? GEMM_TN : GEMM_NN, width, cols, width, 1, step->t, w[0], 0,
                          w[1]);
    if (status) return status;
    if (step->r) qr->ops->subtract(context, count, width, cols, step->r, step->col, first, &w[1]);
    device_lap(device, PART_ELEMENTWISE);
    return multiply(qr, count, GEMM_TN, rows, cols, width, -1, step->vt, w[1], 1, body);
}

/* The same, on the host so many columns at a time that the second product finds them in the L3 cache. */
static enum status apply(struct qr *qr, const struct qr_step *step, size_t first, size_t cols,
                         bool transposed) {
    const size_t bytes = step->count * step->rows * dtype_size(qr->shape.dtype), fit = CACHED_BYTES / bytes;
    const bool whole = !qr->compute->device.driver->host_memory || bytes * cols <= WHOLE_BYTES;
    const size_t part = whole ? cols : fit > CACHED_COLUMNS ? fit : CACHED_COLUMNS;
    enum status status = STATUS_OK;
    for (size_t j = 0; j < cols && !status; j += part)
        status = apply_together(qr, step, first + j, smaller(part, cols - j), transposed);
    return status;
}

/* A panel of at most ops->panel_width columns, at column `offset` of `step`. */
static void factor_columns(struct qr *qr, void *context, const struct qr_step *step, size_t offset,
                           size_t width) {
    const size_t col = step->col + offset, size = dtype_size(qr->shape.dtype);
    const bool dense = !step->r;
    const size_t top_rows = dense ? smaller(width, step->rows - col) : width;
    struct qr_triangles top;
    if (dense) {
        for (size_t i = 0; i < step->count; i++) {
            qr->to[i] = (char *)step->a->values + i * step->a->stride * size;
            qr->from[i] = qr->to[i];
        }
        top = (struct qr_triangles){qr->from, qr->to, step->a->ld};
    } else {
        top = *step->r;
    }
    const struct qr_panel panel = {.count = step->count,
                                   .width = width,
                                   .top_rows = top_rows,
                                   .rows = dense ? step->rows - col - top_rows : step->rows,
                                   .top = top,
                                   .row = col,
                                   .col = col,
                                   .triangular = !dense,
                                   .a = at(qr, step->a, dense ? col + top_rows : 0, col),
                                   .vt = at(qr, &step->vt, offset, 0),
                                   .lead = dense ? offset : 0,
                                   .t = at(qr, &step->t, offset, offset),
                                   .scratch = qr->scratch};
    qr->ops->panel(context, &panel);
}

/* to = the block [rows][cols] of each w. */
static void copy_block(struct qr *qr, size_t count, size_t rows, size_t cols, struct qr_matrix w,
                       struct qr_matrix to) {
    for (size_t i = 0; i < count; i++)
        qr->from[i] = (const char *)w.values + i * w.stride * dtype_size(qr->shape.dtype);
    const struct qr_triangles from = {.from = qr->from, .ld = w.ld};
    qr->ops->block(qr->compute->device.ops_context, count, rows, cols, &from, 0, 0, &to);
    device_lap(&qr->compute->device, PART_ELEMENTWISE);
}

/* T of two neighbours, the second one from column `offset`: -T1 V1^T V2 T2 is above their diagonal. It is
   computed elsewhere and copied: T1 is in the same rows, and an audit takes what is between the rows of an
   operand for memory that a product must not write. */
static enum status join(struct qr *qr, const struct qr_step *left, size_t offset, size_t width) {
    const size_t count = left->count, dense = left->r ? 0 : left->col;
    const struct qr_matrix v = at(qr, &left->vt, offset, 0), t = at(qr, &left->t, offset, offset),
                           to = at(qr, &left->t, 0, offset), *w = qr->w;
    enum status status =
        multiply(qr, count, GEMM_NT, offset, width, left->rows - dense, 1, left->vt, v, 0, w[0]);
    if (!status) status = multiply(qr, count, GEMM_NN, offset, width, width, 1, w[0], t, 0, w[1]);
    if (!status) status = multiply(qr, count, GEMM_NN, offset, width, offset, -1, left->t, w[1], 0, w[0]);
    if (!status) copy_block(qr, count, offset, width, w[0], to);
    return status;
}

/* Halves the columns (Elmroth and Gustavson 2000, IBM J. Res. Dev. 44): most of a panel is products, too. */
static enum status factor_panel(struct qr *qr, const struct qr_step *step, size_t offset, size_t width) {
    if (width <= qr->ops->panel_width) {
        factor_columns(qr, qr->compute->device.ops_context, step, offset, width);
        device_lap(&qr->compute->device, PART_PANEL);
        return STATUS_OK;
    }
    const size_t half = (width / 2 + QR_WIDTH - 1) / QR_WIDTH * QR_WIDTH;
    struct qr_step left = *step;
    left.col += offset;
    left.width = half;
    left.vt = at(qr, &step->vt, offset, step->r ? 0 : offset);
    left.t = at(qr, &step->t, offset, offset);
    enum status status = factor_panel(qr, step, offset, half);
    if (!status) status = apply(qr, &left, left.col + half, width - half, true);
    if (!status) status = factor_panel(qr, step, offset + half, width - half);
    if (!status) status = join(qr, &left, half, width - half);
    return status;
}

/* The panel at column `col` of `last`. V and T of a kept one are rows col .. of all; else two panels
   alternate if the next one is made ahead. */
static struct qr_step panel_at(const struct qr *qr, const struct qr_step *all, size_t col, size_t last) {
    struct qr_step step = *all;
    const size_t block = qr->shape.block, row = qr->shape.keeps_q ? col
                                                : looks_ahead(qr) ? col / block % 2 * block
                                                                  : 0;
    step.col = col;
    step.width = smaller(block, last - col);
    if (all->triangular) step.rows = smaller(all->rows, col + step.width);
    step.vt = at(qr, &qr->vt, row, 0);
    step.t = at(qr, &qr->t, row, 0);
    return step;
}

/* Begins a panel that is made ahead: work that is issued afterwards overlaps with it. */
static enum status begin_panel(struct qr *qr, const struct qr_step *step) {
    struct device *device = &qr->compute->device;
    if (qr->host_panel) return qr_host_panel_fetch(qr->host_panel, step);
    factor_columns(qr, device->driver->aside_begin(device), step, 0, step->width);
    return STATUS_OK;
}

static enum status end_panel(struct qr *qr, const struct qr_step *step) {
    struct device *device = &qr->compute->device;
    if (qr->host_panel) return qr_host_panel_factor(qr->host_panel, step);
    device->driver->aside_join(device);
    device_lap(device, PART_PANEL); /* the time that it took longer than the products */
    return STATUS_OK;
}

/* An audit compares all that lies between the rows of an operand, where a panel aside may write. */
static bool makes_ahead(const struct qr *qr, const struct qr_step *step) {
    return looks_ahead(qr) && (qr->host_panel || step->r || !qr->compute->audit);
}

/* The columns beyond a panel; the next panel is made as soon as its columns are updated. */
static enum status update(struct qr *qr, const struct qr_step *all, const struct qr_step *step, size_t last) {
    const size_t col = step->col + step->width, cols = qr->shape.cols;
    if (!makes_ahead(qr, step) || col >= last) return apply(qr, step, col, cols - col, true);
    const struct qr_step next = panel_at(qr, all, col, last);
    const size_t beyond = col + next.width;
    enum status status = apply(qr, step, col, next.width, true);
    if (!status) status = begin_panel(qr, &next);
    if (status) return status;
    status = apply(qr, step, beyond, cols - beyond, true);
    const enum status ended = end_panel(qr, &next);
    return status ? status : ended;
}

static enum status first_panel(struct qr *qr, const struct qr_step *step) {
    if (!qr->host_panel) return factor_panel(qr, step, 0, step->width);
    const enum status status = begin_panel(qr, step);
    return status ? status : end_panel(qr, step);
}

static enum status factor(struct qr *qr, const struct qr_step *all) {
    const size_t n = qr->shape.n, last = all->r ? n : smaller(n, all->rows);
    enum status status = STATUS_OK;
    for (size_t col = 0; col < last && !status; col += qr->shape.block) {
        const struct qr_step step = panel_at(qr, all, col, last);
        if (!makes_ahead(qr, &step) || !col) status = first_panel(qr, &step);
        if (!status) status = update(qr, all, &step, last);
    }
    return status;
}

/* Rows that enter triangles in panels. */
static enum status append_rows(struct qr *qr, size_t count, size_t rows, bool triangular,
                               const struct qr_triangles *r, const struct qr_matrix *a) {
    const struct qr_triangles again = {(const void *const *)r->to, r->to, r->ld};
    enum status status = STATUS_OK;
    for (size_t done = 0, some; done < rows && !status; done += some) {
        some = smaller(rows - done, qr->most_rows);
        const struct qr_matrix part = at(qr, a, done, 0);
        const struct qr_step step = {
            .count = count, .r = done ? &again : r, .a = &part, .rows = some, .triangular = triangular};
        status = factor(qr, &step);
    }
    return status;
}

/* Rows from most_rows on enter the triangles of those before. */
enum status qr_factor(struct qr *qr, size_t count, size_t rows, const struct qr_matrix *a) {
    const size_t first = smaller(rows, qr->most_rows), batch = qr->shape.batch;
    const struct qr_step step = {.count = count, .a = a, .rows = first};
    qr->rows = rows;
    if (first < smaller(rows, qr->shape.n)) return too_many_rows(qr, rows);
    const enum status status = factor(qr, &step);
    if (status || first == rows) return status;
    for (size_t i = 0; i < count; i++)
        qr->from[batch + i] = qr->to[batch + i] =
            (char *)a->values + i * a->stride * dtype_size(qr->shape.dtype);
    const struct qr_triangles r = {qr->from + batch, qr->to + batch, a->ld};
    const struct qr_matrix rest = at(qr, a, first, 0);
    return append_rows(qr, count, rows - first, false, &r, &rest);
}

enum status qr_append(struct qr *qr, size_t count, size_t rows, bool triangular, const struct qr_triangles *r,
                      const struct qr_matrix *a) {
    const struct qr_append append = {.count = count,
                                     .n = qr->shape.n,
                                     .cols = qr->shape.cols,
                                     .rows = rows,
                                     .r = *r,
                                     .a = *a,
                                     .scratch = qr->append_scratch};
    if (rows > QR_APPEND_ROWS) return append_rows(qr, count, rows, triangular, r, a);
    qr->ops->append(qr->compute->device.ops_context, &append);
    device_lap(&qr->compute->device, PART_PANEL);
    return STATUS_OK;
}

enum status qr_apply_q(struct qr *qr, const struct qr_matrix *b, size_t cols) {
    const size_t block = qr->shape.block, last = smaller(qr->shape.n, qr->rows);
    const struct qr_step all = {.count = 1, .a = b, .rows = qr->rows};
    enum status status = STATUS_OK;
    for (size_t done = (last + block - 1) / block; done && !status; done--) {
        const struct qr_step step = panel_at(qr, &all, (done - 1) * block, last);
        status = apply(qr, &step, 0, cols, false);
    }
    return status;
}

/* --- flops --- */

double qr_factor_flops(size_t rows, size_t n, size_t cols) {
    const double m = (double)rows, k = (double)smaller(rows, n), c = (double)cols;
    return 4 * (m * k * c - (m + c) * k * k / 2 + k * k * k / 3);
}

double qr_append_flops(size_t rows, size_t n, size_t cols) {
    const double p = (double)rows, k = (double)n, c = (double)cols;
    return 4 * p * (k * c - k * k / 2);
}
