/* The loops of `serial` and `openmp`: a template, parameters in kernels/host/element.h.

   The innermost loop runs along memory, so that it streams and vectorises.
     NN, TN   i p j:  row i of C += a(i,p) * row p of B       the row of C stays in L1, B streams
     NT       i j p:  C(i,j) = row i of A . row j of B        both rows stream
   The compiler may not reorder the additions of a dot product. LANES partial sums, added in a fixed order at
   the end, vectorise. */
#include "kernels/gemm.h"

#ifndef NAME
#    include "kernels/host/element.h"
#endif

enum { NAME(LANES) = 64 / sizeof(REAL) };

static void NAME(scale_row)(REAL *c, size_t n, REAL beta) {
    if (beta == 0) { /* C may hold NaN */
        for (size_t j = 0; j < n; j++) c[j] = 0;
    } else if (beta != 1) {
        for (size_t j = 0; j < n; j++) c[j] *= beta;
    }
}

static void NAME(add_scaled_row)(REAL *restrict c, const STORED *restrict b, size_t n, REAL factor) {
    for (size_t j = 0; j < n; j++) c[j] += factor * LOAD(b[j]);
}

static REAL NAME(dot)(const STORED *restrict a, const STORED *restrict b, size_t k) {
    REAL lane[NAME(LANES)] = {0};
    size_t p = 0;
    for (; p + NAME(LANES) <= k; p += NAME(LANES))
        for (size_t l = 0; l < NAME(LANES); l++) lane[l] += LOAD(a[p + l]) * LOAD(b[p + l]);
    REAL sum = 0;
    for (; p < k; p++) sum += LOAD(a[p]) * LOAD(b[p]);
    for (size_t l = 0; l < NAME(LANES); l++) sum += lane[l];
    return sum;
}

static void NAME(block)(const struct gemm_call *call, size_t row0, size_t row1, size_t col0, size_t col1) {
    const STORED *a = call->a, *b = call->b;
    const REAL alpha = (REAL)call->alpha, beta = (REAL)call->beta;
    const size_t k = call->k, n = col1 - col0;
    const size_t a_row = call->op == GEMM_TN ? 1 : call->lda; /* a(i,p) = a[i * a_row + p * a_col] */
    const size_t a_col = call->op == GEMM_TN ? call->lda : 1;

    for (size_t i = row0; i < row1; i++) {
        REAL *c = (REAL *)call->c + i * call->ldc + col0;
        NAME(scale_row)(c, n, beta);
        if (call->op == GEMM_NT) {
            for (size_t j = 0; j < n; j++)
                c[j] += alpha * NAME(dot)(a + i * a_row, b + (col0 + j) * call->ldb, k);
        } else {
            for (size_t p = 0; p < k; p++)
                NAME(add_scaled_row)(c, b + p * call->ldb + col0, n, alpha * LOAD(a[i * a_row + p * a_col]));
        }
    }
}
