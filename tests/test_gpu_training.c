/* Training on the GPU: every backend, engine and residency against the independent loss curves and against
   each other. */
#include "tests/curves.h"
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/rng.h"

/* The parameters, copied from the device. The caller frees them. */
static void *parameters(struct bench *bench) {
    struct device *device = &bench->compute.device;
    const size_t bytes = bench->trainer.mlp.parameter_elements * dtype_size(bench->trainer.mlp.dtype);
    void *copy = malloc(bytes);
    assert_non_null(copy);
    device->driver->download(device, copy, bench->trainer.mlp.parameters, bytes);
    return copy;
}

/* A graph runs whole epochs only, so it is compared with `eager`, the same training op by op. */
static void check_steps(size_t curve, const char *how, const char *eager,
                        const struct lockstep_bound *bound) {
    if (strstr(how, "graph")) {
        curves_check_equal(curve, how, eager);
    } else {
        curves_check_steps(curve, how, bound);
    }
}

static void loss_curves(void **state) {
    (void)state;
    static const char *const ways[] = {"engine=eager", "engine=graph", "residency=host",
                                       "residency=host pin=on"};
    const size_t every = support_stride() < 119 ? support_stride() : 119; /* coprime to the loop counts */
    size_t taken = 0;
    gpu_needed();
    for (int b = 0; b < GPU_BACKENDS; b++)
        for (size_t way = 0; way < 4; way++)
            for (size_t curve = 0; curve < curves_count(); curve++) {
                char how[128], eager[128];
                if (taken++ % every) continue;
                snprintf(how, sizeof how, "threads=2 backend=%s %s", gpu_backends[b], ways[way]);
                snprintf(eager, sizeof eager, "threads=2 backend=%s engine=eager", gpu_backends[b]);
                curves_check(curve, how);
                check_steps(curve, how, eager, &lockstep_float32);
            }
}

/* Rounded precisions take effect and stay near float32. */
static void rounded_precisions_stay_near(void **state) {
    (void)state;
    static const struct {
        const char *how;
        double unit;
    } precisions[] = {{"backend=cublas precision=tf32", 0x1p-11},
                      {"backend=cublas precision=bf16", 0x1p-8},
                      {"backend=cuda-tuned precision=bf16", 0x1p-8},
                      {"backend=cublas precision=fp16", 0x1p-11},
                      {"backend=cuda-tuned precision=fp16", 0x1p-11}};
    static const char *const ways[] = {"engine=eager", "engine=graph", "residency=host"},
                             recipe[] = "layers=42-300-4 batch-size=16 epochs=2";
    gpu_needed();
    const int first = support_stride() > 1 ? 2 : 0, step = support_stride() > 1 ? 2 : 1;
    for (int p = first; p < 5; p += step)
        for (size_t way = 0; way < 3; way += support_every(3)) {
            const struct lockstep_bound bound = lockstep_rounded(precisions[p].unit);
            char how[256], eager[256];
            snprintf(how, sizeof how, "threads=2 %s %s", precisions[p].how, ways[way]);
            snprintf(eager, sizeof eager, "threads=2 %s engine=eager", precisions[p].how);
            check_steps(0, how, eager, &bound);
            if (support_stride() > 1) continue;

            struct bench rounded, exact;
            char settings[512];
            snprintf(settings, sizeof settings, "%s %s", how, recipe);
            bench_open(&rounded, settings, NULL);
            snprintf(settings, sizeof settings, "backend=cublas engine=eager %s", recipe);
            bench_open(&exact, settings, NULL);
            assert_int_equal(rounded.trainer.mlp.activation_dtype, p > 2   ? GEMM_F16
                                                                   : p > 0 ? GEMM_BF16
                                                                           : GEMM_F32);
            const struct lockstep_seen seen = lockstep_check(&exact, &rounded, recipe, &bound);
            lockstep_print(&seen);
            for (size_t l = 0; l < 2; l++) assert_true(seen.weights[l] > precisions[p].unit / 32);
            bench_close(&rounded);
            bench_close(&exact);
        }
}

/* Batches of 1,100 images, the last of 300, through narrow, small and large layers: every kind of kernel of
   cuda-tuned against the host. graph_equals_eager_bit_for_bit covers the graph in float32. */
static void long_batches_follow_the_host(void **state) {
    (void)state;
    static const char *const ways[] = {"engine=eager", "engine=graph", "residency=host"};
    const bool thin = support_stride() > 1;
    const char *recipe = thin ? "layers=784-12-10 batch-size=1100 epochs=1 lr=0.1 activation=gelu"
                              : "layers=784-300-12-10 batch-size=1100 epochs=2 lr=0.1 activation=gelu";
    gpu_needed();
    for (int way = 0; way < 3; way += thin ? 3 : 1) {
        struct bench host, gpu;
        struct run_summary summary;
        char how[256];
        snprintf(how, sizeof how, "backend=serial threads=1 dtype=f64 %s", recipe);
        bench_open(&host, how, NULL);
        assert_status(bench_run(&host, &summary), STATUS_OK);
        snprintf(how, sizeof how, "backend=cuda-tuned %s dtype=f64 %s", ways[way], recipe);
        bench_open(&gpu, how, NULL);
        assert_status(bench_run(&gpu, &summary), STATUS_OK);
        assert_near(gpu.last.train_loss, host.last.train_loss, 1e-12);
        bench_close(&host);
        bench_close(&gpu);
        if (way == 1) continue;
        snprintf(how, sizeof how, "backend=serial threads=1 %s", recipe);
        bench_open(&host, how, NULL);
        snprintf(how, sizeof how, "backend=cuda-tuned %s %s", ways[way], recipe);
        bench_open(&gpu, how, NULL);
        const struct lockstep_seen seen = lockstep_check(&host, &gpu, recipe, &lockstep_float32);
        lockstep_print(&seen);
        bench_close(&host);
        bench_close(&gpu);
    }
}

/* Gradients that the graph keeps as their transposes alone, where there are kernels for it, and eager writes
   (test_gpu_tensor_transposed.c). */
#define TRANSPOSED "backend=cuda-tuned precision=tf32 layers=784-2048-2048-10 batch-size=1100 epochs=2"

static void graph_equals_eager_bit_for_bit(void **state) {
    (void)state;
    static const char *const hows[] = {"backend=cublas",
                                       "backend=cuda-tuned",
                                       "backend=cuda-tuned dtype=f64",
                                       "backend=cublas precision=bf16",
                                       "backend=cuda-tuned precision=bf16",
                                       "backend=cublas precision=fp16",
                                       "backend=cuda-tuned precision=fp16",
                                       "backend=cuda-tuned layers=784-12-10 batch-size=1100",
                                       TRANSPOSED};
    static const char *const engines[] = {"eager", "graph", "graph"};
    gpu_needed();
    const int first = support_stride() > 1 ? 6 : 0;
    for (int how = first; how < 9; how++) {
        void *weights[3];
        size_t bytes = 0;
        for (int i = 0; i < 3; i++) {
            struct bench bench;
            struct run_summary summary;
            char settings[256];
            snprintf(settings, sizeof settings,
                     "layers=42-70-65-4 batch-size=16 engine=%s epochs=7 momentum=0.9 %s", engines[i],
                     hows[how]);
            bench_open(&bench, settings, NULL);
            assert_string_equal(bench.trainer.engine->name, engines[i]);
            assert_status(bench_run(&bench, &summary), STATUS_OK);
            bytes = bench.trainer.mlp.parameter_elements * dtype_size(bench.trainer.mlp.dtype);
            weights[i] = parameters(&bench);
            bench_close(&bench);
        }
        assert_memory_equal(weights[0], weights[1], bytes);
        assert_memory_equal(weights[1], weights[2], bytes);
        for (int i = 0; i < 3; i++) free(weights[i]);
    }
}

/* Initial weights and batch order equal the host's. */
static void one_seed_on_every_device(void **state) {
    (void)state;
    static const char recipe[] = "backend=cublas layers=42-30-4 batch-size=16 seed=5 epochs=1";
    struct bench gpu;
    struct compute host;
    struct mlp mlp;
    bench_open(&gpu, recipe, NULL);
    support_open(&host, "serial", 1);
    assert_status(mlp_open(&mlp, &host, &gpu.config, 4), STATUS_OK);
    assert_status(mlp_initialize(&mlp, INIT_HE, 0, 5), STATUS_OK);
    void *weights = parameters(&gpu);
    assert_memory_equal(weights, mlp.parameters, mlp.parameter_elements * sizeof(float));
    uint32_t order[50], want[50];
    struct rng rng = rng_open(5, RNG_SHUFFLE, 0);
    rng_permutation(&rng, want, 50);
    gpu.compute.device.driver->download(&gpu.compute.device, order, gpu.trainer.feed.order, sizeof order);
    assert_memory_equal(order, want, sizeof order);
    free(weights);
    mlp_close(&mlp);
    compute_close(&host);
    bench_close(&gpu);
}

/* The padded arena has the values of the dense one, and zeros in the padding. */
static void assert_same_arena(const struct mlp *padded, void *arena, const struct mlp *dense, void *want) {
    for (size_t l = 0; l < padded->depth; l++) {
        const struct mlp_layer *layer = &padded->layer[l], *of = &dense->layer[l];
        const float *weight = mlp_counterpart(padded, layer->weight, arena),
                    *bias = mlp_counterpart(padded, layer->bias, arena),
                    *want_weight = mlp_counterpart(dense, of->weight, want),
                    *want_bias = mlp_counterpart(dense, of->bias, want);
        for (size_t i = 0; i < mlp_input_ld(padded, l); i++)
            for (size_t j = 0; j < layer->ld; j++)
                assert_true(weight[i * layer->ld + j] ==
                            (i < layer->in && j < layer->out ? want_weight[i * layer->out + j] : 0));
        for (size_t j = 0; j < layer->ld; j++) assert_true(bias[j] == (j < layer->out ? want_bias[j] : 0));
    }
}

/* Training changed the last row and the last column of every layer. */
static void assert_all_trained(const struct mlp *mlp, void *before, void *after) {
    for (size_t l = 0; l < mlp->depth; l++) {
        const struct mlp_layer *layer = &mlp->layer[l];
        const float *x = mlp_counterpart(mlp, layer->weight, before),
                    *y = mlp_counterpart(mlp, layer->weight, after);
        size_t row = 0, column = 0;
        for (size_t j = 0; j < layer->out; j++)
            row += x[(layer->in - 1) * layer->ld + j] != y[(layer->in - 1) * layer->ld + j];
        for (size_t i = 0; i < layer->in; i++)
            column += x[i * layer->ld + layer->out - 1] != y[i * layer->ld + layer->out - 1];
        assert_true(row > 0 && column > 0);
    }
}

/* In tf32 and mixed precision, rows are multiples of 8 elements. The weights equal the host's before
   training. After it, the host and the GPU resume the same weights and state tensors from a checkpoint. */
static void rows_of_lower_precision(void **state) {
    (void)state;
    static const struct {
        const char *precision, *recipe;
    } runs[] = {{"bf16", "activation=relu momentum=0.9 max-norm=1.5 lr=0.1"},
                {"fp16", "activation=tanh optimizer=adamw lr=0.01 clip-norm=0.5 ema-decay=0.9"},
                {"bf16", "activation=gelu adversarial=0.1 weight-decay=0.1 lr=0.05"},
                {"tf32", "activation=tanh momentum=0.9 lr=0.1"}};
    char path[256];
    gpu_needed();
    snprintf(path, sizeof path, "%s", support_path("padded.safetensors"));
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
        struct bench gpu, host, back;
        struct run_summary summary;
        struct checkpoint checkpoint;
        char settings[512], mirror[512];
        snprintf(mirror, sizeof mirror,
                 "backend=serial threads=1 layers=42-30-21-4 batch-size=16 epochs=4 seed=3 %s",
                 runs[r].recipe);
        snprintf(settings, sizeof settings,
                 "backend=cuda-tuned precision=%s layers=42-30-21-4 batch-size=16 epochs=4 seed=3 "
                 "save=%.200s %s",
                 runs[r].precision, path, runs[r].recipe);
        bench_open(&gpu, settings, NULL);
        bench_open(&host, mirror, NULL);
        const struct mlp *padded = &gpu.trainer.mlp;
        assert_true(padded->layer[0].ld == 32 && padded->layer[1].ld == 24 && padded->layer[2].ld == 4);
        void *before = parameters(&gpu);
        assert_same_arena(padded, before, &host.trainer.mlp, host.trainer.mlp.parameters);
        bench_close(&host);
        assert_status(bench_run(&gpu, &summary), STATUS_OK);
        void *after = parameters(&gpu), *kept = parameters(&gpu);
        assert_all_trained(padded, before, after);

        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        bench_open(&host, mirror, &checkpoint);
        bench_open(&back, settings, &checkpoint);
        checkpoint_close(&checkpoint);
        struct mlp *dense = &host.trainer.mlp, *again = &back.trainer.mlp;
        assert_same_arena(padded, after, dense, dense->parameters);
        assert_int_equal(dense->state_count, padded->state_count);
        const size_t bytes = padded->parameter_elements * sizeof(float);
        for (size_t k = 0; k <= padded->state_count; k++) {
            struct device *device = &gpu.compute.device;
            const void *here = k ? padded->state[k - 1].memory : padded->parameters;
            device->driver->download(device, kept, here, bytes);
            if (k) assert_same_arena(padded, kept, dense, dense->state[k - 1].memory);
            back.compute.device.driver->download(&back.compute.device, after,
                                                 k ? again->state[k - 1].memory : again->parameters, bytes);
            assert_memory_equal(kept, after, bytes);
        }
        free(before);
        free(after);
        free(kept);
        bench_close(&back);
        bench_close(&host);
        bench_close(&gpu);
    }
}

static void resume_equals_uninterrupted(void **state) {
    (void)state;
    static const char *const hows[] = {"backend=cublas engine=eager", "backend=cublas engine=graph",
                                       "backend=cuda-tuned engine=graph precision=bf16",
                                       "backend=cuda-tuned engine=graph precision=fp16"};
    char path[256];
    gpu_needed();
    snprintf(path, sizeof path, "%s", support_path("gpu.safetensors"));
    const int start = support_stride() > 1 ? 2 : 0;
    for (int how = start; how < 4; how++) {
        struct bench whole, first, second;
        struct run_summary summary;
        struct checkpoint checkpoint;
        char recipe[512], saving[512];
        snprintf(recipe, sizeof recipe, "%s layers=42-30-4 batch-size=16 epochs=6 momentum=0.9", hows[how]);
        snprintf(saving, sizeof saving, "%.300s save=%.150s", recipe, path);
        bench_open(&whole, recipe, NULL);
        assert_status(bench_run(&whole, &summary), STATUS_OK);
        bench_open(&first, saving, NULL);
        first.stop_after = 9;
        assert_status(bench_run(&first, &summary), STATUS_INTERRUPTED);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        bench_open(&second, recipe, &checkpoint);
        checkpoint_close(&checkpoint);
        assert_status(bench_run(&second, &summary), STATUS_OK);
        void *a = parameters(&whole), *b = parameters(&second);
        assert_memory_equal(a, b, whole.trainer.mlp.parameter_elements * sizeof(float));
        assert_true(whole.last.train_loss == second.last.train_loss);
        free(a);
        free(b);
        bench_close(&whole);
        bench_close(&first);
        bench_close(&second);
    }
}

static void divergence_is_named(void **state) {
    (void)state;
    static const char *const ways[] = {"engine=eager", "engine=graph", "residency=host"};
    gpu_needed();
    for (int way = 0; way < 3; way++) {
        struct bench bench;
        struct run_summary summary;
        char settings[256];
        snprintf(settings, sizeof settings,
                 "backend=cublas %s layers=42-9-4 batch-size=16 epochs=99 lr=1e3 weight-decay=100",
                 ways[way]);
        bench_open(&bench, settings, NULL);
        assert_status(bench_run(&bench, &summary), STATUS_FAILED);
        assert_says(status_message(), "the loss is not finite at epoch ");
        assert_says(status_message(), "layer ");
        bench_close(&bench);
    }
}

static void the_parts_add_up(void **state) {
    (void)state;
    static const char *const ways[] = {"engine=eager", "engine=graph", "residency=host"};
    gpu_needed();
    for (int way = 0; way < 3; way++) {
        struct bench bench;
        struct run_summary summary;
        char settings[256];
        snprintf(settings, sizeof settings, "backend=cublas %s layers=42-300-4 batch-size=16 epochs=%d",
                 ways[way], support_stride() > 1 ? 2 : 50);
        bench_open(&bench, settings, NULL);
        const double start = clock_seconds(), before = profile_total(&bench.profile);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        const double wall = clock_seconds() - start, counted = profile_total(&summary.time) - before;
        if (support_stride() == 1) assert_near(counted / wall, 1, 0.02);
        assert_true(profile_transfer_ratio(&summary.time) > 0);
        assert_true((summary.time.seconds[PART_STEPS] > 0) == (way == 1));
        assert_true((summary.time.seconds[PART_GEMM_NT] > 0) == (way != 1));
        bench_close(&bench);
    }
}

static void out_of_memory_says_how_much(void **state) {
    (void)state;
    struct compute compute;
    struct config config;
    struct mlp mlp;
    gpu_open(&compute, "cublas", &(struct compute_options){.threads = 1});
    support_config(&config, "layers=784-1048576-1048576-10");
    assert_status(mlp_open(&mlp, &compute, &config, 128), STATUS_FAILED);
    assert_says(status_message(), "out of GPU memory");
    assert_says(status_message(), "free");
    support_config(&config, "layers=8-4-2"); /* the device still works */
    assert_status(mlp_open(&mlp, &compute, &config, 8), STATUS_OK);
    mlp_close(&mlp);
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_curves),
        cmocka_unit_test(rounded_precisions_stay_near),
        cmocka_unit_test(long_batches_follow_the_host),
        cmocka_unit_test(graph_equals_eager_bit_for_bit),
        cmocka_unit_test(one_seed_on_every_device),
        cmocka_unit_test(rows_of_lower_precision),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(divergence_is_named),
        cmocka_unit_test(the_parts_add_up),
        cmocka_unit_test(out_of_memory_says_how_much),
    };
    return cmocka_run_group_tests_name("gpu training", tests, NULL, NULL);
}
