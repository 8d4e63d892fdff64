/* Interrupted runs of k-means: they end at once, say so, and go on from where they ended. */
#include "tests/support.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

/* An interruption during the seeding is heeded there: the rest of the centres are random points. */
static void interrupted_seeding(void **state) {
    (void)state;
    static volatile sig_atomic_t stop = 1;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int init = KMEANS_PLUS_PLUS; init <= KMEANS_PARALLEL; init++) {
        struct kmeans_data data = kmeans_lattice(300, 4, 60, GEMM_F32, 99, 0, 8);
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        options.init = (enum kmeans_init)init;
        options.stop = &stop;
        assert_status(kmeans_bench_run(&compute, &data, &options, NULL, &result), STATUS_INTERRUPTED);
        assert_int_equal(result.end, KMEANS_INTERRUPTED);
        assert_int_equal(result.state.iteration, 1);
        assert_true(isfinite(result.inertia));
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
    compute_close(&compute);
}

static volatile sig_atomic_t stop_now;

static void stop_at_three(void *self, const struct kmeans_record *record) {
    (void)self;
    stop_now = record->iteration == 3;
}

/* The state of an interrupted run leads to the result of the run that was not interrupted. */
static void interrupted_runs_go_on(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int form = 0; form < 2; form++)
        for (size_t batch = 0; batch <= 500; batch += 500) {
            struct kmeans_data data = form ? kmeans_lattice(3000, 20, 30, GEMM_F32, 255, 0, 2)
                                           : kmeans_reals(3000, 20, 30, GEMM_F32);
            struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result whole, part, rest;
            const struct kmeans_observer observer = {.iteration = stop_at_three};
            data.bytes = form;
            options.init = KMEANS_RANDOM;
            options.iterations = 9;
            options.batch = batch;
            kmeans_assert_runs(&compute, &data, &options, &whole);
            options.stop = &stop_now;
            assert_status(kmeans_bench_run(&compute, &data, &options, &observer, &part), STATUS_INTERRUPTED);
            assert_int_equal(part.state.iteration, 3);
            assert_true(part.inertia > whole.inertia);
            stop_now = 0;
            options.start = &part.state;
            kmeans_assert_runs(&compute, &data, &options, &rest);
            assert_int_equal(rest.state.iteration, 9);
            assert_memory_equal(rest.label, whole.label, data.count * sizeof *rest.label);
            assert_memory_equal(rest.state.values, whole.state.values,
                                data.clusters * data.features * sizeof(float));
            assert_true(rest.inertia == whole.inertia);
            kmeans_free(&whole);
            kmeans_free(&part);
            kmeans_free(&rest);
            kmeans_data_free(&data);
        }
    compute_close(&compute);
}

static void stop_in_restart_two(void *self, const struct kmeans_record *record) {
    (void)self;
    stop_now = record->restart == 2;
}

/* The first restart is better than the second one, which did not end, but the run was interrupted. */
static void interrupted_restarts_say_so(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    struct kmeans_data data = kmeans_reals(3000, 20, 30, GEMM_F32);
    struct kmeans_options options = kmeans_defaults(&data);
    struct kmeans_result result;
    const struct kmeans_observer observer = {.iteration = stop_in_restart_two};
    options.init = KMEANS_RANDOM;
    options.restarts = 3;
    options.stop = &stop_now;
    assert_status(kmeans_bench_run(&compute, &data, &options, &observer, &result), STATUS_INTERRUPTED);
    stop_now = 0;
    assert_int_equal(result.state.restart, 1);
    assert_int_equal(result.end, KMEANS_INTERRUPTED);
    kmeans_free(&result);
    kmeans_data_free(&data);
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interrupted_seeding),
        cmocka_unit_test(interrupted_runs_go_on),
        cmocka_unit_test(interrupted_restarts_say_so),
    };
    return cmocka_run_group_tests_name("kmeans stop", tests, NULL, NULL);
}
