/* The network: gradients against finite differences, every backend against them, epilogues, initial
   weights. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/activation.h"
#include "src/backend/registry.h"
#include "src/backend/verify.h"
#include "src/nn/mlp.h"

enum { ROWS = 13, INPUTS = 17 };

static double value_at(const struct mlp *mlp, const void *values, size_t i) {
    return mlp->dtype == GEMM_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

/* A batch that every dtype represents exactly. */
static void set_batch(struct mlp *mlp) {
    for (size_t i = 0; i < ROWS * INPUTS; i++) {
        const double value = (double)(i * 37 % 101) / 64 - 0.75;
        if (mlp->dtype == GEMM_F32) {
            ((float *)mlp->input)[i] = (float)value;
        } else {
            ((double *)mlp->input)[i] = value;
        }
    }
    for (size_t r = 0; r < ROWS; r++) mlp->labels[r] = (uint8_t)(r * r % 5);
}

static double loss_of(struct mlp *mlp, bool gradients) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *last = mlp_last(mlp);
    struct tally tally = {0};
    double loss;
    assert_status(mlp_forward(mlp, ROWS, NULL), STATUS_OK);
    mlp->ops->softmax_cross_entropy(device->ops_context, ROWS, ROWS, last->out, 0, last->output, mlp->labels,
                                    gradients ? last->grad : NULL, &loss, &tally, true);
    if (gradients) assert_status(mlp_backward(mlp, ROWS, NULL, 0), STATUS_OK);
    return loss;
}

static void open_network(struct compute *compute, struct mlp *mlp, const char *activation,
                         const char *dtype) {
    struct config config;
    char settings[128];
    snprintf(settings, sizeof settings, "layers=17-11-6-5 activation=%s init=uniform dtype=%s", activation,
             dtype);
    support_config(&config, settings);
    assert_status(mlp_open(mlp, compute, &config, ROWS + 5), STATUS_OK);
    assert_status(mlp_initialize(mlp, INIT_UNIFORM, 0, 3), STATUS_OK);
    set_batch(mlp);
}

/* A second batch takes the place of the first, and the first that of the second. */
static void the_next_batch_comes_and_goes(void **state) {
    (void)state;
    struct compute compute;
    struct mlp mlp;
    support_open(&compute, "serial", 1);
    open_network(&compute, &mlp, "tanh", "f64");
    const void *const first = mlp.input;
    const double loss = loss_of(&mlp, false);
    assert_status(mlp_open_next(&mlp), STATUS_OK);
    for (size_t i = 0; i < ROWS * INPUTS; i++) ((double *)mlp.next.input)[i] = 0.5;
    for (size_t r = 0; r < ROWS; r++) mlp.next.labels[r] = 0;
    mlp_advance(&mlp);
    assert_ptr_equal(mlp.dropped_input, mlp.input);
    assert_ptr_equal(mlp.next.input, first);
    const double other = loss_of(&mlp, false);
    assert_true(fabs(other - loss) > 1e-3);
    mlp_advance(&mlp);
    assert_true(loss_of(&mlp, false) == loss);
    set_batch(&mlp);
    for (size_t i = 0; i < ROWS * INPUTS; i++) ((double *)mlp.input)[i] = 0.5;
    for (size_t r = 0; r < ROWS; r++) mlp.labels[r] = 0;
    assert_true(loss_of(&mlp, false) == other);
    mlp_close(&mlp);
    compute_close(&compute);
}

/* Every weight and bias, in float64. */
static void gradients_match_finite_differences(void **state) {
    (void)state;
    for (int a = 0; a < ACTIVATION_COUNT; a++) {
        struct compute compute;
        struct mlp mlp;
        support_open(&compute, "serial", 1);
        open_network(&compute, &mlp, activation_name((enum activation)a), "f64");
        loss_of(&mlp, true);
        const size_t bytes = mlp.parameter_elements * sizeof(double);
        double *gradient = malloc(bytes), *weights = mlp.parameters;
        memcpy(gradient, mlp.gradients, bytes);
        size_t live = 0;
        for (size_t i = 0; i < mlp.parameter_elements; i++) {
            const double kept = weights[i], h = 1e-6;
            weights[i] = kept + h;
            const double above = loss_of(&mlp, false);
            weights[i] = kept - h;
            const double below = loss_of(&mlp, false);
            weights[i] = kept;
            assert_near(gradient[i], (above - below) / (2 * h), 1e-8);
            live += fabs(gradient[i]) > 1e-5;
        }
        assert_true(live > mlp_parameter_count(&mlp) * 2 / 3); /* zeros would pass, too */
        free(gradient);
        mlp_close(&mlp);
        compute_close(&compute);
    }
}

/* The gradients of the float64 serial network, which the test above checks. */
static double *reference_gradients(const char *activation, size_t *layer_at, double *loss) {
    struct compute compute;
    struct mlp mlp;
    support_open(&compute, "serial", 1);
    open_network(&compute, &mlp, activation, "f64");
    *loss = loss_of(&mlp, true);
    double *out = malloc(mlp_parameter_count(&mlp) * sizeof *out);
    size_t at = 0;
    for (size_t l = 0; l < mlp.depth; l++) {
        layer_at[l] = at;
        for (size_t i = 0; i < mlp.layer[l].in * mlp.layer[l].out; i++)
            out[at++] = ((double *)mlp.layer[l].weight_grad)[i];
        for (size_t i = 0; i < mlp.layer[l].out; i++) out[at++] = ((double *)mlp.layer[l].bias_grad)[i];
    }
    mlp_close(&mlp);
    compute_close(&compute);
    return out;
}

static void compare_gradients(struct compute *compute, const char *activation, const char *dtype) {
    size_t layer_at[PROFILE_MAX_LAYERS];
    double want_loss;
    double *want = reference_gradients(activation, layer_at, &want_loss);
    struct mlp mlp;
    open_network(compute, &mlp, activation, dtype);
    /* a few hundred roundings of numbers near 1 */
    const double tolerance = mlp.dtype == GEMM_F32 ? 1e-5 : 1e-13;
    assert_near(loss_of(&mlp, true), want_loss, tolerance);
    for (size_t l = 0; l < mlp.depth; l++) {
        const size_t weights = mlp.layer[l].in * mlp.layer[l].out;
        for (size_t i = 0; i < weights + mlp.layer[l].out; i++) {
            const double got = i < weights ? value_at(&mlp, mlp.layer[l].weight_grad, i)
                                           : value_at(&mlp, mlp.layer[l].bias_grad, i - weights);
            assert_near(got, want[layer_at[l] + i], tolerance);
        }
    }
    mlp_close(&mlp);
    free(want);
}

static void every_backend_has_the_reference_gradients(void **state) {
    (void)state;
    static const char *const activations[] = {"relu", "gelu"};
    for (size_t entry = 0; entry < registry_count(); entry++) {
        if (!support_on_host(registry_at(entry))) continue;
        char why[256];
        if (!registry_usable(registry_at(entry), why, sizeof why)) {
            print_message("%s skipped: %s\n", registry_at(entry)->name, why);
            continue;
        }
        struct compute compute;
        support_open(&compute, registry_at(entry)->name, 2);
        for (size_t a = 0; a < 2; a++) {
            compare_gradients(&compute, activations[a], "f32");
            compare_gradients(&compute, activations[a], "f64");
        }
        compute_close(&compute);
    }
}

/* --- a plug-in whose GEMM has an epilogue --- */

extern const struct gemm_backend gemm_serial;
static size_t fused_calls;

static bool fuses_relu_and_gelu(void *context, const struct gemm_call *call) {
    (void)context;
    const enum activation activation =
        call->epilogue ? call->epilogue->activation : call->backward->activation;
    return call->dtype == GEMM_F64 && (activation == ACTIVATION_RELU || activation == ACTIVATION_GELU);
}

static double relu_or_gelu(enum activation activation, double z) {
    return activation == ACTIVATION_RELU ? fmax(z, 0) : 0.5 * z * (1 + erf(z / sqrt(2)));
}

static double slope_of(enum activation activation, double z) {
    return activation == ACTIVATION_RELU
               ? z > 0
               : 0.5 * (1 + erf(z / sqrt(2))) + z * exp(-z * z / 2) / sqrt(2 * 3.14159265358979323846);
}

static void forward_epilogue(const struct gemm_call *call) {
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double *c = (double *)call->c + i * call->ldc + j;
            const double z = *c + ((const double *)call->epilogue->bias)[j];
            if (call->epilogue->pre) ((double *)call->epilogue->pre)[i * call->ldc + j] = z;
            *c = relu_or_gelu(call->epilogue->activation, z);
        }
}

static void backward_epilogue(const struct gemm_call *call) {
    const struct gemm_backward *back = call->backward;
    double *sums = back->bias_grad;
    memset(sums, 0, call->n * sizeof *sums);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            const size_t at = i * call->ldc + j;
            /* for relu, Y may have overwritten Z; both are positive in the same elements */
            const double z =
                ((const double *)(back->activation == ACTIVATION_RELU ? back->output : back->pre))[at];
            ((double *)call->c)[at] *= slope_of(back->activation, z);
            sums[j] += ((double *)call->c)[at];
        }
}

static enum gemm_status gemm_with_epilogue(void *context, const struct gemm_call *call) {
    struct gemm_call plain = *call;
    plain.epilogue = NULL;
    plain.backward = NULL;
    const enum gemm_status status = gemm_serial.gemm(context, &plain);
    if (status) return status;
    fused_calls += call->epilogue || call->backward;
    if (call->epilogue) forward_epilogue(call);
    if (call->backward) backward_epilogue(call);
    return GEMM_OK;
}

static void epilogues_are_used_where_offered(void **state) {
    (void)state;
    struct gemm_backend fusing = gemm_serial;
    fusing.gemm = gemm_with_epilogue;
    fusing.fuses = fuses_relu_and_gelu;
    struct compute compute;
    assert_status(compute_open(&compute, &fusing, &(struct compute_options){.threads = 1}), STATUS_OK);
    static const char *const activations[] = {"relu", "gelu", "tanh"};
    const size_t every =
        support_stride() < 31 ? support_stride() : 31; /* few have these activations in f64 */
    for (size_t i = 0; i < verify_case_count(); i += every) {
        const struct verify_case test = verify_case_at(i);
        if (test.epilogue || test.backward) assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    assert_true(fused_calls > 0);
    for (size_t a = 0; a < 3; a++) {
        fused_calls = 0;
        compare_gradients(&compute, activations[a], "f64");
        assert_int_equal(fused_calls, a < 2 ? 4 : 0); /* the two hidden layers, forward and backward */
        fused_calls = 0;
        compare_gradients(&compute, activations[a], "f32");
        assert_int_equal(fused_calls, 0);
    }
    compute_close(&compute);
}

/* --- initial weights --- */

/* The same numbers on every backend, and in every dtype after the cast. */
static void one_seed_one_network(void **state) {
    (void)state;
    struct compute serial, openmp;
    struct mlp a, b, c;
    support_open(&serial, "serial", 1);
    support_open(&openmp, "openmp", 2);
    open_network(&serial, &a, "relu", "f64");
    open_network(&openmp, &b, "tanh", "f64");
    open_network(&openmp, &c, "relu", "f32");
    assert_memory_equal(a.parameters, b.parameters, a.parameter_elements * sizeof(double));
    for (size_t l = 0; l < a.depth; l++)
        for (size_t i = 0; i < a.layer[l].in * a.layer[l].out; i++)
            assert_true(((float *)c.layer[l].weight)[i] == (float)((double *)a.layer[l].weight)[i]);
    assert_status(mlp_initialize(&b, INIT_UNIFORM, 0, 4), STATUS_OK);
    assert_true(memcmp(a.parameters, b.parameters, 64) != 0);
    mlp_close(&a);
    mlp_close(&b);
    mlp_close(&c);
    compute_close(&serial);
    compute_close(&openmp);
}

static void initial_spread(void **state) {
    (void)state;
    struct compute compute;
    struct config config;
    struct mlp mlp;
    support_open(&compute, "serial", 1);
    support_config(&config, "layers=400-300-10 dtype=f64");
    assert_status(mlp_open(&mlp, &compute, &config, 1), STATUS_OK);
    const double want[] = {2.0 / 400, 2.0 / 700, 1.0 / 1200}; /* variances: uniform in +-a has a^2 / 3 */
    for (int init = INIT_HE; init <= INIT_UNIFORM; init++) {
        assert_status(mlp_initialize(&mlp, (enum init)init, 0, 1), STATUS_OK);
        const double *weight = mlp.layer[0].weight, *bias = mlp.layer[0].bias;
        double sum = 0, square = 0;
        for (size_t i = 0; i < 400 * 300; i++) {
            sum += weight[i];
            square += weight[i] * weight[i];
        }
        assert_near(sum / 120000 / sqrt(want[init]), 0, 5 / sqrt(120000));
        assert_near(square / 120000 / want[init], 1, 5 * sqrt(2.0 / 120000));
        assert_true((bias[5] != 0) == (init == INIT_UNIFORM));
    }
    mlp_close(&mlp);
    compute_close(&compute);
}

static void initial_weights_are_bounded(void **state) {
    (void)state;
    static const double BOUND = 0.05;
    struct compute compute;
    struct config config;
    struct mlp mlp;
    support_open(&compute, "serial", 1);
    support_config(&config, "layers=400-300-10 dtype=f64");
    assert_status(mlp_open(&mlp, &compute, &config, 1), STATUS_OK);
    assert_status(mlp_initialize(&mlp, INIT_UNIFORM, BOUND, 1), STATUS_OK);
    for (size_t l = 0; l < 2; l++) {
        const struct mlp_layer *layer = &mlp.layer[l];
        const double *weight = layer->weight, *bias = layer->bias;
        const double count = (double)(layer->in * layer->out);
        double low = 0, high = 0, square = 0;
        for (size_t i = 0; i < layer->in * layer->out; i++) {
            low = fmin(low, weight[i]);
            high = fmax(high, weight[i]);
            square += weight[i] * weight[i];
        }
        for (size_t i = 0; i < layer->out; i++) assert_true(bias[i] != 0 && fabs(bias[i]) <= BOUND);
        assert_true(low >= -BOUND && low < -0.99 * BOUND && high <= BOUND && high > 0.99 * BOUND);
        assert_near(square / count / (BOUND * BOUND / 3), 1, 5 * sqrt(0.8 / count));
    }
    mlp_close(&mlp);
    compute_close(&compute);
}

static void too_large_a_network(void **state) {
    (void)state;
    struct compute compute;
    struct config config;
    struct mlp mlp;
    support_open(&compute, "serial", 1);
    support_config(&config, "layers=784-1048576-1048576-10");
    assert_status(mlp_open(&mlp, &compute, &config, 128), STATUS_FAILED);
    assert_says(status_message(), "the network needs 8.0 TiB");
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(the_next_batch_comes_and_goes),
        cmocka_unit_test(every_backend_has_the_reference_gradients),
        cmocka_unit_test(epilogues_are_used_where_offered),
        cmocka_unit_test(one_seed_one_network),
        cmocka_unit_test(initial_spread),
        cmocka_unit_test(initial_weights_are_bounded),
        cmocka_unit_test(too_large_a_network),
    };
    return cmocka_run_group_tests_name("mlp", tests, NULL, NULL);
}
