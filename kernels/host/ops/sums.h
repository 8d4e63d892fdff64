/* Norms, sums by label and means: a template, parameters in kernels/host/element.h. */
#ifndef LEAST
#    include "kernels/host/ops/template.h"
#    include "kernels/nearest.h"
#endif

#ifndef PRAGMA_ROWS
#    define PRAGMA_OF(text) _Pragma(#    text)
#    define PRAGMA_ROWS(threads) PRAGMA_OF(omp parallel for schedule(static) num_threads(threads))
#endif

#define DEFINE_COPY_ROWS(name, T)                                                         \
    static void NAME(name)(void *context, size_t rows, size_t features, const void *from, \
                           const uint32_t *index, void *x) {                              \
        PRAGMA_ROWS(threads_for(context, rows *features))                                 \
        for (size_t r = 0; r < rows; r++) {                                               \
            const T *restrict row = (const T *)from + (index ? index[r] : r) * features;  \
            REAL *restrict to = (REAL *)x + r * features;                                 \
            for (size_t f = 0; f < features; f++) to[f] = row[f];                         \
        }                                                                                 \
    }
DEFINE_COPY_ROWS(rows_of_bytes, uint8_t)
DEFINE_COPY_ROWS(rows_of_reals, REAL)
#undef DEFINE_COPY_ROWS

static void NAME(rows)(void *context, size_t rows, size_t features, bool bytes, const void *from,
                       const uint32_t *index, void *x) {
    (bytes ? NAME(rows_of_bytes) : NAME(rows_of_reals))(context, rows, features, from, index, x);
}

INLINE double NAME(sum_of_squares)(size_t features, const REAL *restrict x) {
    static const REAL origin[8] = {0};
    if (features <= 8) return NAME(squared_distance)(features, x, origin);
    double lane[NEAREST_LANES] = {0};
    size_t f = 0;
    for (; f + NEAREST_LANES <= features; f += NEAREST_LANES)
        for (size_t l = 0; l < NEAREST_LANES; l++) lane[l] += (double)x[f + l] * (double)x[f + l];
    for (size_t l = 0; f + l < features; l++) lane[l] += (double)x[f + l] * (double)x[f + l];
    return nearest_add_lanes(lane);
}

/* An upper bound of the Euclidean norm: the float64 sum has a relative error of at most features 2^-53. */
INLINE double NAME(norm_bound)(size_t features, const REAL *restrict x) {
    const double sum = NAME(sum_of_squares)(features, x);
    return sqrt(sum) * (1 + ((double)features + 8) * 0x1p-53) + 0x1p-500; /* squares may underflow */
}

static void NAME(norms)(void *context, size_t rows, size_t features, const void *x, double *norm) {
#pragma omp parallel for schedule(static) num_threads(threads_for(context, rows *features))
    for (size_t b = 0; b < (rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK; b++) {
        double most = 0;
        for (size_t r = b * NEAREST_BLOCK; r < least((b + 1) * NEAREST_BLOCK, rows); r++)
            most = fmax(most, NAME(norm_bound)(features, (const REAL *)x + r * features));
        norm[b] = most;
    }
}

static void NAME(centres)(void *context, const struct nearest_centres *centres) {
    const size_t count = centres->count, features = centres->features;
    const REAL *restrict values = centres->values;
    REAL *restrict transposed = centres->transposed, *restrict bias = centres->bias;
    double most = 0;
#pragma omp parallel for schedule(static) reduction(max     \
                                                    : most) \
    num_threads(threads_for(context, count *features))
    for (size_t j = 0; j < count; j++) {
        const REAL *c = values + j * features;
        bias[j] = (REAL)(-NAME(sum_of_squares)(features, c) / 2);
        most = fmax(most, NAME(norm_bound)(features, c));
    }
#pragma omp parallel for schedule(static) num_threads(threads_for(context, count *features))
    for (size_t f = 0; f < features; f++)
        for (size_t j = 0; j < count; j++) transposed[f * count + j] = values[j * features + f];
    *centres->norm = most;
}

/* Items first .. end - 1 of the rows, or of the list `moved`; columns col .. col + width - 1. */
#define DEFINE_ADD_ROWS(name, T)                                                                        \
    static void NAME(name)(const struct cluster_rows *rows, size_t features, bool listed, size_t first, \
                           size_t end, size_t col, size_t width, double *sums) {                        \
        for (size_t i = first; i < end; i++) {                                                          \
            const size_t r = listed ? rows->moved[i] : i;                                               \
            if (listed && i + PREFETCH_ROWS < end) {                                                    \
                const T *next = (const T *)rows->x + rows->moved[i + PREFETCH_ROWS] * features + col;   \
                for (size_t f = 0; f < width; f += 64 / sizeof(T)) __builtin_prefetch(next + f);        \
            }                                                                                           \
            const T *restrict x = (const T *)rows->x + r * features + col;                              \
            double *restrict to = sums + rows->label[r] * features + col;                               \
            for (size_t f = 0; f < width; f++) to[f] += (double)x[f];                                   \
            if (!rows->before || rows->before[r] == NEAREST_NONE) continue;                             \
            double *restrict from = sums + rows->before[r] * features + col;                            \
            for (size_t f = 0; f < width; f++) from[f] -= (double)x[f];                                 \
        }                                                                                               \
    }
DEFINE_ADD_ROWS(add_bytes, uint8_t)
DEFINE_ADD_ROWS(add_reals, REAL)
#undef DEFINE_ADD_ROWS

/* Adds rows first .. end - 1, all their columns, to the partial sums table[cluster][lane][features]. */
INLINE void NAME(add_to_lanes)(const struct cluster_rows *rows, size_t features, size_t lanes, size_t first,
                               size_t end, double *restrict table) {
    const REAL *restrict x = rows->x;
    const uint32_t *restrict label = rows->label;
    for (size_t r = first; r < end; r++) {
        double *restrict to = table + (label[r] * lanes + ((r - first) & (lanes - 1))) * features;
        for (size_t f = 0; f < features; f++) to[f] += (double)x[r * features + f];
    }
}

/* The sums of a slice; `goes_on`: of rows that follow those of an earlier call. Two features are frequent: no
   loop over a constant number is set up for a row. */
static void NAME(sum_slice)(const struct cluster_rows *rows, const struct cluster_sums *sums, size_t first,
                            size_t end, bool goes_on, double *restrict to) {
    const size_t features = sums->features, lanes = rows->bytes ? 1 : cluster_lanes(sums->clusters, features);
    double tables[CLUSTER_LANE_SUMS], *table = lanes > 1 ? tables : to;
    for (size_t i = 0; !goes_on && i < sums->clusters * lanes * features; i++) table[i] = 0;
    if (rows->bytes) {
        NAME(add_bytes)(rows, features, false, first, end, 0, features, to);
    } else if (features == 2) {
        NAME(add_to_lanes)(rows, 2, lanes, first, end, table);
    } else if (lanes > 1) {
        NAME(add_to_lanes)(rows, features, lanes, first, end, table);
    } else {
        NAME(add_reals)(rows, features, false, first, end, 0, features, to);
    }
    for (size_t j = 0; lanes > 1 && j < sums->clusters; j++) {
        double *restrict lane = tables + j * lanes * features;
        for (size_t half = lanes / 2 * features; half >= features; half /= 2)
            for (size_t i = 0; i < half; i++) lane[i] += lane[half + i];
        for (size_t f = 0; f < features; f++) to[j * features + f] = lane[f];
    }
}

/* Adds the slices to the sums, by groups. */
static void NAME(add_slices)(void *context, const struct cluster_rows *rows, const struct cluster_sums *sums,
                             size_t slices) {
    const size_t size = sums->clusters * sums->features;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, slices *size))
    for (size_t col = 0; col < size; col += SUM_COLUMNS) {
        const size_t width = least(SUM_COLUMNS, size - col);
        for (size_t group = 0; group < slices; group += CLUSTER_GROUP) {
            double sum[SUM_COLUMNS] = {0};
            for (size_t slice = group; slice < least(group + CLUSTER_GROUP, slices); slice++) {
                const double *restrict from = rows->slices + slice * size + col;
                for (size_t i = 0; i < width; i++) sum[i] += from[i];
            }
            for (size_t i = 0; i < width; i++) sums->sums[col + i] += sum[i];
        }
    }
}

/* Slices of the rows (kernels/nearest.h), or, if there is one, blocks of the columns: the order of a sum is
   the same for any number of threads. */
static void NAME(sum)(void *context, const struct cluster_rows *rows, const struct cluster_sums *sums) {
    const size_t features = sums->features, size = sums->clusters * features;
    const size_t items = rows->before ? list_moved(rows, sums->count) : rows->count;
    const size_t all = rows->total ? rows->total : rows->count, end_of_part = rows->first + rows->count;
    const size_t slice_rows = cluster_slice_rows(all, sums->clusters, features),
                 slices = rows->before ? 1 : cluster_slices(all, sums->clusters, features);
    const int threads = threads_for(context, items * features);
    if (!rows->before) count_labels(rows, sums->clusters, threads, sums->count);
    if (slices > 1) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (size_t slice = rows->first / slice_rows; slice < (end_of_part + slice_rows - 1) / slice_rows;
             slice++) {
            const size_t begin = slice * slice_rows, end = least(begin + slice_rows, end_of_part);
            const bool goes_on = begin < rows->first; /* from the part before */
            NAME(sum_slice)
            (rows, sums, goes_on ? 0 : begin - rows->first, end - rows->first, goes_on,
             rows->slices + slice * size);
        }
        if (end_of_part == all) NAME(add_slices)(context, rows, sums, slices);
        return;
    }
    const size_t lines = (features + SUM_COLUMNS - 1) / SUM_COLUMNS, blocks = least(lines, (size_t)threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t block = 0; block < blocks; block++) {
        const size_t col = lines * block / blocks * SUM_COLUMNS,
                     width = least(lines * (block + 1) / blocks * SUM_COLUMNS, features) - col;
        (rows->bytes ? NAME(add_bytes) : NAME(add_reals))(rows, features, rows->before != NULL, 0, items, col,
                                                          width, sums->sums);
    }
}

/* |x - c|^2 - |x - m|^2 = |c - m|^2 - 2 (c - m).(x - m), summed over the members. */
static void NAME(costs)(void *context, const struct cluster_sums *sums, const double *mean,
                        const void *values, double *cost) {
    const size_t features = sums->features;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, sums->clusters *features))
    for (size_t j = 0; j < sums->clusters; j++) {
        const REAL *restrict c = (const REAL *)values + j * features;
        const double *restrict sum = sums->sums + j * features, members = (double)sums->count[j];
        double lane[NEAREST_LANES] = {0};
        for (size_t f = 0; f < features; f++) {
            const double offset = (double)c[f] - mean[f];
            lane[f % NEAREST_LANES] += offset * (members * offset - 2 * (sum[f] - members * mean[f]));
        }
        cost[j] = sums->count[j] ? nearest_add_lanes(lane) : 0;
    }
}

static void NAME(means)(void *context, const struct cluster_sums *sums, void *values, double *shift) {
    const size_t features = sums->features;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, sums->clusters *features))
    for (size_t j = 0; j < sums->clusters; j++) {
        REAL *restrict c = (REAL *)values + j * features;
        const double *restrict sum = sums->sums + j * features, members = (double)sums->count[j];
        double lane[NEAREST_LANES] = {0};
        for (size_t f = 0; sums->count[j] && f < features; f++) {
            const REAL mean = (REAL)(sum[f] / members);
            lane[f % NEAREST_LANES] += ((double)mean - (double)c[f]) * ((double)mean - (double)c[f]);
            c[f] = mean;
        }
        shift[j] = nearest_add_lanes(lane);
    }
}

static const struct cluster_ops NAME(cluster_ops) = {
    .rows = NAME(rows),
    .norms = NAME(norms),
    .centres = NAME(centres),
    .nearest = NAME(nearest),
    .distances = NAME(distances),
    .sum = NAME(sum),
    .costs = NAME(costs),
    .means = NAME(means),
};
