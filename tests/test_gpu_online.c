/* On-line training on the GPU (one image a step, pixels in [-1, 1]): every engine against the host, forms of
   engine fused that support it and forms that do not, epochs that are too long for a graph.
   tests/test_gpu_training.c has the loss curve. */
#include "tests/gpu.h"
#include "tests/lockstep.h"

#include <math.h>
#include <stdio.h>

/* Batches of one, of several, with a tail. Images of 784 pixels, and of 42 and 841, which cannot be read four
   pixels at a time. Small learning rates: most pixels are -1, so steps are longer than for pixels near 0. */
static const char *const recipes[] = {
    "layers=784-50-40-30-20-10 batch-size=1 epochs=1 lr=0.002 activation=scaled-tanh init=xavier",
    "layers=42-20-10-4 batch-size=1 epochs=4 lr=0.01 activation=scaled-tanh init=uniform init-range=0.3",
    ("layers=841-30-20-4 input-size=29 batch-size=1 epochs=2 lr=0.002 activation=scaled-tanh init=uniform "
     "init-range=0.05"),
    "layers=841-30-4 input-size=29 batch-size=7 epochs=2 lr=0.002 momentum=0.5",
    "layers=784-128-10 batch-size=128 epochs=1 lr=0.002",
    "layers=784-64-40-10 batch-size=33 epochs=1 lr=0.001 momentum=0.9 activation=tanh init=xavier",
    "layers=784-10 batch-size=1000 epochs=4 lr=0.002",
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

static const char *const ways[] = {"backend=cublas engine=eager", "backend=cublas engine=graph",
                                   "backend=cuda-tuned engine=eager", "backend=cuda-tuned engine=graph",
                                   "backend=cuda-tuned engine=fused"};
enum { WAYS = sizeof ways / sizeof *ways };

static void open_recipe(struct bench *bench, size_t recipe, const char *how, enum gemm_dtype dtype) {
    char settings[512];
    snprintf(settings, sizeof settings, "%s dtype=%s log-steps=400 input-range=-1,1 %s", how,
             dtype_name(dtype), recipes[recipe]);
    bench_open(bench, settings, NULL);
    assert_string_equal(bench->trainer.notice, "");
}

/* Free-running, in float64. */
static void losses_of_the_host(void **state) {
    (void)state;
    gpu_needed();
    for (size_t r = 0; r < RECIPES; r += support_every(1)) {
        struct bench host;
        struct run_summary expected, summary;
        open_recipe(&host, r, "backend=serial threads=2", GEMM_F64);
        assert_status(bench_run(&host, &expected), STATUS_OK);
        for (size_t way = 0; way < WAYS; way++) {
            struct bench gpu;
            print_message("%s %s\n", ways[way], recipes[r]);
            open_recipe(&gpu, r, ways[way], GEMM_F64);
            assert_non_null(strstr(ways[way], gpu.trainer.engine->name));
            assert_status(bench_run(&gpu, &summary), STATUS_OK);
            assert_true(gpu.steps == host.steps && gpu.steps >= 8);
            for (size_t s = 0; s < host.steps; s++) assert_near(gpu.losses[s], host.losses[s], 1e-12);
            assert_near(gpu.last.train_loss, host.last.train_loss, 1e-12);
            assert_near(summary.test.loss, expected.test.loss, 1e-12);
            bench_close(&gpu);
        }
        bench_close(&host);
    }
}

/* Step by step, in float32. A graph runs whole epochs only: it is compared with eager. */
static void steps_of_the_host(void **state) {
    (void)state;
    gpu_needed();
    for (size_t r = 0; r < RECIPES; r += support_every(1))
        for (size_t way = 0; way < WAYS; way++) {
            struct bench host, gpu;
            const bool graph = strstr(ways[way], "graph") != NULL;
            print_message("%s %s\n", ways[way], recipes[r]);
            open_recipe(&gpu, r, ways[way], GEMM_F32);
            assert_non_null(strstr(ways[way], gpu.trainer.engine->name));
            open_recipe(&host, r, graph ? ways[way - 1] : "backend=serial threads=2", GEMM_F32);
            if (graph) {
                struct run_summary summary;
                assert_string_equal(host.trainer.engine->name, "eager");
                assert_status(bench_run(&host, &summary), STATUS_OK);
                assert_status(bench_run(&gpu, &summary), STATUS_OK);
                assert_memory_equal(gpu.losses, host.losses, sizeof gpu.losses);
                assert_true(gpu.last.train_loss == host.last.train_loss);
            } else {
                char recipe[300];
                snprintf(recipe, sizeof recipe, "input-range=-1,1 %s", recipes[r]);
                const struct lockstep_seen seen = lockstep_check(&host, &gpu, recipe, &lockstep_float32);
                lockstep_print(&seen);
            }
            bench_close(&gpu);
            bench_close(&host);
        }
}

static void steps_of_eager_in_rounded_precisions(void **state) {
    (void)state;
    static const struct {
        const char *precision;
        double unit;
    } roundings[] = {{"tf32", 0x1p-11}, {"bf16", 0x1p-8}};
    gpu_needed();
    for (size_t p = 0; p < 2; p++) {
        struct bench bench[2];
        char recipe[300];
        for (size_t e = 0; e < 2; e++) {
            char how[128];
            snprintf(how, sizeof how, "backend=cuda-tuned precision=%s engine=%s", roundings[p].precision,
                     e ? "fused" : "eager");
            open_recipe(&bench[e], 1, how, GEMM_F32);
        }
        snprintf(recipe, sizeof recipe, "input-range=-1,1 %s", recipes[1]);
        const struct lockstep_bound bound = lockstep_rounded(roundings[p].unit);
        const struct lockstep_seen seen = lockstep_check(&bench[0], &bench[1], recipe, &bound);
        lockstep_print(&seen);
        for (size_t e = 0; e < 2; e++) bench_close(&bench[e]);
    }
}

static void forms_explain_the_pixels_they_need(void **state) {
    (void)state;
    static const struct {
        const char *form;
        size_t recipe;
    } cases[] = {
        {"fused, one hidden layer, look-ahead: no, it takes pixels of input-range 0,1", 4},
        {"fused, one hidden layer, split-K over pixels: no, it takes pixels of input-range 0,1", 4},
        {"fused, one hidden layer, split over hidden units: no, it takes pixels of input-range 0,1", 4},
        {"fused, two hidden layers: no, it takes pixels of input-range 0,1", 5}};
    gpu_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench bench;
        char text[2048], how[160];
        open_recipe(&bench, cases[i].recipe, "backend=cuda-tuned engine=fused", GEMM_F32);
        engine_explain(&bench.trainer, text, sizeof text);
        assert_says(text, cases[i].form);
        engine_describe(&bench.trainer, how, sizeof how);
        assert_says(how, "tiled");
        bench_close(&bench);
    }
}

/* An epoch of 4,200 steps: too long for a graph; engine fused runs it in several launches. */
static void epochs_too_long_for_a_graph(void **state) {
    (void)state;
    static const char *const hows[] = {"backend=cublas engine=graph", "backend=cublas engine=auto",
                                       "backend=cuda-tuned engine=fused"};
    double loss[3] = {0};
    gpu_needed();
    for (size_t how = 0; how < 3; how++) {
        struct bench bench;
        struct run_summary summary;
        char settings[256];
        snprintf(settings, sizeof settings,
                 "%s layers=784-10 batch-size=1 epochs=1 lr=0.001 input-range=-1,1 dtype=f64", hows[how]);
        bench_prepare(&bench, settings);
        dataset_free(&bench.data.train);
        assert_status(dataset_synthesize(&bench.data.train, 4200, 1, 0), STATUS_OK);
        const enum status status =
            trainer_open(&bench.trainer, &bench.compute, &bench.config, &bench.data, NULL);
        assert_status(status, how ? STATUS_OK : STATUS_UNAVAILABLE);
        if (!how) {
            assert_says(status_message(), "it supports epochs of up to 4096 steps, and this one has 4200 "
                                          "(--batch-size); use --engine eager");
        } else {
            bench.trainer.stop = &bench.stop;
            assert_string_equal(bench.trainer.engine->name, how == 1 ? "eager" : "fused");
            assert_status(bench_run(&bench, &summary), STATUS_OK);
            assert_int_equal(bench.last.train_images, 4200);
            loss[how] = summary.test.loss;
        }
        bench_close(&bench);
    }
    assert_near(loss[2], loss[1], 1e-10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_of_the_host),
        cmocka_unit_test(steps_of_the_host),
        cmocka_unit_test(steps_of_eager_in_rounded_precisions),
        cmocka_unit_test(forms_explain_the_pixels_they_need),
        cmocka_unit_test(epochs_too_long_for_a_graph),
    };
    return cmocka_run_group_tests_name("gpu online", tests, NULL, NULL);
}
