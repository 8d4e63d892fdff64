/* Back substitution (kernels/qr.h): a template, parameters in kernels/host/element.h.

   Idea       blocks of rows from the last one up: a block is solved by one thread; then all threads subtract
              its products from the rows above, each row in the order of the columns.
   Bound by   bytes: R is read once. */
#ifndef TESSERA_KERNELS_HOST_OPS_SOLVE_H
#    define TESSERA_KERNELS_HOST_OPS_SOLVE_H

#    include "kernels/host/ops/template.h"
#    include "kernels/qr.h"

enum { SOLVE_ROWS = 64, SOLVE_COLUMNS = 16 };

#endif

#ifndef NAME
#    include "kernels/host/element.h"
#endif

/* x of row i -= R[i][first .. end - 1] x of those rows. */
INLINE void NAME(subtract_rows)(size_t i, size_t first, size_t end, size_t cols, const REAL *restrict r,
                                size_t ld, REAL *x) {
    for (size_t c = 0; c < cols; c += SOLVE_COLUMNS) {
        const size_t width = cols - c < SOLVE_COLUMNS ? cols - c : SOLVE_COLUMNS;
        REAL sum[SOLVE_COLUMNS] = {0};
        for (size_t j = first; j < end; j++)
            for (size_t k = 0; k < width; k++) sum[k] += r[i * ld + j] * x[j * cols + c + k];
        for (size_t k = 0; k < width; k++) x[i * cols + c + k] -= sum[k];
    }
}

static void NAME(solve)(void *context, size_t n, size_t cols, const void *triangle, size_t ld,
                        void *solution) {
    const REAL *r = (const REAL *)triangle;
    REAL *x = (REAL *)solution;
    const size_t right = cols - n, blocks = (n + SOLVE_ROWS - 1) / SOLVE_ROWS;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < right; c++) x[i * right + c] = r[i * ld + n + c];
    for (size_t b = blocks; b-- > 0;) {
        const size_t first = b * SOLVE_ROWS, end = n - first < SOLVE_ROWS ? n : first + SOLVE_ROWS;
        for (size_t i = end; i-- > first;) {
            NAME(subtract_rows)(i, i + 1, end, right, r, ld, x);
            for (size_t c = 0; c < right; c++) x[i * right + c] /= r[i * ld + i];
        }
#pragma omp parallel for schedule(static) num_threads(threads_for(context, first *SOLVE_ROWS))
        for (size_t i = 0; i < first; i++) NAME(subtract_rows)(i, first, end, right, r, ld, x);
    }
}
