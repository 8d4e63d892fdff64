/* --step with functions of the host in place of kernels of a GPU: how runs use a step, and that they refuse a
   wrong one; and ./train bench kmeans. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

#include "src/bench/kmeans_race.h"
#include "tests/kmeans_bench.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- a step in C --- */

static enum fault { RIGHT, NO_LAST_CENTRE, NO_LAST_ROW, TWICE_IN_SUMS, NO_COUNT } fault;

static double element(const struct kmeans_step_call *call, const void *matrix, size_t rows, size_t row,
                      size_t f, bool columns) {
    return dtype_get(call->dtype, matrix, columns ? f * rows + row : row * call->features + f);
}

static uint32_t nearest_of(const struct kmeans_step_call *call, size_t row, bool columns) {
    double best = INFINITY;
    uint32_t label = 0;
    for (size_t j = 0; j < call->clusters - (fault == NO_LAST_CENTRE && call->clusters > 1); j++) {
        double sum = 0;
        for (size_t f = 0; f < call->features; f++) {
            const double difference = element(call, call->x, call->rows, row, f, columns) -
                                      element(call, call->centres, call->clusters, j, f, columns);
            sum += difference * difference;
        }
        if (sum < best) label = (uint32_t)j;
        if (sum < best) best = sum;
    }
    return label;
}

static void run_step(const struct kmeans_step_call *call, bool columns) {
    for (size_t r = 0; r < call->rows; r++) {
        const uint32_t label = fault == NO_LAST_ROW && r + 1 == call->rows ? 0 : nearest_of(call, r, columns);
        *call->changed += label != call->label[r];
        call->label[r] = label;
        if (!call->sums) continue;
        for (size_t f = 0; f < call->features; f++)
            call->sums[label * call->features + f] += (fault == TWICE_IN_SUMS && r == 3 ? 2 : 1) *
                                                      element(call, call->x, call->rows, r, f, columns);
        call->count[label] += fault != NO_COUNT;
    }
    if (call->scratch) call->scratch[0] = 1; /* it is there */
}

static void run_rows(void *context, const struct kmeans_step_call *call) {
    (void)context;
    run_step(call, false);
}

static void run_columns(void *context, const struct kmeans_step_call *call) {
    (void)context;
    run_step(call, true);
}

static void transpose(void *context, enum gemm_dtype dtype, size_t rows, size_t features, const void *from,
                      void *to) {
    (void)context;
    for (size_t r = 0; r < rows; r++)
        for (size_t f = 0; f < features; f++)
            dtype_set(dtype, to, f * rows + r, dtype_get(dtype, from, r * features + f));
}

static size_t some_scratch(const struct kmeans_step_call *call) {
    return call->clusters;
}

static const struct kmeans_step naive = {.name = "naive", .summary = "rows", .run = run_rows},
                                shared = {.name = "shared", .by_columns = true, .run = run_columns},
                                partial = {.name = "partial",
                                           .by_columns = true,
                                           .updates = true,
                                           .scratch = some_scratch,
                                           .run = run_columns};
static const struct kmeans_step *const list[] = {&naive, &shared, &partial, NULL};
static const struct kmeans_steps steps = {.list = list, .transpose = transpose};
static const char *const names[] = {"naive", "shared", "partial"};

/* A host that has the steps. */
static struct device_driver stepping;

static void open_stepping(struct compute *compute) {
    support_open(compute, "serial", 1);
    stepping = *compute->device.driver;
    stepping.kmeans_steps = &steps;
    compute->device.driver = &stepping;
    fault = RIGHT;
}

static struct kmeans_options stepped(const struct kmeans_data *data, const char *name) {
    struct kmeans_options options = kmeans_defaults(data);
    options.step = name;
    options.block = 128;
    options.precision = NEAREST_F32;
    return options;
}

/* --- runs --- */

static void assert_steps(struct compute *compute, const struct kmeans_data *data, const char *name) {
    const struct kmeans_options options = stepped(data, name);
    struct kmeans_result result;
    char why[256];
    kmeans_assert_runs(compute, data, &options, &result);
    if (!kmeans_is_iteration(data, &result, 0, why, sizeof why)) fail_msg("%s: %s", name, why);
    kmeans_free(&result);
}

static void steps_are_iterations(void **state) {
    (void)state;
    struct compute compute;
    open_stepping(&compute);
    for (size_t s = 0; s<KMEANS_SHAPES; s += support_stride()> 1 ? 5 : 1)
        for (int form = 0; form < 3; form++)
            for (size_t n = 0; n < 3; n++) {
                struct kmeans_data data = kmeans_shape(s, form == 2 ? GEMM_F64 : GEMM_F32);
                data.bytes = form == 1 && data.values[0] < 256;
                assert_steps(&compute, &data, names[n]);
                kmeans_data_free(&data);
            }
    compute_close(&compute);
}

struct history {
    uint64_t changed[KMEANS_ITERATIONS];
    double inertia[KMEANS_ITERATIONS];
    size_t count;
    char engine[160];
};

static void on_start(void *self, const char *engine) {
    snprintf(((struct history *)self)->engine, sizeof((struct history *)self)->engine, "%s", engine);
}

static void on_iteration(void *self, const struct kmeans_record *record) {
    struct history *history = self;
    history->changed[history->count] = record->counts.changed;
    history->inertia[history->count++] = record->inertia;
}

/* Without ties a step in float64 has the labels of engine eager, and so all its numbers; clusters that become
   empty are filled likewise. */
static void steps_follow_the_engine(void **state) {
    (void)state;
    struct compute compute;
    open_stepping(&compute);
    for (int empty = EMPTY_KEEP; empty <= EMPTY_SPLIT; empty++)
        for (int bytes = 0; bytes < 2; bytes++) {
            struct kmeans_data data = kmeans_lattice(700, 40, 12, GEMM_F64, 200, 0, 5);
            for (size_t i = 40; i < 120; i++)
                data.values[i] = data.values[i % 40]; /* equal initial centres */
            data.bytes = bytes;
            struct kmeans_options options = kmeans_defaults(&data);
            options.empty = (enum kmeans_empty)empty;
            struct history want = {0};
            struct kmeans_result eager, result;
            const struct kmeans_observer first = {&want, on_start, on_iteration};
            assert_status(kmeans_bench_run(&compute, &data, &options, &first, &eager), STATUS_OK);
            for (size_t n = 0; n < 3; n++) {
                struct history got = {0};
                const struct kmeans_observer observer = {&got, on_start, on_iteration};
                options = stepped(&data, names[n]);
                options.empty = (enum kmeans_empty)empty;
                assert_status(kmeans_bench_run(&compute, &data, &options, &observer, &result), STATUS_OK);
                assert_memory_equal(result.label, eager.label, data.count * sizeof *result.label);
                assert_memory_equal(result.state.values, eager.state.values, 12 * 40 * sizeof(double));
                assert_int_equal(got.count, want.count);
                assert_memory_equal(got.changed, want.changed, sizeof got.changed);
                assert_memory_equal(got.inertia, want.inertia, sizeof got.inertia);
                assert_int_equal(strncmp(got.engine, names[n], strlen(names[n])), 0);
                kmeans_free(&result);
            }
            kmeans_free(&eager);
            kmeans_data_free(&data);
        }
    compute_close(&compute);
}

/* Labels that rounding does not explain end the run before its first iteration. */
static void wrong_steps_are_refused(void **state) {
    (void)state;
    struct compute compute;
    open_stepping(&compute);
    struct kmeans_data data = kmeans_lattice(500, 5, 9, GEMM_F32, 99, 0, 4);
    static const enum fault faults[] = {NO_LAST_CENTRE, NO_LAST_ROW};
    for (size_t i = 0; i < 2; i++)
        for (size_t n = 0; n < 3; n++) {
            const struct kmeans_options options = stepped(&data, names[n]);
            struct kmeans_result result;
            fault = faults[i];
            assert_status(kmeans_bench_run(&compute, &data, &options, NULL, &result), STATUS_VERIFY_FAILED);
            assert_says(status_message(), "more than rounding explains");
            assert_says(status_message(), names[n]);
            kmeans_free(&result);
        }
    fault = RIGHT;
    const struct kmeans_options options = stepped(&data, "atomics");
    struct kmeans_result result;
    assert_status(kmeans_bench_run(&compute, &data, &options, NULL, &result), STATUS_UNAVAILABLE);
    kmeans_free(&result);
    kmeans_data_free(&data);
    compute_close(&compute);
}

/* --- the check of a race --- */

static void open_race(struct kmeans_race *race) {
    struct config config;
    support_config(&config, "clusters=7 iterations=4 dtype=f64 data=uniform:64KB,3");
    assert_status(kmeans_race_open(race, &config, NULL), STATUS_OK);
    stepping = *race->home.device.driver;
    stepping.kmeans_steps = &steps;
}

static void wrong_sums_get_no_time(void **state) {
    (void)state;
    struct kmeans_race race;
    struct kmeans_time time;
    struct compute compute;
    open_race(&race);
    open_stepping(&compute);
    const struct kmeans_variant variant = {
        .name = "partial", .backend = "serial", .step = "partial", .updates = true, .block = 64};
    static const enum fault wrong[] = {TWICE_IN_SUMS, NO_COUNT, NO_LAST_CENTRE, NO_LAST_ROW};
    kmeans_race_run_on(&race, &variant, &compute, &time);
    assert_int_equal(time.outcome, OUTCOME_RIGHT);
    assert_int_equal(time.loops, 4);
    assert_true(time.seconds.min > 0 && time.seconds.min <= time.seconds.mean &&
                time.seconds.mean <= time.seconds.max);
    assert_near(time.gpu + time.cpu + time.transfers, time.seconds.mean, 1e-9);
    for (size_t i = 0; i < 4; i++) {
        fault = wrong[i];
        kmeans_race_run_on(&race, &variant, &compute, &time);
        assert_int_equal(time.outcome, OUTCOME_WRONG);
        assert_true(time.reason[0] != '\0');
    }
    fault = RIGHT;
    kmeans_race_close(&race);
    compute_close(&compute);
}

/* --- the command --- */

static void bench_measures_the_host(void **state) {
    (void)state;
    const char *log = support_path("steps.jsonl");
    assert_int_equal(RUN("bench kmeans --size 128KB --features 5 --clusters 6 --iterations 3 --backends "
                         "serial,tuned --log %s",
                         log),
                     0);
    assert_says(output, "3,276 points of 5 features, f64, K = 6, 3 loops");
    assert_says(output, "nearest       tuned");
    cJSON *line = NULL;
    assert_int_equal(support_log(log, "kmeans_step", 0, &line), 4 + 5); /* the kernels are left out */
    assert_says(cJSON_GetStringValue(cJSON_GetObjectItem(line, "left_out")),
                "--backends lists none of a GPU");
    cJSON_Delete(line);
    assert_int_equal(
        RUN("bench kmeans --size 128KB --features 5 --clusters 6 --iterations 3 --dtype f32 --steps "
            "serial --log %s",
            log),
        0);
    assert_int_equal(support_log(log, "kmeans_step", 0, &line), 1);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(line, "verified")));
    assert_int_equal((int)support_number(line, "threads"), 1);
    assert_int_equal((int)support_number(line, "loops"), 3);
    assert_true(support_number(line, "speedup") == 1);
    assert_near(support_number(line, "gflops"),
                1e-9 * support_number(line, "flops") / support_number(line, "mean_seconds"), 1e-9);
    const cJSON *time = cJSON_GetObjectItem(line, "time");
    assert_near(support_number(time, "cpu"), support_number(line, "mean_seconds"), 1e-9);
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "peak", 0, &line), 1);
    assert_true(support_number(line, "f64_gflops") > 0);
    cJSON_Delete(line);
}

static void wrong_plugin_gets_no_time(void **state) {
    (void)state;
    const char *log = support_path("wrong.jsonl");
    assert_int_equal(
        RUN("bench kmeans --size 128KB --features 5 --clusters 20 --iterations 3 --steps gemm --log %s "
            "--backends %s",
            log, support_plugin("plugins/missing-last-column.so")),
        5);
    cJSON *line = NULL;
    assert_int_equal(support_log(log, "kmeans_step", 0, &line), 1);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(line, "verified")));
    assert_null(cJSON_GetObjectItem(line, "mean_seconds"));
    cJSON_Delete(line);
}

static void wrong_use_is_named(void **state) {
    (void)state;
    static const struct support_refusal wrong[] = {
        {"--size 3MB --features 0", 2, "--features must be"},
        {"--size 3", 2, "must be uniform:SIZE,FEATURES"},
        {"--steps fast", 2, "--steps has no step 'fast'"},
        {"--block-sizes 31", 2, "--block-sizes must be from 32 to 1024"},
        {"--iterations 0", 2, "--iterations must be at least 1"},
        {"--size 1KB --clusters 500", 2, "500 clusters need as many points"},
        {"--backends none-such", 4, "no backend is called"},
        {"--steps nearest --backends serial", 2, "leave nothing to measure"}};
    support_refuses("bench kmeans", wrong, sizeof wrong / sizeof *wrong);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_iterations),    cmocka_unit_test(steps_follow_the_engine),
        cmocka_unit_test(wrong_steps_are_refused), cmocka_unit_test(wrong_sums_get_no_time),
        cmocka_unit_test(bench_measures_the_host), cmocka_unit_test(wrong_plugin_gets_no_time),
        cmocka_unit_test(wrong_use_is_named),
    };
    return cmocka_run_group_tests_name("steps of k-means", tests, support_make_data, NULL);
}
