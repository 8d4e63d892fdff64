/* The nearest centres by candidates of 8-bit scores (int8_lanes.c): pixels, or reals with many features.

   Idea       points and centres, less the middle of the centres, are rounded to 8 bits. The norms of what
              they leave bound the error of each score, and so the centres that may be the nearest: the
              candidates of a point. Of several, distances in float32 leave one for nearly every point; the
              rest is compared as in kernels/host/ops/nearest.h. Pixels are bytes already, and have no error.
   Bound by   the integer units: 64 products in a cycle on a Zen 4, where float32 FMA has 16
   Improves   a GEMM of float32, and nearest_int8.c with its two slices
   Run        ./train kmeans --data uniform:512MB,128 --dtype f32 --clusters 1024 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/ops/cluster.h"
#include "kernels/host/tuned/nearest.h"
#include "src/base/pages.h"

/* With more candidates for a row than 1 + clusters / MANY, products of float32 are faster. */
enum { MANY = 8, MOST_BYTE = 127, LANES = 16 };

struct workspace {
    uint8_t *bytes;  /* [INT8_GROUP][4 words] */
    int32_t *points; /* the same, packed */
    float *scores;
    struct tuned_survivor *near;
    float *moved;   /* one row less the middle, and zeros */
    float *widened; /* pixels: [INT8_GROUP][features] */
    uint64_t candidates;
};

struct state {
    const struct gemm_nearest *table;
    const struct tuned_kernel *kernel;
    struct nearest_shape shape;
    int threads;
    const struct nearest_centres *centres;
    struct int8_slice slice;
    float *middle; /* of the centres: [features] */
    float scale;
    double norm, left, half;   /* at least |c|, |c - scale q| and |bias| of each moved centre */
    bool useless;              /* there were too many candidates .. */
    uint64_t rows, candidates; /* .. since `centres` */
    struct workspace *work;
};

static void slice_close(void *memory) {
    struct state *state = memory;
    for (int t = 0; state->work && t < state->threads; t++) {
        free(state->work[t].bytes);
        free(state->work[t].points);
        free(state->work[t].scores);
        free(state->work[t].near);
        free(state->work[t].moved);
        free(state->work[t].widened);
    }
    free(state->work);
    free(state->slice.values);
    free(state->slice.start);
    free(state->slice.bias);
    free(state->middle);
    free(state);
}

/* --- the centres --- */

static double value_of(const struct state *state, const void *values, size_t i) {
    return state->shape.dtype == GEMM_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

/* Returns the largest distance of a coordinate of a centre from the middle. */
static double find_middle(struct state *state) {
    const struct nearest_centres *centres = state->centres;
    double most = 0;
    for (size_t f = 0; f < centres->features; f++) {
        double low = INFINITY, high = -INFINITY;
        for (size_t j = 0; j < centres->count; j++) {
            const double value = value_of(state, centres->values, j * centres->features + f);
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        state->middle[f] = (float)(low / 2 + high / 2);
        most = fmax(most, fmax(high - (double)state->middle[f], (double)state->middle[f] - low));
    }
    return most;
}

static void pack_centre(struct state *state, size_t j) {
    const size_t features = state->centres->features, words = state->slice.words;
    int8_t *to = (int8_t *)(state->slice.values + j / INT8_TILE * INT8_TILE * words + j % INT8_TILE);
    const double scale = (double)state->scale;
    double squares = 0, left = 0, half = 0;
    int32_t sum = 0;
    for (size_t f = 0; f < features; f++) {
        const double c = value_of(state, state->centres->values, j * features + f),
                     moved = c - (double)state->middle[f], origin = state->shape.bytes ? c : moved;
        const long q = lround(moved / scale);
        const double rest = moved - scale * (double)q;
        to[f / 4 * 4 * INT8_TILE + f % 4] = (int8_t)q;
        sum += (int32_t)q;
        squares += moved * moved;
        left += rest * rest;
        half += origin * origin;
    }
    state->slice.start[j] = state->shape.bytes ? 0 : -INT8_ZERO * sum;
    state->slice.bias[j] = (float)(-half / 2);
    state->norm = fmax(state->norm, sqrt(squares));
    state->left = fmax(state->left, sqrt(left));
    state->half = fmax(state->half, half / 2);
}

static bool slice_centres(void *memory, const struct nearest_centres *centres) {
    struct state *state = memory;
    struct int8_slice *slice = &state->slice;
    state->useless |= state->candidates > state->rows * (1 + centres->count / MANY);
    state->rows = state->candidates = 0;
    if (state->useless) return false;
    state->centres = centres;
    const double most = find_middle(state);
    if (!(most > 1e-15 && *centres->norm < 1e15)) return false;
    state->scale = nextafterf((float)(most / MOST_BYTE), INFINITY);
    slice->clusters = (centres->count + INT8_TILE - 1) / INT8_TILE * INT8_TILE;
    memset(slice->values, 0, slice->clusters * slice->words * sizeof *slice->values);
    state->norm = state->left = state->half = 0;
    for (size_t j = 0; j < centres->count; j++) pack_centre(state, j);
    for (size_t j = centres->count; j < slice->clusters; j++) {
        slice->start[j] = 0;
        slice->bias[j] = -INFINITY;
    }
    const double up = 1 + ((double)centres->features + 8) * 0x1p-52; /* of the sums here */
    state->left = state->left * up + *centres->norm * 0x1p-50;
    state->norm = state->norm * up + *centres->norm * 0x1p-50;
    return true;
}

/* --- the points --- */

static const void *row_address(const struct state *state, const struct nearest_call *call, size_t row) {
    const size_t size = state->shape.bytes               ? sizeof(uint8_t)
                        : state->shape.dtype == GEMM_F32 ? sizeof(float)
                                                         : sizeof(double);
    return (const char *)call->x + row * state->shape.features * size;
}

/* The largest difference of two scores whose order is open. The errors: of rounding the point, whose rounded
   norm is at most `norm`, and the centres; conversions, products and sums of float32; the bias, rounded
   twice. */
static float gap_of(const struct state *state, double norm, double left) {
    const double terms = norm * (state->norm + state->left) + state->half,
                 error = left * state->norm + norm * state->left + 8 * (double)FLT_EPSILON * terms + 1e-37;
    return (float)(2.0001 * error);
}

static void move_row(const struct state *state, const void *from, float *restrict moved) {
    const size_t features = state->shape.features;
    const float *restrict middle = state->middle;
    if (state->shape.dtype == GEMM_F32) {
        const float *restrict x = from;
        for (size_t f = 0; f < features; f++) moved[f] = x[f] - middle[f];
    } else {
        const double *restrict x = from;
        for (size_t f = 0; f < features; f++) moved[f] = (float)(x[f] - (double)middle[f]);
    }
}

/* Rounds a moved row. */
static void round_row(const struct state *state, const float *moved, uint8_t *bytes, float *scale,
                      float *gap) {
    const size_t features = state->shape.features;
    const struct int8_rounded row = int8_round((features + LANES - 1) / LANES * LANES, moved, bytes);
    const double up = 1 + ((double)features + 8) * (double)FLT_EPSILON,
                 norm = nearest_few_norm(row.squares) * up,
                 left = nearest_few_norm(row.left) * up + 4 * (double)FLT_EPSILON * norm;
    *scale = row.step * state->scale;
    *gap = row.most < 1e15F ? gap_of(state, norm, left) : INFINITY;
}

static void pack_group(const struct state *state, struct workspace *work, const struct nearest_call *call,
                       size_t row, size_t rows, float *scale, float *gap) {
    const size_t features = state->shape.features, words = state->slice.words;
    if (state->shape.bytes) {
        const uint8_t *pixels = row_address(state, call, row);
        const float all = gap_of(state, call->norm[row / NEAREST_BLOCK], 0);
        for (size_t r = 0; r < INT8_GROUP; r++) scale[r] = state->scale, gap[r] = all;
        for (size_t r = 0; features % 4 && r < rows; r++)
            memcpy(work->bytes + 4 * r * words, pixels + r * features, features);
        state->kernel->pack_points(words, rows, features % 4 ? work->bytes : pixels, work->points);
        return;
    }
    for (size_t r = 0; r < rows; r++) {
        move_row(state, row_address(state, call, row + r), work->moved);
        round_row(state, work->moved, work->bytes + 4 * r * words, &scale[r], &gap[r]);
    }
    state->kernel->pack_points(words, rows, work->bytes, work->points);
}

/* The rows that have several candidates. */
static uint64_t rows_of_several(const struct tuned_survivor *near, size_t found) {
    uint64_t one = 0, several = 0;
    for (size_t n = 0; n < found; n++) {
        several |= one & near[n].points;
        one |= near[n].points;
    }
    return several;
}

static const void *real_row(const struct state *state, const struct workspace *work,
                            const struct nearest_call *call, size_t row, size_t r) {
    return state->shape.bytes ? work->widened + r * state->shape.features : row_address(state, call, row + r);
}

/* Drops the candidates of these rows that are farther than another one by their distances in float32. The
   relative error of such a distance is at most (features + 8) 2^-24 unless it underflows. */
static void drop_farther(const struct state *state, struct workspace *work, const struct nearest_call *call,
                         size_t row, uint64_t rows, size_t found) {
    const size_t features = state->shape.features;
    const float slack = ((float)features + 8) * FLT_EPSILON * 0.51F;
    float least[INT8_GROUP], *distance = work->scores;
    for (size_t r = 0; r < INT8_GROUP; r++) least[r] = INFINITY;
    for (size_t n = 0; n < found; n++)
        for (uint64_t left = work->near[n].points & rows; left; left &= left - 1) {
            const size_t r = (size_t)__builtin_ctzll(left), at = n * INT8_GROUP + r;
            distance[at] =
                int8_distance(features, real_row(state, work, call, row, r),
                              (const float *)state->centres->values + work->near[n].centre * features);
            least[r] = distance[at] < least[r] ? distance[at] : least[r];
        }
    for (size_t r = 0; r < INT8_GROUP; r++) least[r] = least[r] * (1 + slack) / (1 - slack) + 1e-30F;
    for (size_t n = 0; n < found; n++)
        for (uint64_t left = work->near[n].points & rows; left; left &= left - 1) {
            const size_t r = (size_t)__builtin_ctzll(left);
            if (distance[n * INT8_GROUP + r] > least[r]) work->near[n].points &= ~((uint64_t)1 << r);
        }
}

/* Labels a group by its candidates. */
static void compare(const struct state *state, struct workspace *work, const struct nearest_call *call,
                    size_t row, uint64_t several, size_t found, struct host_nearest *nearest) {
    const enum gemm_dtype dtype = state->shape.dtype;
    const size_t bytes = state->shape.features * (dtype == GEMM_F32 ? sizeof(float) : sizeof(double));
    const char *values = state->centres->values;
    for (size_t n = 0; n < found; n++) {
        const size_t j = work->near[n].centre;
        for (uint64_t left = work->near[n].points; left; left &= left - 1) {
            const size_t r = (size_t)__builtin_ctzll(left);
            if (!(several >> r & 1)) {
                nearest[r].label = (uint32_t)j;
                continue;
            }
            const void *x = real_row(state, work, call, row, r);
            const double squared = host_nearest_squared(dtype, state->shape.features, x, values + j * bytes);
            host_nearest_candidate(dtype, state->shape.features, x, values, j, squared, &nearest[r]);
        }
    }
}

static void label_group(const struct state *state, struct workspace *work, const struct nearest_call *call,
                        size_t row, size_t rows, struct nearest_counts *counts) {
    float scale[INT8_GROUP] __attribute__((aligned(64))) = {0};
    float gap[INT8_GROUP] __attribute__((aligned(64))) = {0};
    struct host_nearest nearest[INT8_GROUP] = {0};
    const uint64_t all = rows < INT8_GROUP ? ((uint64_t)1 << rows) - 1 : UINT64_MAX;
    const size_t features = state->shape.features, next = row + rows,
                 end = next + INT8_GROUP < call->rows ? next + INT8_GROUP : call->rows;
    const struct int8_ahead ahead = {row_address(state, call, next), row_address(state, call, end)};
    pack_group(state, work, call, row, rows, scale, gap);
    size_t found = int8_candidates(&state->slice, work->points, scale, gap, ahead, work->scores, work->near);
    while (work->near[found - 1].centre >= state->centres->count) found--; /* padding, if a gap is infinite */
    for (size_t n = 0; n < found; n++) work->near[n].points &= all;
    uint64_t several = rows_of_several(work->near, found);
    for (size_t n = 0; n < found; n++)
        work->candidates += (uint64_t)__builtin_popcountll(work->near[n].points & several);
    for (uint64_t left = state->shape.bytes ? several : 0; left; left &= left - 1) {
        const size_t r = (size_t)__builtin_ctzll(left);
        const uint8_t *restrict pixels = row_address(state, call, row + r);
        float *restrict widened = work->widened + r * features;
        for (size_t f = 0; f < features; f++) widened[f] = pixels[f];
    }
    if (several && state->shape.dtype == GEMM_F32) {
        drop_farther(state, work, call, row, several, found);
        several = rows_of_several(work->near, found);
    }
    compare(state, work, call, row, several, found, nearest);
    counts->ambiguous += (uint64_t)__builtin_popcountll(several);
    for (size_t r = 0; r < rows; r++) {
        counts->exact += nearest[r].exact;
        counts->uncertified += nearest[r].inexact;
        counts->changed += call->label[row + r] != nearest[r].label;
        call->label[row + r] = nearest[r].label;
    }
}

static void slice_run(void *memory, const struct nearest_call *call, struct nearest_counts *counts) {
    struct state *state = memory;
    const size_t blocks = (call->rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK, threads = (size_t)state->threads;
    state->rows += call->rows;
#pragma omp parallel for schedule(static) num_threads(state->threads)
    for (size_t t = 0; t < threads; t++) {
        struct nearest_counts local = {0};
        struct workspace *work = &state->work[t];
        work->candidates = 0;
        const size_t end = tuned_part_begin(blocks, threads, t + 1) * NEAREST_BLOCK,
                     last = end < call->rows ? end : call->rows;
        for (size_t row = tuned_part_begin(blocks, threads, t) * NEAREST_BLOCK; row < last; row += INT8_GROUP)
            label_group(state, work, call, row, last - row < INT8_GROUP ? last - row : INT8_GROUP, &local);
        host_nearest_add(counts, &local);
#pragma omp atomic
        state->candidates += work->candidates;
    }
}

static void slice_describe(void *memory, char *text, size_t size) {
    (void)memory;
    snprintf(text, size, "candidates by 8 bits, AVX-512 VNNI");
}

static const struct gemm_nearest table = {
    .close = slice_close, .centres = slice_centres, .run = slice_run, .describe = slice_describe};

static bool open_workspace(const struct state *state, struct workspace *work) {
    const size_t features = state->shape.features, bytes = INT8_GROUP * 4 * state->slice.words + LANES,
                 entries = state->slice.clusters + 1;
    work->bytes = pages_alloc(bytes);
    work->points = pages_alloc(bytes);
    work->scores = pages_alloc(entries * INT8_GROUP * sizeof *work->scores);
    work->near = malloc(entries * sizeof *work->near);
    work->moved = calloc(features + LANES, sizeof *work->moved);
    work->widened = pages_alloc((state->shape.bytes ? INT8_GROUP * features : 1) * sizeof *work->widened);
    if (!work->bytes || !work->points || !work->scores || !work->near || !work->moved || !work->widened)
        return false;
    memset(work->bytes, 0, bytes);
    return true;
}

void *tuned_nearest_slice(const struct tuned_kernel *kernel, const struct nearest_shape *shape, int threads) {
    struct state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    *state = (struct state){.table = &table, .kernel = kernel, .shape = *shape, .threads = threads};
    struct int8_slice *slice = &state->slice;
    slice->words = (shape->features + 3) / 4;
    slice->clusters = (shape->clusters + INT8_TILE - 1) / INT8_TILE * INT8_TILE;
    slice->values = pages_alloc(slice->clusters * slice->words * sizeof *slice->values);
    slice->start = malloc(slice->clusters * sizeof *slice->start);
    slice->bias = malloc(slice->clusters * sizeof *slice->bias);
    state->middle = malloc(shape->features * sizeof *state->middle);
    state->work = calloc((size_t)threads, sizeof *state->work);
    bool done = slice->values && slice->start && slice->bias && state->middle && state->work;
    for (int t = 0; done && t < threads; t++) done = open_workspace(state, &state->work[t]);
    if (done) return state;
    slice_close(state);
    return NULL;
}
