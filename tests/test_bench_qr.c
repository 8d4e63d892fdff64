/* ./train bench qr: the errors that it measures, wrong kernels, and the command. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

#include "src/bench/qr_race.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- the errors of a triangle --- */

static struct qr_problem problem_of(size_t window, size_t n, size_t most, double condition) {
    return (struct qr_problem){.dtype = GEMM_F64,
                               .window = window,
                               .n = n,
                               .stride = 2,
                               .most = most,
                               .condition = condition,
                               .seed = 7};
}

/* Modified Gram-Schmidt of a window in long double: R [n][n], upper triangle. */
static double *triangle_of(const struct qr_problem *problem, size_t index) {
    const size_t n = problem->n, rows = problem->window;
    const double *a = (const double *)problem->a + index * problem->stride * n;
    long double *q = calloc(rows * n, sizeof *q);
    double *r = calloc(n * n, sizeof *r);
    assert_non_null(q);
    assert_non_null(r);
    for (size_t i = 0; i < rows * n; i++) q[i] = (long double)a[i];
    for (size_t j = 0; j < n; j++) {
        long double norm = 0;
        for (size_t i = 0; i < rows; i++) norm += q[i * n + j] * q[i * n + j];
        norm = sqrtl(norm);
        r[j * n + j] = (double)norm;
        for (size_t k = j + 1; k < n; k++) {
            long double dot = 0;
            for (size_t i = 0; i < rows; i++) dot += q[i * n + j] / norm * q[i * n + k];
            for (size_t i = 0; i < rows; i++) q[i * n + k] -= dot * q[i * n + j] / norm;
            r[j * n + k] = (double)dot;
        }
    }
    free(q);
    return r;
}

/* Windows that all share rows, and windows that do not; fewer windows than the matrix has. */
static void right_triangles_have_small_errors(void **state) {
    (void)state;
    static const struct {
        size_t window, n, most, count;
        double condition;
    } cases[] = {
        {90, 20, 5, 5, 1}, {90, 20, 5, 3, 1000}, {40, 37, 60, 60, 1}, {33, 1, 2, 1, 1}, {64, 33, 9, 2, 1e6}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct qr_problem problem =
            problem_of(cases[c].window, cases[c].n, cases[c].most, cases[c].condition);
        assert_status(qr_problem_open(&problem), STATUS_OK);
        qr_problem_use(&problem, cases[c].count);
        assert_int_equal(problem.checked[0].index, 0);
        assert_int_equal(problem.checked[QR_CHECKED - 1].index, cases[c].count - 1);
        for (size_t which = 0; which < QR_CHECKED; which++) {
            double *r = triangle_of(&problem, problem.checked[which].index);
            const struct qr_errors errors = qr_problem_errors(&problem, which, r);
            const double most = 100 * cases[c].condition * (double)problem.n * dtype_epsilon(GEMM_F64);
            if (!(errors.backward <= qr_problem_bound(&problem) && errors.orthogonality <= most))
                fail_msg("case %zu: backward %.3g of %.3g, orthogonality %.3g of %.3g", c, errors.backward,
                         qr_problem_bound(&problem), errors.orthogonality, most);
            free(r);
        }
        qr_problem_close(&problem);
    }
}

static void wrong_triangles_have_large_errors(void **state) {
    (void)state;
    struct qr_problem problem = problem_of(300, 24, 9, 1);
    assert_status(qr_problem_open(&problem), STATUS_OK);
    qr_problem_use(&problem, 9);
    const double bound = qr_problem_bound(&problem);
    double *r = triangle_of(&problem, 4), *next = triangle_of(&problem, 5);
    assert_true(qr_problem_errors(&problem, 1, r).backward <= bound);
    assert_true(qr_problem_errors(&problem, 1, next).backward > 1e6 * bound); /* the window two rows on */
    r[23 * 24 + 23] *= 1 + 1e-9;
    assert_true(qr_problem_errors(&problem, 1, r).orthogonality > 1e-10);
    r[3] += 1e-6;
    assert_true(qr_problem_errors(&problem, 1, r).backward > 100 * bound);
    r[3] = (double)NAN;
    assert_false(qr_problem_errors(&problem, 1, r).backward <= bound);
    free(r);
    free(next);
    qr_problem_close(&problem);
}

/* The singular values of the matrix have the ratio that was asked for, whatever its columns are scaled by. */
static void condition_is_that_of_the_columns(void **state) {
    (void)state;
    struct qr_problem problem = problem_of(2000, 12, 1, 1e4);
    assert_status(qr_problem_open(&problem), STATUS_OK);
    qr_problem_use(&problem, 1);
    double *r = triangle_of(&problem, 0), norm = 0, least = INFINITY;
    for (size_t j = 0; j < 12; j++) { /* of columns: all about equal */
        double sum = 0;
        for (size_t i = 0; i <= j; i++) sum += r[i * 12 + j] * r[i * 12 + j];
        norm = fmax(norm, sqrt(sum));
        least = fmin(least, sqrt(sum));
    }
    assert_true(norm < 20 * least);
    assert_true(fabs(r[11 * 12 + 11]) < 1e-2 * norm);
    free(r);
    qr_problem_close(&problem);
}

static void wrong_sizes_are_refused(void **state) {
    (void)state;
    struct qr_problem problem = problem_of(10, 0, 1, 1);
    assert_status(qr_problem_open(&problem), STATUS_USAGE);
    qr_problem_close(&problem);
    problem = problem_of((size_t)1 << 30, (size_t)1 << 24, 1, 1);
    assert_status(qr_problem_open(&problem), STATUS_USAGE);
    qr_problem_close(&problem);
}

/* --- the race --- */

static enum fault { RIGHT, ROW_LOST, SIGN_OF_V, T_TRANSPOSED } fault;
static struct qr_ops wrong_ops;
static const struct qr_ops *right_ops;
static struct device_driver faulty;

static void wrong_append(void *context, const struct qr_append *append) {
    struct qr_append call = *append;
    if (fault == ROW_LOST && call.rows > 1) call.rows--;
    right_ops->append(context, &call);
}

static void wrong_panel(void *context, const struct qr_panel *panel) {
    right_ops->panel(context, panel);
    for (size_t i = 0; i < panel->width && fault != RIGHT; i++)
        for (size_t j = i + 1; j < panel->width; j++) {
            float *t = panel->t.values, *v = panel->vt.values;
            if (fault == SIGN_OF_V) v[i * panel->vt.ld + panel->lead + panel->width] *= -1;
            if (fault != T_TRANSPOSED) continue;
            t[j * panel->t.ld + i] = t[i * panel->t.ld + j];
            t[i * panel->t.ld + j] = 0;
        }
}

static const struct qr_ops *find_wrong_ops(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    (void)dtype;
    return &wrong_ops;
}

static void open_faulty(struct compute *compute) {
    support_open(compute, "serial", 1);
    faulty = *compute->device.driver;
    right_ops = faulty.qr_ops(&compute->device, GEMM_F32);
    wrong_ops = *right_ops;
    wrong_ops.append = wrong_append;
    wrong_ops.panel = wrong_panel;
    faulty.qr_ops = find_wrong_ops;
    compute->device.driver = &faulty;
    fault = RIGHT;
}

static void wrong_ops_get_no_time(void **state) {
    (void)state;
    struct compute compute;
    struct qr_time time;
    struct qr_problem problem = problem_of(80, 40, 12, 1);
    problem.dtype = GEMM_F32;
    assert_status(qr_problem_open(&problem), STATUS_OK);
    open_faulty(&compute);
    for (int method = WINDOWS_NAIVE; method <= WINDOWS_TREE; method++) {
        const struct qr_variant variant = {
            .method = (enum windows_method)method, .backend = "serial", .count = 12, .nb = 16, .repeats = 3};
        fault = RIGHT;
        qr_race_run_on(&problem, &compute, &variant, &time);
        if (time.outcome != OUTCOME_RIGHT) fail_msg("method %d: %s", method, time.reason);
        assert_int_equal(time.timed, 12);
        assert_true(time.seconds.count >= 3 && time.seconds.min > 0 &&
                    time.seconds.min <= time.seconds.median && time.seconds.median <= time.seconds.max);
        assert_true(time.errors.backward > 0 && time.errors.backward <= qr_problem_bound(&problem));
        assert_true(time.flops > 0 && time.parts[PART_PANEL] > 0);
        for (fault = ROW_LOST; fault <= T_TRANSPOSED; fault++) {
            if (fault == ROW_LOST && method == WINDOWS_NAIVE) continue; /* it appends no rows */
            qr_race_run_on(&problem, &compute, &variant, &time);
            if (time.outcome != OUTCOME_WRONG) fail_msg("method %d fault %d passes", method, fault);
            assert_says(time.reason, "rounding explains");
        }
    }
    compute_close(&compute);
    qr_problem_close(&problem);
}

/* One by one only the windows are timed that the limit has time for. */
static void naive_keeps_its_limit(void **state) {
    (void)state;
    struct compute compute;
    struct qr_time time;
    struct qr_problem problem = problem_of(300, 64, 40, 1);
    assert_status(qr_problem_open(&problem), STATUS_OK);
    support_open(&compute, "serial", 1);
    struct qr_variant variant = {.backend = "serial", .count = 40, .repeats = 1, .limit_seconds = 1e-9};
    qr_race_run_on(&problem, &compute, &variant, &time);
    assert_int_equal(time.outcome, OUTCOME_RIGHT);
    assert_int_equal(time.timed, 1);
    variant.limit_seconds = 0;
    qr_race_run_on(&problem, &compute, &variant, &time);
    assert_int_equal(time.timed, 40);
    compute_close(&compute);
    qr_problem_close(&problem);
}

/* --- the command --- */

static double part(const cJSON *line, const char *key) {
    const cJSON *time = cJSON_GetObjectItem(line, "time");
    return cJSON_GetObjectItem(time, key) ? support_number(time, key) : 0;
}

static void bench_measures_every_method(void **state) {
    (void)state;
    const char *log = support_path("qr.jsonl");
    assert_int_equal(RUN("bench qr --sizes 96x40,50x20 --windows 6,9 --nb 16..32 --counts 4 --repeat 2 "
                         "--backends serial --log %s",
                         log),
                     0);
    assert_says(output, "6 windows of 96 x 40, 1 row apart, f32, condition 1");
    assert_says(output, "9 windows of 50 x 20, 1 row apart, f32, condition 1");
    cJSON *line = NULL;
    assert_int_equal(support_log(log, "qr", 0, &line), 2 * (4 * 2 + 3)); /* naive has no fewer windows */
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(line, "method")), "gram");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(line, "verified")));
    assert_int_equal((int)support_number(line, "rows"), 50);
    assert_int_equal((int)support_number(line, "columns"), 20);
    assert_int_equal((int)support_number(line, "windows"), 4);
    assert_int_equal((int)support_number(line, "windows_timed"), 4);
    assert_true(support_number(line, "backward_error") > 0 && support_number(line, "backward_error") < 1e-5);
    assert_true(support_number(line, "orthogonality") > 0 && support_number(line, "orthogonality") < 1e-3);
    const double seconds = support_number(line, "median_seconds"), flops = support_number(line, "flops");
    assert_near(support_number(line, "gflops"), 1e-9 * flops / seconds, 1e-9);
    assert_near(support_number(line, "share_of_peak"),
                1e-9 * flops / seconds / support_number(line, "peak_gflops"), 1e-9);
    assert_true(support_number(line, "speedup") > 0 && support_number(line, "naive_flops") > 0);
    assert_true(part(line, "panel") + part(line, "gemm_tn") > 0);
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "peak", 0, &line), 1);
    cJSON_Delete(line);
    const char *page = support_path("qr.html");
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    size_t count;
    unsigned char *text = support_read(page, &count);
    char *copy = calloc(count + 1, 1);
    memcpy(copy, text, count);
    assert_says(copy, "Windows of 96 x 40, 1 row apart, f32");
    assert_says(copy, "Time against the width of panels");
    assert_says(copy, "Speed-up over one by one, by size");
    free(copy);
    free(text);
}

/* Beyond n eps kappa^2 = 1 a failure of the Gram matrix is a row, and no error. */
static void condition_shows_where_gram_fails(void **state) {
    (void)state;
    const char *log = support_path("condition.jsonl");
    assert_int_equal(RUN("bench qr --sizes 200x32 --windows 3 --nb 32 --counts none --repeat 1 --condition "
                         "1e5 --methods common,tree,gram --backends serial --log %s",
                         log),
                     0);
    cJSON *line = NULL;
    assert_int_equal(support_log(log, "qr", 0, &line), 3);
    assert_says(cJSON_GetStringValue(cJSON_GetObjectItem(line, "failed")), "not positive definite");
    assert_null(cJSON_GetObjectItem(line, "median_seconds"));
    cJSON_Delete(line);
}

static void wrong_plugin_gets_no_time(void **state) {
    (void)state;
    const char *log = support_path("wrong-qr.jsonl");
    assert_int_equal(RUN("bench qr --sizes 96x80 --windows 6 --nb 32 --methods tree --counts none --log %s "
                         "--backends %s",
                         log, support_plugin("plugins/missing-last-column.so")),
                     5);
    assert_says(output, "does not compute what it should");
    cJSON *line = NULL;
    assert_int_equal(support_log(log, "qr", 0, &line), 1);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(line, "verified")));
    assert_null(cJSON_GetObjectItem(line, "median_seconds"));
    cJSON_Delete(line);
}

static void wrong_use_is_named(void **state) {
    (void)state;
    static const struct support_refusal wrong[] = {
        {"--sizes 640", 2, "--sizes must be"},
        {"--sizes 100x200", 2, "at least as many rows as"},
        {"--sizes 64x32,64x16,64x8 --windows 2,3", 2, "--windows must be one number"},
        {"--windows 0", 2, "--windows must be"},
        {"--nb 20", 2, "--nb must be multiples of 16 up to 512, not 20"},
        {"--nb 64..1024", 2, "--nb must be multiples of 16 up to 512, not 1024"},
        {"--nb none", 2, "--nb lists nothing"},
        {"--methods fast", 2, "--methods has no method 'fast'"},
        {"--condition 0.5", 2, "--condition must be"},
        {"--counts x", 2, "--counts must be"},
        {"--group 0", 2, "--group must be"},
        {"--stride 0", 2, "--stride must be"},
        {"--repeat 0", 2, "--repeat must be"},
        {"--limit-seconds x", 2, "--limit-seconds must be"},
        {"--dtype f16", 2, "--dtype"},
        {"--backends none-such", 4, "no backend is called"}};
    support_refuses("bench qr", wrong, sizeof wrong / sizeof *wrong);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_triangles_have_small_errors),
        cmocka_unit_test(wrong_triangles_have_large_errors),
        cmocka_unit_test(condition_is_that_of_the_columns),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(wrong_ops_get_no_time),
        cmocka_unit_test(naive_keeps_its_limit),
        cmocka_unit_test(bench_measures_every_method),
        cmocka_unit_test(condition_shows_where_gram_fails),
        cmocka_unit_test(wrong_plugin_gets_no_time),
        cmocka_unit_test(wrong_use_is_named),
    };
    return cmocka_run_group_tests_name("bench qr", tests, support_make_data, NULL);
}
