/* Pruning by bounds: the same labels on any points, and wrong bounds. */
#include "tests/support.h"
#include "tests/kmeans_bench.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/host/tuned/nearest.h"
#include "kernels/host/tuned/principal.h"
#include "src/base/rng.h"

/* --- the same labels --- */

/* Nasty points: what each of them is, is in fill_nasty. */
enum nasty {
    NASTY_LATTICE,   /* ties */
    NASTY_OFFSET,    /* 1e5 */
    NASTY_EQUAL,     /* no distinct points: no direction of variance */
    NASTY_LOW_RANK,  /* all coordinates are the same, or its negative: the rest is 0 */
    NASTY_OUTLIER,   /* one row is 1e15 times as long */
    NASTY_SUBNORMAL, /* images underflow */
    NASTY_HUGE,      /* images overflow float32 (float64 alone), and products float32 */
    NASTY_CLUSTERED, /* what bounds are for */
    NASTY_NEAR_TIES, /* pairs of points that differ in the last bits */
    NASTY_COUNT
};

static double nasty_value(enum nasty kind, bool wide, struct rng *rng, size_t row, size_t feature) {
    const double lattice = (double)rng_below(rng, 4), uniform = rng_uniform(rng);
    switch (kind) {
    case NASTY_OFFSET:
        return 1e5 + lattice;
    case NASTY_EQUAL:
        return 3;
    case NASTY_LOW_RANK:
        return (feature % 2 ? 1 : -1) * (double)(row * row % 61);
    case NASTY_OUTLIER:
        return (row == 77 ? 1e15 : 1) * (uniform - 0.5);
    case NASTY_SUBNORMAL:
        return (wide ? 1e-310 : 1e-42) * (double)(row * (feature + 3) % 29);
    case NASTY_HUGE:
        return (wide ? 1e120 : 1e18) * (uniform - 0.5);
    case NASTY_CLUSTERED:
        return 8 * (double)((row % 37 * 7919 + feature * 104729) % 101) / 101 + uniform;
    case NASTY_NEAR_TIES:
        return 1 + (double)((row / 2 * 31 + feature * 17) % 13) + (row % 2 ? 1e-7 : 0) * uniform;
    default:
        return lattice;
    }
}

static struct kmeans_data nasty_data(enum nasty kind, size_t count, size_t features, size_t clusters,
                                     enum gemm_dtype dtype) {
    struct kmeans_data data = {.count = count, .features = features, .clusters = clusters, .dtype = dtype};
    struct rng rng = rng_open(count + (size_t)kind, RNG_TEST, 0);
    data.values = malloc(count * features * sizeof *data.values);
    for (size_t i = 0; i < count * features; i++) {
        const double value = nasty_value(kind, dtype == GEMM_F64, &rng, i / features, i % features);
        data.values[i] = dtype == GEMM_F32 ? (double)(float)value : value;
    }
    return data;
}

static void assert_same_result(const struct kmeans_data *data, const struct kmeans_result *a,
                               const struct kmeans_result *b) {
    assert_int_equal(a->state.iteration, b->state.iteration);
    assert_memory_equal(a->label, b->label, data->count * sizeof *a->label);
    assert_memory_equal(a->state.values, b->state.values,
                        data->clusters * data->features * dtype_size(data->dtype));
    assert_int_equal(a->counts.changed, b->counts.changed);
}

/* With bounds, without, and by engine eager, bit by bit. Returns the rows with several candidates, in all
   iterations with bounds. */
static uint64_t check_both(struct compute *compute, const struct kmeans_data *data) {
    struct kmeans_options options = kmeans_defaults(data);
    struct kmeans_result without, with, eager;
    options.iterations = 6;
    options.bounds = BOUNDS_OFF;
    kmeans_assert_runs(compute, data, &options, &without);
    assert_string_equal(without.bounds, "off");
    options.bounds = BOUNDS_ON;
    kmeans_assert_runs(compute, data, &options, &with);
    assert_says(with.bounds, "on (");
    assert_same_result(data, &with, &without);
    options.bounds = BOUNDS_OFF;
    options.engine = ENGINE_EAGER;
    kmeans_assert_runs(compute, data, &options, &eager);
    assert_same_result(data, &without, &eager);
    kmeans_free(&eager);
    const uint64_t ambiguous = with.counts.ambiguous;
    kmeans_free(&with);
    kmeans_free(&without);
    return ambiguous;
}

static void check_backend(const char *backend, int threads, size_t step) {
    static const struct {
        size_t count, features, clusters;
    } sizes[] = {{300, 130, 40}, {701, 17, 30}, {257, 20, 257}, {90, 3, 9}};
    struct compute compute;
    support_open(&compute, backend, threads);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s += step)
        for (size_t kind = 0; kind < NASTY_COUNT; kind += support_every(4))
            for (int form = 0; form < 4; form++) {
                struct kmeans_data data = nasty_data((enum nasty)kind, sizes[s].count, sizes[s].features,
                                                     sizes[s].clusters, form / 2 ? GEMM_F64 : GEMM_F32);
                data.bytes = form % 2;
                if (!data.bytes || kind == NASTY_LATTICE || kind == NASTY_EQUAL) check_both(&compute, &data);
                kmeans_data_free(&data);
            }
    compute_close(&compute);
}

static void nasty_points_keep_their_labels(void **state) {
    (void)state;
    static const char *const backends[] = {"tuned", "tuned:isa=portable", "tuned:isa=avx2"};
    for (size_t b = 0; b < 3; b += support_every(2)) {
        const struct gemm_backend *found;
        if (registry_find(backends[b], &found) == STATUS_OK) {
            check_backend(backends[b], 1 + (int)b, b ? 2 : support_every(2));
        } else {
            print_message("not here: %s\n", backends[b]);
        }
    }
}

/* The cases of test_kmeans.c, against the reference. */
static void lattices_agree_with_the_reference(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t s = 0; s < KMEANS_SHAPES; s += support_every(3))
        for (int form = 0; form < 4; form++) {
            struct kmeans_data data = kmeans_shape(s, form / 2 ? GEMM_F64 : GEMM_F32);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            data.bytes = form % 2 && data.values[0] < 256;
            options.bounds = BOUNDS_ON;
            kmeans_assert_runs(&compute, &data, &options, &result);
            kmeans_assert_agrees(&data, &result);
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
    compute_close(&compute);
}

/* A bound that proves nothing would also give the right labels. */
static void bounds_prune(void **state) {
    (void)state;
    struct compute compute;
    struct kmeans_data data = nasty_data(NASTY_CLUSTERED, 3000, 100, 37, GEMM_F32);
    support_open(&compute, "tuned", 2);
    const uint64_t ambiguous = check_both(&compute, &data);
    if (ambiguous > 3000 * 7 / 10)
        fail_msg("%llu rows have several candidates", (unsigned long long)ambiguous);
    compute_close(&compute);
    kmeans_data_free(&data);
}

/* At the least sizes of docs/kmeans.md and one below each, before anything is timed. */
static void auto_tries_bounds_from_these_sizes_on(void **state) {
    (void)state;
    static const struct {
        size_t count, features, clusters;
        bool tried;
    } sizes[] = {
        {8192, 64, 192, true}, {8191, 64, 192, false}, {8192, 63, 192, false}, {8192, 64, 191, false}};
    struct compute compute;
    support_open(&compute, "tuned", 2);
    float *values = calloc(8192 * 64, sizeof *values);
    for (size_t i = 0; i < 8192 * 64; i++) values[i] = (float)(i * 31 % 1009);
    for (size_t s = 0; s < 4; s++) {
        struct points points;
        struct assigner assigner;
        assert_status(
            points_from_values(&points, &compute.device, GEMM_F32, sizes[s].count, sizes[s].features, values),
            STATUS_OK);
        assert_status(assigner_open(&assigner, &compute, &points, sizes[s].clusters, NEAREST_EXACT,
                                    ENGINE_AUTO, BOUNDS_AUTO),
                      STATUS_OK);
        assert_int_equal(assigner.pruned != NULL, sizes[s].tried);
        assert_int_equal(assigner.bounds, sizes[s].tried ? BOUNDS_AUTO : BOUNDS_OFF);
        assigner_close(&assigner);
        points_free(&points, &compute.device);
    }
    free(values);
    compute_close(&compute);
}

/* --- the images --- */

static double distance(size_t count, const double *a, const double *b) {
    long double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ((long double)a[i] - (long double)b[i]) * ((long double)a[i] - (long double)b[i]);
    return (double)sqrtl(sum);
}

static double image_distance(size_t count, const float *a, const float *b) {
    long double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ((long double)a[i] - (long double)b[i]) * ((long double)a[i] - (long double)b[i]);
    return (double)sqrtl(sum);
}

/* |F(a) - F(b)| <= |a - b| + E(a) + E(b). For points that differ in the last bits, the errors are all of it.
   */
static void images_are_lipschitz(void **state) {
    (void)state;
    enum { ROWS = 200, FEATURES = 70 };
    static double scratch[PRINCIPAL_SCRATCH(FEATURES)], y[ROWS * FEATURES];
    static float images[ROWS * (PRINCIPAL_MOST + 1)];
    size_t beyond = 0;
    for (int kind = 0; kind < NASTY_COUNT; kind++)
        for (size_t columns = 1; columns <= PRINCIPAL_MOST; columns += 31) {
            struct kmeans_data data = nasty_data((enum nasty)kind, ROWS, FEATURES, 1, GEMM_F64);
            const struct principal_rows rows = {GEMM_F64, false, data.values, ROWS};
            struct principal principal;
            assert_true(principal_open(&principal, &rows, FEATURES, 1));
            const size_t used = columns < principal.columns ? columns : principal.columns;
            const double error = principal_image(&principal, used, &rows, 0, ROWS, scratch, images);
            memcpy(y, data.values, sizeof y);
            for (size_t a = 0; a < ROWS; a++)
                for (size_t b = 0; b < a; b++) {
                    const double image = image_distance(used + 1, images + a * (used + 1),
                                                        images + b * (used + 1)),
                                 exact = distance(FEATURES, y + a * FEATURES, y + b * FEATURES);
                    if (!isfinite(error)) continue; /* then nothing is pruned */
                    if (!(image <= exact + 2 * error))
                        fail_msg("kind %d: %g, %g + %g", kind, image, exact, error);
                    beyond += image > exact;
                }
            if (kind <= NASTY_LOW_RANK || kind == NASTY_CLUSTERED) assert_true(isfinite(error));
            principal_close(&principal);
            kmeans_data_free(&data);
        }
    assert_true(beyond > 100); /* without E the bound is wrong */
}

/* --- wrong bounds --- */

typedef size_t survivors_kernel(const struct nearest_centres *centres, const void *points,
                                const void *threshold, struct tuned_survivor *to);
static struct tuned_kernel right, wrong;
static survivors_kernel *planted; /* NULL: the right one */

static size_t tighten(const struct nearest_centres *centres, const void *points, const void *threshold,
                      struct tuned_survivor *to) {
    float most[64];
    for (size_t r = 0; r < FEW_VECTORS * right.lanes; r++) {
        const float least = ((const float *)threshold)[r];
        most[r] = least + 0.1F * fabsf(least);
    }
    return right.survivors(centres, points, most, to);
}

static size_t drop_the_last(const struct nearest_centres *centres, const void *points, const void *threshold,
                            struct tuned_survivor *to) {
    const size_t found = right.survivors(centres, points, threshold, to);
    return found && to[found - 1].centre + 1 == centres->count ? found - 1 : found;
}

static size_t drop_a_vector(const struct nearest_centres *centres, const void *points, const void *threshold,
                            struct tuned_survivor *to) {
    const size_t found = right.survivors(centres, points, threshold, to);
    for (size_t s = 0; s < found; s++) to[s].points &= ~((((uint64_t)1 << right.lanes) - 1) << right.lanes);
    return found;
}

static size_t shift_points(const struct nearest_centres *centres, const void *points, const void *threshold,
                           struct tuned_survivor *to) {
    const size_t found = right.survivors(centres, points, threshold, to);
    for (size_t s = 0; s < found; s++) to[s].points <<= 1;
    return found;
}

static void *open_wrong(void *context, const struct nearest_shape *shape, char *why, size_t size) {
    if (!shape->bounds) return tuned_nearest.open(context, shape, why, size);
    right = *tuned_kernel_for(context, GEMM_F32);
    wrong = right;
    if (planted) wrong.survivors = planted;
    return tuned_nearest_pruned(&wrong, shape, 1);
}

static void wrong_bounds_are_caught(void **state) {
    (void)state;
    static const struct {
        const char *name;
        survivors_kernel *survivors;
        size_t features;
    } all[] = {{"right", NULL, 200},
               {"right", NULL, 4},
               {"a threshold that is too high", tighten, 4},
               {"the last centre dropped", drop_the_last, 200},
               {"a vector of points dropped", drop_a_vector, 200},
               {"points mixed up", shift_points, 200}};
    struct gemm_nearest slot = tuned_nearest;
    slot.open = open_wrong;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct compute compute;
        struct kmeans_result result;
        struct kmeans_data data = nasty_data(NASTY_LATTICE, 900, all[i].features, 40, GEMM_F32);
        struct kmeans_options options = kmeans_defaults(&data);
        options.bounds = BOUNDS_ON;
        support_open(&compute, "tuned", 1);
        struct gemm_backend backend = *compute.backend;
        const struct gemm_backend *own = compute.backend;
        backend.nearest = &slot;
        compute.backend = &backend;
        planted = all[i].survivors;
        const enum status status = kmeans_bench_run(&compute, &data, &options, NULL, &result);
        char why[256];
        if (status != (planted ? STATUS_VERIFY_FAILED : STATUS_OK))
            fail_msg("%s: status %d", all[i].name, status);
        if (planted) assert_says(status_message(), "pruning by bounds gives row");
        if (!planted && !kmeans_agrees(&data, &result, KMEANS_ITERATIONS, why, sizeof why))
            fail_msg("%s", why);
        compute.backend = own;
        compute_close(&compute);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
}

/* --- the option --- */

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

static void option(void **state) {
    (void)state;
    const char *log = support_path("bounds.jsonl");
    cJSON *result = NULL;
    assert_int_equal(
        RUN("kmeans --data %s --clusters 5 --backend tuned --bounds on --log %s", support_data, log), 0);
    assert_says(output, "principal components");
    assert_int_equal(support_log(log, "kmeans", 0, &result), 1);
    assert_says(cJSON_GetStringValue(cJSON_GetObjectItem(result, "bounds")), "on (");
    cJSON_Delete(result);
    assert_int_equal(
        RUN("kmeans --data %s --clusters 5 --backend tuned --bounds off --log %s", support_data, log), 0);
    assert_int_equal(support_log(log, "kmeans", 0, &result), 1);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(result, "bounds")), "off");
    cJSON_Delete(result);
    assert_int_equal(RUN("kmeans --data %s --clusters 5 --bounds on --batch-size 50", support_data), 2);
    assert_says(output, "bounds are for Lloyd's algorithm");
    assert_int_equal(RUN("kmeans --data %s --clusters 5 --bounds on --engine eager", support_data), 2);
    assert_says(output, "bounds need engine fused");
    assert_int_equal(RUN("kmeans --data %s --clusters 5 --bounds on --backend serial", support_data), 4);
    assert_says(output, "--bounds off");
    assert_int_equal(
        RUN("kmeans --data %s --clusters 5 --bounds on --backend tuned --kmeans-precision scores",
            support_data),
        4);
    assert_says(output, "exact");
    assert_int_equal(RUN("kmeans --data %s --clusters 5 --bounds maybe", support_data), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nasty_points_keep_their_labels),
        cmocka_unit_test(lattices_agree_with_the_reference),
        cmocka_unit_test(bounds_prune),
        cmocka_unit_test(auto_tries_bounds_from_these_sizes_on),
        cmocka_unit_test(images_are_lipschitz),
        cmocka_unit_test(wrong_bounds_are_caught),
        cmocka_unit_test(option),
    };
    return cmocka_run_group_tests_name("bounds", tests, support_make_data, NULL);
}
