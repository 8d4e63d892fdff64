/* Mixed precision in half precision on the host: conversions, and gradients that neither underflow nor
   overflow. Products and ops have it in the lists of test_gemm.c and test_ops.c. */
#include "tests/lockstep.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/f16.h"
#include "kernels/host/ops/ops.h"
#include "src/base/rng.h"
#include "src/nn/engine.h"
#include "tests/curves.h"

/* --- conversions --- */

/* By its definition (IEEE 754, binary16). */
static double value_of(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double size = exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
                        : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                       : ldexp(mantissa, -24);
    return bits & 0x8000 ? -size : size;
}

static void every_number_is_itself(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t bits = (uint16_t)i;
        const double value = value_of(bits);
        const float got = f16_to_float(bits);
        if (isnan(value)) {
            assert_true(isnan(got) && isnan(f16_to_float(f16_from_float(got))));
        } else {
            assert_true((double)got == value && !signbit(got) == !signbit(value));
            assert_int_equal(f16_from_float(got), bits);
        }
    }
}

/* Between neighbours x and y: to the nearer one, in the middle to the even one. */
static void numbers_between_are_rounded(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 0x7C00; i++) {
        const float x = f16_to_float((uint16_t)i), y = i == 0x7BFF ? 65536 : f16_to_float((uint16_t)(i + 1));
        const float middle = x + (y - x) / 2;
        assert_int_equal(f16_from_float(middle), i + i % 2);
        assert_int_equal(f16_from_float(nextafterf(middle, 0)), i);
        assert_int_equal(f16_from_float(-nextafterf(middle, INFINITY)), (i + 1) | 0x8000);
    }
    assert_true(isinf(f16_to_float(f16_from_float(3e38f))));
    assert_true(f16_bounded(1e6f) == 65504 && f16_bounded(-INFINITY) == -65504 && isnan(f16_bounded(NAN)));
}

/* --- gradients --- */

/* What cannot be stored becomes the largest number, so that no weight becomes infinite; NaN stays NaN. */
static void gradients_saturate(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "serial", 1);
    const float in[] = {60000, INFINITY, -INFINITY, NAN, 1, 60000};
    enum { COUNT = sizeof in / sizeof *in };
    uint16_t grad[COUNT], out[COUNT];
    float sums[COUNT];
    for (int i = 0; i < COUNT; i++) {
        grad[i] = f16_from_float(in[i]);
        out[i] = f16_from_float(i == COUNT - 1 ? 0.5f : 0); /* the slope of scaled-tanh is 1.14 at 0 */
    }
    const struct ops *ops = host_ops(GEMM_F16);
    ops->bias_activation_backward(compute.device.ops_context, 1, COUNT, ACTIVATION_SCALED_TANH, out, out,
                                  grad, 0.5, 0, sums);
    assert_true(f16_to_float(grad[0]) == 65504 && f16_to_float(grad[1]) == 65504);
    assert_true(f16_to_float(grad[2]) == -65504 && isnan(f16_to_float(grad[3])));
    assert_true(f16_to_float(grad[5]) < 65504 && sums[1] == 32752 && sums[2] == -32752);
    compute_close(&compute);
}

enum { ROWS = 4096 };

/* Opens 20-24-16-5 whose last layer has large weights. */
static void open_network(struct compute *compute, struct mlp *mlp, enum gemm_precision precision) {
    struct config config;
    support_config(&config, "layers=20-24-16-5 activation=tanh init=xavier");
    const struct compute_options options = {.threads = 2, .precision = precision};
    const struct gemm_backend *serial;
    assert_status(registry_find("serial", &serial), STATUS_OK);
    assert_status(compute_open(compute, serial, &options), STATUS_OK);
    assert_status(mlp_open(mlp, compute, &config, ROWS), STATUS_OK);
    assert_status(mlp_initialize(mlp, INIT_XAVIER, 0, 3), STATUS_OK);
    float *weights = mlp_last(mlp)->weight;
    for (size_t i = 0; i < 16 * 5; i++) weights[i] *= 8;
    mlp_parameters_changed(mlp);
}

/* Makes the network a trained one, right and certain (p > 0.999) about all images: labels are what it says,
   and images about which it is not certain become the one before. */
static void set_certain_images(struct mlp *exact, struct mlp *half) {
    struct rng rng = rng_open(5, RNG_TEST, 0);
    for (size_t i = 0; i < ROWS * 20; i++)
        dtype_set(GEMM_F32, exact->input, i, (double)rng_below(&rng, 256) / 128 - 1);
    assert_status(mlp_forward(exact, ROWS, NULL), STATUS_OK);
    size_t last = ROWS; /* the last certain one */
    for (size_t r = 0; r < ROWS; r++) {
        const float *logits = (const float *)mlp_last(exact)->output + r * 5;
        float first = -INFINITY, second = -INFINITY;
        for (uint8_t c = 0; c < 5; c++) {
            if (logits[c] > first) exact->labels[r] = c;
            second = logits[c] > first ? first : fmaxf(second, logits[c]);
            first = fmaxf(first, logits[c]);
        }
        if (first - second > 8) last = r;
        if (last == ROWS) continue;
        memmove((float *)exact->input + r * 20, (float *)exact->input + last * 20, 20 * sizeof(float));
        exact->labels[r] = exact->labels[last];
    }
    assert_true(last < ROWS);
    for (size_t i = 0; i < ROWS * 20; i++)
        dtype_set(GEMM_F16, half->input, i, dtype_get(GEMM_F32, exact->input, i));
    memcpy(half->labels, exact->labels, ROWS);
}

/* Forward and backward pass with gradients that are stored times `scale`. */
static void run_pass(struct mlp *mlp, double scale) {
    const struct mlp_layer *last = mlp_last(mlp);
    struct tally tally = {0};
    double loss;
    mlp->gradient_scale = scale;
    assert_status(mlp_forward(mlp, ROWS, NULL), STATUS_OK);
    mlp->ops->softmax_cross_entropy(mlp->compute->device.ops_context, ROWS, ROWS / scale, 5, 0, last->output,
                                    mlp->labels, last->grad, &loss, &tally, true);
    assert_status(mlp_backward(mlp, ROWS, NULL, 0), STATUS_OK);
}

/* The largest error of a layer's weight or bias gradients, relative to their norm. */
static double error_of(const struct mlp *mlp, const struct mlp *exact) {
    double worst = 0;
    for (size_t l = 0; l < mlp->depth; l++)
        for (int bias = 0; bias < 2; bias++) {
            const struct mlp_layer *x = &mlp->layer[l], *y = &exact->layer[l];
            const float *got = bias ? x->bias_grad : x->weight_grad,
                        *want = bias ? y->bias_grad : y->weight_grad;
            double error = 0, norm = 0;
            for (size_t i = 0; i < (bias ? 1 : x->in); i++)
                for (size_t j = 0; j < x->out; j++) {
                    const double off = (double)got[i * x->ld + j] - (double)want[i * y->ld + j];
                    error += off * off;
                    norm += pow((double)want[i * y->ld + j], 2);
                }
            worst = fmax(worst, sqrt(error / norm));
        }
    return worst;
}

/* The mean over 4096 images has gradients of 1e-8, which half precision cannot hold. Logits of 10 are rounded
   by 2^-8, so that p - y is right within 1 %. */
static void small_gradients_do_not_underflow(void **state) {
    (void)state;
    struct compute computes[2];
    struct mlp exact, half;
    open_network(&computes[0], &exact, GEMM_TRUE);
    open_network(&computes[1], &half, GEMM_MIXED_F16);
    set_certain_images(&exact, &half);
    run_pass(&exact, 1);
    run_pass(&half, mlp_gradient_scale(&half, ROWS));
    const double error = error_of(&half, &exact);
    run_pass(&half, 1);
    const double unscaled = error_of(&half, &exact);
    print_message("errors of gradients: %.1e, unscaled %.1e\n", error, unscaled);
    assert_true(error < 0.02 && unscaled > 0.2);
    mlp_close(&exact);
    mlp_close(&half);
    for (int i = 0; i < 2; i++) compute_close(&computes[i]);
}

/* --- training --- */

/* Each step is near that of float64 from the same weights, as near as a rounding of 2^-11 allows, and not
   equal to it. */
static void steps_stay_near_float64(void **state) {
    (void)state;
    struct lockstep_bound bound = lockstep_rounded(0x1p-11);
    for (size_t curve = 0; curve < curves_count(); curve++) {
        const struct lockstep_seen seen =
            curves_check_steps(curve, "backend=openmp threads=2 precision=fp16", &bound);
        lockstep_print(&seen);
        assert_true(seen.update > 1.0 / 32);
    }
}

/* Dropout, label smoothing, adversarial training (two passes that share a gradient), clipping, a moving
   average, a last batch that is short: true gradients everywhere. */
static void recipes_stay_near_float32(void **state) {
    (void)state;
    static const char *const recipes[] = {
        "layers=42-30-20-4 batch-size=16 epochs=2 momentum=0.9 nesterov=on dropout=0.3 clip-norm=0.5",
        "layers=42-30-4 batch-size=16 epochs=2 activation=tanh label-smoothing=0.2 adversarial=0.02",
        "layers=42-30-4 batch-size=16 epochs=2 activation=gelu weight-decay=0.01 max-norm=2 ema-decay=0.5",
        "layers=42-30-4 batch-size=16 epochs=2 optimizer=adamw lr=0.001 weight-decay=0.1 dropout=0.2"};
    const struct lockstep_bound bound = lockstep_rounded(0x1p-11);
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
        struct bench half, exact;
        char settings[300];
        snprintf(settings, sizeof settings, "backend=serial engine=eager %s precision=fp16", recipes[r]);
        bench_open(&half, settings, NULL);
        assert_int_equal(half.trainer.mlp.activation_dtype, GEMM_F16);
        snprintf(settings, sizeof settings, "backend=serial engine=eager %s", recipes[r]);
        bench_open(&exact, settings, NULL);
        const struct lockstep_seen seen = lockstep_check(&exact, &half, recipes[r], &bound);
        lockstep_print(&seen);
        bench_close(&half);
        bench_close(&exact);
    }
}

/* Every product of a step against the oracle. */
static void audits_accept_it(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    bench_open(&bench, "backend=openmp precision=fp16 layers=42-30-20-4 batch-size=16 epochs=2 audit=all",
               NULL);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    assert_true(summary.audited > 0);
    bench_close(&bench);
}

/* Overflow of a forward pass is not hidden: the loss is not finite, and the weights stay. Weights of up to
   1e4 are finite in half precision, and their sums are not. */
static void divergence_is_found(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    bench_open(&bench, "backend=serial precision=fp16 layers=42-30-4 batch-size=16 epochs=1 lr=0.1", NULL);
    double *before = lockstep_state(&bench.trainer);
    assert_non_null(before);
    for (size_t i = 0; i < lockstep_state_count(&bench.trainer); i++)
        before[i] = (double)(float)(1e4 * before[i]);
    assert_true(lockstep_set_state(&bench.trainer, before));
    assert_status(bench_run(&bench, &summary), STATUS_FAILED);
    assert_says(status_message(), "the loss is not finite at epoch 1, step 1");
    double *after = lockstep_state(&bench.trainer);
    assert_memory_equal(before, after, lockstep_state_count(&bench.trainer) * sizeof *after);
    free(before);
    free(after);
    bench_close(&bench);
    bench_open(&bench, "backend=serial precision=fp16 layers=42-30-4 batch-size=16 epochs=5 lr=1e5", NULL);
    assert_status(bench_run(&bench, &summary), STATUS_FAILED);
    assert_says(status_message(), "the loss is not finite");
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_is_itself),  cmocka_unit_test(numbers_between_are_rounded),
        cmocka_unit_test(gradients_saturate),      cmocka_unit_test(small_gradients_do_not_underflow),
        cmocka_unit_test(steps_stay_near_float64), cmocka_unit_test(recipes_stay_near_float32),
        cmocka_unit_test(audits_accept_it),        cmocka_unit_test(divergence_is_found),
    };
    return cmocka_run_group_tests_name("fp16", tests, NULL, NULL);
}
