/* Parts of comparisons and benches: statistics, Amdahl's law, rows, verification on one shape, agreement. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/statistics.h"
#include "src/bench/agreement.h"
#include "src/bench/amdahl.h"
#include "src/bench/benchmark.h"
#include "src/bench/shapes.h"
#include "src/bench/sweep.h"

static void statistics_are_of_the_sorted(void **state) {
    (void)state;
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, quiet[] = {100, 104, 101, 103, 102, 900, 1},
           loud[] = {100, 104, 101, 109, 102, 110, 1};
    assert_true(statistics_of(NULL, 0).count == 0);
    const struct statistics of = statistics_of(odd, 3);
    assert_true(of.count == 3 && of.median == 2 && of.min == 1 && of.max == 3 && of.noisy);
    const struct statistics spread = statistics_of(even, 4);
    assert_true(spread.median == 2.5 && spread.mean == 2.5);
    assert_near(spread.deviation, sqrt((1.5 * 1.5 + 0.5 * 0.5) * 2 / 3), 1e-12); /* of a sample: n - 1 */
    assert_true(statistics_of(even, 1).deviation == 0);
    assert_false(statistics_of(quiet, 7).noisy); /* one fast and one slow outlier are ignored */
    assert_true(statistics_of(loud, 7).noisy);
    double many[100]; /* spread over 20 %, but the median is more precise */
    for (int i = 0; i < 100; i++) many[i] = 100 + 0.2 * i;
    assert_false(statistics_of(many, 100).noisy);
    for (int i = 0; i < 100; i++) many[i] = 100 + i;
    assert_true(statistics_of(many, 100).noisy);
}

static void amdahl_fit_recovers_its_parameters(void **state) {
    (void)state;
    const double threads[] = {1, 2, 4, 8}, exact[] = {10, 6, 4, 3}; /* 2 + 8 / p */
    struct amdahl fit = amdahl_fit(threads, exact, 4);
    assert_near(fit.one, 10, 1e-12);
    assert_near(fit.serial_fraction, 0.2, 1e-12);
    assert_near(fit.error, 0, 1e-12);
    const double noisy[] = {10.1, 5.9, 4.1, 2.9};
    fit = amdahl_fit(threads, noisy, 4);
    assert_near(fit.serial_fraction, 0.2, 0.02);
    assert_true(fit.error > 1e-3 && fit.error < 0.05);
    assert_true(fabs(fit.serial_fraction - 0.2) < 3 * fit.error);
    assert_true(amdahl_fit(threads, exact, 1).one == 0); /* needs two thread counts */
}

/* The estimated error of the serial part against the spread over many noisy experiments. */
static void amdahl_knows_its_error(void **state) {
    (void)state;
    enum { EXPERIMENTS = 2000, TIMES = 12 };
    double threads[TIMES], seconds[TIMES], sum = 0, squares = 0, claimed = 0;
    unsigned seed = 1;
    for (int e = 0; e < EXPERIMENTS; e++) {
        for (int i = 0; i < TIMES; i++) {
            double noise = 0; /* of twelve uniform numbers: variance 1 */
            for (int u = 0; u < 12; u++)
                noise += (double)(seed = seed * 1664525u + 1013904223u) / 4294967296.0;
            threads[i] = 1 << i / 3;
            seconds[i] = 2 + 8 / threads[i] + 0.1 * (noise - 6);
        }
        const struct amdahl fit = amdahl_fit(threads, seconds, TIMES);
        sum += fit.serial_fraction;
        squares += fit.serial_fraction * fit.serial_fraction;
        claimed += fit.error / EXPERIMENTS;
    }
    const double spread = sqrt(squares / EXPERIMENTS - sum / EXPERIMENTS * sum / EXPERIMENTS);
    assert_near(claimed / spread, 1, 0.1);
}

static void rows_are_combinations(void **state) {
    (void)state;
    struct config config;
    struct sweep sweep;
    support_config(&config, "layers=42-9-4");
    const struct sweep_lists lists = {
        .backends = "serial,openmp", .threads = "1,2", .dtypes = "f32,f64", .residencies = "device,host"};
    assert_status(sweep_open(&sweep, &config, &lists), STATUS_OK);
    assert_int_equal(sweep.count, 6); /* serial ignores threads, and both ignore residency */
    assert_string_equal(sweep.rows[0].label, "serial, f32");
    assert_string_equal(sweep.rows[2].label, "openmp, 1 thread, f32");
    assert_string_equal(sweep.rows[5].label, "openmp, 2 threads, f64");
    assert_int_equal(sweep.rows[5].config.dtype, GEMM_F64);
    assert_int_equal(sweep.rows[5].config.threads, 2);
    sweep_close(&sweep);
    assert_status(sweep_open(&sweep, &config, &(struct sweep_lists){.backends = "serial", .threads = "1,x"}),
                  STATUS_USAGE);
    assert_says(status_message(), "--threads");
    assert_status(sweep_open(&sweep, &config, &(struct sweep_lists){.backends = "serial,cudda"}),
                  STATUS_UNAVAILABLE);
    assert_says(status_message(), "cudda");
    assert_status(sweep_open(&sweep, &config, &(struct sweep_lists){.backends = "all"}), STATUS_OK);
    assert_int_equal(sweep.count, registry_count());
    for (size_t i = 0; i < sweep.count; i++) assert_true(sweep.rows[i].backend || sweep.rows[i].left_out[0]);
    sweep_close(&sweep);
}

static void shapes_are_those_of_a_step(void **state) {
    (void)state;
    struct gemm_shape shapes[SHAPES_MOST];
    const struct layer_list layers = {.count = 3, .width = {784, 128, 10}};
    assert_int_equal(shapes_of_training(&layers, false, 64, "validation", shapes), 5);
    assert_true(shapes[0].op == GEMM_NN && shapes[0].m == 64 && shapes[0].n == 128 && shapes[0].k == 784);
    assert_true(shapes[1].op == GEMM_TN && shapes[1].m == 784 && shapes[1].n == 128 && shapes[1].k == 64);
    assert_true(shapes[4].op == GEMM_NT && shapes[4].m == 64 && shapes[4].n == 128 && shapes[4].k == 10);
    assert_string_equal(shapes[4].what, "layer 2 input gradient");
    char name[64];
    shapes_config_name("configs/high-throughput.cfg", name, sizeof name);
    assert_string_equal(name, "high-throughput");
    shapes_config_name("", name, sizeof name);
    assert_string_equal(name, "defaults");
}

/* --- one shape --- */

/* As benchmark_run does: integers, then reals, in the same memory. */
static enum status verify_both(struct compute *compute, enum gemm_dtype dtype, enum gemm_op op, size_t n,
                               size_t rotate) {
    const struct gemm_shape shape = {.op = op, .m = 40, .n = n, .k = 300, .what = "test"};
    struct problem problem;
    enum status status = problem_open(&problem, compute, dtype, &shape, rotate);
    if (!status) status = problem_verify(&problem, PROBLEM_INTEGERS, 1);
    if (!status) status = problem_verify(&problem, PROBLEM_REALS, 2);
    problem_close(&problem);
    return status;
}

static void right_ones_pass(void **state) {
    (void)state;
    static const char *const names[] = {"serial", "openmp"};
    for (int i = 0; i < 2; i++) {
        struct compute compute;
        support_open(&compute, names[i], 2);
        for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
            for (int op = GEMM_NN; op <= GEMM_NT; op++)
                for (size_t rotate = 0; rotate < 2; rotate++)
                    assert_status(
                        verify_both(&compute, (enum gemm_dtype)dtype, (enum gemm_op)op, 33, rotate << 20),
                        STATUS_OK);
        compute_close(&compute);
    }
}

/* Every plug-in whose mistake shows on a dense product is detected without the case list. */
static void wrong_ones_are_caught(void **state) {
    (void)state;
    static const char *const names[] = {
        "always-zero", "cached",      "missing-last-column", "nan-output",          "race",
        "reads-c",     "tf32-as-f32", "transposed-index",    "writes-past-the-end", "truncates-bfloat16"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[64];
        struct compute compute;
        const struct gemm_backend *backend;
        const bool rounds = strcmp(names[i], "truncates-bfloat16") == 0;
        const enum gemm_dtype dtype = rounds ? GEMM_BF16 : GEMM_F32;
        enum status worst = STATUS_OK;
        snprintf(file, sizeof file, "plugins/%s.so", names[i]);
        assert_status(registry_find(support_plugin(file), &backend), STATUS_OK);
        assert_status(compute_open(&compute, backend, &(struct compute_options){.threads = 1}), STATUS_OK);
        for (int op = GEMM_NN; op <= GEMM_NT && !worst; op++) {
            worst = verify_both(&compute, dtype, (enum gemm_op)op, 33, 0);
            if (!worst) worst = verify_both(&compute, dtype, (enum gemm_op)op, 300, 0); /* B is square */
        }
        compute_close(&compute);
        if (worst != STATUS_VERIFY_FAILED) fail_msg("%s was not caught", names[i]);
        assert_says(status_message(), rounds ? "is wrong: bf16 NN" : "is wrong: f32 ");
    }
}

/* Computes only if the corners of A and B have changed since the last call. */
extern const struct gemm_backend gemm_serial;

static enum gemm_status skipping_gemm(void *context, const struct gemm_call *call) {
    static float corner[4];
    const float *a = call->a, *b = call->b;
    const float now[4] = {a[0], a[call->m * call->k - 1], b[0], b[call->k * call->n - 1]};
    if (memcmp(corner, now, sizeof now) == 0) return GEMM_OK;
    memcpy(corner, now, sizeof now);
    return gemm_serial.gemm(context, call);
}

static void skipped_calls_get_no_time(void **state) {
    (void)state;
    const struct gemm_shape shape = {.op = GEMM_NN, .m = 60, .n = 50, .k = 70, .what = "test"};
    struct gemm_backend skipping = gemm_serial;
    struct compute compute;
    struct problem problem;
    double seconds;
    support_open(&compute, "serial", 1);
    assert_status(problem_open(&problem, &compute, GEMM_F32, &shape, 0), STATUS_OK);
    for (int b = 0; b < 2; b++) {
        compute.backend = b ? &skipping : &gemm_serial;
        skipping.gemm = skipping_gemm;
        assert_status(problem_verify(&problem, PROBLEM_INTEGERS, 1), STATUS_OK);
        const enum status status = problem_time(&problem, 40, &seconds);
        assert_status(status, b ? STATUS_VERIFY_FAILED : STATUS_OK);
        if (b) assert_says(status_message(), "in the timed calls: ");
    }
    problem_close(&problem);
    compute_close(&compute);
}

/* New integers, one of which changes, are multiplied exactly even where reals are pixels. */
static void renewed_operands_are_integers(void **state) {
    (void)state;
    const struct gemm_shape shape = {.op = GEMM_NN, .m = 40, .n = 33, .k = 50, .pixels = true};
    struct compute compute;
    struct problem problem;
    support_open(&compute, "serial", 1);
    assert_status(problem_open(&problem, &compute, GEMM_F32, &shape, 0), STATUS_OK);
    assert_status(problem_verify(&problem, PROBLEM_REALS, 1), STATUS_OK);
    for (uint64_t seed = 2; seed < 12; seed++) assert_status(problem_renew(&problem, seed), STATUS_OK);
    problem_close(&problem);
    compute_close(&compute);
}

static bool has_own_threads(void *context) {
    (void)context;
    return true;
}

static void times_are_of_the_calls(void **state) {
    (void)state;
    const struct gemm_shape shape = {.op = GEMM_NN, .m = 128, .n = 128, .k = 128, .what = "square"};
    struct candidate one = {.label = "serial"};
    struct result result;
    support_open(&one.compute, "serial", 1);
    struct benchmark benchmark = {.candidates = &one, .count = 1, .repeats = 7};
    const double start = clock_seconds();
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    const double wall = clock_seconds() - start;
    assert_int_equal(result.outcome, OUTCOME_RIGHT);
    assert_true(result.seconds.count % 7 == 0 && result.seconds.count <= 3 * 7); /* up to three rounds */
    assert_true(result.seconds.count > 0);
    /* sums of 128 terms, one after the other: up to sqrt(128) roundings of 2^-24; at least that of C */
    assert_true(result.relative_error > 0x1p-26 && result.relative_error < sqrt(128) * 0x1p-24);
    assert_true(result.flops == 2.0 * 128 * 128 * 128 && result.bytes == 3.0 * 128 * 128 * 4);
    assert_true(result.seconds.min > 0 && result.seconds.min <= result.seconds.median &&
                result.seconds.median <= result.seconds.max);
    assert_true(7 * result.seconds.min < wall);
    assert_true(one.seconds_per_flop[GEMM_F32][GEMM_NN] > 0);
    one.rates.flops[GEMM_F32] = 1; /* a peak measured at the start */
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    assert_true(result.peak > 1 && share_of_peak(&result) > 0); /* measured between the calls */
    struct gemm_backend other = *one.compute.backend;
    other.own_threads = has_own_threads; /* they would compete with those of the peak loop */
    const struct gemm_backend *backend = one.compute.backend;
    one.compute.backend = &other;
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    assert_true(result.peak == 1);
    one.compute.backend = backend;
    benchmark.limit_seconds = 1e-9; /* less than predicted */
    assert_status(benchmark_run(&benchmark, GEMM_F32, &shape, &result), STATUS_OK);
    assert_int_equal(result.outcome, OUTCOME_LEFT_OUT);
    assert_says(result.reason, "--limit-seconds");
    compute_close(&one.compute);
}

/* --- agreement --- */

static void open_agreement(struct agreement *agreement, struct config *config, struct dataset_pair *data,
                           const char *settings) {
    support_builtin_data(data);
    support_config(config, settings);
    agreement_plan(agreement, config, data);
}

static void right_curves_agree(void **state) {
    (void)state;
    struct agreement agreement;
    struct config config;
    struct dataset_pair data;
    struct drift drift;
    struct trace trace;
    const struct gemm_backend *backend;
    open_agreement(&agreement, &config, &data, "layers=42-30-4 batch-size=16 epochs=3 audit=off");
    assert_int_equal(agreement.steps, 16);
    assert_status(registry_find("serial", &backend), STATUS_OK);
    assert_status(agreement_check(&agreement, &config, backend, &data, &drift), STATUS_OK);
    assert_true(drift.relative > 0 && drift.relative < drift.tolerance);
    assert_status(agreement_trace(&agreement, &config, backend, &data, &trace), STATUS_OK);
    assert_true(!trace.drifts && trace.step >= 1 && trace.relative > 0 && trace.relative < trace.tolerance);
    config.dtype = GEMM_F64;
    assert_status(agreement_check(&agreement, &config, backend, &data, &drift), STATUS_OK);
    assert_true(drift.relative <= 1e-12);
    dataset_pair_free(&data);
}

/* A GEMM with a small error in the weight gradients of one call. */
static size_t calls_left;
static double off_by;

static enum gemm_status drifting_gemm(void *context, const struct gemm_call *call) {
    struct gemm_call off = *call;
    if (call->op == GEMM_TN && call->m == 30 && calls_left-- == 0) {
        calls_left = 0;
        if (off_by == 0) return GEMM_FAILED;
        off.alpha *= off_by;
    }
    return gemm_serial.gemm(context, &off);
}

static void drift_is_traced_to_its_tensor(void **state) {
    (void)state;
    struct agreement agreement;
    struct config config;
    struct dataset_pair data;
    struct drift drift;
    struct trace trace;
    struct gemm_backend drifting = gemm_serial;
    drifting.gemm = drifting_gemm;
    open_agreement(&agreement, &config, &data, "layers=42-30-4 batch-size=16 epochs=3 audit=off");
    off_by = 1.05;
    calls_left = 7;
    assert_status(agreement_check(&agreement, &config, &drifting, &data, &drift), STATUS_VERIFY_FAILED);
    assert_int_equal(drift.step, 7);
    assert_says(status_message(), "step 7: the update of the weights of layer 2 is wrong by 5.0e-02");
    calls_left = 8; /* the warm-up, then steps 1 to 7 */
    assert_status(agreement_trace(&agreement, &config, &drifting, &data, &trace), STATUS_OK);
    assert_true(trace.drifts);
    assert_int_equal(trace.step, 8);
    assert_int_equal(trace.layer, 2);
    assert_string_equal(trace.tensor, "weight gradient");
    assert_near(trace.relative, 0.05, 1e-3);
    off_by = NAN; /* wrong, because the reference did not diverge */
    calls_left = 7;
    assert_status(agreement_check(&agreement, &config, &drifting, &data, &drift), STATUS_VERIFY_FAILED);
    assert_says(status_message(), "step 7: the update of the weights of layer 2 is wrong by nan");
    off_by = 0; /* an error, not a wrong result */
    calls_left = 7;
    assert_status(agreement_check(&agreement, &config, &drifting, &data, &drift), STATUS_FAILED);
    assert_says(status_message(), "backend 'serial' failed in f32 TN");
    dataset_pair_free(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_are_of_the_sorted), cmocka_unit_test(amdahl_fit_recovers_its_parameters),
        cmocka_unit_test(amdahl_knows_its_error),       cmocka_unit_test(rows_are_combinations),
        cmocka_unit_test(shapes_are_those_of_a_step),   cmocka_unit_test(right_ones_pass),
        cmocka_unit_test(wrong_ones_are_caught),        cmocka_unit_test(times_are_of_the_calls),
        cmocka_unit_test(skipped_calls_get_no_time),    cmocka_unit_test(renewed_operands_are_integers),
        cmocka_unit_test(right_curves_agree),           cmocka_unit_test(drift_is_traced_to_its_tensor),
    };
    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
