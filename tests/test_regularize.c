/* Dropout and label smoothing: the ops against their definitions, the gradients of a network with both. */
#include "tests/support.h"
#include "tests/values.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/activation.h"
#include "kernels/host/ops/ops.h"
#include "src/backend/registry.h"
#include "src/base/philox.h"
#include "src/nn/mlp.h"

/* --- dropout --- */

/* Is this element dropped? Computed as kernels/dropout.h defines it. */
static bool dropped(const struct dropout *dropout, size_t element) {
    const uint64_t step = dropout->step->number, block = element / 8;
    const uint32_t key[2] = {(uint32_t)dropout->seed, (uint32_t)(dropout->seed >> 32)},
                   counter[4] = {(uint32_t)block, (uint32_t)(block >> 32) * 65536 + (uint32_t)(step >> 32),
                                 (uint32_t)step, dropout->layer * 256 + RNG_DROPOUT};
    uint32_t words[4];
    philox4x32(counter, key, words);
    const uint32_t half = element % 2 ? words[element % 8 / 2] / 65536 : words[element % 8 / 2] % 65536;
    return half < round(dropout->rate * 65536);
}

static void dropout_is_its_definition(void **state) {
    (void)state;
    enum { COUNT = 70003 };
    static const struct step_scalars steps[] = {{.number = 0}, {.number = 12345678901234}};
    const struct dropout dropouts[] = {{0.5, 1, 1, &steps[0], 0},
                                       {0.2, 1ull << 40 | 7, 0, &steps[0], 0},
                                       {0.2, 1ull << 40 | 7, 0, &steps[1], 0},
                                       {0.9, 1ull << 40 | 7, 3, &steps[1], 0},
                                       {0.5, 1, 1, &steps[0], 8},
                                       {0.5, 1, 1, &steps[1], 1000 * 784}};
    for (size_t d = 0; d < sizeof dropouts / sizeof *dropouts; d++) {
        const struct dropout *dropout = &dropouts[d];
        for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
            for (int threads = 1; threads < 5; threads += 3) {
                struct host_ops_context context = {.threads = threads};
                struct values in = values_random((enum gemm_dtype)dtype, COUNT, 1, 1),
                              out = values_make((enum gemm_dtype)dtype, COUNT);
                size_t zeros = 0;
                const struct ops *ops = host_ops((enum gemm_dtype)dtype);
                ops->dropout(&context, COUNT, dropout, in.data, out.data);
                for (size_t i = 0; i < COUNT; i++) {
                    const bool zero = dropped(dropout, dropout->first + i);
                    zeros += zero;
                    if (zero) {
                        assert_true(values_get(out, i) == 0);
                    } else {
                        assert_near(values_get(out, i) * (1 - dropout->rate), values_get(in, i),
                                    values_tolerance(2, (enum gemm_dtype)dtype) +
                                        1e-4 * fabs(values_get(in, i)));
                    }
                }
                const double p = dropout->rate;
                assert_near((double)zeros / COUNT, p, 5 * sqrt(p * (1 - p) / COUNT));
                ops->dropout(&context, COUNT, dropout, in.data, in.data); /* in place */
                assert_memory_equal(in.data, out.data, COUNT * dtype_size((enum gemm_dtype)dtype));
                free(in.data);
                free(out.data);
            }
    }
}

/* Masks of different seeds, steps and layers are independent: they agree on half of the elements. */
static void masks_are_independent(void **state) {
    (void)state;
    enum { COUNT = 40000, MASKS = 5 };
    static const struct step_scalars steps[] = {{.number = 5}, {.number = 6}};
    const struct dropout dropouts[MASKS] = {{0.5, 1, 1, &steps[0], 0},
                                            {0.5, 2, 1, &steps[0], 0},
                                            {0.5, 1ull << 32 | 1, 1, &steps[0], 0},
                                            {0.5, 1, 2, &steps[0], 0},
                                            {0.5, 1, 1, &steps[1], 0}};
    struct host_ops_context context = {.threads = 1};
    float *masks[MASKS];
    for (size_t m = 0; m < MASKS; m++) {
        masks[m] = malloc(COUNT * sizeof(float));
        assert_non_null(masks[m]);
        for (size_t i = 0; i < COUNT; i++) masks[m][i] = 1;
        host_ops(GEMM_F32)->dropout(&context, COUNT, &dropouts[m], masks[m], masks[m]);
    }
    for (size_t a = 0; a < MASKS; a++)
        for (size_t b = 0; b < a; b++) {
            size_t same = 0;
            for (size_t i = 0; i < COUNT; i++) same += masks[a][i] == masks[b][i];
            assert_near((double)same / COUNT, 0.5, 5 * 0.5 / sqrt(COUNT));
        }
    for (size_t m = 0; m < MASKS; m++) free(masks[m]);
}

/* --- label smoothing --- */

static void smoothed_cross_entropy(void **state) {
    (void)state;
    enum { ROWS = 77 };
    static const size_t widths[] = {2, 10, 26};
    struct host_ops_context context = {.threads = 2};
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (size_t w = 0; w < 3; w++)
            for (int tenths = 1; tenths <= 10; tenths += 3) {
                const size_t classes = widths[w];
                const double smoothing = tenths / 10.0;
                struct values logits = values_random((enum gemm_dtype)dtype, ROWS * classes, 5, 4),
                              grad = values_make((enum gemm_dtype)dtype, ROWS * classes);
                uint8_t labels[ROWS];
                struct tally tally = {0};
                double loss = NAN, want = 0;
                for (size_t r = 0; r < ROWS; r++) labels[r] = (uint8_t)(r * 5 % classes);
                host_ops((enum gemm_dtype)dtype)
                    ->softmax_cross_entropy(&context, ROWS, ROWS, classes, smoothing, logits.data, labels,
                                            grad.data, &loss, &tally, true);
                for (size_t r = 0; r < ROWS; r++) {
                    double sum = 0;
                    for (size_t c = 0; c < classes; c++) sum += exp(values_get(logits, r * classes + c));
                    for (size_t c = 0; c < classes; c++) {
                        const double p = exp(values_get(logits, r * classes + c)) / sum,
                                     target =
                                         smoothing / (double)classes + (c == labels[r] ? 1 - smoothing : 0);
                        want -= target * log(p);
                        assert_near(values_get(grad, r * classes + c) * ROWS, p - target,
                                    values_tolerance(32, (enum gemm_dtype)dtype));
                    }
                }
                assert_near(loss, want / ROWS, 64 * dtype_epsilon(values_parameter_dtype(dtype)));
                assert_true(tally.images == ROWS && tally.bad_step == 0);
                free(logits.data);
                free(grad.data);
            }
}

/* --- a network with both --- */

enum { BATCH = 13, INPUTS = 17 };
static const struct step_scalars at_step = {.number = 41};

/* Writes the input before every pass, as a gather does, because input dropout overwrites it. */
static double loss_of(struct mlp *mlp, double smoothing, bool training, bool gradients) {
    const struct mlp_layer *last = mlp_last(mlp);
    const struct step_scalars *step = training ? &at_step : NULL;
    struct tally tally = {0};
    double loss;
    for (size_t i = 0; i < BATCH * INPUTS; i++)
        dtype_set(mlp->activation_dtype, mlp->input, i, (double)(i * 37 % 101) / 64 - 0.75);
    for (size_t r = 0; r < BATCH; r++) mlp->labels[r] = (uint8_t)(r * r % 5);
    assert_status(mlp_forward(mlp, BATCH, step), STATUS_OK);
    mlp->ops->softmax_cross_entropy(mlp->compute->device.ops_context, BATCH, BATCH, last->out, smoothing,
                                    last->output, mlp->labels, gradients ? last->grad : NULL, &loss, &tally,
                                    true);
    if (gradients) assert_status(mlp_backward(mlp, BATCH, step, 0), STATUS_OK);
    return loss;
}

static void open_network(struct compute *compute, struct mlp *mlp, const char *activation,
                         const char *dtype) {
    struct config config;
    char settings[200];
    snprintf(settings, sizeof settings,
             "layers=17-11-6-5 activation=%s init=uniform dtype=%s dropout=0.3 input-dropout=0.2 seed=7",
             activation, dtype);
    support_config(&config, settings);
    assert_status(mlp_open(mlp, compute, &config, BATCH + 5), STATUS_OK);
    assert_status(mlp_initialize(mlp, INIT_UNIFORM, 0, 3), STATUS_OK);
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    const double smoothing = 0.15;
    for (int a = 0; a < ACTIVATION_COUNT; a++) {
        struct compute compute;
        struct mlp mlp;
        support_open(&compute, "serial", 1);
        open_network(&compute, &mlp, activation_name((enum activation)a), "f64");
        const double loss = loss_of(&mlp, smoothing, true, true);
        const size_t bytes = mlp.parameter_elements * sizeof(double);
        double *gradient = malloc(bytes), *weights = mlp.parameters;
        assert_non_null(gradient);
        memcpy(gradient, mlp.gradients, bytes);
        size_t live = 0;
        for (size_t i = 0; i < mlp.parameter_elements; i++) {
            const double kept = weights[i], h = 1e-6;
            weights[i] = kept + h;
            const double above = loss_of(&mlp, smoothing, true, false);
            weights[i] = kept - h;
            const double below = loss_of(&mlp, smoothing, true, false);
            weights[i] = kept;
            assert_near(gradient[i], (above - below) / (2 * h), 1e-8);
            live += fabs(gradient[i]) > 1e-5;
        }
        assert_true(live > mlp_parameter_count(&mlp) / 2);           /* zeros would pass, too */
        assert_true(loss_of(&mlp, smoothing, false, false) != loss); /* evaluation drops nothing */
        free(gradient);
        mlp_close(&mlp);
        compute_close(&compute);
    }
}

/* On every host backend, with and without fusion, the gradients equal those of serial in float64, which the
   test above checks. */
static void every_backend_has_the_same_gradients(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "f64"};
    for (size_t entry = 0; entry < registry_count(); entry++) {
        char why[256];
        if (!support_on_host(registry_at(entry)) || !registry_usable(registry_at(entry), why, sizeof why))
            continue;
        for (int a = 0; a < ACTIVATION_COUNT; a++)
            for (size_t d = 0; d < 2; d++) {
                struct compute serial, compute;
                struct mlp want, got;
                support_open(&serial, "serial", 1);
                support_open(&compute, registry_at(entry)->name, 2);
                open_network(&serial, &want, activation_name((enum activation)a), "f64");
                open_network(&compute, &got, activation_name((enum activation)a), dtypes[d]);
                const double tolerance = d ? 1e-13 : 1e-5;
                assert_near(loss_of(&got, 0.15, true, true), loss_of(&want, 0.15, true, true), tolerance);
                for (size_t l = 0; l < want.depth; l++) {
                    const struct mlp_layer *x = &want.layer[l], *y = &got.layer[l];
                    for (size_t i = 0; i < x->in * x->out; i++)
                        assert_near(dtype_get(got.dtype, y->weight_grad, i),
                                    dtype_get(GEMM_F64, x->weight_grad, i), tolerance);
                    for (size_t i = 0; i < x->out; i++)
                        assert_near(dtype_get(got.dtype, y->bias_grad, i),
                                    dtype_get(GEMM_F64, x->bias_grad, i), tolerance);
                }
                mlp_close(&want);
                mlp_close(&got);
                compute_close(&serial);
                compute_close(&compute);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_is_its_definition),
        cmocka_unit_test(masks_are_independent),
        cmocka_unit_test(smoothed_cross_entropy),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(every_backend_has_the_same_gradients),
    };
    return cmocka_run_group_tests_name("regularize", tests, NULL, NULL);
}
