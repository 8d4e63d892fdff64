/* Engine fused on the GPU where a loss is not finite, and where it is although the weights are huge. */
#include "tests/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lockstep.h"

static const char *const networks[] = {
    "layers=784-40-13 batch-size=100",       "layers=784-120-10 batch-size=100",
    "layers=784-250-10 batch-size=100",      "layers=784-40-30-10 batch-size=100",
    "layers=784-40-30-20-10 batch-size=100", "layers=784-40-30-10 batch-size=100 precision=bf16",
    "layers=784-300-10 batch-size=100",      "layers=784-300-100-10 batch-size=100"};
enum { NETWORKS = sizeof networks / sizeof *networks };

static void a_bad_step_changes_no_weight(void **state) {
    (void)state;
    for (int n = 0; n < NETWORKS; n++) {
        struct bench bench;
        struct run_summary summary;
        float *weights;
        gpu_open_engine(&bench, "fused", networks[n]);
        struct device *device = &bench.compute.device;
        struct mlp *mlp = &bench.trainer.mlp;
        const size_t bytes = mlp->parameter_elements * sizeof *weights;
        weights = malloc(2 * bytes);
        assert_non_null(weights);
        device->driver->download(device, weights, mlp->parameters, bytes);
        weights[17] = NAN;
        device->driver->upload(device, mlp->parameters, weights, bytes);
        assert_status(bench_run(&bench, &summary), STATUS_FAILED);
        assert_says(status_message(), "epoch 1, step 1; it starts in layer 1");
        device->driver->download(device, (char *)weights + bytes, mlp->parameters, bytes);
        assert_memory_equal(weights, (char *)weights + bytes, bytes);
        free(weights);
        bench_close(&bench);
    }
}

static const struct divergence {
    size_t bad_step; /* from 1; 0: the last one of the epoch */
    size_t launched; /* steps in a launch of their own, before the launch of the bad one */
} divergences[] = {{8, 0}, {0, 0}, {8, 5}, {2, 1}};
enum { DIVERGENCES = sizeof divergences / sizeof *divergences };

static void launch(struct bench *bench, size_t first, size_t count) {
    assert_status(bench->trainer.engine->run(&bench->trainer, first, &count), STATUS_OK);
}

static void check_divergence(const char *network, const struct divergence *of) {
    struct bench bad, good;
    struct run_summary summary;
    char settings[160], says[40];
    const uint8_t wrong = 200; /* not a class: the loss is NaN */
    snprintf(settings, sizeof settings, "%s epochs=1 shuffle=off momentum=0.9 lr=0.02", network);
    gpu_open_engine(&bad, "fused", settings);
    gpu_open_engine(&good, "fused", settings);
    const size_t bad_step = of->bad_step ? of->bad_step : bad.trainer.steps;
    struct device *device = &bad.compute.device;
    device->driver->upload(device, bad.trainer.train.labels + 100 * bad_step - 50, &wrong, 1);
    trainer_begin_epoch(&good.trainer);
    if (of->launched) {
        struct tally tally;
        trainer_begin_epoch(&bad.trainer);
        launch(&bad, 0, of->launched);
        launch(&bad, of->launched, bad.trainer.steps - of->launched);
        device->driver->download(device, &tally, bad.trainer.tally, sizeof tally);
        assert_int_equal(tally.bad_step, bad_step);
        launch(&good, 0, of->launched);
    } else {
        assert_status(bench_run(&bad, &summary), STATUS_FAILED);
        snprintf(says, sizeof says, "epoch 1, step %zu;", bad_step);
        assert_says(status_message(), says);
    }
    if (bad_step - 1 > of->launched) launch(&good, of->launched, bad_step - 1 - of->launched);
    double *x = lockstep_state(&good.trainer), *y = lockstep_state(&bad.trainer);
    assert_memory_equal(x, y, mlp_parameter_count(&good.trainer.mlp) * sizeof *x);
    free(x);
    free(y);
    bench_close(&bad);
    bench_close(&good);
}

/* A step diverges in the middle of a launch, in its last step, or in a launch that goes on from another: the
   message names it, and the weights are those before it. */
static void divergence_in_a_launch(void **state) {
    (void)state;
    for (int n = 0; n < NETWORKS; n++)
        for (int d = 0; d < DIVERGENCES; d++) check_divergence(networks[n], &divergences[d]);
}

static void multiply_parameters(struct bench *bench, float by) {
    struct device *device = &bench->compute.device;
    struct mlp *mlp = &bench->trainer.mlp;
    const size_t bytes = mlp->parameter_elements * sizeof(float);
    float *parameters = malloc(bytes);
    assert_non_null(parameters);
    device->driver->download(device, parameters, mlp->parameters, bytes);
    for (size_t i = 0; i < mlp->parameter_elements; i++) parameters[i] *= by;
    device->driver->upload(device, mlp->parameters, parameters, bytes);
    free(parameters);
}

/* Saturated units have gradients of 0, and the scales of two matrices multiply to more than a float32 holds.
   The loss stays finite: no step may count as a bad one. */
static void huge_weights_as_in_eager(void **state) {
    (void)state;
    static const char settings[] =
        "layers=784-300-100-10 batch-size=128 epochs=2 activation=tanh init=xavier";
    static const float factors[] = {1e10f, 1e30f};
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        struct bench eager, fused;
        struct run_summary summary;
        char says[160];
        gpu_open_engine(&eager, "eager", settings);
        gpu_open_engine(&fused, "fused", settings);
        engine_describe(&fused.trainer, says, sizeof says);
        assert_says(says, "two hidden layers");
        multiply_parameters(&eager, factors[f]);
        multiply_parameters(&fused, factors[f]);
        const enum status expected = bench_run(&eager, &summary), status = bench_run(&fused, &summary);
        print_message("parameters times %.0e: status %d, eager %d\n", factors[f], status, expected);
        assert_int_equal(status, expected);
        assert_true(fused.steps == eager.steps);
        bench_close(&eager);
        bench_close(&fused);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_step_changes_no_weight),
        cmocka_unit_test(divergence_in_a_launch),
        cmocka_unit_test(huge_weights_as_in_eager),
    };
    return cmocka_run_group_tests_name("gpu fused, bad steps", tests, NULL, NULL);
}
