/* Training with every option of a recipe: resume, threads, averages, bad steps, mistakes. */
#include "tests/training_bench.h"

#include <math.h>
#include <stdlib.h>

#include "src/nn/evaluate.h"

static const char *const recipes[] = {
    "layers=42-30-20-4 batch-size=16 epochs=6 validation=10 patience=100 optimizer=adamw lr=0.01 "
    "weight-decay=0.1 "
    "clip-norm=0.8 max-norm=1.5 ema-decay=0.9 dropout=0.3 input-dropout=0.1 label-smoothing=0.1 "
    "adversarial=0.1 schedule=cosine "
    "warmup-epochs=1.5 log-steps=18",
    "layers=42-30-20-4 batch-size=16 epochs=6 validation=10 optimizer=sgd momentum=0.9 nesterov=on lr=0.1 "
    "schedule=one-cycle ema-decay=0.9 dropout=0.3 adversarial=0.05 activation=tanh clip-norm=1 log-steps=18",
    "layers=42-30-20-4 batch-size=16 epochs=6 validation=10 optimizer=adam lr=0.01 weight-decay=0.01 "
    "max-norm=2 "
    "ema-decay=0.5 input-dropout=0.2 label-smoothing=0.2 adversarial=0.2 precision=bf16 log-steps=18",
};
enum { RECIPES = sizeof recipes / sizeof *recipes, STEPS = 18 };

static void open_recipe(struct bench *bench, size_t recipe, const char *how,
                        const struct checkpoint *resume) {
    char settings[640];
    snprintf(settings, sizeof settings, "engine=eager %s %s", recipes[recipe], how);
    bench_open(bench, settings, resume);
}

static void resume_equals_uninterrupted(void **state) {
    (void)state;
    static const char *const backends[] = {"backend=serial threads=1", "backend=tuned threads=2"};
    char path[256], how[512];
    snprintf(path, sizeof path, "%s", support_path("recipe.safetensors"));
    for (size_t r = 0; r < RECIPES; r++)
        for (size_t b = 0; b < 2; b++)
            for (size_t stop = 1; stop < STEPS;
                 stop += (support_stride() > 1) ? 10 : 4) { /* within epochs and at their ends */
                struct bench whole, first, second;
                struct run_summary summary, resumed;
                struct checkpoint checkpoint;
                open_recipe(&whole, r, backends[b], NULL);
                assert_status(bench_run(&whole, &summary), STATUS_OK);
                snprintf(how, sizeof how, "%s save=%s", backends[b], path);
                open_recipe(&first, r, how, NULL);
                first.stop_after = stop;
                assert_status(bench_run(&first, &resumed), STATUS_INTERRUPTED);
                assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
                open_recipe(&second, r, backends[b], &checkpoint);
                checkpoint_close(&checkpoint);
                assert_status(bench_run(&second, &resumed), STATUS_OK);

                bench_assert_same_network(&whole.trainer.mlp, &second.trainer.mlp);
                assert_memory_equal(&whole.trainer.state, &second.trainer.state, sizeof whole.trainer.state);
                assert_memory_equal(whole.losses, first.losses, stop * sizeof(double));
                assert_memory_equal(whole.losses + stop, second.losses + stop,
                                    (STEPS - stop) * sizeof(double));
                assert_memory_equal(&summary.average, &resumed.average, sizeof summary.average);
                assert_true(summary.average.total > 0);
                assert_int_equal(summary.best_epoch, resumed.best_epoch);
                bench_close(&whole);
                bench_close(&first);
                bench_close(&second);
            }
}

static void threads_change_no_bit(void **state) {
    (void)state;
    for (size_t r = 0; r < RECIPES; r++) {
        struct bench one, more;
        struct run_summary summary;
        open_recipe(&one, r, "backend=serial threads=1", NULL);
        assert_status(bench_run(&one, &summary), STATUS_OK);
        for (int threads = support_stride() > 1 ? 3 : 1; threads < 4; threads++) {
            char how[64];
            snprintf(how, sizeof how, "backend=openmp threads=%d", threads);
            open_recipe(&more, r, how, NULL);
            assert_status(bench_run(&more, &summary), STATUS_OK);
            bench_assert_same_network(&one.trainer.mlp, &more.trainer.mlp);
            bench_close(&more);
        }
        bench_close(&one);
    }
}

/* Every recipe learns, and every key has an effect: without it the weights differ. */
static void every_key_counts(void **state) {
    (void)state;
    static const struct {
        size_t recipe;
        const char *off;
    } cases[] = {
        {0, "clip-norm=0"},       {0, "max-norm=0"},        {0, "dropout=0"},      {0, "input-dropout=0"},
        {0, "label-smoothing=0"}, {0, "weight-decay=0"},    {0, "optimizer=adam"}, {0, "warmup-epochs=0"},
        {0, "beta1=0.5"},         {0, "beta2=0.5"},         {0, "epsilon=0.1"},    {0, "schedule=constant"},
        {1, "nesterov=off"},      {1, "schedule=constant"}, {1, "pct-start=0.6"},  {1, "div-factor=2"},
        {1, "clip-norm=0"},       {1, "dropout=0.31"},      {2, "weight-decay=0"}, {2, "seed=2"},
        {0, "adversarial=0"},     {1, "adversarial=0"},     {2, "adversarial=0.1"}};
    struct run_summary summary;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (support_stride() > 5) ? 5 : 1) {
        struct bench with, without;
        open_recipe(&with, cases[i].recipe, "backend=serial threads=1", NULL);
        open_recipe(&without, cases[i].recipe, cases[i].off, NULL);
        assert_status(bench_run(&with, &summary), STATUS_OK);
        assert_status(bench_run(&without, &summary), STATUS_OK);
        const size_t bytes = with.trainer.mlp.parameter_elements * sizeof(float);
        if (memcmp(with.trainer.mlp.parameters, without.trainer.mlp.parameters, bytes) == 0)
            fail_msg("%s changes nothing", cases[i].off);
        bench_close(&with);
        bench_close(&without);
    }
    struct bench bench;
    bench_open(
        &bench,
        "backend=serial threads=1 layers=42-64-4 batch-size=10 epochs=60 optimizer=adamw lr=0.01 dropout=0.2 "
        "label-smoothing=0.05 clip-norm=1 max-norm=4 ema-decay=0.95 schedule=one-cycle",
        NULL);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    assert_true(summary.test.correct >= 45 && summary.average.correct >= 45);
    bench_close(&bench);
}

/* The column shows the evaluation of a network with the saved averages. */
static void the_average_is_evaluated_and_saved(void **state) {
    (void)state;
    static const char *const precisions[] = {"f32", "bf16"};
    for (size_t p = 0; p < 2; p++) {
        struct bench bench;
        struct run_summary summary;
        struct checkpoint checkpoint;
        struct mlp average;
        struct evaluation evaluation;
        char settings[400];
        const char *path = support_path("average.safetensors");
        snprintf(settings, sizeof settings,
                 "backend=serial threads=1 layers=42-30-4 batch-size=16 epochs=3 lr=0.3 ema-decay=0.9 "
                 "precision=%s "
                 "save=%s",
                 precisions[p], path);
        bench_open(&bench, settings, NULL);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        assert_true(summary.average.total == 50 && summary.average.loss != summary.test.loss);
        assert_memory_equal(&summary.average, &bench.last.average, sizeof summary.average);

        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        assert_status(mlp_open(&average, &bench.compute, &bench.config, 50), STATUS_OK);
        assert_status(checkpoint_restore_average(&checkpoint, &average), STATUS_OK);
        assert_status(samples_evaluate(&bench.trainer.test, &average, bench.trainer.tally, &evaluation, NULL),
                      STATUS_OK);
        assert_true(evaluation.loss == summary.average.loss && evaluation.correct == summary.average.correct);
        bench.trainer.tested = false; /* the weights themselves are unchanged */
        assert_status(evaluate_test(&bench.trainer), STATUS_OK);
        assert_true(bench.trainer.last_test.loss == summary.test.loss);
        checkpoint_close(&checkpoint);
        mlp_close(&average);
        bench_close(&bench);
    }
}

static void a_file_without_average(void **state) {
    (void)state;
    static const char recipe[] = "backend=serial threads=1 layers=42-9-4 batch-size=16 epochs=2";
    struct bench bench;
    struct run_summary summary;
    struct checkpoint checkpoint;
    char settings[400];
    const char *path = support_path("plain.safetensors");
    snprintf(settings, sizeof settings, "%s save=%s", recipe, path);
    bench_open(&bench, settings, NULL);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    assert_true(summary.average.total == 0 && bench.last.average.total == 0 && summary.best_epoch == 0);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
    assert_status(checkpoint_restore_average(&checkpoint, &bench.trainer.mlp), STATUS_USAGE);
    assert_says(status_message(), "no moving average");
    bench_close(&bench);
    /* with ema-decay, a resumed run starts its average from the weights */
    snprintf(settings, sizeof settings, "%s ema-decay=0.9", recipe);
    bench_open(&bench, settings, &checkpoint);
    assert_memory_equal(bench.trainer.optimizer.average, bench.trainer.mlp.parameters,
                        bench.trainer.mlp.parameter_elements * sizeof(float));
    bench_close(&bench);
    checkpoint_close(&checkpoint);
}

static void a_bad_step_changes_nothing(void **state) {
    (void)state;
    for (size_t r = 0; r < RECIPES; r++) {
        struct bench bench, same;
        struct run_summary summary;
        open_recipe(&bench, r, "backend=serial threads=1 epochs=2", NULL);
        open_recipe(&same, r, "backend=serial threads=1 epochs=2", NULL);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        assert_status(bench_run(&same, &summary), STATUS_OK);
        bench.config.epochs = 3;
        const struct mlp_layer *layer = &bench.trainer.mlp.layer[2];
        const float kept = ((float *)layer->bias)[1];
        ((float *)layer->bias)[1] = NAN;
        assert_status(bench_run(&bench, &summary), STATUS_FAILED);
        assert_says(status_message(), "epoch 3, step 1; it starts in layer 3");
        ((float *)layer->bias)[1] = kept;
        bench_assert_same_network(&bench.trainer.mlp, &same.trainer.mlp);
        bench_close(&bench);
        bench_close(&same);
    }
}

static void max_norm_holds_in_every_layer(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    bench_open(&bench, "backend=serial layers=42-9-7-4 batch-size=16 epochs=1 lr=0.5 max-norm=0.5", NULL);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    for (size_t l = 0; l < bench.trainer.mlp.depth; l++) {
        const struct mlp_layer *layer = &bench.trainer.mlp.layer[l];
        for (size_t col = 0; col < layer->out; col++) {
            double squares = 0;
            for (size_t row = 0; row < layer->in; row++)
                squares += pow(((float *)layer->weight)[row * layer->ld + col], 2);
            assert_true(squares > 0 && sqrt(squares) < 0.5 * 1.00001);
        }
    }
    bench_close(&bench);
}

static void engine_fused_names_what_it_does_not_support(void **state) {
    (void)state;
    static const struct {
        const char *settings, *says;
    } cases[] = {{"optimizer=adamw lr=0.01", "not support adamw"},
                 {"momentum=0.9 nesterov=on", "not support nesterov"},
                 {"dropout=0.5", "not support dropout"},
                 {"input-dropout=0.5", "not support dropout"},
                 {"label-smoothing=0.1", "not support label smoothing"},
                 {"adversarial=0.1", "not support adversarial training"},
                 {"clip-norm=1", "not support clipping by norm"},
                 {"max-norm=1", "not support max-norm"},
                 {"ema-decay=0.9", "not support moving average of the weights"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench bench;
        char settings[200];
        snprintf(settings, sizeof settings, "backend=tuned layers=42-30-4 epochs=1 engine=fused %s",
                 cases[i].settings);
        bench_open(&bench, settings, NULL);
        assert_string_equal(bench.trainer.engine->name, "eager");
        assert_says(bench.trainer.notice, cases[i].says);
        bench_close(&bench);
    }
    struct bench bench; /* supported: schedules and early stopping */
    bench_open(&bench,
               "backend=tuned layers=42-30-4 epochs=1 engine=fused momentum=0.9 schedule=one-cycle "
               "validation=10 patience=2",
               NULL);
    assert_string_equal(bench.trainer.engine->name, "fused");
    bench_close(&bench);
}

static void keys_that_do_not_go_together(void **state) {
    (void)state;
    static const struct {
        const char *settings, *says; /* NULL: accepted */
    } cases[] = {
        {"nesterov=on", "nesterov needs --optimizer sgd"},
        {"nesterov=on optimizer=adam lr=0.1", "nesterov needs --optimizer sgd"},
        {"nesterov=on momentum=0.9", NULL},
        {"optimizer=adam momentum=0.9 lr=0.1", "optimizer adam has beta1 instead of momentum"},
        {"optimizer=adamw", "set --learning-rate for optimizer adamw"},
        {"optimizer=adamw lr=0.001", NULL},
        {"warmup-steps=3 warmup-epochs=1", "only one of warmup-steps"},
        {"schedule=one-cycle warmup-epochs=1", "one-cycle has its own warm-up"},
        {"schedule=one-cycle warmup-steps=1", "one-cycle has its own warm-up"},
        {"layers=784-10 dropout=0.5", "dropout needs a hidden layer"},
        {"layers=784-10 input-dropout=0.5", NULL},
        {"patience=3", "--validation"},
        {"patience=3 validation=100", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        support_config(&config, cases[i].settings);
        assert_status(config_check_recipe(&config), cases[i].says ? STATUS_USAGE : STATUS_OK);
        if (cases[i].says) assert_says(status_message(), cases[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(every_key_counts),
        cmocka_unit_test(the_average_is_evaluated_and_saved),
        cmocka_unit_test(a_file_without_average),
        cmocka_unit_test(a_bad_step_changes_nothing),
        cmocka_unit_test(max_norm_holds_in_every_layer),
        cmocka_unit_test(engine_fused_names_what_it_does_not_support),
        cmocka_unit_test(keys_that_do_not_go_together),
    };
    return cmocka_run_group_tests_name("recipe", tests, NULL, NULL);
}
