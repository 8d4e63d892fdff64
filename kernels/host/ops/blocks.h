/* Copies and differences of QR (kernels/qr.h): a template, parameters in kernels/host/element.h. */
#ifndef TESSERA_KERNELS_HOST_OPS_BLOCKS_H
#    define TESSERA_KERNELS_HOST_OPS_BLOCKS_H

#    include <math.h>

#    include "kernels/host/ops/template.h"
#    include "kernels/qr.h"

enum { LARGEST_COLUMNS = 64, LARGEST_ROWS = 1024 };

#endif

#ifndef NAME
#    include "kernels/host/element.h"
#endif

static void NAME(block)(void *context, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                        size_t row, size_t col, const struct qr_matrix *w) {
    const size_t all = count * rows;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, all *cols))
    for (size_t k = 0; k < all; k++) {
        const size_t number = k / rows, i = k % rows;
        const REAL *restrict from = (const REAL *)r->from[number] + (row + i) * r->ld + col;
        REAL *restrict to = (REAL *)w->values + number * w->stride + i * w->ld;
        for (size_t j = 0; j < cols; j++) to[j] = from[j];
    }
}

static void NAME(subtract)(void *context, size_t count, size_t rows, size_t cols,
                           const struct qr_triangles *r, size_t row, size_t col, const struct qr_matrix *w) {
    const size_t all = count * rows;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, all *cols))
    for (size_t k = 0; k < all; k++) {
        const size_t number = k / rows, i = k % rows, at = (row + i) * r->ld + col;
        const REAL *from = (const REAL *)r->from[number] + at;
        const REAL *restrict by = (const REAL *)w->values + number * w->stride + i * w->ld;
        REAL *to = (REAL *)r->to[number] + at; /* `from`, or no overlap */
#pragma omp simd
        for (size_t j = 0; j < cols; j++) to[j] = from[j] - by[j];
    }
}

static void NAME(rows)(void *context, size_t rows, size_t to_rows, size_t cols, const void *from,
                       size_t from_ld, const double *scale, void *to, size_t to_ld) {
    const struct qr_rows piece = {{from, NULL}, {rows, 0}};
    const struct qr_matrix matrix = {.values = to, .ld = to_ld};
    NAME(gather)(context, 1, to_rows, cols, &piece, from_ld, scale, &matrix);
}

static void NAME(scale)(void *context, size_t count, size_t n, size_t cols, double factor,
                        const struct qr_triangles *r) {
    const size_t all = count * n;
#pragma omp parallel for schedule(static, 16) num_threads(threads_for(context, all *cols))
    for (size_t k = 0; k < all; k++) {
        REAL *restrict to = (REAL *)r->to[k / n] + k % n * r->ld;
        for (size_t j = k % n; j < cols; j++) to[j] *= (REAL)factor;
    }
}

/* Columns col .. col + width - 1 of rows first .. end - 1. */
static void NAME(largest_chunk)(size_t first, size_t end, size_t width, const REAL *restrict a, size_t lda,
                                double *largest) {
    REAL found[LARGEST_COLUMNS] = {0}, wrong[LARGEST_COLUMNS] = {0};
    for (size_t i = first; i < end; i++)
#pragma omp simd
        for (size_t j = 0; j < width; j++) {
            const REAL value = a[i * lda + j], magnitude = value < 0 ? -value : value;
            found[j] = magnitude > found[j] ? magnitude : found[j];
            wrong[j] += value - value; /* NaN unless the value is finite */
        }
#pragma omp critical(largest_chunk)
    for (size_t j = 0; j < width; j++) {
        const double value = wrong[j] == 0 ? (double)found[j] : INFINITY;
        if (value > largest[j]) largest[j] = value;
    }
}

static void NAME(largest)(void *context, size_t rows, size_t cols, const void *a, size_t lda,
                          double *largest) {
    const size_t slabs = (rows + LARGEST_ROWS - 1) / LARGEST_ROWS,
                 chunks = (cols + LARGEST_COLUMNS - 1) / LARGEST_COLUMNS;
    for (size_t j = 0; j < cols; j++) largest[j] = 0;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads_for(context, rows *cols))
    for (size_t slab = 0; slab < slabs; slab++)
        for (size_t chunk = 0; chunk < chunks; chunk++) {
            const size_t first = slab * LARGEST_ROWS, col = chunk * LARGEST_COLUMNS,
                         end = first + LARGEST_ROWS < rows ? first + LARGEST_ROWS : rows,
                         width = cols - col < LARGEST_COLUMNS ? cols - col : LARGEST_COLUMNS;
            NAME(largest_chunk)(first, end, width, (const REAL *)a + col, lda, largest + col);
        }
}

static const struct qr_ops NAME(qr_ops) = {
    .panel_width = QR_WIDTH,
    .panel = NAME(panel),
    .append = NAME(append),
    .block = NAME(block),
    .subtract = NAME(subtract),
    .rows = NAME(rows),
    .gather = NAME(gather),
    .scale = NAME(scale),
    .largest = NAME(largest),
    .cholesky = NAME(cholesky),
    .diagonals = NAME(diagonals),
    .deficient = NAME(deficient),
    .solve = NAME(solve),
};
