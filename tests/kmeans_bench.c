#include "tests/kmeans_bench.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/rng.h"
#include "src/cluster/point_stream.h"
#include "src/device/dtype.h"
#include "tests/support.h"

struct kmeans_data kmeans_lattice(size_t count, size_t features, size_t clusters, enum gemm_dtype dtype,
                                  unsigned most, double offset, uint64_t seed) {
    struct kmeans_data data = {.count = count, .features = features, .clusters = clusters, .dtype = dtype};
    struct rng rng = rng_open(seed, RNG_TEST, 0);
    data.values = malloc(count * features * sizeof *data.values);
    for (size_t i = 0; i < count * features; i++) data.values[i] = offset + rng_below(&rng, most + 1);
    return data;
}

/* points, features, clusters, largest integer, offset */
static const struct {
    size_t count, features, clusters;
    unsigned most;
    double offset;
} shapes[] = {{1, 1, 1, 3, 0},       {7, 1, 7, 1, 0},      {40, 2, 5, 3, 0},     {300, 3, 17, 4, 0},
              {513, 10, 31, 2, 0},   {1000, 33, 10, 9, 0}, {700, 65, 100, 2, 0}, {257, 130, 16, 255, 0},
              {600, 8, 12, 3, 1000}, {600, 8, 12, 3, 1e5}, {5000, 4, 3, 200, 0}, {20000, 3, 4, 50, 0}};
_Static_assert(sizeof shapes / sizeof *shapes == KMEANS_SHAPES, "the number of shapes");

struct kmeans_data kmeans_shape(size_t shape, enum gemm_dtype dtype) {
    return kmeans_lattice(shapes[shape].count, shapes[shape].features, shapes[shape].clusters, dtype,
                          shapes[shape].most, shapes[shape].offset, 7 + shape);
}

void kmeans_data_free(struct kmeans_data *data) {
    free(data->values);
    data->values = NULL;
}

struct kmeans_options kmeans_defaults(const struct kmeans_data *data) {
    return (struct kmeans_options){.clusters = data->clusters,
                                   .iterations = KMEANS_ITERATIONS,
                                   .restarts = 1,
                                   .init = KMEANS_FIRST,
                                   .empty = EMPTY_KEEP,
                                   .seed = 1,
                                   .scale = 1};
}

static enum status open_points(struct points *points, struct device *device, const struct kmeans_data *data) {
    const size_t elements = data->count * data->features;
    const struct point_place place = {.pinned = data->pinned, .threads = 2, .chunk = data->chunk};
    const bool pinned = data->chunk && data->pinned;
    void *memory = point_stream_alloc(device, pinned, elements * sizeof(double));
    for (size_t i = 0; i < elements; i++) {
        if (data->bytes) {
            ((uint8_t *)memory)[i] = (uint8_t)data->values[i];
        } else {
            dtype_set(data->dtype, memory, i, data->values[i]);
        }
    }
    if (data->chunk)
        return points_on_host(points, device, data->dtype, data->count, data->features, data->bytes, memory,
                              true, &place);
    const enum status status =
        data->bytes ? points_from_bytes(points, device, data->dtype, data->count, data->features, memory)
                    : points_from_values(points, device, data->dtype, data->count, data->features, memory);
    free(memory);
    return status;
}

enum status kmeans_bench_run(struct compute *compute, const struct kmeans_data *data,
                             const struct kmeans_options *options, const struct kmeans_observer *observer,
                             struct kmeans_result *result) {
    struct points points = {0};
    *result = (struct kmeans_result){0};
    enum status status = open_points(&points, &compute->device, data);
    if (!status) status = kmeans_run(compute, &points, options, observer, result);
    points_free(&points, &compute->device);
    return status;
}

/* --- the reference --- */

static long double distance(const struct kmeans_data *data, const void *values, size_t row, size_t cluster) {
    long double sum = 0;
    for (size_t f = 0; f < data->features; f++) {
        const long double difference =
            (long double)data->values[row * data->features + f] -
            (long double)dtype_get(data->dtype, values, cluster * data->features + f);
        sum += difference * difference;
    }
    return sum;
}

/* Returns the number of labels that changed. */
static size_t assign(const struct kmeans_data *data, struct kmeans_result *result) {
    size_t changed = 0;
    for (size_t i = 0; i < data->count; i++) {
        uint32_t label = 0;
        long double best = distance(data, result->state.values, i, 0);
        for (size_t j = 1; j < data->clusters; j++) {
            const long double next = distance(data, result->state.values, i, j);
            if (next < best) {
                best = next;
                label = (uint32_t)j;
            }
        }
        changed += label != result->label[i];
        result->label[i] = label;
    }
    return changed;
}

static void count_members(const struct kmeans_data *data, struct kmeans_result *result) {
    memset(result->count, 0, data->clusters * sizeof *result->count);
    for (size_t i = 0; i < data->count; i++) result->count[result->label[i]]++;
}

static void average(const struct kmeans_data *data, struct kmeans_result *result) {
    const size_t elements = data->clusters * data->features;
    double *sums = calloc(elements, sizeof *sums); /* of integers: exact */
    for (size_t i = 0; i < data->count; i++)
        for (size_t f = 0; f < data->features; f++)
            sums[result->label[i] * data->features + f] += data->values[i * data->features + f];
    count_members(data, result);
    for (size_t i = 0; i < elements; i++)
        if (result->count[i / data->features])
            dtype_set(data->dtype, result->state.values, i,
                      sums[i] / (double)result->count[i / data->features]);
    free(sums);
}

void kmeans_reference(const struct kmeans_data *data, size_t iterations, struct kmeans_result *result) {
    *result = (struct kmeans_result){0};
    result->state.values = malloc(data->clusters * data->features * dtype_size(data->dtype));
    result->label = malloc(data->count * sizeof *result->label);
    result->count = calloc(data->clusters, sizeof *result->count);
    memset(result->label, 0xff, data->count * sizeof *result->label);
    for (size_t i = 0; i < data->clusters * data->features; i++)
        dtype_set(data->dtype, result->state.values, i, data->values[i]);
    for (size_t changed = 1; iterations && changed; iterations--) {
        changed = assign(data, result);
        average(data, result);
    }
    assign(data, result);
    count_members(data, result);
    long double inertia = 0;
    for (size_t i = 0; i < data->count; i++)
        inertia += distance(data, result->state.values, i, result->label[i]);
    result->inertia = (double)inertia;
}

bool kmeans_agrees(const struct kmeans_data *data, const struct kmeans_result *got, size_t iterations,
                   char *why, size_t size) {
    struct kmeans_result want;
    kmeans_reference(data, iterations, &want);
    snprintf(why, size, "%s", "");
    for (size_t i = 0; i < data->count && !why[0]; i++)
        if (got->label[i] != want.label[i])
            snprintf(why, size, "label %zu is %u, not %u", i, got->label[i], want.label[i]);
    for (size_t j = 0; j < data->clusters && !why[0]; j++)
        if (got->count[j] != want.count[j])
            snprintf(why, size, "count %zu is %llu, not %llu", j, (unsigned long long)got->count[j],
                     (unsigned long long)want.count[j]);
    for (size_t i = 0; i < data->clusters * data->features && !why[0]; i++)
        if (dtype_get(data->dtype, got->state.values, i) != dtype_get(data->dtype, want.state.values, i))
            snprintf(why, size, "centre element %zu is %.17g, not %.17g", i,
                     dtype_get(data->dtype, got->state.values, i),
                     dtype_get(data->dtype, want.state.values, i));
    if (!why[0] && !(fabs(got->inertia - want.inertia) <= 1e-10 * want.inertia))
        snprintf(why, size, "inertia is %.17g, not %.17g", got->inertia, want.inertia);
    kmeans_free(&want);
    return !why[0];
}

static long double smallest_distance(const struct kmeans_data *data, const void *values, size_t row) {
    long double best = distance(data, values, row, 0);
    for (size_t j = 1; j < data->clusters; j++) {
        const long double next = distance(data, values, row, j);
        best = next < best ? next : best;
    }
    return best;
}

bool kmeans_is_iteration(const struct kmeans_data *data, const struct kmeans_result *got, double slack,
                         char *why, size_t size) {
    const double epsilon = data->dtype == GEMM_F32 ? FLT_EPSILON : DBL_EPSILON,
                 rounding = 4 * ((double)data->features + 4) * epsilon;
    struct kmeans_result want = {.state.values = malloc(data->clusters * data->features * sizeof(double)),
                                 .label = got->state.label,
                                 .count = calloc(data->clusters, sizeof *want.count)};
    snprintf(why, size, "%s", "");
    for (size_t i = 0; i < data->count && !why[0]; i++) {
        const long double best = smallest_distance(data, got->state.values, i),
                          own = got->label[i] < data->clusters
                                    ? distance(data, got->state.values, i, got->label[i])
                                    : INFINITY;
        if (!(own <= best * (1 + rounding)))
            snprintf(why, size, "row %zu has label %u at distance %.9Lg; the smallest is %.9Lg", i,
                     got->label[i], own, best);
    }
    average(data, &want);
    for (size_t i = 0; i < data->clusters * data->features && !why[0]; i++) {
        const double mean = dtype_get(data->dtype, want.state.values, i),
                     own = dtype_get(data->dtype, got->state.values, i),
                     bound = slack > 0 ? (slack + epsilon) * fabs(mean) : 0;
        if (want.count[i / data->features] && !(fabs(own - mean) <= bound))
            snprintf(why, size, "centre element %zu is %.17g, and the mean %.17g", i, own, mean);
    }
    free(want.state.values);
    free(want.count);
    return !why[0];
}

void kmeans_assert_agrees(const struct kmeans_data *data, const struct kmeans_result *got) {
    char why[256];
    if (!kmeans_agrees(data, got, KMEANS_ITERATIONS, why, sizeof why)) fail_msg("%s", why);
}

void kmeans_assert_runs(struct compute *compute, const struct kmeans_data *data,
                        const struct kmeans_options *options, struct kmeans_result *result) {
    assert_status(kmeans_bench_run(compute, data, options, NULL, result), STATUS_OK);
}

void kmeans_assert_same(const struct kmeans_data *data, const struct kmeans_result *got,
                        const struct kmeans_result *want) {
    const size_t elements = data->clusters * data->features;
    assert_int_equal(got->state.iteration, want->state.iteration);
    for (size_t i = 0; i < data->count; i++)
        if (got->label[i] != want->label[i])
            fail_msg("label %zu is %u, on the host %u", i, got->label[i], want->label[i]);
    assert_memory_equal(got->count, want->count, data->clusters * sizeof *got->count);
    assert_memory_equal(got->state.values, want->state.values, elements * dtype_size(data->dtype));
    assert_true(got->inertia == want->inertia);
}

struct kmeans_data kmeans_reals(size_t count, size_t features, size_t clusters, enum gemm_dtype dtype) {
    struct kmeans_data data = kmeans_lattice(count, features, clusters, dtype, 1u << 23, 0, 11);
    for (size_t i = 0; i < count * features; i++) data.values[i] = (double)(float)(data.values[i] / 3e6);
    return data;
}
