/* The GPU: every CUDA backend over the whole case list, every op against the host's, every engine and residency against the
   independent loss curves. Skipped, saying so, where no GPU is usable. TESSERA_TEST_STRIDE=N takes every N-th case, for
   slow tools such as compute-sanitizer. */
#include "tests/training_bench.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "src/backend/verify.h"
#include "src/base/rng.h"

static const char *const backends[] = {"cuda-naive", "cuda-coalesced", "cuda-shmem", "cublas"};
enum { BACKENDS = 4 };

static void need_gpu(void) {
    const struct gemm_backend *backend;
    if (registry_find("cublas", &backend) == STATUS_OK) return;
    print_message("skipped: no GPU: %s\n", status_message());
    skip();
}

static void open_gpu(struct compute *compute, const char *name, const struct compute_options *options) {
    const struct gemm_backend *backend;
    need_gpu();
    assert_status(registry_find(name, &backend), STATUS_OK);
    assert_status(compute_open(compute, backend, options), STATUS_OK);
}

/* --- GEMM --- */

/* Every how manieth case to take. */
static size_t thinning(void) {
    const char *stride = getenv("TESSERA_TEST_STRIDE");
    return stride && atoi(stride) > 0 ? (size_t)atoi(stride) : 1;
}

static void verify_with(const char *name, struct compute_options options, size_t stride) {
    struct compute compute;
    options.threads = 2;
    open_gpu(&compute, name, &options);
    stride *= thinning();
    for (size_t i = 0; i < verify_case_count(); i += stride) {
        const struct verify_case test = verify_case_at(i);
        bool skipped;
        assert_status(verify_gemm(&compute, &test, &skipped), STATUS_OK);
        assert_false(skipped);
    }
    compute_close(&compute);
}

static void naive_is_right(void **state) {
    (void)state;
    verify_with("cuda-naive", (struct compute_options){0}, 1);
}

static void coalesced_is_right(void **state) {
    (void)state;
    verify_with("cuda-coalesced", (struct compute_options){0}, 1);
}

static void shmem_is_right(void **state) {
    (void)state;
    for (int tile = 4; tile <= 32; tile *= 2)
        for (int dynamic = 0; dynamic < 2; dynamic++)
            verify_with("cuda-shmem", (struct compute_options){.tile = tile, .dynamic_shared = dynamic},
                        tile == 16 && !dynamic ? 1 : 5);
}

static void cublas_is_right(void **state) {
    (void)state;
    verify_with("cublas", (struct compute_options){0}, 1);
}

static void residency_host_is_right(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++)
        verify_with(backends[b], (struct compute_options){.residency = RESIDENCY_HOST, .pinned = b % 2}, 5);
}

/* --- ops: the same call on both devices --- */

struct pair {
    struct compute host, gpu;
    const struct ops *host_ops, *gpu_ops;
    enum gemm_dtype dtype;
};

static void open_pair(struct pair *pair, enum gemm_dtype dtype) {
    open_gpu(&pair->gpu, "cublas", &(struct compute_options){.threads = 1});
    support_open(&pair->host, "serial", 1);
    pair->dtype = dtype;
    pair->host_ops = pair->host.device.driver->ops(&pair->host.device, dtype);
    pair->gpu_ops = pair->gpu.device.driver->ops(&pair->gpu.device, dtype);
}

static void close_pair(struct pair *pair) {
    compute_close(&pair->host);
    compute_close(&pair->gpu);
}

/* A buffer on both devices with the same content. */
struct twin {
    void *host, *gpu;
    size_t bytes;
};

static struct twin make_twin(struct pair *pair, size_t bytes) {
    struct device *host = &pair->host.device, *gpu = &pair->gpu.device;
    struct twin twin = {host->driver->alloc(host, bytes), gpu->driver->alloc(gpu, bytes), bytes};
    assert_true(twin.host && twin.gpu);
    return twin;
}

static void send(struct pair *pair, struct twin twin) {
    pair->gpu.device.driver->upload(&pair->gpu.device, twin.gpu, twin.host, twin.bytes);
}

static struct twin make_reals(struct pair *pair, size_t count, double scale, uint32_t substream) {
    struct twin twin = make_twin(pair, count * dtype_size(pair->dtype));
    struct rng rng = rng_open(31, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) {
        const double value = scale * (2 * rng_uniform(&rng) - 1);
        if (pair->dtype == GEMM_F32) {
            ((float *)twin.host)[i] = (float)value;
        } else {
            ((double *)twin.host)[i] = value;
        }
    }
    send(pair, twin);
    return twin;
}

/* Both results are equal within `ulps` roundings of numbers up to the largest. */
static void compare_twins(struct pair *pair, struct twin twin, double ulps) {
    unsigned char *got = malloc(twin.bytes + 1);
    const size_t count = twin.bytes / dtype_size(pair->dtype);
    const double eps = pair->dtype == GEMM_F32 ? (double)FLT_EPSILON : DBL_EPSILON;
    double largest = 0;
    pair->gpu.device.driver->download(&pair->gpu.device, got, twin.gpu, twin.bytes);
    assert_status(pair->gpu.device.driver->synchronize(&pair->gpu.device), STATUS_OK);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < count; i++) {
            const double x =
                pair->dtype == GEMM_F32 ? (double)((float *)(void *)got)[i] : ((double *)(void *)got)[i];
            const double y =
                pair->dtype == GEMM_F32 ? (double)((float *)twin.host)[i] : ((double *)twin.host)[i];
            if (pass == 0 && fabs(y) > largest) largest = fabs(y);
            if (pass == 1 && !(fabs(x - y) <= ulps * eps * largest))
                fail_msg("element %zu: %.17g, on the host %.17g", i, x, y);
        }
    free(got);
}

static void free_twin(struct pair *pair, struct twin twin) {
    pair->host.device.driver->free(&pair->host.device, twin.host);
    pair->gpu.device.driver->free(&pair->gpu.device, twin.gpu);
}

static const size_t sizes[][2] = {{1, 1}, {3, 10}, {127, 37}, {128, 128}, {96, 10}, {1000, 300}, {4099, 65}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void ops_activation(void **state) {
    (void)state;
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        open_pair(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        for (int act = ACTIVATION_NONE; act <= ACTIVATION_GELU; act++)
            for (size_t s = 0; s < SIZES; s++) {
                const size_t rows = sizes[s][0], cols = sizes[s][1], count = rows * cols;
                const enum activation activation = (enum activation)act;
                struct twin pre = make_reals(&pair, count, 3, 1), bias = make_reals(&pair, cols, 1, 2);
                struct twin out = activation_needs_input(activation) ? make_reals(&pair, count, 1, 3) : pre;
                struct twin grad = make_reals(&pair, count, 1, 4), sums = make_reals(&pair, cols, 1, 5);
                pair.host_ops->bias_activation(host, rows, cols, activation, bias.host, pre.host, out.host);
                pair.gpu_ops->bias_activation(gpu, rows, cols, activation, bias.gpu, pre.gpu, out.gpu);
                compare_twins(&pair, pre, 16);
                compare_twins(&pair, out, 16);
                send(&pair, pre); /* the same start for the way back: relu at a rounding of 0 would differ */
                send(&pair, out);
                pair.host_ops->bias_activation_backward(host, rows, cols, activation, pre.host, out.host,
                                                        grad.host, sums.host);
                pair.gpu_ops->bias_activation_backward(gpu, rows, cols, activation, pre.gpu, out.gpu,
                                                       grad.gpu, sums.gpu);
                compare_twins(&pair, grad, 32);
                compare_twins(&pair, sums, 32 + (double)rows);
                if (activation_needs_input(activation)) free_twin(&pair, out);
                const struct twin rest[] = {pre, bias, grad, sums};
                for (size_t i = 0; i < 4; i++) free_twin(&pair, rest[i]);
            }
        close_pair(&pair);
    }
}

static void compare_tallies(struct pair *pair, struct twin twin, struct twin loss) {
    struct tally got, want;
    double got_loss, want_loss;
    struct device *gpu = &pair->gpu.device;
    gpu->driver->download(gpu, &got, twin.gpu, sizeof got);
    gpu->driver->download(gpu, &got_loss, loss.gpu, sizeof got_loss);
    memcpy(&want, twin.host, sizeof want);
    memcpy(&want_loss, loss.host, sizeof want_loss);
    assert_true(got.images == want.images && got.batches == want.batches && got.bad_step == want.bad_step);
    assert_int_equal(got.correct, want.correct);
    if (!isfinite(want_loss)) {
        assert_true(!isfinite(got_loss));
        return;
    }
    assert_near(got.loss_sum, want.loss_sum, 1e-5);
    assert_near(got_loss, want_loss, 1e-5);
}

static void ops_softmax(void **state) {
    (void)state;
    struct pair pair;
    static const size_t shapes[][2] = {{1, 2}, {128, 10}, {127, 26}, {8192, 10}, {20001, 40}, {5, 300}};
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        open_pair(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        for (size_t s = 0; s < 6; s++)
            for (int bad = 0; bad < 2; bad++) {
                const size_t rows = shapes[s][0], classes = shapes[s][1];
                struct twin logits = make_reals(&pair, rows * classes, 5, 6),
                            grad = make_reals(&pair, rows * classes, 1, 7);
                struct twin labels = make_twin(&pair, rows), loss = make_twin(&pair, sizeof(double));
                struct twin tally = make_twin(&pair, sizeof(struct tally));
                for (size_t r = 0; r < rows; r++)
                    ((uint8_t *)labels.host)[r] = (uint8_t)(r * 7 % (classes < 256 ? classes : 256));
                if (bad && dtype == GEMM_F32) ((float *)logits.host)[rows * classes / 2] = NAN;
                if (bad && dtype == GEMM_F64) ((double *)logits.host)[rows * classes / 2] = INFINITY;
                send(&pair, labels);
                send(&pair, logits);
                for (int twice = 0; twice < 2; twice++) {
                    pair.host_ops->softmax_cross_entropy(host, rows, classes, logits.host, labels.host,
                                                         grad.host, loss.host, tally.host);
                    pair.gpu_ops->softmax_cross_entropy(gpu, rows, classes, logits.gpu, labels.gpu, grad.gpu,
                                                        loss.gpu, tally.gpu);
                }
                compare_tallies(&pair, tally, loss);
                if (!bad) compare_twins(&pair, grad, 32);
                const struct twin all[] = {logits, grad, labels, loss, tally};
                for (size_t i = 0; i < 5; i++) free_twin(&pair, all[i]);
            }
        close_pair(&pair);
    }
}

static void ops_gather_and_sgd(void **state) {
    (void)state;
    struct pair pair;
    enum { IMAGES = 301, COUNT = 100003 };
    for (int which = 0; which < 4; which++) {
        const int dtype = which % 2;
        const size_t features =
            which < 2 ? 403 : 404; /* rows that start anywhere, and at multiples of four */
        open_pair(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        struct twin images = make_twin(&pair, IMAGES * features), labels = make_twin(&pair, IMAGES),
                    order = make_twin(&pair, IMAGES * 4);
        struct twin y = make_twin(&pair, IMAGES);
        for (size_t i = 0; i < IMAGES * features; i++) ((uint8_t *)images.host)[i] = (uint8_t)(i * 31 % 256);
        for (uint32_t i = 0; i < IMAGES; i++) {
            ((uint8_t *)labels.host)[i] = (uint8_t)(i % 10);
            ((uint32_t *)order.host)[i] = i * 7 % IMAGES;
        }
        send(&pair, images);
        send(&pair, labels);
        send(&pair, order);
        for (int indexed = 0; indexed < 2; indexed++) {
            struct twin x = make_reals(&pair, IMAGES * features, 1, 8);
            pair.host_ops->gather(host, IMAGES, features, images.host, labels.host,
                                  indexed ? order.host : NULL, x.host, y.host);
            pair.gpu_ops->gather(gpu, IMAGES, features, images.gpu, labels.gpu, indexed ? order.gpu : NULL,
                                 x.gpu, y.gpu);
            compare_twins(&pair, x, 0);
            uint8_t got[IMAGES];
            pair.gpu.device.driver->download(&pair.gpu.device, got, y.gpu, IMAGES);
            assert_memory_equal(got, y.host, IMAGES);
            free_twin(&pair, x);
        }
        for (int momentum = 0; momentum < 2; momentum++) {
            struct twin w = make_reals(&pair, COUNT, 1, 9), g = make_reals(&pair, COUNT, 1, 10),
                        v = make_reals(&pair, COUNT, 1, 11);
            struct twin lr = make_twin(&pair, sizeof(double)), guard = make_twin(&pair, sizeof(struct tally));
            *(double *)lr.host = 0.05;
            send(&pair, lr);
            for (uint64_t bad = 0; bad < 2; bad++) {
                ((struct tally *)guard.host)->bad_step = bad;
                send(&pair, guard);
                pair.host_ops->sgd(host, COUNT, lr.host, 0.9, 0.01, guard.host, w.host, g.host,
                                   momentum ? v.host : NULL);
                pair.gpu_ops->sgd(gpu, COUNT, lr.gpu, 0.9, 0.01, guard.gpu, w.gpu, g.gpu,
                                  momentum ? v.gpu : NULL);
                compare_twins(&pair, w, 4);
                compare_twins(&pair, v, 4);
            }
            const struct twin all[] = {w, g, v, lr, guard};
            for (size_t i = 0; i < 5; i++) free_twin(&pair, all[i]);
        }
        const struct twin rest[] = {images, labels, order, y};
        for (size_t i = 0; i < 4; i++) free_twin(&pair, rest[i]);
        close_pair(&pair);
    }
}

/* --- training --- */

/* The parameters, copied from the device; to be freed. */
static void *parameters(struct bench *bench) {
    struct device *device = &bench->compute.device;
    const size_t bytes = bench->trainer.mlp.parameter_elements * dtype_size(bench->trainer.mlp.dtype);
    void *copy = malloc(bytes);
    assert_non_null(copy);
    device->driver->download(device, copy, bench->trainer.mlp.parameters, bytes);
    return copy;
}

static void loss_curves(void **state) {
    (void)state;
    static const char *const ways[] = {"engine=eager", "engine=graph", "residency=host",
                                       "residency=host pin=on"};
    const size_t every = thinning() < 17 ? thinning() : 17; /* prime to the loops: all get a turn */
    size_t taken = 0;
    need_gpu();
    for (int b = 0; b < BACKENDS; b++)
        for (size_t way = 0; way < 4; way++)
            for (size_t curve = 0; curve < bench_curves(); curve++) {
                char how[128];
                if (taken++ % every) continue;
                snprintf(how, sizeof how, "threads=2 backend=%s %s", backends[b], ways[way]);
                bench_check_curve(curve, how, GEMM_F32, 1e-3);
                bench_check_curve(curve, how, GEMM_F64, 1e-10);
            }
}

static void graph_equals_eager_bit_for_bit(void **state) {
    (void)state;
    static const char *const engines[] = {"eager", "graph", "graph"};
    void *weights[3];
    size_t bytes = 0;
    need_gpu();
    for (int i = 0; i < 3; i++) {
        struct bench bench;
        struct run_summary summary;
        char settings[256];
        snprintf(settings, sizeof settings,
                 "backend=cublas engine=%s layers=42-70-65-4 batch-size=16 epochs=7 momentum=0.9",
                 engines[i]);
        bench_open(&bench, settings, NULL);
        assert_string_equal(bench.trainer.engine->name, engines[i]);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        bytes = bench.trainer.mlp.parameter_elements * sizeof(float);
        weights[i] = parameters(&bench);
        bench_close(&bench);
    }
    assert_memory_equal(weights[0], weights[1], bytes);
    assert_memory_equal(weights[1], weights[2], bytes);
    for (int i = 0; i < 3; i++) free(weights[i]);
}

/* Initial weights and batch order are those of the host. */
static void one_seed_on_every_device(void **state) {
    (void)state;
    static const char recipe[] = "backend=cublas layers=42-30-4 batch-size=16 seed=5 epochs=1";
    struct bench gpu;
    struct compute host;
    struct mlp mlp;
    bench_open(&gpu, recipe, NULL);
    support_open(&host, "serial", 1);
    assert_status(mlp_open(&mlp, &host, &gpu.config, 4), STATUS_OK);
    assert_status(mlp_initialize(&mlp, INIT_HE, 5), STATUS_OK);
    void *weights = parameters(&gpu);
    assert_memory_equal(weights, mlp.parameters, mlp.parameter_elements * sizeof(float));
    uint32_t order[50], want[50];
    struct rng rng = rng_open(5, RNG_SHUFFLE, 0);
    rng_permutation(&rng, want, 50);
    gpu.compute.device.driver->download(&gpu.compute.device, order, gpu.trainer.order, sizeof order);
    assert_memory_equal(order, want, sizeof order);
    free(weights);
    mlp_close(&mlp);
    compute_close(&host);
    bench_close(&gpu);
}

static void resume_equals_uninterrupted(void **state) {
    (void)state;
    static const char *const engines[] = {"eager", "graph"};
    char path[256];
    need_gpu();
    snprintf(path, sizeof path, "%s", support_path("gpu.safetensors"));
    for (int e = 0; e < 2; e++) {
        struct bench whole, first, second;
        struct run_summary summary;
        struct checkpoint checkpoint;
        char recipe[512], saving[512];
        snprintf(recipe, sizeof recipe,
                 "backend=cublas engine=%s layers=42-30-4 batch-size=16 epochs=6 momentum=0.9", engines[e]);
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
    need_gpu();
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
    need_gpu();
    for (int way = 0; way < 3; way++) {
        struct bench bench;
        struct run_summary summary;
        char settings[256];
        snprintf(settings, sizeof settings, "backend=cublas %s layers=42-300-4 batch-size=16 epochs=50",
                 ways[way]);
        bench_open(&bench, settings, NULL);
        const double start = clock_seconds(), before = profile_total(&bench.profile);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        const double wall = clock_seconds() - start, counted = profile_total(&summary.time) - before;
        assert_near(counted / wall, 1, 0.02);
        assert_true(profile_transfer_ratio(&summary.time) > 0);
        assert_true((summary.time.seconds[PART_GRAPH] > 0) == (way == 1));
        assert_true((summary.time.seconds[PART_GEMM_NT] > 0) == (way != 1));
        bench_close(&bench);
    }
}

static void out_of_memory_says_how_much(void **state) {
    (void)state;
    struct compute compute;
    struct config config;
    struct mlp mlp;
    open_gpu(&compute, "cublas", &(struct compute_options){.threads = 1});
    support_config(&config, "layers=784-1048576-1048576-10");
    assert_status(mlp_open(&mlp, &compute, &config, 128), STATUS_FAILED);
    assert_says(status_message(), "out of GPU memory");
    assert_says(status_message(), "free");
    support_config(&config, "layers=8-4-2"); /* and the device goes on */
    assert_status(mlp_open(&mlp, &compute, &config, 8), STATUS_OK);
    mlp_close(&mlp);
    compute_close(&compute);
}

static void what_is_not_there_is_refused(void **state) {
    (void)state;
    const struct gemm_backend *backend;
    struct compute compute;
    need_gpu();
    assert_status(registry_find("cublas", &backend), STATUS_OK);
    assert_status(compute_open(&compute, backend, &(struct compute_options){.ordinal = 1000}),
                  STATUS_UNAVAILABLE);
    assert_says(status_message(), "--device 1000");
    assert_status(registry_find("cuda-naive", &backend), STATUS_OK);
    assert_status(compute_open(&compute, backend, &(struct compute_options){.precision = GEMM_TF32}),
                  STATUS_UNAVAILABLE);
    assert_says(status_message(), "no precision tf32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(naive_is_right),
        cmocka_unit_test(coalesced_is_right),
        cmocka_unit_test(shmem_is_right),
        cmocka_unit_test(cublas_is_right),
        cmocka_unit_test(residency_host_is_right),
        cmocka_unit_test(ops_activation),
        cmocka_unit_test(ops_softmax),
        cmocka_unit_test(ops_gather_and_sgd),
        cmocka_unit_test(loss_curves),
        cmocka_unit_test(graph_equals_eager_bit_for_bit),
        cmocka_unit_test(one_seed_on_every_device),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(divergence_is_named),
        cmocka_unit_test(the_parts_add_up),
        cmocka_unit_test(out_of_memory_says_how_much),
        cmocka_unit_test(what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests_name("gpu", tests, NULL, NULL);
}
