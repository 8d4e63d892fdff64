/* Clipping by norm, and max-norm: a template, parameters in kernels/host/element.h. */
#include "kernels/host/ops/template.h"

static void NAME(clip_norm)(void *context, size_t count, const void *grad, double limit, double *factor) {
    const REAL *restrict g = grad;
    double part[SLICES], squares = 0;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, count))
    for (size_t s = 0; s < SLICES; s++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = count / SLICES * s; i < (s + 1 < SLICES ? count / SLICES * (s + 1) : count); i++)
            sum += (double)g[i] * (double)g[i];
        part[s] = sum;
    }
    for (size_t s = 0; s < SLICES; s++) squares += part[s];
    const double wanted = limit / (sqrt(squares) + 1e-6);
    *factor = wanted < 1 ? wanted : 1;
}

static void NAME(max_norm)(void *context, size_t rows, size_t cols, double limit, const struct tally *guard,
                           void *weights) {
    if (guard->bad_step) return;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, rows *cols))
    for (size_t col = 0; col < cols; col += COLUMN_CHUNK) {
        const size_t width = cols - col < COLUMN_CHUNK ? cols - col : COLUMN_CHUNK;
        REAL *restrict chunk = (REAL *)weights + col;
        double squares[COLUMN_CHUNK] = {0};
        REAL factor[COLUMN_CHUNK];
        bool any = false;
        for (size_t r = 0; r < rows; r++) {
#pragma omp simd
            for (size_t j = 0; j < width; j++)
                squares[j] += (double)chunk[r * cols + j] * (double)chunk[r * cols + j];
        }
        for (size_t j = 0; j < width; j++) {
            const double norm = sqrt(squares[j]);
            factor[j] = norm > limit ? (REAL)(limit / (norm + 1e-7)) : 1;
            any |= norm > limit;
        }
        for (size_t r = 0; any && r < rows; r++) {
#pragma omp simd
            for (size_t j = 0; j < width; j++) chunk[r * cols + j] *= factor[j];
        }
    }
}
