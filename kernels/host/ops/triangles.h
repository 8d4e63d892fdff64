/* Sliding windows (kernels/qr.h): rows of several windows, Cholesky factors of diagonal blocks, rank. A
   template, parameters in kernels/host/element.h. */
#ifndef TESSERA_KERNELS_HOST_OPS_TRIANGLES_H
#    define TESSERA_KERNELS_HOST_OPS_TRIANGLES_H

#    include <math.h>

#    include "kernels/host/ops/template.h"
#    include "kernels/qr.h"

enum { CHOLESKY_COLUMNS = 64, RANK_COLUMNS = 64 };

#endif

#ifndef NAME
#    include "kernels/host/element.h"
#endif

static void NAME(gather)(void *context, size_t count, size_t to_rows, size_t cols,
                         const struct qr_rows *pieces, size_t from_ld, const double *scale,
                         const struct qr_matrix *to) {
    const size_t all = count * to_rows;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, all *cols))
    for (size_t k = 0; k < all; k++) {
        const struct qr_rows *piece = &pieces[k / to_rows];
        const size_t row = k % to_rows, first = piece->rows[0], both = first + piece->rows[1];
        REAL *restrict out = (REAL *)to->values + k / to_rows * to->stride + row * to->ld;
        if (row >= both) {
            for (size_t j = 0; j < cols; j++) out[j] = 0;
            continue;
        }
        const REAL *restrict from = row < first ? (const REAL *)piece->from[0] + row * from_ld
                                                : (const REAL *)piece->from[1] + (row - first) * from_ld;
        if (scale) {
            for (size_t j = 0; j < cols; j++) out[j] = (REAL)scale[j] * from[j];
        } else {
            for (size_t j = 0; j < cols; j++) out[j] = from[j];
        }
    }
}

/* G, [width][width], becomes U with U^T U = G; below the diagonal the values are unspecified. Returns the
   first column whose pivot is not positive, or `width`. */
static size_t NAME(factor_block)(size_t width, REAL *g, size_t ld) {
    for (size_t c = 0; c < width; c++) {
        REAL *pivot = g + c * ld;
        if (!(pivot[c] > 0)) return c;
        const REAL root = SQRT(pivot[c]);
        for (size_t j = c; j < width; j++) pivot[j] /= root;
        for (size_t i = c + 1; i < width; i++) {
            const REAL factor = pivot[i];
            REAL *row = g + i * ld;
#pragma omp simd
            for (size_t j = i; j < width; j++) row[j] -= factor * pivot[j];
        }
    }
    return width;
}

/* G, [width][cols], becomes U^-T G. */
static void NAME(solve_block)(size_t width, size_t cols, const REAL *restrict u, REAL *g, size_t ld) {
    for (size_t c = 0; c < width; c++) {
        const REAL inverse = 1 / u[c * ld + c];
        REAL *restrict row = g + c * ld;
        for (size_t j = 0; j < cols; j++) row[j] *= inverse;
        for (size_t i = c + 1; i < width; i++) {
            const REAL factor = u[c * ld + i];
            REAL *restrict below = g + i * ld;
#pragma omp simd
            for (size_t j = 0; j < cols; j++) below[j] -= factor * row[j];
        }
    }
}

static void NAME(cholesky)(void *context, size_t count, size_t width, size_t cols,
                           const struct qr_triangles *r, size_t col, size_t *column) {
    const size_t rest = cols - width, chunks = (rest + CHOLESKY_COLUMNS - 1) / CHOLESKY_COLUMNS,
                 at = col * r->ld + col;
    const int threads = threads_for(context, count * width * cols);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t i = 0; i < count; i++) column[i] = NAME(factor_block)(width, (REAL *)r->to[i] + at, r->ld);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (size_t i = 0; i < count; i++)
        for (size_t chunk = 0; chunk < chunks; chunk++) {
            const size_t first = chunk * CHOLESKY_COLUMNS, left = rest - first;
            REAL *g = (REAL *)r->to[i] + at;
            if (column[i] < width) continue;
            NAME(solve_block)
            (width, left < CHOLESKY_COLUMNS ? left : CHOLESKY_COLUMNS, g, g + width + first, r->ld);
        }
}

static void NAME(diagonals)(void *context, size_t count, size_t n, const struct qr_triangles *r, double *to) {
    (void)context;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < n; j++) to[i * n + j] = (double)((const REAL *)r->from[i])[j * r->ld + j];
}

/* The first of columns first .. first + width - 1 without rank; n: none. The norms are summed by rows. */
static size_t NAME(deficient_columns)(size_t n, size_t first, size_t width, const REAL *r, size_t ld,
                                      double tolerance) {
    double squares[RANK_COLUMNS] = {0};
    for (size_t i = 0; i < first + width; i++)
        for (size_t j = i > first ? i - first : 0; j < width; j++)
            squares[j] += (double)r[i * ld + first + j] * (double)r[i * ld + first + j];
    for (size_t j = 0; j < width; j++)
        if (!(fabs((double)r[(first + j) * (ld + 1)]) > tolerance * sqrt(squares[j]))) return first + j;
    return n;
}

static size_t NAME(deficient_column)(size_t n, const REAL *r, size_t ld, double tolerance,
                                     const double *bound) {
    size_t c = 0, found = n;
    while (bound && c < n && fabs((double)r[c * (ld + 1)]) > tolerance * bound[c]) c++;
    for (c = c / RANK_COLUMNS * RANK_COLUMNS; c < n && found == n; c += RANK_COLUMNS)
        found = NAME(deficient_columns)(n, c, n - c < RANK_COLUMNS ? n - c : RANK_COLUMNS, r, ld, tolerance);
    return found;
}

static void NAME(deficient)(void *context, size_t count, size_t n, const struct qr_triangles *r,
                            double tolerance, const double *bound, size_t *column) {
#pragma omp parallel for schedule(static) num_threads(threads_for(context, count *n * 16))
    for (size_t i = 0; i < count; i++)
        column[i] = NAME(deficient_column)(n, (const REAL *)r->from[i], r->ld, tolerance, bound);
}
