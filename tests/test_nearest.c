/* The nearest centre: its certificate, and wrong kernels. */
#include "tests/support.h"
#include "tests/kmeans_bench.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/exact.h"

/* --- a product with the largest error that the contract allows --- */

static enum gemm_status noisy_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = 0, magnitude = 0;
            for (size_t p = 0; p < call->k; p++) {
                const double term = dtype_get(call->dtype, call->a, i * call->lda + p) *
                                    dtype_get(call->dtype, call->b, p * call->ldb + j);
                sum += term;
                magnitude += fabs(term);
            }
            const double error = 0.9 * ((double)call->k + 4) * dtype_epsilon(call->dtype) * magnitude;
            dtype_set(call->dtype, call->c, i * call->ldc + j, sum + ((i + j) % 2 ? error : -error));
        }
    return GEMM_OK;
}

static bool noisy_supports(enum gemm_dtype dtype, enum gemm_op op) {
    return (dtype == GEMM_F32 || dtype == GEMM_F64) && op == GEMM_NN;
}

static const struct gemm_backend noisy = {
    .name = "noisy", .summary = "", .supports = noisy_supports, .gemm = noisy_gemm};

static void open_noisy(struct compute *compute) {
    const struct compute_options options = {.threads = 1};
    assert_status(compute_open(compute, &noisy, &options), STATUS_OK);
}

static void error_of_the_product_is_repaired(void **state) {
    (void)state;
    struct compute compute;
    open_noisy(&compute);
    for (size_t s = 0; s < KMEANS_SHAPES; s++)
        for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
            struct kmeans_data data = kmeans_shape(s, (enum gemm_dtype)dtype);
            const struct kmeans_options options = kmeans_defaults(&data);
            struct kmeans_result result;
            kmeans_assert_runs(&compute, &data, &options, &result);
            kmeans_assert_agrees(&data, &result);
            kmeans_free(&result);
            kmeans_data_free(&data);
        }
    compute_close(&compute);
}

/* Without the certificate the same product gives other labels: the test above tests something. */
static void scores_alone_are_not_exact(void **state) {
    (void)state;
    struct compute compute;
    struct kmeans_data data = kmeans_lattice(600, 8, 12, GEMM_F32, 3, 1000, 3);
    struct kmeans_options options = kmeans_defaults(&data);
    struct kmeans_result result;
    char why[256];
    options.precision = NEAREST_F32;
    open_noisy(&compute);
    kmeans_assert_runs(&compute, &data, &options, &result);
    assert_false(kmeans_agrees(&data, &result, KMEANS_ITERATIONS, why, sizeof why));
    assert_int_equal(result.counts.ambiguous, 0);
    compute_close(&compute);
    kmeans_free(&result);
    kmeans_data_free(&data);
}

/* Sums whose sign float64 does not find in this order. */
static void exact_sums(void **state) {
    (void)state;
    static const struct {
        double terms[5];
        int sign;
    } sums[] = {{{0x1p60, 1, -0x1p60}, 1},
                {{0x1p60, -1, -0x1p60}, -1},
                {{1, 0x1p100, 1, -0x1p100, -2}, 0},
                {{0x1p500, 0x1p-500, -0x1p500, -0x1p-500, -0x1p-900}, -1},
                {{3, 1e-20, -3, 1e-40, -2e-20}, -1}};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        struct exact_sum sum = {0};
        for (size_t t = 0; t < 5; t++) exact_add(&sum, sums[i].terms[t]);
        assert_int_equal(exact_sign(&sum), sums[i].sign);
    }
    struct exact_sum product = {0}; /* (1 + e)^2 - 1 - 2 e = e^2 */
    exact_add_product(&product, 1, 1 + 0x1p-40, 1 + 0x1p-40);
    exact_add_product(&product, -1, 1, 1);
    exact_add_product(&product, -2, 1, 0x1p-40);
    assert_int_equal(exact_sign(&product), 1);
    assert_false(product.inexact);
    exact_add_product(&product, 1, 0x1p-600, 0x1p-600);
    assert_true(product.inexact);
}

/* A point half-way between two centres, but for 2^-80: float64 does not see which one is nearer. */
static void nearly_ties(void **state) {
    (void)state;
    const double c = 1 + 0x1p-52;
    for (int nearer = 0; nearer < 2; nearer++) {
        struct compute compute;
        struct kmeans_data data = {.count = 3, .features = 2, .clusters = 2, .dtype = GEMM_F64};
        struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        double values[] = {c, nearer ? 0 : 0x1p-40, -c, nearer ? 0x1p-40 : 0, 0,
                           0}; /* 2^-80 in the squares */
        data.values = values;
        options.iterations = 0;
        support_open(&compute, "serial", 1);
        kmeans_assert_runs(&compute, &data, &options, &result);
        assert_int_equal(result.label[2], nearer ? 0 : 1);
        assert_true(result.counts.exact >= 1);
        compute_close(&compute);
        kmeans_free(&result);
    }
}

/* Centre 0 has a coordinate of 1 and many of 2^-27. A float64 sum loses some of their squares beside the 1:
   its norm is computed as the smaller one, and is the larger one. The last point is at the origin and has a
   block of its own: there, the bound of the product is 0 and does not hide the error of the norms. */
static void norms_lose_small_squares(void **state) {
    (void)state;
    struct compute compute;
    struct kmeans_data data = {
        .count = NEAREST_BLOCK + 1, .features = 4096, .clusters = 2, .dtype = GEMM_F64};
    struct kmeans_options options = kmeans_defaults(&data);
    struct kmeans_result result;
    data.values = calloc(data.count * data.features, sizeof *data.values);
    assert_non_null(data.values);
    for (size_t f = 0; f < data.features; f++) data.values[f] = f ? 0x1p-27 : 1;
    data.values[data.features] = 1;
    data.values[data.features + 1] = 0x1p-27 * sqrt(4050); /* 4095 squares are the other one's */
    options.iterations = 0;
    support_open(&compute, "serial", 1);
    kmeans_assert_runs(&compute, &data, &options, &result);
    assert_int_equal(result.label[NEAREST_BLOCK], 1);
    compute_close(&compute);
    kmeans_free(&result);
    kmeans_data_free(&data);
}

/* --- wrong kernels: each must be caught by the reference --- */

static const struct cluster_ops *right;
static struct cluster_ops wrong;

static void drop_last_centre(void *context, const struct nearest_call *call, struct nearest_counts *counts) {
    right->nearest(context, call, counts);
    for (size_t r = 0; r < call->rows; r++)
        if (call->label[r] + 1 == call->centres->count) call->label[r] = 0;
}

static void ties_to_the_last(void *context, const struct nearest_call *call, struct nearest_counts *counts) {
    const float *x = call->x, *values = call->centres->values;
    const size_t features = call->centres->features;
    right->nearest(context, call, counts);
    for (size_t r = 0; r < call->rows; r++) {
        double best = INFINITY;
        for (size_t j = 0; j < call->centres->count; j++) {
            double sum = 0;
            for (size_t f = 0; f < features; f++) {
                const double difference = (double)x[r * features + f] - (double)values[j * features + f];
                sum += difference * difference;
            }
            if (sum <= best) {
                best = sum;
                call->label[r] = (uint32_t)j;
            }
        }
    }
}

static void forget_norms(void *context, const struct nearest_centres *centres) {
    right->centres(context, centres);
    memset(centres->bias, 0, centres->count * sizeof(float));
}

static void lose_a_count(void *context, const struct cluster_rows *rows, const struct cluster_sums *sums) {
    right->sum(context, rows, sums);
    if (sums->count[0] > 1) sums->count[0]--;
}

static void keep_stale_centres(void *context, const struct nearest_centres *centres) {
    static int calls;
    if (calls++ % 2 == 0) right->centres(context, centres);
}

static void skip_the_tail(void *context, const struct nearest_call *call, struct nearest_counts *counts) {
    struct nearest_call most = *call;
    most.rows = call->rows / 16 * 16;
    for (size_t r = most.rows; r < call->rows; r++) call->label[r] = 0;
    right->nearest(context, &most, counts);
}

static void leave_sums(void *context, const struct cluster_rows *rows, const struct cluster_sums *sums) {
    sums->sums[0]++; /* what the iteration before left */
    right->sum(context, rows, sums);
}

static void count_in_float(void *context, const struct cluster_rows *rows, const struct cluster_sums *sums) {
    right->sum(context, rows, sums);
    for (size_t j = 0; j < sums->clusters; j++) { /* a counter of 24 bits, scaled down to small data */
        const uint64_t limit = 64;
        if (sums->count[j] > limit) sums->count[j] = limit;
    }
}

/* The bound of float32, although the product has the error of TF32. */
static enum gemm_status tf32_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < call->k; p++) {
                uint32_t bits[2];
                float factor[2] = {((const float *)call->a)[i * call->lda + p],
                                   ((const float *)call->b)[p * call->ldb + j]};
                memcpy(bits, factor, sizeof bits);
                bits[0] &= 0xffffe000u;
                bits[1] &= 0xffffe000u;
                memcpy(factor, bits, sizeof bits);
                sum += (double)factor[0] * (double)factor[1];
            }
            ((float *)call->c)[i * call->ldc + j] = (float)sum;
        }
    return GEMM_OK;
}

static const struct cluster_ops *wrong_table(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    (void)dtype;
    return &wrong;
}

static void wrong_kernels_are_caught(void **state) {
    (void)state;
    const struct gemm_backend tf32 = {
        .name = "tf32", .summary = "", .supports = noisy_supports, .gemm = tf32_gemm};
    const struct {
        const char *name;
        struct cluster_ops ops; /* those that are not NULL replace the right ones */
        const struct gemm_backend *backend;
    } all[] = {{"none", {0}, NULL},
               {"last centre dropped", {.nearest = drop_last_centre}, NULL},
               {"ties to the last", {.nearest = ties_to_the_last}, NULL},
               {"norms forgotten", {.centres = forget_norms}, NULL},
               {"lost count", {.sum = lose_a_count}, NULL},
               {"stale centres", {.centres = keep_stale_centres}, NULL},
               {"tail skipped", {.nearest = skip_the_tail}, NULL},
               {"sums not zeroed", {.sum = leave_sums}, NULL},
               {"narrow counter", {.sum = count_in_float}, NULL},
               {"TF32 as float32", {0}, &tf32}};
    struct device_driver driver = device_host;
    driver.cluster_ops = wrong_table;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct compute compute;
        struct kmeans_data data = kmeans_lattice(1003, 9, 12, GEMM_F32, 3, i == 9 ? 1000 : 0, 5);
        const struct kmeans_options options = kmeans_defaults(&data);
        struct kmeans_result result;
        char why[256];
        support_open(&compute, "serial", 1);
        if (all[i].backend) compute.backend = all[i].backend;
        right = device_host.cluster_ops(&compute.device, GEMM_F32);
        wrong = *right;
        if (all[i].ops.nearest) wrong.nearest = all[i].ops.nearest;
        if (all[i].ops.centres) wrong.centres = all[i].ops.centres;
        if (all[i].ops.sum) wrong.sum = all[i].ops.sum;
        compute.device.driver = &driver;
        kmeans_assert_runs(&compute, &data, &options, &result);
        const bool agrees = kmeans_agrees(&data, &result, KMEANS_ITERATIONS, why, sizeof why);
        if (agrees != (i == 0)) fail_msg("%s: %s", all[i].name, agrees ? "not caught" : why);
        compute.device.driver = &device_host;
        compute_close(&compute);
        kmeans_free(&result);
        kmeans_data_free(&data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_of_the_product_is_repaired),
        cmocka_unit_test(scores_alone_are_not_exact),
        cmocka_unit_test(exact_sums),
        cmocka_unit_test(nearly_ties),
        cmocka_unit_test(norms_lose_small_squares),
        cmocka_unit_test(wrong_kernels_are_caught),
    };
    return cmocka_run_group_tests_name("nearest", tests, NULL, NULL);
}
