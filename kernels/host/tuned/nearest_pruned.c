/* The nearest centres of points with many features, pruned by bounds.

   Idea       the images F(x) of points and centres have up to 63 principal components and the norm of the
              rest (principal.h): |F(x) - F(c)| is at most |x - c|, but for a known error. So a centre whose
              image is farther from F(x) than x is from the centre of its label before cannot be the nearest,
              and is not read. The scores of the images are products of 16, 32 or 64 features, which stay in
              registers (few_features.h); the few survivors are compared in float64 (ops/nearest.h).
   Bound by   the products of the images: with 784 features 1/12 to 1/49 of those of the points; survivors:
              two to ten a row of MNIST. On uniform random points nearly all survive: it is slower there.
   Improves   nearest_int8.c and a GEMM, where points are clustered
   Run        ./train kmeans --clusters 1000 --bounds on */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/ops/cluster.h"
#include "kernels/host/tuned/nearest.h"
#include "kernels/host/tuned/principal.h"
#include "src/base/pages.h"

enum { MOST = 64 /* points of a group */, SIZES = 3, SAMPLE_GROUPS = 4, SETTLED = 3 /* iterations */ };

struct workspace {
    double *scratch;                  /* of principal_image */
    float *images, *packed;           /* of a group */
    void *widened;                    /* [MOST][features] of the dtype: pixels */
    struct tuned_survivor *survivors; /* [clusters + 1] */
};

struct state {
    const struct gemm_nearest *table;
    const struct tuned_kernel *kernel;
    struct nearest_shape shape;
    int threads;
    const struct nearest_centres *centres;
    struct principal principal;
    size_t columns;                /* of an image, but for the rest */
    size_t calls;                  /* of pruned_centres */
    struct nearest_centres images; /* of the centres: float32 */
    double centre_error, centre_norm;
    float *point_images; /* [shape.count][columns + 1], of the blocks .. */
    double *point_error; /* [blocks] */
    uint8_t *ready;      /* .. that are ready: [blocks] */
    struct workspace *work;
};

/* --- memory --- */

static void pruned_close(void *memory) {
    struct state *state = memory;
    for (int t = 0; state->work && t < state->threads; t++) {
        const struct workspace *work = &state->work[t];
        free(work->scratch);
        free(work->images);
        free(work->packed);
        free(work->widened);
        free(work->survivors);
    }
    principal_close(&state->principal);
    free(state->images.values);
    free(state->images.bias);
    free(state->point_images);
    free(state->point_error);
    free(state->ready);
    free(state->work);
    free(state);
}

static bool open_workspace(const struct state *state, struct workspace *work) {
    const size_t features = state->shape.features, image = MOST * (PRINCIPAL_MOST + 1);
    work->scratch = pages_alloc(PRINCIPAL_SCRATCH(features) * sizeof *work->scratch);
    work->images = pages_alloc(image * sizeof *work->images);
    work->packed = pages_alloc(image * sizeof *work->packed);
    work->widened = pages_alloc(MOST * features * sizeof(double));
    work->survivors = pages_alloc((state->shape.clusters + 1) * sizeof *work->survivors);
    return work->scratch && work->images && work->packed && work->widened && work->survivors;
}

static size_t group_of(const struct state *state) {
    return FEW_VECTORS * state->kernel->lanes;
}

static size_t element_size(const struct state *state) {
    return state->shape.bytes ? 1 : state->shape.dtype == GEMM_F32 ? sizeof(float) : sizeof(double);
}

static struct principal_rows rows_of(const struct state *state, const void *x, size_t count) {
    return (struct principal_rows){state->shape.dtype, state->shape.bytes, x, count};
}

/* --- centres --- */

static void image_centres(struct state *state) {
    const size_t count = state->centres->count, features = state->columns + 1;
    const struct principal_rows rows = {state->shape.dtype, false, state->centres->values, count};
    float *images = state->images.values, *bias = state->images.bias;
    double error = 0, norm = 0;
    state->images.count = count;
    state->images.features = features;
#pragma omp parallel for schedule(static) reduction(max : error, norm) num_threads(state->threads)
    for (int t = 0; t < state->threads; t++) {
        const size_t first = tuned_part_begin(count, (size_t)state->threads, (size_t)t),
                     end = tuned_part_begin(count, (size_t)state->threads, (size_t)t + 1);
        if (first == end) continue;
        const double own = principal_image(&state->principal, state->columns, &rows, first, end - first,
                                           state->work[t].scratch, images + first * features);
        error = own <= error ? error : isnan(own) ? INFINITY : own;
        for (size_t j = first; j < end; j++) {
            double squares = 0;
            for (size_t f = 0; f < features; f++)
                squares += (double)images[j * features + f] * (double)images[j * features + f];
            bias[j] = (float)(-squares / 2);
            norm = squares <= norm ? norm : isnan(squares) ? INFINITY : squares;
        }
    }
    state->centre_error = error;
    state->centre_norm = sqrt(norm) * (1 + 0x1p-40) + 0x1p-500;
}

/* --- a group of points --- */

/* The points of a group, with their images. */
struct group {
    size_t rows;
    const char *x;       /* of the dtype, or widened */
    const float *images; /* [rows][columns + 1] */
    double error;        /* of the images */
    uint32_t guess[MOST];
    double squared[MOST]; /* from the guess */
};

static const void *widen(const struct state *state, struct workspace *work, const uint8_t *x, size_t rows) {
    const size_t count = rows * state->shape.features;
    float *restrict narrow = work->widened;
    double *restrict wide = work->widened;
    if (state->shape.dtype == GEMM_F32) {
        for (size_t i = 0; i < count; i++) narrow[i] = x[i];
    } else {
        for (size_t i = 0; i < count; i++) wide[i] = x[i];
    }
    return work->widened;
}

static double squared_distance(const struct state *state, const struct group *group, size_t row,
                               size_t centre) {
    const size_t size =
        state->shape.features * (state->shape.dtype == GEMM_F32 ? sizeof(float) : sizeof(double));
    return host_nearest_squared(state->shape.dtype, state->shape.features, group->x + row * size,
                                (const char *)state->centres->values + centre * size);
}

/* Guesses the nearest centre: that of the label, or if there is none, that of the nearest image. */
static void guess(const struct state *state, struct workspace *work, const uint32_t *label,
                  struct group *group) {
    uint32_t index[MOST] = {0};
    float gap[MOST];
    bool all = true;
    for (size_t r = 0; r < group->rows; r++) all &= label[r] < state->centres->count;
    if (!all) state->kernel->nearest(&state->images, work->packed, gap, index);
    for (size_t r = 0; r < group->rows; r++) {
        group->guess[r] = label[r] < state->centres->count ? label[r] : index[r];
        group->squared[r] = squared_distance(state, group, r, group->guess[r]);
    }
}

/* A centre farther than the guess has |F(x) - F(c)| > reach, and so the score F(x).F(c) - |F(c)|^2 / 2 of its
   image is below (|F(x)|^2 - reach^2) / 2. Computed scores have an error, as in nearest_few.c. */
static float threshold(const struct state *state, const struct group *group, size_t row) {
    const size_t features = state->columns + 1;
    const float *image = group->images + row * features;
    double squares = 0;
    for (size_t f = 0; f < features; f++) squares += (double)image[f] * (double)image[f];
    const double slack = 1 + ((double)state->shape.features + 8) * 0x1p-52,
                 reach = sqrt(group->squared[row]) * slack + 0x1p-500 + group->error + state->centre_error,
                 norm = sqrt(squares) * (1 + 0x1p-40) + 0x1p-500,
                 half = state->centre_norm * state->centre_norm / 2, terms = (double)features + 8,
                 error = nearest_error(features, (double)FLT_EPSILON, (double)FLT_TRUE_MIN, (double)FLT_MAX,
                                       norm, state->centre_norm) +
                         1.0001 * (double)FLT_EPSILON * terms * half,
                 least = (squares - reach * reach) / 2 - error - 0x1p-40 * (squares + reach * reach);
    const float rounded = (float)least;
    return (double)rounded > least ? nextafterf(rounded, -INFINITY) : rounded; /* NaN: all centres survive */
}

/* Fills the list of survivors. Returns their number: bit r of .points stands for row r. */
static size_t find_survivors(const struct state *state, struct workspace *work, struct group *group) {
    float thresholds[MOST];
    for (size_t r = 0; r < group_of(state); r++)
        thresholds[r] = r < group->rows ? threshold(state, group, r) : INFINITY;
    return state->kernel->survivors(&state->images, work->packed, thresholds, work->survivors);
}

static void decide(const struct state *state, const struct workspace *work, const struct group *group,
                   size_t survivors, uint32_t *label, struct nearest_counts *counts) {
    const size_t features = state->shape.features,
                 size = state->shape.dtype == GEMM_F32 ? sizeof(float) : sizeof(double);
    struct host_nearest nearest[MOST] = {{0}};
    uint64_t once = 0, twice = 0;
    for (size_t s = 0; s < survivors; s++) {
        twice |= once & work->survivors[s].points;
        once |= work->survivors[s].points;
    }
    const uint64_t all = group->rows == 64 ? UINT64_MAX : ((uint64_t)1 << group->rows) - 1;
    for (size_t s = 0; s < survivors; s++)
        for (uint64_t left = work->survivors[s].points & twice & all; left; left &= left - 1) {
            const size_t r = (size_t)__builtin_ctzll(left), centre = work->survivors[s].centre;
            const double squared =
                centre == group->guess[r] ? group->squared[r] : squared_distance(state, group, r, centre);
            host_nearest_candidate(state->shape.dtype, features, group->x + r * features * size,
                                   state->centres->values, centre, squared, &nearest[r]);
        }
    for (size_t r = 0; r < group->rows; r++) { /* a single survivor is the guess */
        const uint32_t found = nearest[r].any ? nearest[r].label : group->guess[r];
        counts->ambiguous += nearest[r].any;
        counts->exact += nearest[r].exact;
        counts->uncertified += nearest[r].inexact;
        counts->changed += label[r] != found;
        label[r] = found;
    }
}

/* --- the number of columns --- */

/* Cycles of a row, about: the products of the images, and the survivors in float64. */
static double cost(const struct state *state, struct workspace *work, size_t columns) {
    const size_t features = state->shape.features, group = group_of(state);
    const double centres = (double)state->centres->count, lanes = (double)state->kernel->lanes;
    uint64_t found = 0, rows = 0;
    for (size_t g = 0; g < SAMPLE_GROUPS; g++) {
        const size_t first = state->shape.count * (2 * g + 1) / (2 * SAMPLE_GROUPS),
                     left = state->shape.count - first;
        struct group points = {.rows = left < group ? left : group, .images = work->images};
        const void *x = (const char *)state->shape.points + first * features * element_size(state);
        const struct principal_rows from = rows_of(state, x, points.rows);
        uint32_t none[MOST];
        memset(none, 0xff, sizeof none); /* NEAREST_NONE */
        points.x = state->shape.bytes ? widen(state, work, x, points.rows) : x;
        points.error =
            principal_image(&state->principal, columns, &from, 0, points.rows, work->scratch, work->images);
        state->kernel->pack_points(columns + 1, points.rows, work->images, work->packed);
        guess(state, work, none, &points);
        const size_t survivors = find_survivors(state, work, &points);
        for (size_t s = 0; s < survivors; s++)
            found += (uint64_t)__builtin_popcountll(work->survivors[s].points);
        rows += points.rows;
    }
    return centres * (double)(columns + 4) / lanes + (double)found / (double)rows * (double)features * 0.4;
}

/* Takes 15, 31 or 63 directions: the number that is cheapest for a sample and these centres. */
static void choose_columns(struct state *state) {
    static const size_t sizes[SIZES] = {15, 31, 63};
    const size_t before = state->columns;
    size_t best = 0;
    double least = INFINITY;
    for (size_t i = 0; i < SIZES; i++) {
        const size_t columns = sizes[i] < state->principal.columns ? sizes[i] : state->principal.columns;
        state->columns = columns;
        image_centres(state);
        const double here = cost(state, &state->work[0], columns);
        if (here < least || i == 0) {
            least = here;
            best = columns;
        }
    }
    state->columns = best;
    if (best != before) memset(state->ready, 0, (state->shape.count + NEAREST_BLOCK - 1) / NEAREST_BLOCK);
}

static bool pruned_centres(void *memory, const struct nearest_centres *centres) {
    struct state *state = memory;
    state->centres = centres;
    state->calls++;
    if (state->calls == 1 || state->calls == SETTLED) choose_columns(state); /* initial centres are points */
    image_centres(state);
    return true;
}

/* --- a pass --- */

/* The images of rows first + r .. of a call, of which `first` begins a block. They are kept if the block is
   one of state->shape.points. */
static const float *images_of(struct state *state, struct workspace *work, const struct nearest_call *call,
                              size_t first, size_t r, size_t rows, double *error) {
    const size_t size = state->shape.features * element_size(state), whole = NEAREST_BLOCK * size;
    const char *x = (const char *)call->x + first * size;
    const uintptr_t at = (uintptr_t)x, begin = (uintptr_t)state->shape.points;
    if (at < begin || at >= begin + state->shape.count * size || (at - begin) % whole != 0) {
        const struct principal_rows from = rows_of(state, x, r + rows);
        *error =
            principal_image(&state->principal, state->columns, &from, r, rows, work->scratch, work->images);
        return work->images;
    }
    const size_t block = (at - begin) / whole, row = block * NEAREST_BLOCK, left = state->shape.count - row;
    const struct principal_rows from = rows_of(state, state->shape.points, state->shape.count);
    float *images = state->point_images + row * (state->columns + 1);
    if (!state->ready[block])
        state->point_error[block] =
            principal_image(&state->principal, state->columns, &from, row,
                            left < NEAREST_BLOCK ? left : NEAREST_BLOCK, work->scratch, images);
    state->ready[block] = 1;
    *error = state->point_error[block];
    return images + r * (state->columns + 1);
}

static void label_group(const struct state *state, struct workspace *work, const struct nearest_call *call,
                        struct group *group, size_t row, struct nearest_counts *counts) {
    const size_t features = state->shape.features;
    const char *x = (const char *)call->x + row * features * element_size(state);
    group->x = call->bytes ? widen(state, work, (const uint8_t *)x, group->rows) : x;
    state->kernel->pack_points(state->columns + 1, group->rows, group->images, work->packed);
    guess(state, work, call->label + row, group);
    decide(state, work, group, find_survivors(state, work, group), call->label + row, counts);
}

static void label_block(struct state *state, struct workspace *work, const struct nearest_call *call,
                        size_t block, struct nearest_counts *counts) {
    const size_t first = block * NEAREST_BLOCK, left = call->rows - first,
                 rows = left < NEAREST_BLOCK ? left : NEAREST_BLOCK, most = group_of(state);
    for (size_t r = 0; r < rows; r += most) {
        struct group group = {.rows = rows - r < most ? rows - r : most};
        group.images = images_of(state, work, call, first, r, group.rows, &group.error);
        label_group(state, work, call, &group, first + r, counts);
    }
}

static void pruned_run(void *memory, const struct nearest_call *call, struct nearest_counts *counts) {
    struct state *state = memory;
    const size_t blocks = (call->rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK, threads = (size_t)state->threads;
#pragma omp parallel for schedule(static) num_threads(state->threads)
    for (size_t t = 0; t < threads; t++) {
        struct nearest_counts local = {0};
        for (size_t b = tuned_part_begin(blocks, threads, t); b < tuned_part_begin(blocks, threads, t + 1);
             b++)
            label_block(state, &state->work[t], call, b, &local);
        host_nearest_add(counts, &local);
    }
}

static void pruned_describe(void *memory, char *text, size_t size) {
    const struct state *state = memory;
    snprintf(text, size, "%zu principal components and the norm of the rest", state->columns);
}

static const struct gemm_nearest table = {
    .close = pruned_close, .centres = pruned_centres, .run = pruned_run, .describe = pruned_describe};

void *tuned_nearest_pruned(const struct tuned_kernel *f32, const struct nearest_shape *shape, int threads) {
    struct state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    *state = (struct state){.table = &table, .kernel = f32, .shape = *shape, .threads = threads};
    const size_t blocks = (shape->count + NEAREST_BLOCK - 1) / NEAREST_BLOCK;
    const struct principal_rows rows = rows_of(state, shape->points, shape->count);
    state->images.values = pages_alloc(shape->clusters * (PRINCIPAL_MOST + 1) * sizeof(float));
    state->images.bias = malloc(shape->clusters * sizeof(float));
    state->point_images = pages_alloc(shape->count * (PRINCIPAL_MOST + 1) * sizeof(float));
    state->point_error = calloc(blocks, sizeof *state->point_error);
    state->ready = calloc(blocks, 1);
    state->work = calloc((size_t)threads, sizeof *state->work);
    bool done = state->images.values && state->images.bias && state->point_images && state->point_error &&
                state->ready && state->work;
    for (int t = 0; done && t < threads; t++) done = open_workspace(state, &state->work[t]);
    if (done && principal_open(&state->principal, &rows, shape->features, threads)) return state;
    pruned_close(state);
    return NULL;
}
