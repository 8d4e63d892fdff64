/* Training: the loss curve against an independent program, one seed on every backend, resume, stop, NaN. */
#include "tests/curves.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/activation.h"
#include "src/backend/registry.h"

static void open_bench(struct bench *bench, const char *backend, int threads, const char *settings,
                       const struct checkpoint *resume) {
    char all[700];
    snprintf(all, sizeof all, "backend=%s threads=%d %s", backend, threads, settings);
    bench_open(bench, all, resume);
}

/* --- the loss curve --- */

static void loss_curve_of_serial_f64(void **state) {
    (void)state;
    for (size_t curve = 0; curve < curves_count(); curve++) curves_check(curve, "backend=serial threads=2");
    for (int a = ACTIVATION_NONE + 1; a < ACTIVATION_COUNT; a++)
        assert_true(curves_have(activation_name((enum activation)a)));
}

static void loss_curves_of_every_backend(void **state) {
    (void)state;
    for (size_t entry = 0; entry < registry_count(); entry++) {
        if (!support_on_host(registry_at(entry))) continue;
        char why[256], how[64];
        if (!registry_usable(registry_at(entry), why, sizeof why)) {
            print_message("%s skipped: %s\n", registry_at(entry)->name, why);
            continue;
        }
        snprintf(how, sizeof how, "backend=%s threads=2", registry_at(entry)->name);
        for (size_t curve = 0; curve < curves_count(); curve++) {
            curves_check(curve, how);
            const struct lockstep_seen seen = curves_check_steps(curve, how, &lockstep_float32);
            assert_true(seen.discontinuous <= 2);
        }
    }
}

/* With bfloat16 each step is near that of float64 from the same weights, and not equal to it. */
static void steps_in_bf16_stay_near_float64(void **state) {
    (void)state;
    static const char *const hows[] = {"backend=serial threads=1 precision=bf16",
                                       "backend=tuned threads=2 precision=bf16"};
    struct lockstep_bound bound = lockstep_rounded(0x1p-8);
    bound.loss = 1e-2;
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++) {
        for (size_t curve = 0; curve < curves_count(); curve++) {
            const struct lockstep_seen seen = curves_check_steps(curve, hows[h], &bound);
            assert_true(seen.update > 1.0 / 32);
        }
        struct bench rounded;
        struct run_summary summary;
        char settings[128];
        snprintf(settings, sizeof settings, "%s layers=42-30-4 batch-size=16 epochs=40", hows[h]);
        bench_open(&rounded, settings, NULL);
        assert_int_equal(rounded.trainer.mlp.dtype, GEMM_F32);
        assert_int_equal(rounded.trainer.mlp.activation_dtype, GEMM_BF16);
        assert_status(bench_run(&rounded, &summary), STATUS_OK);
        assert_true(rounded.last.train_loss < 1);
        bench_close(&rounded);
    }
}

/* --- one seed --- */

static void threads_change_no_bit(void **state) {
    (void)state;
    static const char settings[] = "layers=42-70-65-4 batch-size=16 epochs=5 momentum=0.9 activation=gelu";
    struct bench serial, openmp;
    struct run_summary a, b;
    open_bench(&serial, "serial", 1, settings, NULL);
    assert_status(bench_run(&serial, &a), STATUS_OK);
    for (int threads = 1; threads < 5; threads++) {
        open_bench(&openmp, "openmp", threads, settings, NULL);
        assert_status(bench_run(&openmp, &b), STATUS_OK);
        assert_memory_equal(serial.trainer.mlp.parameters, openmp.trainer.mlp.parameters,
                            serial.trainer.mlp.parameter_elements * sizeof(float));
        assert_true(serial.last.train_loss == openmp.last.train_loss);
        bench_close(&openmp);
    }
    bench_close(&serial);
}

static void shuffle_depends_on_seed_and_epoch(void **state) {
    (void)state;
    struct bench a, b;
    struct run_summary summary;
    open_bench(&a, "serial", 1, "layers=42-9-4 batch-size=16 epochs=2 log-steps=8 seed=1", NULL);
    open_bench(&b, "serial", 1, "layers=42-9-4 batch-size=16 epochs=2 log-steps=8 seed=2", NULL);
    uint32_t first[50];
    memcpy(first, a.trainer.feed.order, sizeof first);
    assert_true(memcmp(first, b.trainer.feed.order, sizeof first) != 0);
    assert_status(bench_run(&a, &summary), STATUS_OK);
    assert_true(memcmp(first, a.trainer.feed.order, sizeof first) != 0); /* now of the second epoch */
    bench_close(&a);
    bench_close(&b);
}

static void it_learns(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    open_bench(&bench, "serial", 1, "layers=42-32-4 batch-size=10 epochs=60", NULL);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    assert_int_equal(bench.epochs, 60);
    assert_int_equal(bench.last.train_images, 50);
    assert_true(bench.last.train_correct >= 45);
    assert_true(summary.test.total == 50 && summary.test.correct >= 45); /* the training images again */
    assert_true(summary.median_epoch_seconds > 0);
    bench_close(&bench);
}

/* The parts of the profile against a separate clock; each is long beside a time slice of another process. */
#ifdef SANITIZED
enum { LONG_EPOCHS = 20 }; /* which make a step ten times as long */
#else
enum { LONG_EPOCHS = 200 };
#endif

static void the_parts_add_up(void **state) {
    (void)state;
    char settings[80];
    struct bench bench;
    struct run_summary summary;
    const double start = clock_seconds();
    snprintf(settings, sizeof settings, "layers=42-600-300-4 batch-size=10 epochs=%d", LONG_EPOCHS);
    open_bench(&bench, "serial", 1, settings, NULL);
    usleep(100000); /* the caller's work until the training is start-up, too */
    const double opened = clock_seconds();
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    const double wall = clock_seconds() - start;
    const double *seconds = summary.time.seconds;
    assert_near(profile_total(&summary.time) / wall, 1, 0.02);
    assert_near(seconds[PART_STARTUP] / (opened - start), 1, 0.1);
    assert_true(seconds[PART_EVALUATION] > 0 && seconds[PART_GEMM_NN] > 0 && seconds[PART_GEMM_TN] > 0);
    assert_true(seconds[PART_GEMM_NT] > 0 && seconds[PART_BATCH] > 0 && seconds[PART_OPTIMIZER] > 0);
    assert_true(summary.time.gemm[0][0].calls == 5 * LONG_EPOCHS && summary.time.gemm[2][0].calls == 0);
    /* epochs and evaluations take almost all of the run */
    const double run = wall - (opened - start);
    assert_near((bench.seconds + seconds[PART_EVALUATION]) / run, 1, 0.1);
    assert_true(seconds[PART_EVALUATION] < 0.5 * run);
    bench_close(&bench);
}

static void validation_split_is_held_out(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    open_bench(&bench, "serial", 1, "layers=42-9-4 batch-size=16 epochs=2 validation=20", NULL);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    assert_true(bench.last.on_validation && bench.last.evaluation.total == 20 &&
                bench.last.train_images == 30);
    assert_true(summary.test.total == 50);
    for (size_t i = 0; i < 30; i++) assert_true(bench.trainer.feed.order[i] < 30);
    bench_close(&bench);
}

static void batch_larger_than_the_data_is_one_batch(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    open_bench(&bench, "serial", 1, "layers=42-9-4 batch-size=1000000 epochs=2 log-steps=9", NULL);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    assert_true(bench.trainer.steps == 1 && bench.steps == 2 && bench.last.train_images == 50);
    bench_close(&bench);
}

/* --- stop and resume --- */

static void resume_equals_uninterrupted(void **state) {
    (void)state;
    static const char recipe[] =
        "layers=42-30-4 batch-size=16 epochs=6 momentum=0.9 lr=0.05 schedule=cosine log-steps=24 "
        "engine=eager"; /* can stop after any step; test_fused.c tests parts of an epoch */
    static const char *const backends[] = {"serial", "openmp", "tuned", "openblas"};
    char path[256], settings[512];
    snprintf(path, sizeof path, "%s", support_path("resume.safetensors"));
    snprintf(settings, sizeof settings, "%s save=%s", recipe, path);
    const struct gemm_backend *found;
    for (size_t b = 0; b < 4 && registry_find(backends[b], &found) == STATUS_OK; b++)
        for (size_t stop = 1; stop < 24; stop += 3) { /* within epochs and at their ends */
            struct bench whole, first, second;
            struct run_summary summary;
            struct checkpoint checkpoint;
            open_bench(&whole, backends[b], 2, recipe, NULL);
            assert_status(bench_run(&whole, &summary), STATUS_OK);

            open_bench(&first, backends[b], 2, settings, NULL);
            first.stop_after = stop;
            assert_status(bench_run(&first, &summary), STATUS_INTERRUPTED);
            assert_true(summary.interrupted);

            assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
            open_bench(&second, backends[b], 2, recipe, &checkpoint);
            checkpoint_close(&checkpoint);
            assert_status(bench_run(&second, &summary), STATUS_OK);

            const size_t bytes = whole.trainer.mlp.parameter_elements * sizeof(float);
            assert_memory_equal(whole.trainer.mlp.parameters, second.trainer.mlp.parameters, bytes);
            assert_memory_equal(whole.trainer.optimizer.update.moment1,
                                second.trainer.optimizer.update.moment1, bytes);
            assert_memory_equal(whole.losses, first.losses, stop * sizeof(double));
            assert_memory_equal(whole.losses + stop, second.losses + stop, (24 - stop) * sizeof(double));
            assert_true(whole.last.train_loss == second.last.train_loss);
            assert_int_equal(whole.last.train_correct, second.last.train_correct);
            bench_close(&whole);
            bench_close(&first);
            bench_close(&second);
        }
}

/* Within an epoch, a run resumes only with the same batches. */
static void resume_within_an_epoch_needs_its_order(void **state) {
    (void)state;
    static const char recipe[] = "layers=42-9-4 epochs=6", *const others[] = {"batch-size=8",
                                                                              "batch-size=10 seed=2",
                                                                              "batch-size=10 shuffle=off",
                                                                              "batch-size=10 validation=10"};
    struct bench bench;
    struct run_summary summary;
    struct checkpoint checkpoint;
    char settings[512];
    const char *path = support_path("order.safetensors");
    snprintf(settings, sizeof settings, "%s batch-size=10 save=%s", recipe, path);
    open_bench(&bench, "serial", 1, settings, NULL);
    bench.stop_after = 7;
    assert_status(bench_run(&bench, &summary), STATUS_INTERRUPTED);
    bench_close(&bench);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
    for (size_t i = 0; i < 4; i++) {
        memset(&bench, 0, sizeof bench);
        snprintf(settings, sizeof settings, "%s %s", recipe, others[i]);
        support_config(&bench.config, settings);
        support_open(&bench.compute, "serial", 1);
        support_builtin_data(&bench.data);
        assert_status(trainer_open(&bench.trainer, &bench.compute, &bench.config, &bench.data, &checkpoint),
                      STATUS_BAD_DATA);
        bench_close(&bench);
    }
    open_bench(&bench, "serial", 1, "layers=42-9-4 epochs=6 batch-size=10 lr=0.01",
               &checkpoint); /* a new learning rate is allowed */
    bench_close(&bench);
    checkpoint_close(&checkpoint);
}

static void save_every_leaves_usable_files(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    struct checkpoint checkpoint;
    char settings[512];
    const char *path = support_path("every.safetensors");
    snprintf(settings, sizeof settings, "layers=42-9-4 batch-size=16 epochs=3 save=%s save-every=2", path);
    open_bench(&bench, "serial", 1, settings, NULL);
    bench.stop_after = 9; /* in the third epoch, after the save of the second; exit saves again */
    assert_status(bench_run(&bench, &summary), STATUS_INTERRUPTED);
    bench_close(&bench);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
    assert_string_equal(safetensors_metadata(&checkpoint.file, "tessera.epoch"), "2");
    assert_string_equal(safetensors_metadata(&checkpoint.file, "tessera.step"), "1");
    checkpoint_close(&checkpoint);
}

/* --- a loss that is not finite --- */

static void divergence_is_named(void **state) {
    (void)state;
    for (size_t entry = 0; entry < registry_count(); entry++) {
        if (!support_on_host(registry_at(entry))) continue;
        char why[256];
        if (!registry_usable(registry_at(entry), why, sizeof why)) continue;
        struct bench bench;
        struct run_summary summary;
        open_bench(&bench, registry_at(entry)->name, 2,
                   "layers=42-9-4 batch-size=16 epochs=99 lr=1e3 weight-decay=100", NULL);
        assert_status(bench_run(&bench, &summary), STATUS_FAILED);
        assert_says(status_message(), "the loss is not finite at epoch ");
        assert_says(status_message(), ", step ");
        assert_says(status_message(), "layer ");
        bench_close(&bench);
    }
}

static void the_bad_layer_is_found(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    open_bench(&bench, "serial", 1, "layers=42-9-8-4 batch-size=16 epochs=2", NULL);
    float *weight = bench.trainer.mlp.layer[1].weight;
    float kept[72];
    memcpy(kept, weight, sizeof kept);
    weight[3] = NAN;
    assert_status(bench_run(&bench, &summary), STATUS_FAILED);
    assert_says(status_message(),
                "epoch 1, step 1; it starts in layer 2 (9 to 8), whose weights are not finite");
    /* the bad step updated nothing */
    weight[3] = kept[3];
    assert_memory_equal(kept, weight, sizeof kept);
    bench_close(&bench);
    open_bench(&bench, "serial", 1, "layers=42-9-8-4 batch-size=16 epochs=2", NULL);
    for (int i = 0; i < 72; i++) ((float *)bench.trainer.mlp.layer[1].weight)[i] = 3e38f;
    for (int i = 0; i < 42 * 9; i++) ((float *)bench.trainer.mlp.layer[0].weight)[i] = 10;
    assert_status(bench_run(&bench, &summary), STATUS_FAILED);
    assert_says(status_message(), "layer 2 (9 to 8), whose weights are finite but whose output is not");
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_curve_of_serial_f64),
        cmocka_unit_test(loss_curves_of_every_backend),
        cmocka_unit_test(steps_in_bf16_stay_near_float64),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(shuffle_depends_on_seed_and_epoch),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(the_parts_add_up),
        cmocka_unit_test(validation_split_is_held_out),
        cmocka_unit_test(batch_larger_than_the_data_is_one_batch),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(resume_within_an_epoch_needs_its_order),
        cmocka_unit_test(save_every_leaves_usable_files),
        cmocka_unit_test(divergence_is_named),
        cmocka_unit_test(the_bad_layer_is_found),
    };
    return cmocka_run_group_tests_name("training", tests, NULL, NULL);
}
