/* Every element-wise op on the GPU against the same call on the host. */
#include "tests/mirror.h"

#include <math.h>
#include <stdlib.h>

static const size_t sizes[][2] = {{1, 1},   {3, 10},     {127, 37},  {128, 128},
                                  {96, 10}, {1000, 300}, {4099, 65}, {8192, 264}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void ops_activation(void **state) {
    (void)state;
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        for (int act = ACTIVATION_NONE; act < ACTIVATION_COUNT; act++)
            for (size_t s = 0; s<SIZES; s += support_stride()> 1 ? SIZES - 1 : 1) {
                const size_t rows = sizes[s][0], cols = sizes[s][1], count = rows * cols;
                const enum activation activation = (enum activation)act;
                /* sums of values rounded to 16 bits: near a tie, host and GPU may round to different
                   neighbours */
                const double sums_ulps = gemm_is_16bit(pair.activation_dtype) ? 4 * 65536 : 32 + (double)rows;
                struct mirror pre = mirror_activations(&pair, count, 3, 1),
                              bias = mirror_parameters(&pair, cols, 1, 2);
                struct mirror out =
                    activation_needs_input(activation) ? mirror_activations(&pair, count, 1, 3) : pre;
                const bool half = pair.activation_dtype == GEMM_F16; /* its gradients saturate */
                struct mirror grad = mirror_activations(&pair, count, half ? 65000 : 1, 4),
                              sums = mirror_parameters(&pair, cols, 1, 5);
                if (half) dtype_set(GEMM_F16, grad.host, count / 2, (double)INFINITY);
                mirror_upload(&pair, grad);
                pair.host_ops->bias_activation(host, rows, cols, activation, bias.host, pre.host, out.host);
                pair.gpu_ops->bias_activation(gpu, rows, cols, activation, bias.gpu, pre.gpu, out.gpu);
                mirror_compare(&pair, pair.activation_dtype, pre, 16);
                mirror_compare(&pair, pair.activation_dtype, out, 16);
                mirror_upload(&pair, pre); /* one backward input: relu jumps at 0 */
                mirror_upload(&pair, out);
                pair.host_ops->bias_activation_backward(host, rows, cols, activation, pre.host, out.host,
                                                        grad.host, 1, 0, sums.host);
                pair.gpu_ops->bias_activation_backward(gpu, rows, cols, activation, pre.gpu, out.gpu,
                                                       grad.gpu, 1, 0, sums.gpu);
                mirror_compare(&pair, pair.activation_dtype, grad, 32);
                mirror_compare(&pair, pair.parameter_dtype, sums, sums_ulps);
                pair.host_ops->bias_activation_backward(host, rows, cols, ACTIVATION_NONE, pre.host, out.host,
                                                        grad.host, 0.5, 0.5, sums.host);
                pair.gpu_ops->bias_activation_backward(gpu, rows, cols, ACTIVATION_NONE, pre.gpu, out.gpu,
                                                       grad.gpu, 0.5, 0.5, sums.gpu);
                mirror_compare(&pair, pair.activation_dtype, grad, 32);
                mirror_compare(&pair, pair.parameter_dtype, sums, sums_ulps);
                if (activation_needs_input(activation)) mirror_free(&pair, out);
                const struct mirror rest[] = {pre, bias, grad, sums};
                for (size_t i = 0; i < 4; i++) mirror_free(&pair, rest[i]);
            }
        pair_close(&pair);
    }
}

static void compare_tallies(struct device_pair *pair, struct mirror mirror, struct mirror loss) {
    struct tally got, want;
    double got_loss, want_loss;
    struct device *gpu = &pair->gpu.device;
    gpu->driver->download(gpu, &got, mirror.gpu, sizeof got);
    gpu->driver->download(gpu, &got_loss, loss.gpu, sizeof got_loss);
    memcpy(&want, mirror.host, sizeof want);
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
    struct device_pair pair;
    static const size_t shapes[][2] = {{1, 2}, {128, 10}, {127, 26}, {8192, 10}, {20001, 40}, {5, 300}};
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        for (size_t s = 0; s < 6; s += support_every(3))
            for (int bad = 0; bad < 2; bad++) {
                const size_t rows = shapes[s][0], classes = shapes[s][1];
                struct mirror logits = mirror_activations(&pair, rows * classes, 5, 6),
                              grad = mirror_activations(&pair, rows * classes, 1, 7);
                struct mirror labels = mirror_alloc(&pair, rows), loss = mirror_alloc(&pair, sizeof(double));
                struct mirror tally = mirror_alloc(&pair, sizeof(struct tally));
                for (size_t r = 0; r < rows; r++)
                    ((uint8_t *)labels.host)[r] = (uint8_t)(r * 7 % (classes < 256 ? classes : 256));
                if (bad)
                    dtype_set(pair.activation_dtype, logits.host, rows * classes / 2,
                              dtype == GEMM_F64 ? (double)INFINITY : (double)NAN);
                mirror_upload(&pair, labels);
                mirror_upload(&pair, logits);
                for (int time = 0; time < 3; time++) {
                    pair.host_ops->softmax_cross_entropy(host, rows, (double)rows, classes, 0, logits.host,
                                                         labels.host, grad.host, loss.host, tally.host,
                                                         time != 1);
                    pair.gpu_ops->softmax_cross_entropy(gpu, rows, (double)rows, classes, 0, logits.gpu,
                                                        labels.gpu, grad.gpu, loss.gpu, tally.gpu, time != 1);
                }
                compare_tallies(&pair, tally, loss);
                if (!bad) mirror_compare(&pair, pair.activation_dtype, grad, 32);
                const struct mirror all[] = {logits, grad, labels, loss, tally};
                for (size_t i = 0; i < 5; i++) mirror_free(&pair, all[i]);
            }
        pair_close(&pair);
    }
}

static void ops_gather_and_round(void **state) {
    (void)state;
    struct device_pair pair;
    enum { IMAGES = 301, COUNT = 100003 };
    for (int which = 0; which < 6; which++) {
        const int dtype = which / 2;
        const size_t features = which % 2 ? 403 : 404; /* unaligned rows, aligned rows */
        pair_open(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        struct mirror images = mirror_alloc(&pair, IMAGES * features), labels = mirror_alloc(&pair, IMAGES),
                      order = mirror_alloc(&pair, IMAGES * 4);
        struct mirror y = mirror_alloc(&pair, IMAGES);
        for (size_t i = 0; i < IMAGES * features; i++) ((uint8_t *)images.host)[i] = (uint8_t)(i * 31 % 256);
        for (uint32_t i = 0; i < IMAGES; i++) {
            ((uint8_t *)labels.host)[i] = (uint8_t)(i % 10);
            ((uint32_t *)order.host)[i] = i * 7 % IMAGES;
        }
        mirror_upload(&pair, images);
        mirror_upload(&pair, labels);
        mirror_upload(&pair, order);
        for (int way = 0; way < 4; way++) {
            const bool indexed = way % 2;
            const enum input_range range = way / 2 ? INPUT_SIGNED : INPUT_UNIT;
            struct mirror x = mirror_activations(&pair, IMAGES * features, 1, 8);
            pair.host_ops->gather(host, IMAGES, features, range, images.host, labels.host,
                                  indexed ? order.host : NULL, x.host, y.host);
            pair.gpu_ops->gather(gpu, IMAGES, features, range, images.gpu, labels.gpu,
                                 indexed ? order.gpu : NULL, x.gpu, y.gpu);
            mirror_compare(&pair, pair.activation_dtype, x, 0);
            uint8_t got[IMAGES];
            pair.gpu.device.driver->download(&pair.gpu.device, got, y.gpu, IMAGES);
            assert_memory_equal(got, y.host, IMAGES);
            mirror_free(&pair, x);
        }
        struct mirror values = mirror_parameters(&pair, COUNT, 1, 12),
                      rounded = mirror_activations(&pair, COUNT, 2, 13);
        pair.host_ops->round(host, COUNT, values.host, rounded.host);
        pair.gpu_ops->round(gpu, COUNT, values.gpu, rounded.gpu);
        mirror_compare(&pair, pair.activation_dtype, rounded, 0);
        mirror_free(&pair, values);
        mirror_free(&pair, rounded);
        const struct mirror rest[] = {images, labels, order, y};
        for (size_t i = 0; i < 4; i++) mirror_free(&pair, rest[i]);
        pair_close(&pair);
    }
}

/* The best rate of a library product, in flop/s. */
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
    if (getenv("TESSERA_TEST_SLOWED")) {
        print_message("skipped: rates of an instrumented program say nothing\n");
        skip();
    }
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
        cmocka_unit_test(ops_activation),
        cmocka_unit_test(ops_softmax),
        cmocka_unit_test(ops_gather_and_round),
        cmocka_unit_test(measured_peaks),
    };
    return cmocka_run_group_tests_name("gpu ops", tests, NULL, NULL);
}
