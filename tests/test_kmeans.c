/* k-means: against a reference on every backend, the same bits everywhere, hostile data. */
#include "tests/support.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

/* Every dtype and form of the data gives the reference, bit by bit. */
static void check_backend(const char *backend) {
    struct compute compute;
    support_open(&compute, backend, 2);
    for (size_t s = 0; s < KMEANS_SHAPES; s += support_every(3))
        for (int form = 0; form < 3; form++) {
            struct kmeans_data data = kmeans_shape(s, form == 2 ? GEMM_F64 : GEMM_F32);
            const struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            data.bytes = form == 1 && data.values[0] < 256;
            kmeans_assert_runs(&compute, &data, &options, &result);
            kmeans_assert_agrees(&data, &result);
            assert_int_equal(result.counts.uncertified, 0);
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
    compute_close(&compute);
}

static void every_backend_is_exact(void **state) {
    (void)state;
    for (size_t b = 0; b < registry_count(); b++) {
        const struct registry_entry *entry = registry_at(b);
        char why[256];
        if (!support_on_host(entry) || !entry->backend || !registry_usable(entry, why, sizeof why)) continue;
        if (strcmp(entry->name, "cblas") != 0)
            check_backend(entry->name); /* it needs the path of a library */
    }
}

static void every_instruction_set_is_exact(void **state) {
    check_backend(*state);
}

/* --- the same bits --- */

static struct kmeans_data random_data(size_t count, size_t features, size_t clusters) {
    struct kmeans_data data = kmeans_lattice(count, features, clusters, GEMM_F32, 1u << 23, 0, 11);
    for (size_t i = 0; i < count * features; i++) data.values[i] /= 3e6; /* rounded to float when used */
    for (size_t i = 0; i < count * features; i++) data.values[i] = (double)(float)data.values[i];
    return data;
}

static void same_bits_for_threads_and_backends(void **state) {
    (void)state;
    static const struct {
        const char *backend;
        int threads;
    } runs[] = {{"serial", 1}, {"openmp", 2}, {"tuned", 1}, {"tuned", 2}, {"tuned", 7}};
    static const enum kmeans_init inits[] = {KMEANS_RANDOM, KMEANS_PLUS_PLUS, KMEANS_PARALLEL};
    for (size_t init = 0; init < 3; init++)
        for (size_t batch = 0; batch <= 1000; batch += 1000) {
            struct kmeans_data data = random_data(9001, 33, 20);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result first = {0};
            options.init = inits[init];
            options.batch = batch;
            for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
                struct compute compute;
                struct kmeans_result result;
                support_open(&compute, runs[r].backend, runs[r].threads);
                kmeans_assert_runs(&compute, &data, &options, &result);
                compute_close(&compute);
                if (r == 0) {
                    first = result;
                    continue;
                }
                assert_memory_equal(result.label, first.label, data.count * sizeof *result.label);
                assert_memory_equal(result.state.values, first.state.values,
                                    data.clusters * data.features * sizeof(float));
                assert_true(result.inertia == first.inertia);
                kmeans_free(&result);
            }
            kmeans_free(&first);
            kmeans_data_free(&data);
        }
}

/* --- properties --- */

struct history {
    size_t iterations;
    double inertia;
};

static void never_rises(void *self, const struct kmeans_record *record) {
    struct history *history = self;
    history->iterations++;
    if (history->iterations > 1) assert_true(record->inertia <= history->inertia * (1 + 1e-12));
    history->inertia = record->inertia;
}

static void inertia_never_rises(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int bytes = 0; bytes < 2; bytes++) {
        struct kmeans_data data =
            bytes ? kmeans_lattice(3000, 20, 30, GEMM_F32, 255, 0, 2) : random_data(3000, 20, 30);
        struct kmeans_options options = kmeans_defaults(&data);
        struct history history = {0};
        const struct kmeans_observer observer = {.self = &history, .iteration = never_rises};
        struct kmeans_result result;
        data.bytes = bytes;
        options.iterations = 300;
        assert_status(kmeans_bench_run(&compute, &data, &options, &observer, &result), STATUS_OK);
        assert_int_equal(result.end, KMEANS_NO_CHANGE);
        assert_int_equal(history.iterations, result.state.iteration);
        assert_near(history.inertia, result.inertia, 1e-9);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    compute_close(&compute);
}

/* --- inputs --- */

static void more_clusters_than_distinct_points(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int empty = EMPTY_KEEP; empty <= EMPTY_SPLIT; empty++)
        for (int init = KMEANS_FIRST; init <= KMEANS_PARALLEL; init++)
            for (unsigned most = 0; most < 2; most++) { /* all equal; two values */
                struct kmeans_data data = kmeans_lattice(50, 1, 8, GEMM_F32, most, 3, 4);
                struct kmeans_options options = kmeans_defaults(&data);
                struct kmeans_result result;
                uint64_t members = 0;
                options.empty = (enum kmeans_empty)empty;
                options.init = (enum kmeans_init)init;
                kmeans_assert_runs(&compute, &data, &options, &result);
                for (size_t j = 0; j < 8; j++) members += result.count[j];
                assert_int_equal(members, 50);
                assert_true(result.inertia == 0);
                kmeans_free(&result);
                kmeans_data_free(&data);
            }
    compute_close(&compute);
}

/* All points change their cluster in the first iteration, which would be few enough to end. */
static void no_run_ends_before_a_split(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int bytes = 0; bytes < 2; bytes++) {
        struct kmeans_data data = kmeans_lattice(400, 3, 5, GEMM_F32, 200, 0, 9);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        for (size_t i = 3; i < 6; i++) data.values[i] = data.values[i - 3]; /* equal initial centres */
        data.bytes = bytes;
        options.empty = EMPTY_SPLIT;
        options.change_limit = 1;
        kmeans_assert_runs(&compute, &data, &options, &result);
        assert_int_equal(result.end, KMEANS_FEW_CHANGES);
        assert_int_equal(result.state.iteration, 2);
        assert_int_equal(result.empty, 0);
        kmeans_free(&result);
        options.empty = EMPTY_KEEP;
        kmeans_assert_runs(&compute, &data, &options, &result);
        assert_int_equal(result.state.iteration, 1);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    compute_close(&compute);
}

static void empty_clusters_are_filled(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int form = 0; form < 2; form++)
        for (int empty = EMPTY_FAR; empty <= EMPTY_SPLIT; empty++) {
            struct kmeans_data data = kmeans_lattice(400, 3, 20, GEMM_F32, 200, 0, 9);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            for (size_t i = 3; i < 30; i++) data.values[i] = data.values[i % 3]; /* equal initial centres */
            data.bytes = form;
            options.empty = (enum kmeans_empty)empty;
            options.iterations = 100;
            kmeans_assert_runs(&compute, &data, &options, &result);
            assert_int_equal(result.empty, 0);
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
    compute_close(&compute);
}

static void bad_inputs_are_named(void **state) {
    (void)state;
    struct compute compute;
    struct kmeans_data data = kmeans_lattice(20, 3, 21, GEMM_F32, 5, 0, 1);
    struct kmeans_options options = kmeans_defaults(&data);
    struct kmeans_result result;
    support_open(&compute, "tuned", 2);
    assert_status(kmeans_bench_run(&compute, &data, &options, NULL, &result), STATUS_USAGE);
    assert_says(status_message(), "21 clusters need as many points, and there are 20");
    kmeans_free(&result);
    for (int bad = 0; bad < 2; bad++) {
        data.values[3 * 7 + 2] = bad ? (double)NAN : (double)INFINITY;
        assert_status(kmeans_bench_run(&compute, &data, &options, NULL, &result), STATUS_BAD_DATA);
        assert_says(status_message(), "row 7 of the points is not finite: feature 2");
    }
    compute_close(&compute);
    kmeans_data_free(&data);
}

/* Values whose squares over- or underflow float32; the labels stay exact. */
static void extreme_magnitudes(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    static const double factors[] = {0x1p-149, 0x1p-75, 0x1p60, 0x1p115};
    for (size_t i = 0; i < 4; i++) {
        struct kmeans_data data = kmeans_lattice(300, 4, 6, GEMM_F32, 9, 0, 8);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        char why[256];
        for (size_t v = 0; v < 1200; v++) data.values[v] *= factors[i];
        kmeans_assert_runs(&compute, &data, &options, &result);
        assert_int_equal(result.counts.uncertified, 0);
        if (!kmeans_agrees(&data, &result, KMEANS_ITERATIONS, why, sizeof why))
            fail_msg("%g: %s", factors[i], why);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    compute_close(&compute);
}

/* Squares overflow float64: the labels are not exact, and the run says so. */
static void squares_beyond_float64(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int init = KMEANS_FIRST; init <= KMEANS_PARALLEL; init++) {
        struct kmeans_data data = kmeans_lattice(300, 4, 6, GEMM_F64, 9, 0, 8);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        uint64_t members = 0;
        options.init = (enum kmeans_init)init;
        for (size_t v = 0; v < 1200; v++) data.values[v] *= 0x1p700;
        kmeans_assert_runs(&compute, &data, &options, &result);
        for (size_t j = 0; j < 6; j++) members += result.count[j];
        assert_int_equal(members, 300);
        assert_true(result.counts.uncertified > 0);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    compute_close(&compute);
}

/* Groups that are far apart get a centre each, but for a probability of about 1e-6. */
static void seeds_are_spread(void **state) {
    (void)state;
    enum { GROUPS = 12, MEMBERS = 40 };
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int init = KMEANS_PLUS_PLUS; init <= KMEANS_PARALLEL; init++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            struct kmeans_data data = kmeans_lattice(GROUPS * MEMBERS, 2, GROUPS, GEMM_F32, 3, 0, seed);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            for (size_t i = 0; i < data.count; i++) data.values[2 * i] += (double)(i / MEMBERS * 10000);
            options.iterations = 0;
            options.init = (enum kmeans_init)init;
            options.seed = seed;
            kmeans_assert_runs(&compute, &data, &options, &result);
            for (size_t j = 0; j < GROUPS; j++) assert_int_equal(result.count[j], MEMBERS);
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
    compute_close(&compute);
}

static void restarts_keep_the_best(void **state) {
    (void)state;
    struct compute compute;
    struct kmeans_data data = kmeans_lattice(500, 2, 12, GEMM_F32, 100, 0, 6);
    struct kmeans_options options = kmeans_defaults(&data);
    struct kmeans_result best, one;
    support_open(&compute, "tuned", 2);
    options.init = KMEANS_RANDOM;
    options.restarts = 6;
    kmeans_assert_runs(&compute, &data, &options, &best);
    options.restarts = 1;
    kmeans_assert_runs(&compute, &data, &options, &one);
    assert_true(best.inertia < one.inertia);
    assert_true(best.state.restart > 1);
    kmeans_free(&best);
    kmeans_free(&one);
    compute_close(&compute);
    kmeans_data_free(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_is_exact),
        cmocka_unit_test_prestate(every_instruction_set_is_exact, (void *)"tuned:isa=avx512"),
        cmocka_unit_test_prestate(every_instruction_set_is_exact, (void *)"tuned:isa=avx2"),
        cmocka_unit_test_prestate(every_instruction_set_is_exact, (void *)"tuned:isa=portable"),
        cmocka_unit_test(same_bits_for_threads_and_backends),
        cmocka_unit_test(inertia_never_rises),
        cmocka_unit_test(more_clusters_than_distinct_points),
        cmocka_unit_test(empty_clusters_are_filled),
        cmocka_unit_test(no_run_ends_before_a_split),
        cmocka_unit_test(bad_inputs_are_named),
        cmocka_unit_test(extreme_magnitudes),
        cmocka_unit_test(squares_beyond_float64),
        cmocka_unit_test(seeds_are_spread),
        cmocka_unit_test(restarts_keep_the_best),
    };
    return cmocka_run_group_tests_name("kmeans", tests, NULL, NULL);
}
