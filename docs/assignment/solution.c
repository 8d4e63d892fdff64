/* A solution: a tile of C of ROWS x COLS elements stays in vector registers over the whole of k. Each step copies
   ROWS elements of op(A) and COLS of op(B), whatever the op and wherever the edge is, with zeros beyond the edge;
   so the loops over the tile have a fixed length, and the compiler vectorises them. */
#include "kernels/gemm.h"

enum { ROWS = 6, COLS = 32 };

static void tile(const struct gemm_call *call, size_t i0, size_t j0) {
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t a_row = ta ? 1 : call->lda, a_step = ta ? call->lda : 1;
    const size_t b_col = tb ? call->ldb : 1, b_step = tb ? 1 : call->ldb;
    const size_t rows = call->m - i0 < ROWS ? call->m - i0 : ROWS;
    const size_t cols = call->n - j0 < COLS ? call->n - j0 : COLS;
    const float *a = (const float *)call->a + i0 * a_row, *b = (const float *)call->b + j0 * b_col;
    float *c = (float *)call->c + i0 * call->ldc + j0;
    float sum[ROWS][COLS] = {{0}}, x[ROWS] = {0}, y[COLS] = {0};
    for (size_t p = 0; p < call->k; p++) {
        for (size_t i = 0; i < rows; i++) x[i] = a[i * a_row + p * a_step];
        for (size_t j = 0; j < cols; j++) y[j] = b[j * b_col + p * b_step];
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < COLS; j++) sum[i][j] += x[i] * y[j];
    }
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            const float old = call->beta == 0 ? 0 : (float)call->beta * c[i * call->ldc + j];
            c[i * call->ldc + j] = (float)call->alpha * sum[i][j] + old;
        }
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    for (size_t i = 0; i < call->m; i += ROWS)
        for (size_t j = 0; j < call->n; j += COLS) tile(call, i, j);
    return GEMM_OK;
}

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op != GEMM_TT;
}

static const struct gemm_backend backend = {.name = "solution",
                                            .summary = "tiles of 6 x 32 in registers",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
