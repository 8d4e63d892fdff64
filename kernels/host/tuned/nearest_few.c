/* The nearest centres of reals with few features, by few_features.h. A row whose best and second best score
   are too close for their error gets all its scores again, and kernels/host/ops/nearest.h decides it. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/host/ops/cluster.h"
#include "kernels/host/tuned/nearest.h"
#include "src/base/pages.h"

struct state {
    const struct gemm_nearest *table;
    const struct tuned_kernel *kernel;
    struct nearest_shape shape;
    int threads;
    const struct nearest_centres *centres;
    void **scratch; /* [threads]: a transposed group of points */
    void **scores;  /* [threads]: of one row */
};

static void few_close(void *memory) {
    struct state *state = memory;
    for (int t = 0; t < state->threads; t++) {
        if (state->scratch) free(state->scratch[t]);
        if (state->scores) free(state->scores[t]);
    }
    free(state->scratch);
    free(state->scores);
    free(state);
}

static bool few_centres(void *memory, const struct nearest_centres *centres) {
    ((struct state *)memory)->centres = centres;
    return true;
}

/* Products first, then the bias: the error is that of a GEMM. */
static void score_row(const struct state *state, const void *x, void *scores) {
    const struct nearest_centres *centres = state->centres;
    const size_t features = centres->features;
    for (size_t j = 0; j < centres->count; j++) {
        if (state->shape.dtype == GEMM_F32) {
            const float *a = x, *c = (const float *)centres->values + j * features;
            float sum = 0;
            for (size_t f = 0; f < features; f++) sum += a[f] * c[f];
            ((float *)scores)[j] = sum + ((const float *)centres->bias)[j];
        } else {
            const double *a = x, *c = (const double *)centres->values + j * features;
            double sum = 0;
            for (size_t f = 0; f < features; f++) sum += a[f] * c[f];
            ((double *)scores)[j] = sum + ((const double *)centres->bias)[j];
        }
    }
}

static void decide_row(const struct state *state, const struct nearest_call *call, size_t row, void *scores,
                       double error, struct nearest_counts *counts) {
    struct nearest_call one = *call;
    one.x = (const char *)call->x + row * state->shape.features * state->kernel->size;
    one.label = call->label + row;
    one.scores = scores;
    one.score_ld = state->centres->count;
    score_row(state, one.x, scores);
    host_nearest_rows(state->shape.dtype, &one, 0, 1, error, counts);
}

/* `best` and `second` may be NaN or infinite if the error is. */
static void label_block(const struct state *state, int thread, const struct nearest_call *call, size_t block,
                        struct nearest_counts *counts) {
    enum { MOST = 256 };
    const bool f32 = state->shape.dtype == GEMM_F32;
    const size_t group = FEW_VECTORS * state->kernel->lanes, features = state->shape.features;
    const size_t end = (block + 1) * NEAREST_BLOCK < call->rows ? (block + 1) * NEAREST_BLOCK : call->rows;
    const double error = nearest_error(
        features, f32 ? (double)FLT_EPSILON : DBL_EPSILON, f32 ? (double)FLT_TRUE_MIN : DBL_TRUE_MIN,
        f32 ? (double)FLT_MAX : DBL_MAX, call->norm[block], *state->centres->norm);
    double best[MOST], second[MOST];
    uint32_t index[MOST];
    for (size_t row = block * NEAREST_BLOCK; row < end; row += group) {
        const size_t rows = end - row < group ? end - row : group;
        state->kernel->nearest(state->centres, (const char *)call->x + row * features * state->kernel->size,
                               rows, state->scratch[thread], best, second, index);
        for (size_t r = 0; r < rows; r++) {
            if (call->certify && !(best[r] - second[r] > 2 * error)) {
                decide_row(state, call, row + r, state->scores[thread], error, counts);
                continue;
            }
            counts->changed += call->label[row + r] != index[r];
            call->label[row + r] = index[r];
        }
    }
}

static void few_run(void *memory, const struct nearest_call *call, struct nearest_counts *counts) {
    const struct state *state = memory;
    const size_t blocks = (call->rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK, threads = (size_t)state->threads;
#pragma omp parallel for schedule(static) num_threads(state->threads)
    for (size_t t = 0; t < threads; t++) {
        struct nearest_counts local = {0};
        for (size_t b = tuned_part_begin(blocks, threads, t); b < tuned_part_begin(blocks, threads, t + 1);
             b++)
            label_block(state, (int)t, call, b, &local);
        host_nearest_add(counts, &local);
    }
}

static void few_describe(void *memory, char *text, size_t size) {
    (void)memory;
    snprintf(text, size, "few features, the maximum in registers");
}

static const struct gemm_nearest table = {NULL, few_close, few_centres, few_run, few_describe, NULL};

void *tuned_nearest_few(const struct tuned_kernel *kernel, const struct nearest_shape *shape, int threads) {
    struct state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    *state = (struct state){.table = &table, .kernel = kernel, .shape = *shape, .threads = threads};
    state->scratch = calloc((size_t)threads, sizeof *state->scratch);
    state->scores = calloc((size_t)threads, sizeof *state->scores);
    bool done = state->scratch && state->scores;
    for (int t = 0; done && t < threads; t++) {
        state->scratch[t] = pages_alloc(FEW_VECTORS * kernel->lanes * shape->features * kernel->size);
        state->scores[t] = pages_alloc(shape->clusters * kernel->size);
        done = state->scratch[t] && state->scores[t];
    }
    if (done) return state;
    few_close(state);
    return NULL;
}
