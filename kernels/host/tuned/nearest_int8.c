/* The nearest centres of pixels, by integer products.

   Idea       pixels are bytes already. Centres as 16-bit integers in two slices (int8.h) make the products
              exact; what remains is the error of rounding the centres, about that of a float32 product, and
              it is known: each row whose gap it may close is decided in float64 (kernels/host/ops/nearest.h).
              The scores of a block of rows stay in the L2 cache, and no point is converted or copied.
   Bound by   the integer units for many centres; for few, by reading the pixels once: 47 MB for MNIST.
   Improves   a GEMM of float32 and a pass over its scores
   Run        ./train kmeans --clusters 64 --engine fused */
#include "kernels/host/tuned/nearest.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/ops/cluster.h"
#include "src/base/pages.h"

enum { LARGEST_QUOTIENT = 32512 /* 127 * 256 */, SCORE_BYTES = 1 << 20 /* of a thread, in the L2 cache */ };

struct workspace {
    float *scores;  /* [rows][padded clusters] */
    float *widened; /* one row */
    uint8_t *tail;  /* INT8_ROWS rows of `stride` bytes */
};

struct state {
    const struct gemm_nearest *table;
    const struct int8_kernel *kernel;
    struct nearest_shape shape;
    int threads;
    size_t steps, stride; /* of the features; bytes of a padded row */
    size_t blocks, rows;  /* of the centres; of the points that a thread scores together */
    int8_t *packed;
    float *bias; /* [blocks * INT8_COLUMNS] */
    float scale;
    double rounding;   /* at least |c - scale q| for every centre */
    double largest_ld; /* at least |scale low| for every centre */
    struct workspace *work;
};

static size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

static void nearest_close(void *memory) {
    struct state *state = memory;
    for (int t = 0; state->work && t < state->threads; t++) {
        free(state->work[t].scores);
        free(state->work[t].widened);
        free(state->work[t].tail);
    }
    free(state->work);
    free(state->packed);
    free(state->bias);
    free(state);
}

static bool open_workspace(const struct state *state, struct workspace *work) {
    work->scores = pages_alloc(state->rows * state->blocks * INT8_COLUMNS * sizeof *work->scores);
    work->widened = malloc(state->shape.features * sizeof *work->widened);
    work->tail = calloc(INT8_ROWS, state->stride);
    return work->scores && work->widened && work->tail;
}

/* --- the centres --- */

/* The slices of one centre, and the squares of what they leave and of the low slice, in units of 1. */
static void pack_centre(const struct state *state, const float *c, size_t cluster, double *left,
                        double *low) {
    const size_t features = state->shape.features;
    int8_t *block = state->packed + cluster / INT8_COLUMNS * state->steps * 2 * INT8_SLICE;
    const double scale = (double)state->scale;
    for (size_t f = 0; f < state->stride; f++) {
        const long q = f < features ? lround((double)c[f] / scale) : 0, high = (q + 128 + 65536) / 256 - 256;
        int8_t *to = block + f / INT8_STEP * 2 * INT8_SLICE + f % INT8_STEP / 4 * INT8_STEP +
                     cluster % INT8_COLUMNS * 4 + f % 4;
        to[0] = (int8_t)high;
        to[INT8_SLICE] = (int8_t)(q - 256 * high);
        if (f >= features) continue;
        const double rest = (double)c[f] - scale * (double)q;
        *left += rest * rest;
        *low += (double)(to[INT8_SLICE] * to[INT8_SLICE]);
    }
}

static bool nearest_centres(void *memory, const struct nearest_centres *centres) {
    struct state *state = memory;
    const float *values = centres->values;
    const size_t elements = centres->count * centres->features;
    float most = 0;
    double left = 0, low = 0;
    for (size_t i = 0; i < elements; i++) most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
    state->scale = most > 0 ? nextafterf(most / LARGEST_QUOTIENT, INFINITY) : 1;
    if (!isnormal(state->scale)) return false;
    state->blocks = ceil_div(centres->count, INT8_COLUMNS);
    memset(state->packed, 0, state->blocks * state->steps * 2 * INT8_SLICE);
    memcpy(state->bias, centres->bias, centres->count * sizeof *state->bias);
#pragma omp parallel for schedule(static) reduction(max : left, low) num_threads(state->threads)
    for (size_t j = 0; j < centres->count; j++) {
        double own_left = 0, own_low = 0;
        pack_centre(state, values + j * centres->features, j, &own_left, &own_low);
        left = fmax(left, own_left);
        low = fmax(low, own_low);
    }
    const double up = 1 + ((double)centres->features + 8) * 0x1p-52; /* of the sums here */
    state->rounding = sqrt(left) * up + *centres->norm * 0x1p-50;
    state->largest_ld = (double)state->scale * sqrt(low) * up;
    return true;
}

/* Bounds the error of a score: the rounding of the centre; conversions, products and sums of float32, each of
   a term of at most |x| (|c| + 2 |scale low| + rounding); the bias, rounded twice. */
static double score_error(const struct state *state, double norm, double centre_norm) {
    const double terms = norm * (centre_norm + 2 * state->largest_ld + state->rounding),
                 half = centre_norm * centre_norm / 2;
    return 1.0001 * (norm * state->rounding + 16 * (double)FLT_EPSILON * (terms + half));
}

/* --- the points --- */

/* Scores INT8_ROWS rows. A tile reads whole steps: rows near the end of memory are copied first. */
static void score_rows(const struct state *state, struct workspace *work, const struct nearest_call *call,
                       size_t row, size_t rows, float *scores) {
    const size_t features = state->shape.features, ld = state->blocks * INT8_COLUMNS;
    const uint8_t *x = (const uint8_t *)call->x + row * features;
    size_t stride = features;
    if ((row + INT8_ROWS) * features + state->stride > call->rows * features) {
        for (size_t r = 0; r < rows; r++) memcpy(work->tail + r * state->stride, x + r * features, features);
        x = work->tail;
        stride = state->stride;
    }
    for (size_t b = 0; b < state->blocks; b++)
        state->kernel->scores(x, stride, state->steps, state->packed + b * state->steps * 2 * INT8_SLICE,
                              state->scale, state->bias + b * INT8_COLUMNS, scores + b * INT8_COLUMNS, ld);
}

/* Labels the rows of one block of NEAREST_BLOCK. */
static void label_block(const struct state *state, struct workspace *work, const struct nearest_call *call,
                        size_t block, struct nearest_counts *counts) {
    const size_t features = state->shape.features, ld = state->blocks * INT8_COLUMNS;
    const size_t end = (block + 1) * NEAREST_BLOCK < call->rows ? (block + 1) * NEAREST_BLOCK : call->rows;
    const double error = score_error(state, call->norm[block], *call->centres->norm);
    for (size_t row = block * NEAREST_BLOCK; row < end; row += state->rows) {
        const size_t rows = end - row < state->rows ? end - row : state->rows;
        for (size_t r = 0; r < rows; r += INT8_ROWS)
            score_rows(state, work, call, row + r, rows - r < INT8_ROWS ? rows - r : INT8_ROWS,
                       work->scores + r * ld);
        struct nearest_call part = *call;
        part.x = (const uint8_t *)call->x + row * features;
        part.label = call->label + row;
        part.scores = work->scores;
        part.score_ld = ld;
        part.widened = work->widened;
        host_nearest_rows(GEMM_F32, &part, 0, rows, error, counts);
    }
}

static void nearest_run(void *memory, const struct nearest_call *call, struct nearest_counts *counts) {
    const struct state *state = memory;
    const size_t blocks = ceil_div(call->rows, NEAREST_BLOCK);
#pragma omp parallel for schedule(static) num_threads(state->threads)
    for (int t = 0; t < state->threads; t++) {
        struct nearest_counts local = {0};
        state->kernel->begin();
        for (size_t b = tuned_part_begin(blocks, (size_t)state->threads, (size_t)t);
             b < tuned_part_begin(blocks, (size_t)state->threads, (size_t)t + 1); b++)
            label_block(state, &state->work[t], call, b, &local);
        state->kernel->end();
        host_nearest_add(counts, &local);
    }
}

static void nearest_describe(void *memory, char *text, size_t size) {
    const struct state *state = memory;
    snprintf(text, size, "pixels by two slices of the centres, %s", state->kernel->name);
}

static const struct gemm_nearest table = {
    .close = nearest_close, .centres = nearest_centres, .run = nearest_run, .describe = nearest_describe};

void *tuned_nearest_int8(const struct int8_kernel *kernel, const struct nearest_shape *shape, int threads) {
    struct state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    *state = (struct state){.table = &table,
                            .kernel = kernel,
                            .shape = *shape,
                            .threads = threads,
                            .steps = ceil_div(shape->features, INT8_STEP),
                            .blocks = ceil_div(shape->clusters, INT8_COLUMNS)};
    state->stride = state->steps * INT8_STEP;
    const size_t fit = SCORE_BYTES / sizeof(float) / (state->blocks * INT8_COLUMNS) / INT8_ROWS * INT8_ROWS;
    state->rows = fit < INT8_ROWS ? INT8_ROWS : fit > NEAREST_BLOCK ? NEAREST_BLOCK : fit;
    state->packed = pages_alloc(state->blocks * state->steps * 2 * INT8_SLICE);
    state->bias = calloc(state->blocks * INT8_COLUMNS, sizeof *state->bias);
    state->work = calloc((size_t)threads, sizeof *state->work);
    bool done = state->packed && state->bias && state->work;
    for (int t = 0; done && t < threads; t++) done = open_workspace(state, &state->work[t]);
    if (done) return state;
    nearest_close(state);
    return NULL;
}
