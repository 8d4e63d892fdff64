/* A few rows that enter a triangle (kernels/qr.h): a template, parameters in kernels/host/element.h.

   Idea       reflector c has its one in row c of R and `rows` more elements: it changes row c and the rows
   that enter, which stay in the L1 cache, and R is read and written once. Bound by   FMA: 4 rows n^2 / 2 of
   them (two flops each) for n^2 / 2 elements of R. */
#ifndef TESSERA_KERNELS_HOST_OPS_APPEND_H
#    define TESSERA_KERNELS_HOST_OPS_APPEND_H

#    include <math.h>

#    include "kernels/host/ops/template.h"
#    include "kernels/qr.h"

enum { APPEND_COLUMNS = 64 };

#endif

#ifndef NAME
#    include "kernels/host/element.h"
#endif

/* Columns j .. j + count - 1 of row c of R, and of the rows that enter. */
INLINE void NAME(apply_reflector)(size_t rows, size_t count, REAL tau, const REAL *restrict v,
                                  const REAL *restrict from, REAL *to, REAL *restrict a, size_t lda) {
    REAL w[APPEND_COLUMNS];
    for (size_t j = 0; j < count; j++) w[j] = from[j];
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < count; j++) w[j] += v[i] * a[i * lda + j];
    for (size_t j = 0; j < count; j++) w[j] *= tau;
    for (size_t j = 0; j < count; j++) to[j] = from[j] - w[j];
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < count; j++) a[i * lda + j] -= v[i] * w[j];
}

static void NAME(append_one)(const struct qr_append *call, size_t number) {
    const size_t rows = call->rows, lda = call->a.ld, ld = call->r.ld;
    REAL *a = (REAL *)call->a.values + number * call->a.stride;
    for (size_t c = 0; c < call->n; c++) {
        const REAL *from = (const REAL *)call->r.from[number] + c * ld;
        REAL *to = (REAL *)call->r.to[number] + c * ld, v[QR_APPEND_ROWS];
        double sum = 0;
        for (size_t i = 0; i < rows; i++) sum += (double)a[i * lda + c] * (double)a[i * lda + c];
        const double head = (double)from[c], length = sqrt(head * head + sum);
        const bool none = !(sum > 0);
        const double beta = none       ? head
                            : head > 0 ? -length
                                       : length,
                     factor = none ? 0 : 1 / (head - beta), tau = none ? 0 : (beta - head) / beta;
        for (size_t i = 0; i < rows; i++) v[i] = (REAL)(factor * (double)a[i * lda + c]);
        to[c] = (REAL)beta;
        for (size_t j = c + 1; j < call->cols; j += APPEND_COLUMNS) {
            const size_t left = call->cols - j, count = left < APPEND_COLUMNS ? left : APPEND_COLUMNS;
            NAME(apply_reflector)(rows, count, (REAL)tau, v, from + j, to + j, a + j, lda);
        }
    }
}

static void NAME(append)(void *context, const struct qr_append *append) {
    const size_t work = append->count * append->rows * append->n * append->cols;
#pragma omp parallel for schedule(dynamic) num_threads(threads_for(context, work))
    for (size_t number = 0; number < append->count; number++) NAME(append_one)(append, number);
}
