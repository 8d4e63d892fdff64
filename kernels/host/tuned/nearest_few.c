/* The nearest centres of reals with few features, by few_features.h.

   Idea       three levels, each for the rows that the one before cannot decide: scores in float32; for points
              of float64, scores in float64; all scores of a row and kernels/host/ops/nearest.h. The first
              level has twice the lanes. Points of float64 are moved by the mean of the centres before they
              are rounded, so that an offset of the data costs no accuracy.
   Bound by   instructions (few_features.h); the error of float32 leaves one row of some thousands
   Improves   the same in float64 alone
   Run        ./train kmeans --data uniform:1024MB,2 --dtype f64 --clusters 64 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/ops/cluster.h"
#include "kernels/host/tuned/nearest.h"
#include "src/base/pages.h"

enum { MOST = 256 /* points of a group, at least */, FIRST_ROWS = 4096, UNDECIDED_SHARE = 4 };

struct workspace {
    float *moved;           /* [points of a group][features]: the points less the mean */
    void *points;           /* a packed group */
    void *rows;             /* the rows of a group of float64 that float32 did not decide */
    void *scores;           /* of one row */
    uint32_t row[MOST];     /* their numbers .. */
    size_t waiting;         /* .. and how many */
    size_t seen, undecided; /* rows of the level of float32 */
};

struct state {
    const struct gemm_nearest *table;
    const struct tuned_kernel *f32, *f64; /* f64 only for points of float64 */
    struct nearest_shape shape;
    int threads;
    const struct nearest_centres *centres;
    struct nearest_centres narrow; /* float32: the centres, or of float64, the centres less the mean */
    double narrow_norm;
    double *mean; /* [points of a group][features]: every row is the mean of the centres */
    struct workspace *work;
};

static size_t group_of(const struct tuned_kernel *kernel) {
    return FEW_VECTORS * kernel->lanes;
}

static void few_close(void *memory) {
    struct state *state = memory;
    for (int t = 0; state->work && t < state->threads; t++) {
        free(state->work[t].moved);
        free(state->work[t].points);
        free(state->work[t].rows);
        free(state->work[t].scores);
    }
    if (state->f64) free(state->narrow.values);
    if (state->f64) free(state->narrow.bias);
    free(state->mean);
    free(state->work);
    free(state);
}

/* Bounds the error of a score of few_features.h. */
static double few_error(const struct state *state, bool f32, double norm, double centre_norm) {
    return f32 ? nearest_few_error(state->shape.features, FLT_EPSILON, FLT_TRUE_MIN, FLT_MAX, norm,
                                   centre_norm)
               : nearest_few_error(state->shape.features, DBL_EPSILON, DBL_TRUE_MIN, DBL_MAX, norm,
                                   centre_norm);
}

/* --- the centres --- */

static void move_centres(struct state *state) {
    const struct nearest_centres *centres = state->centres;
    const size_t features = centres->features, count = centres->count, group = group_of(state->f32);
    const double *values = centres->values;
    float *narrow = state->narrow.values, *bias = state->narrow.bias;
    for (size_t f = 0; f < features; f++) {
        double sum = 0;
        for (size_t j = 0; j < count; j++) sum += values[j * features + f];
        for (size_t r = 0; r < group; r++) state->mean[r * features + f] = sum / (double)count;
    }
    double most = 0;
    for (size_t j = 0; j < count; j++) {
        double squares = 0;
        for (size_t f = 0; f < features; f++) {
            const float moved = (float)(values[j * features + f] - state->mean[f]);
            narrow[j * features + f] = moved;
            squares += (double)moved * (double)moved;
        }
        bias[j] = (float)(-squares / 2);
        /* If the sum of a feature overflowed, its mean may be NaN: then all squares are, and so is the norm,
           and no score decides. fmax would return 0. */
        most = squares <= most ? most : squares;
    }
    state->narrow.count = count;
    state->narrow_norm = sqrt(most) * (1 + 0x1p-20) + 0x1p-140;
}

static bool few_centres(void *memory, const struct nearest_centres *centres) {
    struct state *state = memory;
    state->centres = centres;
    if (state->f64) {
        move_centres(state);
    } else {
        state->narrow = *centres;
        state->narrow_norm = *centres->norm;
    }
    return true;
}

/* --- one row --- */

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

static const char *row_of(const struct state *state, const struct nearest_call *call, size_t row) {
    const size_t size = state->shape.dtype == GEMM_F32 ? sizeof(float) : sizeof(double);
    return (const char *)call->x + row * state->shape.features * size;
}

static void decide_row(const struct state *state, struct workspace *work, const struct nearest_call *call,
                       size_t row, struct nearest_counts *counts) {
    struct nearest_call one = *call;
    one.x = row_of(state, call, row);
    one.label = call->label + row;
    one.scores = work->scores;
    one.score_ld = state->centres->count;
    score_row(state, one.x, work->scores);
    host_nearest_rows(state->shape.dtype, &one, 0, 1,
                      few_error(state, state->shape.dtype == GEMM_F32, call->norm[row / NEAREST_BLOCK],
                                *state->centres->norm),
                      counts);
}

static void set_label(const struct nearest_call *call, size_t row, uint32_t label,
                      struct nearest_counts *counts) {
    counts->changed += call->label[row] != label;
    call->label[row] = label;
}

/* --- float64 --- */

static void label_waiting(const struct state *state, struct workspace *work, const struct nearest_call *call,
                          struct nearest_counts *counts) {
    double gap[MOST];
    uint32_t index[MOST];
    if (!work->waiting) return;
    state->f64->pack_points(state->shape.features, work->waiting, work->rows, work->points);
    state->f64->nearest(state->centres, work->points, gap, index);
    for (size_t r = 0; r < work->waiting; r++) {
        const size_t row = work->row[r];
        const double error = few_error(state, false, call->norm[row / NEAREST_BLOCK], *state->centres->norm);
        if (call->certify && !(gap[r] > 2 * error)) {
            decide_row(state, work, call, row, counts);
        } else {
            set_label(call, row, index[r], counts);
        }
    }
    work->waiting = 0;
}

static void wait_for_f64(const struct state *state, struct workspace *work, const struct nearest_call *call,
                         size_t row, struct nearest_counts *counts) {
    const size_t features = state->shape.features;
    const double *restrict from = (const double *)(const void *)row_of(state, call, row);
    double *restrict to = (double *)work->rows + work->waiting * features;
    for (size_t f = 0; f < features; f++) to[f] = from[f];
    work->row[work->waiting++] = (uint32_t)row;
    if (work->waiting == group_of(state->f64)) label_waiting(state, work, call, counts);
}

/* --- float32 --- */

/* Packs points of float64 less the mean. Returns a bound of their norms. */
static double pack_moved(const struct state *state, struct workspace *work, const double *restrict x,
                         size_t rows) {
    const size_t features = state->shape.features, group = group_of(state->f32), count = rows * features;
    const double *restrict mean = state->mean;
    float *restrict moved = work->moved, *restrict points = work->points;
    for (size_t i = 0; i < count; i++) moved[i] = (float)(x[i] - mean[i]);
    for (size_t i = count; i < group * features; i++) moved[i] = 0;
    if (features == 2) { /* deinterleaved: cheaper than squares that are mostly empty */
        for (size_t r = 0; r < group; r++) points[r] = moved[2 * r];
        for (size_t r = 0; r < group; r++) points[group + r] = moved[2 * r + 1];
    } else {
        state->f32->pack_points(features, group, moved, points);
    }
    float squares[MOST] = {0}, largest;
    uint32_t bits[MOST], most = 0; /* in the order of the squares; the bits of a NaN are larger */
    for (size_t f = 0; f < features; f++)
        for (size_t r = 0; r < group; r++) squares[r] += points[f * group + r] * points[f * group + r];
    memcpy(bits, squares, group * sizeof *bits);
    for (size_t r = 0; r < group; r++) most = bits[r] > most ? bits[r] : most;
    memcpy(&largest, &most, sizeof largest);
    return nearest_few_norm(largest);
}

static void label_group(const struct state *state, struct workspace *work, const struct nearest_call *call,
                        size_t row, size_t rows, struct nearest_counts *counts) {
    const size_t features = state->shape.features;
    const char *x = row_of(state, call, row);
    uint32_t *restrict label = call->label + row, index[MOST], undecided = 0, changed = 0;
    float gap[MOST];
    double norm = call->norm[row / NEAREST_BLOCK];
    if (state->f64) {
        norm = pack_moved(state, work, (const double *)(const void *)x, rows);
    } else {
        state->f32->pack_points(features, rows, x, work->points);
    }
    state->f32->nearest(&state->narrow, work->points, gap, index);
    const float limit = (float)(1.0001 * 2 * few_error(state, true, norm, state->narrow_norm));
    for (size_t r = 0; r < rows; r++) undecided += !(gap[r] > limit);
    if (!call->certify && !state->f64) undecided = 0;
    work->seen += rows;
    work->undecided += undecided;
    for (size_t r = 0; !undecided && r < rows; r++) {
        changed += label[r] != index[r];
        label[r] = index[r];
    }
    counts->changed += changed;
    for (size_t r = 0; undecided && r < rows; r++) {
        if (gap[r] > limit) {
            set_label(call, row + r, index[r], counts);
        } else if (state->f64) {
            wait_for_f64(state, work, call, row + r, counts);
        } else {
            decide_row(state, work, call, row + r, counts);
        }
    }
}

/* --- a pass --- */

/* Points that float32 often does not decide are scored in float64 at once. */
static bool prefers_f64(const struct state *state, const struct workspace *work) {
    return state->f64 && work->seen >= FIRST_ROWS && work->undecided > work->seen / UNDECIDED_SHARE;
}

static void label_block(const struct state *state, struct workspace *work, const struct nearest_call *call,
                        size_t block, struct nearest_counts *counts) {
    const size_t group = group_of(state->f32), first = block * NEAREST_BLOCK,
                 end = first + NEAREST_BLOCK < call->rows ? first + NEAREST_BLOCK : call->rows;
    if (prefers_f64(state, work)) {
        for (size_t row = first; row < end; row++) wait_for_f64(state, work, call, row, counts);
        return;
    }
    for (size_t row = first; row < end; row += group)
        label_group(state, work, call, row, end - row < group ? end - row : group, counts);
}

static void few_run(void *memory, const struct nearest_call *call, struct nearest_counts *counts) {
    const struct state *state = memory;
    const size_t blocks = (call->rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK, threads = (size_t)state->threads;
#pragma omp parallel for schedule(static) num_threads(state->threads)
    for (size_t t = 0; t < threads; t++) {
        struct nearest_counts local = {0};
        struct workspace *work = &state->work[t];
        work->seen = work->undecided = 0;
        for (size_t b = tuned_part_begin(blocks, threads, t); b < tuned_part_begin(blocks, threads, t + 1);
             b++)
            label_block(state, work, call, b, &local);
        if (state->f64) label_waiting(state, work, call, &local);
        host_nearest_add(counts, &local);
    }
}

static void few_describe(void *memory, char *text, size_t size) {
    const struct state *state = memory;
    snprintf(text, size, "few features, the maximum in registers%s",
             state->f64 ? ", float32 before float64" : "");
}

static const struct gemm_nearest table = {
    .close = few_close, .centres = few_centres, .run = few_run, .describe = few_describe};

static bool open_workspace(const struct state *state, struct workspace *work) {
    const size_t features = state->shape.features, elements = group_of(state->f32) * features;
    work->moved = pages_alloc(elements * sizeof(float));
    work->points = pages_alloc(elements * sizeof(double));
    work->rows = pages_alloc(elements * sizeof(double));
    work->scores = pages_alloc(state->shape.clusters * sizeof(double));
    return work->moved && work->points && work->rows && work->scores;
}

void *tuned_nearest_few(const struct tuned_kernel *f32, const struct tuned_kernel *f64,
                        const struct nearest_shape *shape, int threads) {
    struct state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    *state = (struct state){.table = &table, .f32 = f32, .f64 = f64, .shape = *shape, .threads = threads};
    state->work = calloc((size_t)threads, sizeof *state->work);
    bool done = state->work;
    if (done && f64) {
        state->narrow.features = shape->features;
        state->narrow.values = malloc(shape->clusters * shape->features * sizeof(float));
        state->narrow.bias = malloc(shape->clusters * sizeof(float));
        state->mean = malloc(group_of(f32) * shape->features * sizeof(double));
        done = state->narrow.values && state->narrow.bias && state->mean;
    }
    for (int t = 0; done && t < threads; t++) done = open_workspace(state, &state->work[t]);
    if (done) return state;
    few_close(state);
    return NULL;
}
