/* Every element-wise op on the GPU against the same call on the host. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/rng.h"

struct pair {
    struct compute host, gpu;
    const struct ops *host_ops, *gpu_ops;
    enum gemm_dtype stored, real; /* of activations; of parameters */
};

static void open_pair(struct pair *pair, enum gemm_dtype dtype) {
    gpu_open(&pair->gpu, "cublas", &(struct compute_options){.threads = 1});
    support_open(&pair->host, "serial", 1);
    pair->stored = dtype;
    pair->real = dtype == GEMM_BF16 ? GEMM_F32 : dtype;
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

static struct twin make_values(struct pair *pair, enum gemm_dtype dtype, size_t count, double scale,
                               uint32_t substream) {
    struct twin twin = make_twin(pair, count * dtype_size(dtype));
    struct rng rng = rng_open(31, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) dtype_set(dtype, twin.host, i, scale * (2 * rng_uniform(&rng) - 1));
    send(pair, twin);
    return twin;
}

/* Activations and their gradients; parameters. */
static struct twin make_stored(struct pair *pair, size_t count, double scale, uint32_t substream) {
    return make_values(pair, pair->stored, count, scale, substream);
}

static struct twin make_reals(struct pair *pair, size_t count, double scale, uint32_t substream) {
    return make_values(pair, pair->real, count, scale, substream);
}

/* Both results are equal within `ulps` roundings of numbers up to the largest. */
static void compare_twins(struct pair *pair, enum gemm_dtype dtype, struct twin twin, double ulps) {
    unsigned char *got = malloc(twin.bytes + 1);
    const size_t count = twin.bytes / dtype_size(dtype);
    double largest = 0;
    assert_non_null(got);
    pair->gpu.device.driver->download(&pair->gpu.device, got, twin.gpu, twin.bytes);
    assert_status(pair->gpu.device.driver->synchronize(&pair->gpu.device), STATUS_OK);
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs(dtype_get(dtype, twin.host, i)));
    for (size_t i = 0; i < count; i++) {
        const double x = dtype_get(dtype, got, i), y = dtype_get(dtype, twin.host, i);
        if (!(fabs(x - y) <= ulps * dtype_epsilon(dtype) * largest))
            fail_msg("element %zu: %.17g, on the host %.17g", i, x, y);
    }
    free(got);
}

static void free_twin(struct pair *pair, struct twin twin) {
    pair->host.device.driver->free(&pair->host.device, twin.host);
    pair->gpu.device.driver->free(&pair->gpu.device, twin.gpu);
}

static const size_t sizes[][2] = {{1, 1},   {3, 10},     {127, 37},  {128, 128},
                                  {96, 10}, {1000, 300}, {4099, 65}, {8192, 264}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void ops_activation(void **state) {
    (void)state;
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++) {
        open_pair(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        for (int act = ACTIVATION_NONE; act <= ACTIVATION_GELU; act++)
            for (size_t s = 0; s<SIZES; s += support_stride()> 1 ? SIZES - 1 : 1) {
                const size_t rows = sizes[s][0], cols = sizes[s][1], count = rows * cols;
                const enum activation activation = (enum activation)act;
                /* a sum of roundings to bfloat16: where both ways fall on either side of a tie, they are an ulp apart */
                const double sums_ulps = pair.stored == GEMM_BF16 ? 4 * 65536 : 32 + (double)rows;
                struct twin pre = make_stored(&pair, count, 3, 1), bias = make_reals(&pair, cols, 1, 2);
                struct twin out = activation_needs_input(activation) ? make_stored(&pair, count, 1, 3) : pre;
                struct twin grad = make_stored(&pair, count, 1, 4), sums = make_reals(&pair, cols, 1, 5);
                pair.host_ops->bias_activation(host, rows, cols, activation, bias.host, pre.host, out.host);
                pair.gpu_ops->bias_activation(gpu, rows, cols, activation, bias.gpu, pre.gpu, out.gpu);
                compare_twins(&pair, pair.stored, pre, 16);
                compare_twins(&pair, pair.stored, out, 16);
                send(&pair, pre); /* the same start for the way back: relu at a rounding of 0 would differ */
                send(&pair, out);
                pair.host_ops->bias_activation_backward(host, rows, cols, activation, pre.host, out.host,
                                                        grad.host, sums.host);
                pair.gpu_ops->bias_activation_backward(gpu, rows, cols, activation, pre.gpu, out.gpu,
                                                       grad.gpu, sums.gpu);
                compare_twins(&pair, pair.stored, grad, 32);
                compare_twins(&pair, pair.real, sums, sums_ulps);
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
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++) {
        open_pair(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        for (size_t s = 0; s<6; s += support_stride()> 1 ? 3 : 1)
            for (int bad = 0; bad < 2; bad++) {
                const size_t rows = shapes[s][0], classes = shapes[s][1];
                struct twin logits = make_stored(&pair, rows * classes, 5, 6),
                            grad = make_stored(&pair, rows * classes, 1, 7);
                struct twin labels = make_twin(&pair, rows), loss = make_twin(&pair, sizeof(double));
                struct twin tally = make_twin(&pair, sizeof(struct tally));
                for (size_t r = 0; r < rows; r++)
                    ((uint8_t *)labels.host)[r] = (uint8_t)(r * 7 % (classes < 256 ? classes : 256));
                if (bad)
                    dtype_set(pair.stored, logits.host, rows * classes / 2,
                              dtype == GEMM_F64 ? (double)INFINITY : (double)NAN);
                send(&pair, labels);
                send(&pair, logits);
                for (int twice = 0; twice < 2; twice++) {
                    pair.host_ops->softmax_cross_entropy(host, rows, classes, 0, logits.host, labels.host,
                                                         grad.host, loss.host, tally.host);
                    pair.gpu_ops->softmax_cross_entropy(gpu, rows, classes, 0, logits.gpu, labels.gpu,
                                                        grad.gpu, loss.gpu, tally.gpu);
                }
                compare_tallies(&pair, tally, loss);
                if (!bad) compare_twins(&pair, pair.stored, grad, 32);
                const struct twin all[] = {logits, grad, labels, loss, tally};
                for (size_t i = 0; i < 5; i++) free_twin(&pair, all[i]);
            }
        close_pair(&pair);
    }
}

static void ops_gather_and_round(void **state) {
    (void)state;
    struct pair pair;
    enum { IMAGES = 301, COUNT = 100003 };
    for (int which = 0; which < 6; which++) {
        const int dtype = which / 2;
        const size_t features =
            which % 2 ? 403 : 404; /* rows that start anywhere, and at multiples of four */
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
            struct twin x = make_stored(&pair, IMAGES * features, 1, 8);
            pair.host_ops->gather(host, IMAGES, features, images.host, labels.host,
                                  indexed ? order.host : NULL, x.host, y.host);
            pair.gpu_ops->gather(gpu, IMAGES, features, images.gpu, labels.gpu, indexed ? order.gpu : NULL,
                                 x.gpu, y.gpu);
            compare_twins(&pair, pair.stored, x, 0);
            uint8_t got[IMAGES];
            pair.gpu.device.driver->download(&pair.gpu.device, got, y.gpu, IMAGES);
            assert_memory_equal(got, y.host, IMAGES);
            free_twin(&pair, x);
        }
        struct twin values = make_reals(&pair, COUNT, 1, 12), rounded = make_stored(&pair, COUNT, 2, 13);
        pair.host_ops->round(host, COUNT, values.host, rounded.host);
        pair.gpu_ops->round(gpu, COUNT, values.gpu, rounded.gpu);
        compare_twins(&pair, pair.stored, rounded, 0);
        free_twin(&pair, values);
        free_twin(&pair, rounded);
        const struct twin rest[] = {images, labels, order, y};
        for (size_t i = 0; i < 4; i++) free_twin(&pair, rest[i]);
        close_pair(&pair);
    }
}

static const struct update rules[] = {
    {.method = UPDATE_SGD},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    {.method = UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.1},
    {.method = UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1},
    {.method = UPDATE_NONE},
};

/* Three steps of a rule on both, the last of them after a bad step; with everything that is optional, or nothing of it. */
static void compare_updates(struct pair *pair, const struct update *rule, size_t count, bool all) {
    enum { W, GRAD, M, V, AVERAGE, ROUNDED, CLIP, STEP, GUARD, TWINS };
    const bool adam = rule->method == UPDATE_ADAM || rule->method == UPDATE_ADAMW;
    struct twin twin[TWINS];
    for (int i = W; i <= AVERAGE; i++) twin[i] = make_reals(pair, count, 1, 20 + (uint32_t)i);
    twin[M] = make_twin(pair, count * dtype_size(pair->real));
    twin[V] = make_twin(pair, count * dtype_size(pair->real));
    twin[ROUNDED] = make_stored(pair, count, 1, 30);
    twin[CLIP] = make_twin(pair, sizeof(double));
    twin[STEP] = make_twin(pair, sizeof(struct step_scalars));
    twin[GUARD] = make_twin(pair, sizeof(struct tally));
    *(double *)twin[CLIP].host = 0.25;
    send(pair, twin[CLIP]);
    struct update updates[2];
    for (int gpu = 0; gpu < 2; gpu++) {
        void *at[TWINS];
        for (int i = 0; i < TWINS; i++) at[i] = gpu ? twin[i].gpu : twin[i].host;
        updates[gpu] = *rule;
        updates[gpu].weights = at[W];
        updates[gpu].grad = at[GRAD];
        updates[gpu].moment1 = adam || rule->momentum > 0 ? at[M] : NULL;
        updates[gpu].moment2 = adam ? at[V] : NULL;
        updates[gpu].clip = all ? at[CLIP] : NULL;
        updates[gpu].average = all ? at[AVERAGE] : NULL;
        updates[gpu].rounded = all ? at[ROUNDED] : NULL;
    }
    for (int t = 1; t <= 3; t++) {
        *(struct step_scalars *)twin[STEP].host =
            (struct step_scalars){.learning_rate = 0.05,
                                  .adam_rate = 0.05 / (1 - pow(rule->beta1, t)),
                                  .adam_root = 1 / sqrt(1 - pow(rule->beta2, t)),
                                  .average_keep = 0.75};
        ((struct tally *)twin[GUARD].host)->bad_step = t == 3;
        send(pair, twin[STEP]);
        send(pair, twin[GUARD]);
        pair->host_ops->update(pair->host.device.ops_context, count, &updates[0], twin[STEP].host,
                               twin[GUARD].host);
        pair->gpu_ops->update(pair->gpu.device.ops_context, count, &updates[1], twin[STEP].gpu,
                              twin[GUARD].gpu);
        /* Adam divides by a root, which near 0 has few right digits */
        for (int i = W; i <= AVERAGE; i++) compare_twins(pair, pair->real, twin[i], adam ? 256 : 8);
        if (all)
            compare_twins(pair, pair->stored, twin[ROUNDED], adam && pair->stored != GEMM_BF16 ? 256 : 8);
    }
    for (int i = 0; i < TWINS; i++) free_twin(pair, twin[i]);
}

static void ops_update(void **state) {
    (void)state;
    struct pair pair;
    for (int dtype = GEMM_F32; dtype <= GEMM_BF16; dtype++) {
        open_pair(&pair, (enum gemm_dtype)dtype);
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
            compare_updates(&pair, &rules[r], 100004, r % 2); /* packs of any width, then single elements */
            compare_updates(&pair, &rules[r], 100003, true);
        }
        close_pair(&pair);
    }
}

/* The best rate of a product of the library, in flops a second. */
static double rate_of_cublas(struct compute *compute, enum gemm_dtype dtype) {
    enum { SIDE = 4096 };
    const size_t bytes = (size_t)SIDE * SIDE * dtype_size(dtype);
    struct device *device = &compute->device;
    struct gemm_call call = {
        .dtype = dtype, .m = SIDE, .n = SIDE, .k = SIDE, .alpha = 1, .lda = SIDE, .ldb = SIDE, .ldc = SIDE};
    void *memory[3];
    double best = 0;
    for (int i = 0; i < 3; i++) memory[i] = device->driver->alloc(device, bytes);
    assert_true(memory[0] && memory[1] && memory[2]);
    call.a = memory[0];
    call.b = memory[1];
    call.c = memory[2];
    for (int repeat = 0; repeat < 5; repeat++) {
        const double start = clock_seconds();
        assert_status(compute_gemm(compute, &call), STATUS_OK);
        assert_status(device->driver->synchronize(device), STATUS_OK);
        best = fmax(best, 2.0 * SIDE * (double)SIDE * SIDE / (clock_seconds() - start));
    }
    for (int i = 0; i < 3; i++) device->driver->free(device, memory[i]);
    return best;
}

static void measured_peaks(void **state) {
    (void)state;
    struct compute compute;
    double rate[2] = {NAN, NAN}, bytes = NAN;
    gpu_open(&compute, "cublas", &(struct compute_options){.threads = 1});
    struct device *device = &compute.device;
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++)
        assert_status(device->driver->peak(device, (enum gemm_dtype)dtype, &rate[dtype]), STATUS_OK);
    assert_status(device->driver->bandwidth(device, &bytes), STATUS_OK);
    print_message("peak: %.2f TFLOP/s in float32, %.2f in float64, copy %.0f GB/s\n", 1e-12 * rate[0],
                  1e-12 * rate[1], 1e-9 * bytes);
    assert_true(isfinite(rate[0]) && isfinite(rate[1]) && isfinite(bytes));
    assert_true(rate[1] > 0 && bytes > 0);
    assert_true(rate[0] > 0.7 * rate[1]); /* float64 on tensor cores is about as fast as float32 */
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++)
        assert_true(1.05 * rate[dtype] > rate_of_cublas(&compute, (enum gemm_dtype)dtype));
    assert_status(device->driver->peak(device, GEMM_BF16, &bytes), STATUS_UNAVAILABLE);
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_activation),       cmocka_unit_test(ops_softmax),
        cmocka_unit_test(ops_gather_and_round), cmocka_unit_test(ops_update),
        cmocka_unit_test(measured_peaks),
    };
    return cmocka_run_group_tests_name("gpu ops", tests, NULL, NULL);
}
