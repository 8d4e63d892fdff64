/* The comparator for every GEMM: results that it accepts and rejects, and its bound. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/oracle.h"
#include "src/base/rng.h"

static const double want4[4] = {1, -2, 3, 4}, zero4[4], small4[4] = {1e-6, 1e-6, 1e-6, 1e-6};

static bool compare_f32(float a, float b, float c, float d, const double *bound,
                        struct oracle_mismatch *worst) {
    const float got[4] = {a, b, c, d};
    return oracle_compare(GEMM_F32, 2, 2, got, 2, want4, bound, worst);
}

static void comparator_accepts_what_is_right(void **state) {
    (void)state;
    struct oracle_mismatch worst;
    assert_true(compare_f32(1, -2, 3, 4, zero4, &worst));
    assert_true(compare_f32(1, -2, 3, 4.0000005f, small4, &worst));
    const double infinite[2] = {INFINITY, NAN}, bound[2] = {1, 1};
    assert_true(oracle_compare(GEMM_F64, 1, 2, infinite, 2, infinite, bound, &worst));
}

static void comparator_rejects_what_is_wrong(void **state) {
    (void)state;
    struct oracle_mismatch worst;
    assert_false(compare_f32(0, 0, 0, 0, small4, &worst));
    assert_true(worst.row == 1 && worst.col == 1 && worst.got == 0 && worst.want == 4);
    assert_false(compare_f32(1, -2, 3.1f, 4, small4, &worst));
    assert_true(worst.row == 1 && worst.col == 0);
    assert_false(compare_f32(1, NAN, 3.1f, 4, small4, &worst));
    assert_true(worst.row == 0 && worst.col == 1 && isnan(worst.got)); /* a NaN outranks other errors */
    assert_false(compare_f32(1, -INFINITY, 3, 4, small4, &worst));
    assert_false(compare_f32(1, -2, 3, 4.00001f, small4, &worst));
    assert_false(compare_f32(1, -2, 3, nextafterf(4, 5), zero4, &worst));
    const double loose[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    assert_false(compare_f32(1, NAN, 3, 4, loose, &worst)); /* NaN fails any bound */
    const double nan_wanted[1] = {NAN}, one[1] = {1}, inf_wanted[1] = {INFINITY}, bound[1] = {1e300};
    assert_false(oracle_compare(GEMM_F64, 1, 1, one, 1, nan_wanted, bound, &worst));
    assert_false(oracle_compare(GEMM_F64, 1, 1, one, 1, inf_wanted, bound, &worst));
    assert_false(oracle_compare(GEMM_F64, 1, 1, one, 1, inf_wanted, loose, &worst));
}

/* In half precision Inf is right where the bound allows 65520 and more, and nothing else is from 65536 on. */
static void comparator_knows_the_range_of_half_precision(void **state) {
    (void)state;
    static const struct {
        double want, bound;
        float got;
        bool right;
    } cases[] = {{70000, 64, INFINITY, true}, {70000, 64, -INFINITY, false}, {70000, 64, 65504, false},
                 {1e6, 1000, 65504, false},   {-1e6, 1000, -INFINITY, true}, {65530, 64, INFINITY, true},
                 {65530, 64, 65504, true},    {65000, 64, INFINITY, false},  {65000, 64, 65024, true},
                 {70000, 5000, 65472, true},  {70000, 5000, NAN, false},     {-65530, 64, INFINITY, false},
                 {65504, 0, INFINITY, false}};
    struct oracle_mismatch worst;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint16_t got = f16_from_float(cases[i].got);
        assert_int_equal(oracle_compare(GEMM_F16, 1, 1, &got, 1, &cases[i].want, &cases[i].bound, &worst),
                         cases[i].right);
    }
}

static void saturated_gradients_are_finite(void **state) {
    (void)state;
    static const struct {
        double want, bound;
        float got;
        bool right;
    } cases[] = {{70000, 64, 65504, true},   {1e6, 1000, 65504, true},     {1e6, 1000, INFINITY, false},
                 {-1e6, 1000, -65504, true}, {65500, 64, INFINITY, false}, {65500, 64, 65472, true},
                 {1e6, 1000, 65472, false},  {100, 1, 99.5f, true},        {-1e6, 1000, 65504, false}};
    const struct gemm_call call = {.dtype = GEMM_F16, .m = 1, .n = 1};
    struct oracle_mismatch worst;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint16_t got = f16_from_float(cases[i].got);
        double want = cases[i].want, bound = cases[i].bound;
        oracle_saturate(&call, &want, &bound);
        assert_int_equal(oracle_compare(GEMM_F16, 1, 1, &got, 1, &want, &bound, &worst), cases[i].right);
    }
}

/* --- the bound (test_plugin.c has whole backends that are wrong) --- */

static float to_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x1000u) & ~0x1FFFu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* Sequential sums of k products; m and n are SIDE. */
enum { SIDE = 8, LONGEST = 8192 };

static bool sums_pass(const struct gemm_call *call, struct oracle_inputs inputs, bool rounded) {
    const float *a = call->a, *b = call->b;
    float c[SIDE * SIDE] = {0};
    double want[SIDE * SIDE], bound[SIDE * SIDE];
    struct oracle_mismatch worst;
    for (size_t i = 0; i < SIDE; i++)
        for (size_t j = 0; j < SIDE; j++)
            for (size_t p = 0; p < call->k; p++) {
                const float x = a[i * call->lda + p], y = b[j * call->ldb + p];
                c[i * SIDE + j] += rounded ? to_tf32(x) * to_tf32(y) : x * y;
            }
    assert_status(oracle_product(call, inputs, want, bound), STATUS_OK);
    return oracle_compare(GEMM_F32, SIDE, SIDE, c, SIDE, want, bound, &worst);
}

static void the_bound_tells_float32_from_tf32(void **state) {
    (void)state;
    const struct oracle_inputs draws = {.zero_mean = true}, anything = {.zero_mean = false},
                               tf32 = {.zero_mean = true, .rounding = ORACLE_TF32};
    float *a = malloc(SIDE * LONGEST * sizeof *a), *b = malloc(SIDE * LONGEST * sizeof *b);
    assert_true(a && b);
    struct rng rng = rng_open(3, RNG_TEST, 0);
    for (size_t i = 0; i < SIDE * LONGEST; i++) {
        a[i] = (float)(2 * rng_uniform(&rng) - 1);
        b[i] = (float)(2 * rng_uniform(&rng) - 1);
    }
    for (size_t k = 1; k <= LONGEST; k += 1 + k / 8) {
        const struct gemm_call call = {.dtype = GEMM_F32,
                                       .op = GEMM_NT,
                                       .m = SIDE,
                                       .n = SIDE,
                                       .k = k,
                                       .alpha = 1,
                                       .a = a,
                                       .lda = LONGEST,
                                       .b = b,
                                       .ldb = LONGEST,
                                       .ldc = SIDE};
        assert_true(sums_pass(&call, draws, false));
        assert_true(sums_pass(&call, anything, false));
        assert_false(sums_pass(&call, draws, true));
        assert_true(sums_pass(&call, tf32, true)); /* the caller requested tf32 */
    }
    free(a);
    free(b);
}

/* want and bound by the formulas of oracle.h, around the k from which some sums are left out. */
static void the_bound_is_that_of_the_formulas(void **state) {
    (void)state;
    enum { M = 9, N = 19, MOST = 80 };
    static const struct oracle_inputs kinds[] = {
        {0}, {.zero_mean = true}, {.positive = true}, {.zero_mean = true, .rounding = ORACLE_TF32}};
    double a[M * MOST], b[N * MOST], c[M * N], want[M * N], bound[M * N];
    struct rng rng = rng_open(5, RNG_TEST, 0);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        const struct oracle_inputs inputs = kinds[kind];
        const double least = inputs.positive ? 0 : -1;
        for (size_t i = 0; i < M * MOST; i++) a[i] = least + (1 - least) * rng_uniform(&rng);
        for (size_t i = 0; i < N * MOST; i++) b[i] = least + (1 - least) * rng_uniform(&rng);
        for (size_t i = 0; i < M * N; i++) c[i] = rng_uniform(&rng);
        for (size_t k = 1; k <= MOST; k++) {
            const struct gemm_call call = {.dtype = GEMM_F64,
                                           .op = GEMM_NT,
                                           .m = M,
                                           .n = N,
                                           .k = k,
                                           .alpha = -0.7,
                                           .beta = 0.5,
                                           .a = a,
                                           .lda = MOST,
                                           .b = b,
                                           .ldb = MOST,
                                           .c = c,
                                           .ldc = N};
            assert_status(oracle_product(&call, inputs, want, bound), STATUS_OK);
            for (size_t e = 0; e < M * N; e++) {
                double sum = 0, magnitude = 0, square = 0;
                for (size_t p = 0; p < k; p++) {
                    const double term = a[e / N * MOST + p] * b[e % N * MOST + p];
                    sum += term;
                    magnitude += fabs(term);
                    square += term * term;
                }
                const double eps = 0x1p-52, rest = fabs(0.5 * c[e]), root = 4 * (sqrt((double)k) + 4) * eps;
                double expected = ((double)k + 4) * eps * (0.7 * magnitude + rest);
                if (inputs.zero_mean) expected = fmin(expected, root * (0.7 * sqrt(square) + rest));
                if (inputs.positive) expected = fmin(expected, root * (0.7 * magnitude + rest));
                expected += 2 * inputs.rounding * 0.7 * magnitude;
                assert_near(want[e], -0.7 * sum + 0.5 * c[e], 1e-13);
                assert_near(bound[e] / expected, 1, 1e-12);
            }
        }
    }
}

static void relative_error_is_of_all_elements(void **state) {
    (void)state;
    const double want[4] = {3, 0, 0, 4};
    const float got[6] = {3, 1, 99, 0, 4, 99}; /* leading dimension 3; off by (0, 1, 0, 0) */
    assert_near(oracle_relative_error(GEMM_F32, 2, 2, got, 3, want), 0.2, 1e-15);
    assert_true(isnan(oracle_relative_error(GEMM_F32, 1, 1, (float[]){NAN}, 1, want)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparator_accepts_what_is_right),
        cmocka_unit_test(comparator_rejects_what_is_wrong),
        cmocka_unit_test(comparator_knows_the_range_of_half_precision),
        cmocka_unit_test(saturated_gradients_are_finite),
        cmocka_unit_test(the_bound_tells_float32_from_tf32),
        cmocka_unit_test(the_bound_is_that_of_the_formulas),
        cmocka_unit_test(relative_error_is_of_all_elements),
    };
    return cmocka_run_group_tests_name("oracle", tests, NULL, NULL);
}
