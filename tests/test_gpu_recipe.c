/* Training on the GPU with every option of a recipe: graph against eager, the GPU against the host,
   resume, bad steps. */
#include "tests/gpu.h"
#include "tests/lockstep.h"

#include <math.h>
#include <stdlib.h>

static const char *const recipes[] = {
    "layers=42-70-65-4 batch-size=16 epochs=5 validation=10 patience=100 optimizer=adamw lr=0.01 "
    "weight-decay=0.1 "
    "clip-norm=0.8 max-norm=1.5 ema-decay=0.9 dropout=0.3 input-dropout=0.1 label-smoothing=0.1 "
    "adversarial=0.1 schedule=cosine "
    "warmup-epochs=1.5 log-steps=15",
    "layers=42-70-65-4 batch-size=16 epochs=5 validation=10 optimizer=sgd momentum=0.9 nesterov=on lr=0.1 "
    "schedule=one-cycle ema-decay=0.9 dropout=0.3 activation=tanh clip-norm=1 log-steps=15",
    "layers=784-130-10 batch-size=200 epochs=2 optimizer=adam lr=0.001 weight-decay=0.01 ema-decay=0.5 "
    "dropout=0.5 "
    "max-norm=1 label-smoothing=0.2 adversarial=0.2 log-steps=26",
    "layers=42-70-65-4 batch-size=16 epochs=5 validation=10 optimizer=adamw lr=0.01 weight-decay=0.1 "
    "clip-norm=0.8 "
    "max-norm=1.5 ema-decay=0.9 input-dropout=0.1 adversarial=0.1 log-steps=15",
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

static const char *const hows[] = {"backend=cublas",
                                   "backend=cuda-tuned",
                                   "backend=cuda-tuned dtype=f64",
                                   "backend=cublas precision=bf16",
                                   "backend=cublas precision=fp16",
                                   "backend=cuda-tuned precision=bf16",
                                   "backend=cuda-tuned precision=fp16"};
enum { HOWS = sizeof hows / sizeof *hows };

static void open_recipe(struct bench *bench, size_t recipe, const char *how,
                        const struct checkpoint *resume) {
    char settings[640];
    snprintf(settings, sizeof settings, "%s %s", recipes[recipe], how);
    bench_open(bench, settings, resume);
}

/* Weights and state tensors, copied from the device. The caller frees them. */
static unsigned char *all_arenas(struct bench *bench, size_t *bytes) {
    struct device *device = &bench->compute.device;
    const struct mlp *mlp = &bench->trainer.mlp;
    const size_t arena = mlp->parameter_elements * dtype_size(mlp->dtype);
    *bytes = (1 + mlp->state_count) * arena;
    unsigned char *copy = malloc(*bytes);
    assert_non_null(copy);
    device->driver->download(device, copy, mlp->parameters, arena);
    for (size_t i = 0; i < mlp->state_count; i++)
        device->driver->download(device, copy + (1 + i) * arena, mlp->state[i].memory, arena);
    return copy;
}

static void assert_same_network(struct bench *a, struct bench *b) {
    size_t a_bytes, b_bytes;
    unsigned char *x = all_arenas(a, &a_bytes), *y = all_arenas(b, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(x, y, a_bytes);
    free(x);
    free(y);
}

static void graph_equals_eager_bit_for_bit(void **state) {
    (void)state;
    gpu_needed();
    for (size_t r = 0; r < RECIPES; r += support_every(1))
        for (size_t h = 0; h < HOWS; h += support_every(4)) {
            struct bench eager, graph;
            struct run_summary a, b;
            char how[128];
            snprintf(how, sizeof how, "%s engine=eager", hows[h]);
            open_recipe(&eager, r, how, NULL);
            snprintf(how, sizeof how, "%s engine=graph", hows[h]);
            open_recipe(&graph, r, how, NULL);
            assert_string_equal(graph.trainer.engine->name, "graph");
            assert_status(bench_run(&eager, &a), STATUS_OK);
            assert_status(bench_run(&graph, &b), STATUS_OK);
            assert_memory_equal(eager.losses, graph.losses, eager.steps * sizeof(double));
            assert_same_network(&eager, &graph);
            assert_memory_equal(&a.average, &b.average, sizeof a.average);
            assert_true(a.average.total > 0);
            bench_close(&eager);
            bench_close(&graph);
        }
}

/* Masks, rates and factors equal the host's. Free-running, in float64. */
static void losses_follow_the_host(void **state) {
    (void)state;
    static const char *const ways[] = {"backend=cuda-tuned engine=graph dtype=f64",
                                       "backend=cublas residency=host dtype=f64"};
    gpu_needed();
    for (size_t r = 0; r < RECIPES; r += support_every(1)) {
        struct bench host, gpu;
        struct run_summary a, b;
        open_recipe(&host, r, "backend=serial threads=1 dtype=f64", NULL);
        assert_status(bench_run(&host, &a), STATUS_OK);
        for (size_t w = 0; w < 2; w++) {
            open_recipe(&gpu, r, ways[w], NULL);
            assert_status(bench_run(&gpu, &b), STATUS_OK);
            assert_true(host.steps == gpu.steps && host.steps >= 8);
            for (size_t s = 0; s < host.steps; s++) assert_near(gpu.losses[s], host.losses[s], 1e-9);
            assert_near(b.average.loss, a.average.loss, 1e-9);
            bench_close(&gpu);
        }
        bench_close(&host);
    }
}

/* Step by step in float32; graph_equals_eager_bit_for_bit covers the graphs. */
static void steps_follow_the_host(void **state) {
    (void)state;
    static const char *const ways[] = {"backend=cuda-tuned engine=eager", "backend=cublas residency=host"};
    gpu_needed();
    for (size_t r = 0; r < RECIPES; r += support_every(1))
        for (size_t w = 0; w < 2; w++) {
            struct bench host, gpu;
            print_message("%s %s\n", ways[w], recipes[r]);
            open_recipe(&host, r, "backend=serial threads=1", NULL);
            open_recipe(&gpu, r, ways[w], NULL);
            const struct lockstep_seen seen = lockstep_check(&host, &gpu, recipes[r], &lockstep_float32);
            lockstep_print(&seen);
            assert_true(seen.steps >= 8);
            bench_close(&gpu);
            bench_close(&host);
        }
}

static void resume_equals_uninterrupted(void **state) {
    (void)state;
    char path[256], how[400];
    gpu_needed();
    snprintf(path, sizeof path, "%s", support_path("gpu-recipe.safetensors"));
    for (size_t r = 0; r < RECIPES; r += support_every(1))
        for (size_t h = support_stride() > 1 ? HOWS - 1 : 0; h < HOWS; h++) {
            struct bench whole, first, second;
            struct run_summary summary;
            struct checkpoint checkpoint;
            snprintf(how, sizeof how, "%s engine=eager", hows[h]); /* eager can stop within an epoch */
            open_recipe(&whole, r, how, NULL);
            assert_status(bench_run(&whole, &summary), STATUS_OK);
            snprintf(how, sizeof how, "%s engine=eager save=%s", hows[h], path);
            open_recipe(&first, r, how, NULL);
            first.stop_after = 1;
            assert_status(bench_run(&first, &summary), STATUS_INTERRUPTED);
            assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
            snprintf(how, sizeof how, "%s engine=graph", hows[h]);
            open_recipe(&second, r, how, &checkpoint);
            checkpoint_close(&checkpoint);
            assert_status(bench_run(&second, &summary), STATUS_OK);
            assert_same_network(&whole, &second);
            bench_close(&whole);
            bench_close(&first);
            bench_close(&second);
        }
}

static void a_bad_step_changes_nothing(void **state) {
    (void)state;
    static const char *const engines[] = {"eager", "graph"};
    gpu_needed();
    for (size_t e = 0; e < 2; e++) {
        struct bench bench;
        struct run_summary summary;
        char how[128];
        float bias[4], broken[4];
        size_t bytes;
        snprintf(how, sizeof how, "backend=cublas engine=%s epochs=2", engines[e]);
        open_recipe(&bench, 0, how, NULL);
        struct device *device = &bench.compute.device;
        void *at = bench.trainer.mlp.layer[2].bias;
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        unsigned char *before = all_arenas(&bench, &bytes);
        bench.config.epochs = 3;
        device->driver->download(device, bias, at, sizeof bias);
        memcpy(broken, bias, sizeof bias);
        broken[1] = NAN;
        device->driver->upload(device, at, broken, sizeof bias);
        assert_status(bench_run(&bench, &summary), STATUS_FAILED);
        assert_says(status_message(), "epoch 3, step 1; it starts in layer 3");
        device->driver->upload(device, at, bias, sizeof bias);
        unsigned char *after = all_arenas(&bench, &bytes);
        assert_memory_equal(before, after, bytes);
        free(before);
        free(after);
        bench_close(&bench);
    }
}

/* The best weights are restored, as on the host. */
static void early_stopping(void **state) {
    (void)state;
    static const char recipe[] =
        "backend=cublas layers=42-30-4 batch-size=16 lr=0.5 validation=20 ema-decay=0.5";
    struct bench stopped, until_best;
    struct run_summary summary, plain;
    char settings[300];
    gpu_needed();
    snprintf(settings, sizeof settings, "%s epochs=60 patience=3", recipe);
    bench_open(&stopped, settings, NULL);
    assert_status(bench_run(&stopped, &summary), STATUS_OK);
    assert_true(summary.stopped_early && summary.best_epoch == (int64_t)summary.epochs - 3);
    snprintf(settings, sizeof settings, "%s epochs=%lld", recipe, (long long)summary.best_epoch);
    bench_open(&until_best, settings, NULL);
    assert_status(bench_run(&until_best, &plain), STATUS_OK);
    assert_memory_equal(&summary.test, &plain.test, sizeof plain.test);
    assert_memory_equal(&summary.average, &plain.average, sizeof plain.average);
    bench_close(&stopped);
    bench_close(&until_best);
}

static void engine_fused_names_what_it_does_not_support(void **state) {
    (void)state;
    struct bench bench;
    gpu_needed();
    bench_open(&bench, "backend=cuda-tuned layers=42-30-4 epochs=1 engine=fused dropout=0.5", NULL);
    assert_string_equal(bench.trainer.engine->name, "eager");
    assert_says(bench.trainer.notice, "it does not support dropout");
    bench_close(&bench);
    bench_open(&bench, "backend=cuda-tuned layers=42-30-4 epochs=1 optimizer=adamw lr=0.01", NULL);
    assert_string_equal(bench.trainer.engine->name, "graph");
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_equals_eager_bit_for_bit),
        cmocka_unit_test(losses_follow_the_host),
        cmocka_unit_test(steps_follow_the_host),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(a_bad_step_changes_nothing),
        cmocka_unit_test(early_stopping),
        cmocka_unit_test(engine_fused_names_what_it_does_not_support),
    };
    return cmocka_run_group_tests_name("gpu recipe", tests, NULL, NULL);
}
