/* A solution: op(A) and op(B) are copied, a block of k at a time, to panels of fixed width with zeros beyond
   the edge. So one inner loop serves all ops and shapes, its lengths are constants, and the compiler keeps
   its tile of C in vector registers. */
#include "kernels/gemm.h"

enum { ROWS = 6, COLS = 32, DEPTH = 256 };

/* Steps p0 to p0 + depth of `count` rows of op(A) or columns of op(B), from element `at` on. */
static void pack(float *panel, size_t width, const float *at, size_t count, size_t next, size_t step,
                 size_t depth) {
    for (size_t p = 0; p < depth; p++)
        for (size_t i = 0; i < width; i++) panel[p * width + i] = i < count ? at[i * next + p * step] : 0;
}

static void multiply(float sum[ROWS][COLS], const float *a, const float *b, size_t depth) {
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < COLS; j++) sum[i][j] = 0;
    for (size_t p = 0; p < depth; p++)
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < COLS; j++) sum[i][j] += a[p * ROWS + i] * b[p * COLS + j];
}

/* beta == 0 never reads C. */
static void store(float *c, size_t ldc, float sum[ROWS][COLS], size_t rows, size_t cols, float alpha,
                  float beta) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            c[i * ldc + j] = alpha * sum[i][j] + (beta == 0 ? 0 : beta * c[i * ldc + j]);
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t a_row = ta ? 1 : call->lda, a_step = ta ? call->lda : 1;
    const size_t b_col = tb ? call->ldb : 1, b_step = tb ? 1 : call->ldb;
    float a[DEPTH * ROWS], b[DEPTH * COLS], sum[ROWS][COLS];
    size_t p = 0;
    (void)context;
    do { /* once if k == 0: C = beta * C */
        const size_t depth = call->k - p < DEPTH ? call->k - p : DEPTH;
        for (size_t j = 0; j < call->n; j += COLS) {
            const size_t cols = call->n - j < COLS ? call->n - j : COLS;
            pack(b, COLS, (const float *)call->b + j * b_col + p * b_step, cols, b_col, b_step, depth);
            for (size_t i = 0; i < call->m; i += ROWS) {
                const size_t rows = call->m - i < ROWS ? call->m - i : ROWS;
                pack(a, ROWS, (const float *)call->a + i * a_row + p * a_step, rows, a_row, a_step, depth);
                multiply(sum, a, b, depth);
                store((float *)call->c + i * call->ldc + j, call->ldc, sum, rows, cols, (float)call->alpha,
                      p ? 1 : (float)call->beta);
            }
        }
        p += depth;
    } while (p < call->k);
    return GEMM_OK;
}

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op != GEMM_TT;
}

static const struct gemm_backend backend = {.name = "solution",
                                            .summary = "packed panels, tiles of 6 x 32",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
