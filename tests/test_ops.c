/* Element-wise ops on the host, against their definitions in double precision. */
#include "tests/support.h"
#include "tests/values.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/host/ops/ops.h"
#include "src/backend/oracle.h"

static struct host_ops_context context = {.threads = 3};

/* Sizes on both sides of the parallel threshold and of the column chunk. */
static const size_t sizes[][2] = {{1, 1}, {3, 10}, {7, 64}, {5, 65}, {300, 129}};

static void bias_and_activation(void **state) {
    (void)state;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (int act = ACTIVATION_NONE; act < ACTIVATION_COUNT; act++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                const enum activation activation = (enum activation)act;
                const size_t rows = sizes[s][0], cols = sizes[s][1];
                struct values pre = values_random((enum gemm_dtype)dtype, rows * cols, 3, 0);
                struct values bias = values_random(values_parameter_dtype(dtype), cols, 1, 1), out = pre;
                struct values z = values_make(GEMM_F64, rows * cols);
                for (size_t i = 0; i < rows * cols; i++)
                    values_set(z, i, values_get(pre, i) + values_get(bias, i % cols));
                if (activation_needs_input(activation))
                    out = values_make((enum gemm_dtype)dtype, rows * cols);
                host_ops((enum gemm_dtype)dtype)
                    ->bias_activation(&context, rows, cols, activation, bias.data, pre.data, out.data);
                for (size_t i = 0; i < rows * cols; i++) {
                    assert_near(values_get(out, i), oracle_activated(activation, values_get(z, i)),
                                values_tolerance(16, (enum gemm_dtype)dtype));
                    if (out.data != pre.data)
                        assert_near(values_get(pre, i), values_get(z, i),
                                    values_tolerance(4, (enum gemm_dtype)dtype));
                }
                if (out.data != pre.data) free(out.data);
                free(pre.data);
                free(bias.data);
                free(z.data);
            }
}

static void derivatives_and_column_sums(void **state) {
    (void)state;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (int act = ACTIVATION_NONE; act < ACTIVATION_COUNT; act++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                const enum activation activation = (enum activation)act;
                const size_t rows = sizes[s][0], cols = sizes[s][1];
                const double tolerance =
                    values_tolerance(64, (enum gemm_dtype)dtype) + 1e-9; /* of the central difference */
                struct values z = values_random((enum gemm_dtype)dtype, rows * cols, 3, 2),
                              out = values_make((enum gemm_dtype)dtype, rows * cols);
                struct values grad = values_random((enum gemm_dtype)dtype, rows * cols, 1, 3),
                              sums = values_make(values_parameter_dtype(dtype), cols);
                struct values want = values_make(GEMM_F64, rows * cols),
                              want_sums = values_make(GEMM_F64, cols);
                for (size_t i = 0; i < rows * cols; i++) {
                    const double h = 1e-5, at = values_get(z, i);
                    const double slope =
                        (oracle_activated(activation, at + h) - oracle_activated(activation, at - h)) /
                        (2 * h);
                    values_set(out, i, oracle_activated(activation, at));
                    values_set(
                        want, i,
                        fabs(at) < 1e-4 && activation == ACTIVATION_RELU ? NAN : values_get(grad, i) * slope);
                    values_set(want_sums, i % cols, values_get(want_sums, i % cols) + values_get(want, i));
                }
                host_ops((enum gemm_dtype)dtype)
                    ->bias_activation_backward(&context, rows, cols, activation, z.data, out.data, grad.data,
                                               1, 0, sums.data);
                for (size_t i = 0; i < rows * cols; i++)
                    if (!isnan(values_get(want, i)))
                        assert_near(values_get(grad, i), values_get(want, i), tolerance);
                for (size_t j = 0; j < cols; j++)
                    if (!isnan(values_get(want_sums, j)))
                        assert_near(values_get(sums, j), values_get(want_sums, j), (double)rows * tolerance);
                /* again with 0.25 of the former sums; grad is now the gradient of Z */
                for (size_t j = 0; j < cols; j++) {
                    values_set(want_sums, j, 0.25 * (double)j + 0.75 * values_get(sums, j));
                    values_set(sums, j, (double)j);
                }
                host_ops((enum gemm_dtype)dtype)
                    ->bias_activation_backward(&context, rows, cols, ACTIVATION_NONE, z.data, out.data,
                                               grad.data, 0.75, 0.25, sums.data);
                for (size_t j = 0; j < cols; j++)
                    assert_near(values_get(sums, j), values_get(want_sums, j),
                                values_tolerance(4, values_parameter_dtype(dtype)));
                struct values all[] = {z, out, grad, sums, want, want_sums};
                for (size_t i = 0; i < 6; i++) free(all[i].data);
            }
}

static void relu_lets_nan_through(void **state) {
    (void)state;
    float z[3] = {NAN, -1, 2};
    const float bias[3] = {0};
    host_ops(GEMM_F32)->bias_activation(&context, 1, 3, ACTIVATION_RELU, bias, z, z);
    assert_true(isnan(z[0]) && z[1] == 0 && z[2] == 2);
}

static void softmax_matches_its_definition(void **state) {
    (void)state;
    enum { ROWS = 201, CLASSES = 26 };
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        struct values logits = values_random((enum gemm_dtype)dtype, ROWS * CLASSES, 5, 4);
        struct values grad = values_make((enum gemm_dtype)dtype, ROWS * CLASSES);
        uint8_t labels[ROWS];
        double want = 0, loss = NAN;
        size_t correct = 0;
        struct tally tally = {0};
        for (size_t r = 0; r < ROWS; r++) labels[r] = (uint8_t)(r * 5 % CLASSES);
        host_ops((enum gemm_dtype)dtype)
            ->softmax_cross_entropy(&context, ROWS, ROWS, CLASSES, 0, logits.data, labels, grad.data, &loss,
                                    &tally, true);
        for (size_t r = 0; r < ROWS; r++) {
            double sum = 0;
            size_t best = 0;
            for (size_t c = 0; c < CLASSES; c++) {
                sum += exp(values_get(logits, r * CLASSES + c));
                if (values_get(logits, r * CLASSES + c) > values_get(logits, r * CLASSES + best)) best = c;
            }
            want += log(sum) - values_get(logits, r * CLASSES + labels[r]);
            correct += best == labels[r];
            for (size_t c = 0; c < CLASSES; c++) {
                const double p = exp(values_get(logits, r * CLASSES + c)) / sum - (c == labels[r]);
                assert_near(values_get(grad, r * CLASSES + c) * ROWS, p,
                            values_tolerance(32, (enum gemm_dtype)dtype));
            }
        }
        assert_near(loss, want / ROWS, values_tolerance(32, (enum gemm_dtype)dtype));
        assert_near(tally.loss_sum, want, values_tolerance(32, (enum gemm_dtype)dtype));
        assert_true(tally.correct == correct && tally.images == ROWS && tally.batches == 1 &&
                    tally.bad_step == 0);
        assert_true(correct > 0 && correct < ROWS);
        free(logits.data);
        free(grad.data);
    }
}

static void softmax_cannot_overflow(void **state) {
    (void)state;
    const float logits[3] = {3e38f, -3e38f, 1e38f};
    const uint8_t label = 0;
    float grad[3];
    double loss;
    struct tally tally = {0};
    host_ops(GEMM_F32)->softmax_cross_entropy(&context, 1, 1, 3, 0, logits, &label, grad, &loss, &tally,
                                              true);
    assert_true(loss == 0 && grad[0] == 0 && grad[1] == 0 && tally.correct == 1 && tally.bad_step == 0);
    const uint8_t wrong = 1;
    host_ops(GEMM_F32)->softmax_cross_entropy(&context, 1, 1, 3, 0, logits, &wrong, grad, &loss, &tally,
                                              true);
    assert_true(isfinite(loss) && loss > 5e38 && grad[0] == 1 && grad[1] == -1 && tally.bad_step == 0);
}

static void softmax_detects_non_finite_logits(void **state) {
    (void)state;
    const float bad[2][2] = {{NAN, 0}, {INFINITY, 0}}, good[2] = {1, 0};
    const uint8_t label = 0, out_of_range = 2;
    double loss;
    for (int i = 0; i < 3; i++) {
        struct tally tally = {0};
        host_ops(GEMM_F32)->softmax_cross_entropy(&context, 1, 1, 2, 0, good, &label, NULL, &loss, &tally,
                                                  true);
        assert_true(tally.bad_step == 0 && tally.correct == 1);
        host_ops(GEMM_F32)->softmax_cross_entropy(&context, 1, 1, 2, 0, i < 2 ? bad[i] : good,
                                                  i < 2 ? &label : &out_of_range, NULL, &loss, &tally, true);
        assert_true(tally.bad_step == 2 && tally.correct == 1 && !isfinite(loss));
        host_ops(GEMM_F32)->softmax_cross_entropy(&context, 1, 1, 2, 0, bad[0], &label, NULL, &loss, &tally,
                                                  true);
        assert_int_equal(tally.bad_step, 2); /* the first bad step stays */

        struct tally before = {.loss_sum = 3, .images = 7, .correct = 5, .batches = 4}, after = before;
        host_ops(GEMM_F32)->softmax_cross_entropy(&context, 1, 1, 2, 0, good, &label, NULL, &loss, &after,
                                                  false);
        assert_memory_equal(&before, &after, sizeof after); /* not counted; bad steps are still found */
        host_ops(GEMM_F32)->softmax_cross_entropy(&context, 1, 1, 2, 0, i < 2 ? bad[i] : good,
                                                  i < 2 ? &label : &out_of_range, NULL, &loss, &after, false);
        before.bad_step = 4;
        assert_memory_equal(&before, &after, sizeof after);
    }
}

/* A batch in two parts is counted as the whole one. */
static void parts_add_up(void **state) {
    (void)state;
    const struct ops *ops = host_ops(GEMM_F32);
    for (int bad = 0; bad < 4; bad++) { /* 3: the loss of a part is NaN */
        const struct tally parts[] = {
            {.loss_sum = bad == 3 ? NAN : 1.5, .images = 8, .correct = 3, .batches = 1, .bad_step = bad == 1},
            {.loss_sum = 2, .images = 6, .correct = 6, .batches = 1, .bad_step = bad == 2}};
        const double stop[] = {0, 1};
        struct batch_values values[2];
        struct tally tally = {.loss_sum = 10, .images = 100, .correct = 50, .batches = 7};
        double loss;
        for (int i = 0; i < 2; i++) ops->part_values(&context, &parts[i], &stop[i], &values[i]);
        host_ops(GEMM_F64)->add(&context, sizeof *values / sizeof(double), &values[0], &values[1]);
        ops->count_batch(&context, &values[1], &loss, &tally);
        assert_true(values[1].stops == 1 && tally.images == 114 && tally.correct == 59 && tally.batches == 8);
        assert_int_equal(tally.bad_step, bad ? 8 : 0);
        if (bad < 3) assert_true(loss == 0.25 && tally.loss_sum == 13.5);
        tally.bad_step = 2;
        ops->count_batch(&context, &values[1], &loss, &tally);
        assert_int_equal(tally.bad_step, 2); /* the first one stays */
    }
    enum { COUNT = 100003 }; /* several threads */
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        struct values from = values_random((enum gemm_dtype)dtype, COUNT, 1, 8),
                      into = values_random((enum gemm_dtype)dtype, COUNT, 1, 9),
                      before = values_random((enum gemm_dtype)dtype, COUNT, 1, 9);
        host_ops((enum gemm_dtype)dtype)->add(&context, COUNT, from.data, into.data);
        for (size_t i = 0; i < COUNT; i++) {
            const double sum = values_get(from, i) + values_get(before, i);
            assert_true(values_get(into, i) == (dtype == GEMM_F64 ? sum : (double)(float)sum));
        }
        free(from.data);
        free(into.data);
        free(before.data);
    }
}

static void steps_along_a_sign(void **state) {
    (void)state;
    enum { COUNT = 40009 };
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        struct values grad =
                          values_random((enum gemm_dtype)dtype, COUNT, dtype == GEMM_F16 ? 1e-6 : 1e-30, 6),
                      x = values_random((enum gemm_dtype)dtype, COUNT, 1, 7),
                      want = values_make((enum gemm_dtype)dtype, COUNT);
        static const double special[] = {0, -0.0, NAN, INFINITY, -INFINITY};
        for (size_t i = 0; i < 5; i++) values_set(grad, 100 * i, special[i]);
        for (size_t i = 0; i < COUNT; i++) {
            const double g = values_get(grad, i), at = values_get(x, i);
            const int sign = (g > 0) - (g < 0);
            values_set(want, i,
                       dtype == GEMM_F64 ? at + 0.3 * sign : (double)((float)at + 0.3f * (float)sign));
        }
        host_ops((enum gemm_dtype)dtype)->sign_step(&context, COUNT, 0.3, grad.data, x.data);
        assert_memory_equal(x.data, want.data, COUNT * dtype_size((enum gemm_dtype)dtype));
        struct values all[] = {grad, x, want};
        for (size_t i = 0; i < 3; i++) free(all[i].data);
    }
}

static void gather_by_index(void **state) {
    (void)state;
    enum { COUNT = 400, FEATURES = 101 };
    uint8_t *images = malloc(COUNT * FEATURES), labels[COUNT], y[COUNT];
    uint32_t index[COUNT];
    for (size_t i = 0; i < COUNT * FEATURES; i++) images[i] = (uint8_t)(i * 31 % 256);
    for (size_t i = 0; i < COUNT; i++) {
        labels[i] = (uint8_t)(i % 10);
        index[i] = (uint32_t)(i * 7 % COUNT);
    }
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (int way = 0; way < 4; way++) {
            const bool indexed = way % 2, both_signs = way / 2;
            struct values x = values_make((enum gemm_dtype)dtype, COUNT * FEATURES);
            host_ops((enum gemm_dtype)dtype)
                ->gather(&context, COUNT, FEATURES, both_signs ? INPUT_SIGNED : INPUT_UNIT, images, labels,
                         indexed ? index : NULL, x.data, y);
            for (size_t r = 0; r < COUNT; r++) {
                const size_t i = indexed ? index[r] : r;
                assert_int_equal(y[r], labels[i]);
                for (size_t j = 0; j < FEATURES; j++) {
                    const double pixel = images[i * FEATURES + j];
                    assert_near(values_get(x, r * FEATURES + j), both_signs ? pixel / 127.5 - 1 : pixel / 255,
                                values_tolerance(1, (enum gemm_dtype)dtype));
                }
            }
            free(x.data);
        }
    free(images);
}

static void round_to_storage(void **state) {
    (void)state;
    /* to nearest, ties to even, beyond the largest to infinity; NaN stays NaN */
    const float in[] = {1, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1.8p-8f, -1 - 0x1.8p-8f, 3.4e38f, 0x1p-140f,
                        0};
    const float want[] = {1, 1, 1 + 0x1p-6f, 1 + 0x1p-7f, -1 - 0x1p-7f, INFINITY, 0, 0};
    enum { COUNT = sizeof in / sizeof *in };
    uint16_t out[COUNT];
    host_ops(GEMM_BF16)->round(&context, COUNT, in, out);
    for (size_t i = 0; i < COUNT; i++)
        if (i != 6) assert_true(bf16_to_float(out[i]) == want[i]);
    assert_true(fabsf(bf16_to_float(out[6]) - in[6]) <= 0x1p-134f); /* subnormal: its own grid */
    assert_true(isnan(bf16_to_float(bf16_from_float(NAN))));
    const double same[2] = {1.0 / 3, -7};
    double copy[2];
    host_ops(GEMM_F64)->round(&context, 2, same, copy);
    assert_true(copy[0] == same[0] && copy[1] == same[1]);
}

/* The best rate of a GEMM of `side`^3 in float32 on one thread, in flop/s. */
static double rate_of_serial(size_t side) {
    const struct gemm_call shape = {
        .m = side, .n = side, .k = side, .alpha = 1, .lda = side, .ldb = side, .ldc = side};
    struct gemm_call call = shape;
    struct values a = values_random(GEMM_F32, side * side, 1, 7),
                  b = values_random(GEMM_F32, side * side, 1, 8), c = values_make(GEMM_F32, side * side);
    struct compute compute;
    double best = 0;
    support_open(&compute, "serial", 1);
    call.a = a.data;
    call.b = b.data;
    call.c = c.data;
    for (int repeat = 0; repeat < 20; repeat++) {
        const double start = clock_seconds();
        assert_status(compute_gemm(&compute, &call), STATUS_OK);
        best = fmax(best, 2.0 * (double)(side * side * side) / (clock_seconds() - start));
    }
    compute_close(&compute);
    free(a.data);
    free(b.data);
    free(c.data);
    return best;
}

static void measured_peaks(void **state) {
    (void)state;
    struct device device = {.driver = &device_host};
    double single = NAN, twice = NAN, bytes = NAN;
    assert_status(device.driver->open(&device, &(struct device_options){.threads = 1}), STATUS_OK);
    assert_status(device.driver->peak(&device, GEMM_F32, &single), STATUS_OK);
    assert_status(device.driver->peak(&device, GEMM_F64, &twice), STATUS_OK);
    assert_status(device.driver->bandwidth(&device, &bytes), STATUS_OK);
    print_message("peak of a thread: %.1f GFLOP/s in float32, %.1f in float64, copy %.1f GB/s\n",
                  1e-9 * single, 1e-9 * twice, 1e-9 * bytes);
    assert_true(isfinite(single) && isfinite(twice) && isfinite(bytes));
    assert_true(twice > 0 && bytes > 0);
    /* float32 has twice as many lanes. Other processes may take the core: the best of many windows */
    const double serial = rate_of_serial(128);
    for (int again = 0; again < 500 && !(single > 0.7 * twice && single > serial); again++) {
        double next = NAN;
        assert_status(device.driver->peak_now(&device, GEMM_F32, &next), STATUS_OK);
        single = fmax(single, next);
    }
    assert_true(single > 0.7 * twice && single > serial);
    assert_status(device.driver->peak(&device, GEMM_BF16, &single), STATUS_UNAVAILABLE);
    device.driver->close(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bias_and_activation),
        cmocka_unit_test(derivatives_and_column_sums),
        cmocka_unit_test(relu_lets_nan_through),
        cmocka_unit_test(softmax_matches_its_definition),
        cmocka_unit_test(softmax_cannot_overflow),
        cmocka_unit_test(softmax_detects_non_finite_logits),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(steps_along_a_sign),
        cmocka_unit_test(gather_by_index),
        cmocka_unit_test(round_to_storage),
        cmocka_unit_test(measured_peaks),
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
