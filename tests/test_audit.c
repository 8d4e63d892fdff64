/* Wrong backends that pass for right: each kind of mistake is found by the verification, by the shapes of the
   run, by the agreement, or by the audit of the run itself. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAVE_OPENMP
#    include <omp.h>
#endif

#include "src/backend/audit.h"
#include "src/backend/core_use.h"
#include "src/backend/registry.h"
#include "src/backend/surroundings.h"
#include "src/backend/verify.h"
#include "src/bench/comparison.h"

/* Where a mistake was found; the exit status of a child. */
enum stage { NOWHERE, IN_VERIFICATION, IN_SHAPES, IN_AGREEMENT, IN_AUDIT, ERROR };
static const char *const stages[] = {"nowhere", "verification", "shapes", "agreement", "audit", "error"};

static enum stage stage_of(enum status status, enum stage stage) {
    if (status == STATUS_OK) return NOWHERE;
    print_message("    %s\n", status_message());
    return status == STATUS_VERIFY_FAILED ? stage : ERROR;
}

static enum status verify_some(const struct gemm_backend *backend, const struct config *config) {
    struct compute compute;
    const struct compute_options options = config_compute(config);
    enum status status = compute_open(&compute, backend, &options);
    for (size_t i = 0; i < verify_case_count() && !status; i += 7) {
        const struct verify_case test = verify_case_at(i);
        if (test.m * test.n * test.k < 1 << 18) status = verify_gemm(&compute, &test, NULL);
    }
    if (!status) status = verify_steady(&compute);
    if (compute.backend) compute_close(&compute);
    return status;
}

struct recipe {
    bool digits; /* the synthetic digits; else the built-in images */
    const char *settings;
};

/* A plug-in, and what it is trained on: its mistakes show in one of the recipes. */
struct plugin {
    const char *file;
    size_t kinds;
    bool verified; /* before the first recipe, as every plug-in is */
    struct recipe recipes[3];
};

static const struct plugin subtle = {
    .file = "plugins/subtle/kinds.so",
    .kinds = 36,
    .verified = true,
    .recipes = {
        {false, "audit=all layers=42-16-4 batch-size=32 epochs=120 lr=0.05"},
        {true, "audit=all layers=784-8-10 batch-size=1100 epochs=1 dropout=0.3"},
        {false, "audit=all layers=42-16-4 batch-size=32 epochs=2 lr=0.05 adversarial=0.1"},
    }};

static const struct plugin steps = {.file = "plugins/subtle/steps.so",
                                    .kinds = 22,
                                    .recipes = {
                                        {false, "audit=all engine=fused layers=42-16-4 batch-size=7 "
                                                "epochs=15 lr=0.05 momentum=0.9 weight-decay=1e-3 "
                                                "schedule=cosine"},
                                        {false, "audit=all engine=fused layers=42-16-4 batch-size=1 "
                                                "epochs=4 lr=0.005"},
                                    }};

/* Does what `compare` does. */
static enum stage find(const struct plugin *plugin, const char *kind, const struct recipe *recipe,
                       const struct dataset_pair *data) {
    char settings[1024];
    const struct gemm_backend *backend;
    struct config config;
    struct agreement agreement;
    struct drift drift;
    struct run_result result;
    const struct run_limits limits = {0};
    snprintf(settings, sizeof settings, "backend=%s:kind=%s threads=1 %s", support_plugin(plugin->file), kind,
             recipe->settings);
    support_config(&config, settings);
    enum stage stage = stage_of(registry_find(config.backend, &backend), ERROR);
    if (!stage && plugin->verified && !recipe->digits)
        stage = stage_of(verify_some(backend, &config), IN_VERIFICATION);
    if (!stage)
        stage = stage_of(comparison_verify(&config, backend, data, PROBLEM_INTEGERS, true), IN_SHAPES);
    agreement_plan(&agreement, &config, data);
    if (!stage) stage = stage_of(agreement_check(&agreement, &config, backend, data, &drift), IN_AGREEMENT);
    if (!stage) stage = stage_of(run_training(&config, backend, data, &limits, &result), IN_AUDIT);
    return stage;
}

static struct dataset_pair digits;

static enum stage run_recipe(const struct plugin *plugin, const char *kind, const struct recipe *recipe) {
    struct dataset_pair builtin;
    if (recipe->digits) return find(plugin, kind, recipe, &digits);
    support_builtin_data(&builtin);
    const enum stage stage = find(plugin, kind, recipe, &builtin);
    dataset_pair_free(&builtin);
    return stage;
}

/* In a process of its own, because some kinds change theirs. This one must have started no threads: a child
   of libgomp's threads hangs. */
static enum stage find_apart(const struct plugin *plugin, const char *kind) {
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        enum stage stage = NOWHERE;
        for (const struct recipe *recipe = plugin->recipes;
             recipe < plugin->recipes + 3 && recipe->settings && !stage; recipe++)
            stage = run_recipe(plugin, kind, recipe);
        fflush(stdout);
        _exit((int)stage);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? (enum stage)WEXITSTATUS(status) : ERROR;
}

static void expect_all_found(const struct plugin *plugin) {
    const struct gemm_backend *backend;
    size_t missed = 0, kinds = 0, at = 0;
    const size_t every = support_stride() > 1 ? 4 : 1;
    assert_status(registry_find(support_plugin(plugin->file), &backend), STATUS_OK);
    char *names = strdup(backend->options[0].values);
    assert_non_null(names);
    for (char *kind = strtok(names, "|"); kind; kind = strtok(NULL, "|")) {
        const bool right = strcmp(kind, "none") == 0;
        kinds += !right;
        if (at++ % every) continue;
        const enum stage stage = find_apart(plugin, kind);
        print_message("  %-20s %s\n", kind, stages[stage]);
        missed += right ? stage != NOWHERE : stage == NOWHERE || stage == ERROR;
    }
    free(names);
    assert_int_equal(kinds, plugin->kinds);
    assert_int_equal(missed, 0);
}

/* The digits are drawn once for all children, by one thread: see find_apart. */
static void wrong_products_are_found(void **state) {
    (void)state;
#ifdef HAVE_OPENMP
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
#endif
    assert_status(dataset_load(&digits, "synthetic", (struct dataset_options){0}), STATUS_OK);
#ifdef HAVE_OPENMP
    omp_set_num_threads(threads);
#endif
    expect_all_found(&subtle);
    dataset_pair_free(&digits);
}

static void wrong_steps_are_found(void **state) {
    (void)state;
    expect_all_found(&steps);
}

/* The sample may miss each call that leaves one: the epoch shows it. */
static void left_threads_are_found(void **state) {
    (void)state;
    struct dataset_pair data;
    struct config config;
    struct run_result result;
    const struct run_limits limits = {0};
    const struct gemm_backend *backend;
    char settings[512];
    support_builtin_data(&data);
    snprintf(settings, sizeof settings,
             "backend=%s:kind=leaves_threads threads=1 layers=42-16-4 batch-size=32 epochs=120 lr=0.05",
             support_plugin("plugins/subtle/kinds.so"));
    support_config(&config, settings);
    assert_status(registry_find(config.backend, &backend), STATUS_OK);
    assert_status(run_training(&config, backend, &data, &limits, &result), STATUS_VERIFY_FAILED);
    assert_says(status_message(), "threads and leaves them");
    dataset_pair_free(&data);
}

/* --- single calls --- */

extern const struct gemm_backend gemm_tuned;

static enum gemm_status off_by_a_hundredth(void *context, const struct gemm_call *call) {
    const enum gemm_status status = gemm_tuned.gemm(context, call);
    for (size_t i = 0; i < call->m * call->n; i++) ((float *)call->c)[i] *= 1.01F;
    return status;
}

/* No product with a random vector is possible here: only the sampled rows and columns show it. */
static void wrong_epilogues_are_found(void **state) {
    (void)state;
    enum { SIZE = 8 };
    float a[SIZE * SIZE], b[SIZE * SIZE], c[SIZE * SIZE], bias[SIZE];
    for (int i = 0; i < SIZE * SIZE; i++) a[i] = b[i] = bias[i % SIZE] = (float)(1 + i % 5);
    const struct gemm_epilogue epilogue = {.bias = bias, .activation = ACTIVATION_NONE};
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = GEMM_NN,
                                   .m = SIZE,
                                   .n = SIZE,
                                   .k = SIZE,
                                   .alpha = 1,
                                   .a = a,
                                   .lda = SIZE,
                                   .b = b,
                                   .ldb = SIZE,
                                   .c = c,
                                   .ldc = SIZE,
                                   .epilogue = &epilogue};
    for (int wrong = 0; wrong < 2; wrong++) {
        struct gemm_backend backend = gemm_tuned;
        struct compute compute;
        struct audit audit;
        if (wrong) backend.gemm = off_by_a_hundredth;
        assert_status(compute_open(&compute, &backend, &(struct compute_options){.threads = 1}), STATUS_OK);
        audit_start(&audit, AUDIT_ALL);
        compute.audit = &audit;
        assert_status(compute_gemm(&compute, &call), wrong ? STATUS_VERIFY_FAILED : STATUS_OK);
        compute_close(&compute);
    }
}

/* Sums and products below the normal numbers, as in a network whose units are all saturated or dead. */
static void tiny_results_are_right(void **state) {
    (void)state;
    enum { M = 9, N = 7, K = 40 };
    float a[K * M], b[K * N], c[M * N];
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = GEMM_TN,
                                   .m = M,
                                   .n = N,
                                   .k = K,
                                   .alpha = 1,
                                   .a = a,
                                   .lda = M,
                                   .b = b,
                                   .ldb = N,
                                   .c = c,
                                   .ldc = N};
    struct compute compute;
    struct audit audit;
    support_open(&compute, "tuned", 1);
    audit_start(&audit, AUDIT_ALL);
    compute.audit = &audit;
    for (int scale = -60; scale >= -80; scale--) {
        for (int i = 0; i < K * M; i++) a[i] = ldexpf((float)(i * 37 % 101 - 50) / 51, scale);
        for (int i = 0; i < K * N; i++) b[i] = ldexpf((float)(i * 53 % 103 - 51) / 52, scale);
        assert_status(compute_gemm(&compute, &call), STATUS_OK);
    }
    compute_close(&compute);
}

/* --- cores and priorities --- */

/* Raising a priority needs rights that the tests may lack. */
static void raised_priorities_are_found(void **state) {
    (void)state;
    struct surroundings before, after;
    surroundings_observe(&before);
    surroundings_observe(&after);
    assert_null(surroundings_changed(&before, &after));
    assert_true(before.best_nice <= before.nice && before.threads >= 1);
    after.best_nice--;
    assert_says(surroundings_changed(&before, &after), "it raised the priority of a thread");
    after.best_nice += 2;
    assert_null(surroundings_changed(&before, &after));
    after.real_time = true;
    assert_says(surroundings_changed(&before, &after), "it raised the priority of a thread");
}

static void more_cores_than_threads_are_found(void **state) {
    (void)state;
    struct gemm_backend backend = gemm_tuned;
    struct compute compute = {.backend = &backend, .threads = 1};
    struct core_use use = {0};
    core_use_begin(&use);
    for (const double start = clock_seconds(); clock_seconds() < start + 0.02;) continue;
    core_use_end(&use);
    assert_true(use.cpu > 0 && use.wall >= 0.02);
    assert_status(core_use_check(&use, &compute), STATUS_OK); /* this thread */
    assert_status(core_use_check(&(struct core_use){.cpu = 1.3, .wall = 1}, &compute), STATUS_VERIFY_FAILED);
    compute.threads = 2;
    assert_status(core_use_check(&(struct core_use){.cpu = 4.2, .wall = 1}, &compute), STATUS_OK);
    assert_status(core_use_check(&(struct core_use){.cpu = 4.3, .wall = 1}, &compute), STATUS_VERIFY_FAILED);
    assert_status(core_use_check_clock(), STATUS_OK);
    assert_true(use.clock_off < 0.001);
    assert_status(core_use_check(&(struct core_use){.wall = 1, .clock_off = 0.1}, &compute),
                  STATUS_VERIFY_FAILED);
    assert_says(status_message(), "its clock is wrong");
    backend.device = GEMM_ON_CUDA;
    assert_status(core_use_check(&(struct core_use){.cpu = 4.3, .wall = 1}, &compute), STATUS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_results_are_right),
        cmocka_unit_test(more_cores_than_threads_are_found),
        cmocka_unit_test(raised_priorities_are_found),
        cmocka_unit_test(wrong_products_are_found),
        cmocka_unit_test(wrong_steps_are_found),
        cmocka_unit_test(wrong_epilogues_are_found), /* the last two: they start threads */
        cmocka_unit_test(left_threads_are_found),
    };
    return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
