/* The nearest centre, certified (kernels/nearest.h): a template, parameters in kernels/host/element.h. */
#ifndef LEAST
#    include <float.h>
#    define LEAST FLT_TRUE_MIN
#    define LARGEST FLT_MAX
#    define EPSILON FLT_EPSILON
#    include "kernels/exact.h"
#    include "kernels/host/ops/cluster.h"
#    include "kernels/host/ops/template.h"
#    include "kernels/nearest.h"
#endif

/* Up to `lanes` features, a constant. */
INLINE double NAME(short_distance)(size_t features, const REAL *restrict x, const REAL *restrict c,
                                   size_t lanes) {
    double lane[NEAREST_LANES];
    for (size_t f = 0; f < lanes; f++) {
        const double difference = f < features ? (double)x[f] - (double)c[f] : 0;
        lane[f] = difference * difference;
    }
    return nearest_add_some_lanes(lane, lanes);
}

INLINE double NAME(squared_distance)(size_t features, const REAL *restrict x, const REAL *restrict c) {
    if (features <= 2) return NAME(short_distance)(features, x, c, 2);
    if (features <= 4) return NAME(short_distance)(features, x, c, 4);
    if (features <= 8) return NAME(short_distance)(features, x, c, 8);
    double lane[NEAREST_LANES] = {0};
    size_t f = 0;
    for (; f + NEAREST_LANES <= features; f += NEAREST_LANES)
        for (size_t l = 0; l < NEAREST_LANES; l++) {
            const double difference = (double)x[f + l] - (double)c[f + l];
            lane[l] += difference * difference;
        }
    for (size_t l = 0; f + l < features; l++) {
        const double difference = (double)x[f + l] - (double)c[f + l];
        lane[l] += difference * difference;
    }
    return nearest_add_lanes(lane);
}

/* Is a nearer than b, over the reals? */
static bool NAME(exactly_nearer)(size_t features, const REAL *x, const REAL *a, const REAL *b,
                                 bool *inexact) {
    struct exact_sum sum = {0};
    for (size_t f = 0; f < features; f++) exact_add_squares(&sum, (double)x[f], (double)a[f], (double)b[f]);
    *inexact |= sum.inexact;
    return exact_sign(&sum) < 0;
}

static const REAL *NAME(row_of)(const struct nearest_call *call, size_t row) {
    const size_t features = call->centres->features;
    REAL *restrict to = call->widened;
    if (!call->bytes) return (const REAL *)call->x + row * features;
    for (size_t f = 0; f < features; f++) to[f] = ((const uint8_t *)call->x)[row * features + f];
    return to;
}

static void NAME(candidate)(size_t features, const REAL *x, const REAL *values, size_t j, double distance,
                            struct host_nearest *nearest) {
    const int order = nearest->any ? nearest_order(features, distance, nearest->squared) : -1;
    bool nearer = order < 0;
    if (order == 0) {
        nearest->exact = true;
        nearer = NAME(exactly_nearer)(features, x, values + j * features, values + nearest->label * features,
                                      &nearest->inexact);
    }
    nearest->any = true;
    if (!nearer) return;
    nearest->squared = distance;
    nearest->label = (uint32_t)j;
}

/* The nearest of the centres whose score is not below the threshold, the first of equals. */
static uint32_t NAME(rescore)(const struct nearest_call *call, size_t row, REAL threshold,
                              struct nearest_counts *counts) {
    const struct nearest_centres *centres = call->centres;
    const size_t features = centres->features;
    const REAL *x = NAME(row_of)(call, row), *values = centres->values,
               *score = (const REAL *)call->scores + row * call->score_ld;
    struct host_nearest nearest = {0};
    for (size_t j = 0; j < centres->count; j++)
        if (!(score[j] < threshold)) /* a NaN is a candidate */
            NAME(candidate)
    (features, x, values, j, NAME(squared_distance)(features, x, values + j * features), &nearest);
    counts->exact += nearest.exact;
    counts->uncertified += nearest.inexact;
    return nearest.label;
}

/* The label of a row; `error` bounds that of each score. */
INLINE uint32_t NAME(nearest_row)(const struct nearest_call *call, size_t row, double error,
                                  struct nearest_counts *counts) {
    const size_t count = call->centres->count;
    const REAL *restrict score = (const REAL *)call->scores + row * call->score_ld;
    REAL best = -INFINITY;
#pragma omp simd reduction(max : best)
    for (size_t j = 0; j < count; j++) best = score[j] > best ? score[j] : best;
    const REAL threshold = call->certify ? (REAL)((double)best - 2 * error) : best;
    uint32_t candidates = 0, label = (uint32_t)count;
#pragma omp simd reduction(+ : candidates) reduction(min : label)
    for (size_t j = 0; j < count; j++) {
        candidates += !(score[j] < threshold);
        const uint32_t here = score[j] == best ? (uint32_t)j : (uint32_t)count;
        label = here < label ? here : label;
    }
    if (!call->certify) return label < count ? label : 0;
    if (candidates == 1 && label < count) return label;
    counts->ambiguous++;
    return NAME(rescore)(call, row, threshold, counts);
}

/* Rows first .. end - 1, whose scores have at most this error. */
static void NAME(nearest_rows)(const struct nearest_call *call, size_t first, size_t end, double error,
                               struct nearest_counts *counts) {
    for (size_t r = first; r < end; r++) {
        const uint32_t label = NAME(nearest_row)(call, r, error, counts);
        counts->changed += label != call->label[r];
        call->label[r] = label;
    }
}

static void NAME(nearest)(void *context, const struct nearest_call *call, struct nearest_counts *counts) {
    const size_t features = call->centres->features, clusters = call->centres->count;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, call->rows *clusters))
    for (size_t b = 0; b < (call->rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK; b++) {
        const double error =
            nearest_error(features, EPSILON, LEAST, LARGEST, call->norm[b], *call->centres->norm);
        struct nearest_counts local = {0};
        NAME(nearest_rows)
        (call, b * NEAREST_BLOCK, least((b + 1) * NEAREST_BLOCK, call->rows), error, &local);
        host_nearest_add(counts, &local);
    }
}

static void NAME(distances)(void *context, size_t rows, size_t features, const void *x, const void *values,
                            const uint32_t *label, double *squared) {
#pragma omp parallel for schedule(static) num_threads(threads_for(context, rows *features))
    for (size_t r = 0; r < rows; r++)
        squared[r] = NAME(squared_distance)(features, (const REAL *)x + r * features,
                                            (const REAL *)values + (label ? label[r] : 0) * features);
}
