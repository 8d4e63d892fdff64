/* Backend tuned with bfloat16: cases beyond test_gemm.c. */
#include "tests/support.h"

#include <math.h>

#include "kernels/bf16.h"
#include "src/backend/verify.h"
#include "tests/tuned_emulated.h"

static void open_emulated(struct compute *compute, int threads) {
    const struct compute_options options = {.threads = threads};
    assert_status(compute_open(compute, tuned_emulated_backend(), &options), STATUS_OK);
}

/* The kernels of avx512bf16 with the instruction emulated; bfloat16 only: other dtypes share code. */
static void pairs_are_right(void **state) {
    (void)state;
    struct compute compute;
    size_t checked = 0;
    open_emulated(&compute, 2);
    for (size_t i = 0; i < verify_case_count(); i += support_stride()) {
        const struct verify_case test = verify_case_at(i);
        if (test.dtype != GEMM_BF16) continue;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        checked++;
    }
    assert_true(checked > 0);
    compute_close(&compute);
}

/* bfloat16 sums over several blocks of k with each kind of tail: wide and narrow products, even and odd k. */
static void verify_long_sums(struct compute *compute) {
    static const size_t shapes[][3] = {{37, 70, 2051}, {20, 10, 1901}, {61, 33, 1300}};
    for (size_t i = 0; i < 3 * 3 * 4; i++) {
        const size_t *shape = shapes[i / 12], kind = i % 4;
        const enum gemm_op op = (enum gemm_op)(i / 4 % 3);
        struct verify_case test = {
            .dtype = GEMM_BF16,
            .c_f32 = kind == 0,
            .op = op,
            .m = shape[0],
            .n = shape[1],
            .k = shape[2],
            .pad = i % 2,
            .alpha = kind < 2 ? 0.7 : 1,
            .beta = kind == 0 ? 0.5 : 0,
            .integers = kind == 3,
            .epilogue = kind == 2 && op == GEMM_NN,
            .backward = kind == 2 && op == GEMM_NT,
            .activation = ACTIVATION_GELU,
            .keeps_pre = kind == 2 && op == GEMM_NN,
            .seed = i,
        };
        bool skipped;
        assert_status(verify_gemm(compute, &test, &skipped), STATUS_OK);
        assert_false(skipped);
    }
    compute_close(compute);
}

static void blocks_of_k_add_up(void **state) {
    (void)state;
    struct compute compute;
    open_emulated(&compute, 2);
    verify_long_sums(&compute);
    support_open(&compute, "tuned", 2);
    verify_long_sums(&compute);
}

/* Denormals are exact, or zero if the instruction flushes them. */
static void denormals_may_be_zero(void **state) {
    (void)state;
    for (int emulated = 0; emulated < 2; emulated++) {
        struct compute compute;
        const uint16_t tiny = 0x0001, one = 0x3F80;
        float c = NAN;
        const struct gemm_call call = {.dtype = GEMM_BF16,
                                       .c_f32 = true,
                                       .m = 1,
                                       .n = 1,
                                       .k = 1,
                                       .alpha = 1,
                                       .a = &tiny,
                                       .lda = 1,
                                       .b = &one,
                                       .ldb = 1,
                                       .c = &c,
                                       .ldc = 1};
        if (emulated) {
            open_emulated(&compute, 1);
        } else {
            support_open(&compute, "tuned", 1);
        }
        assert_status(compute_gemm(&compute, &call), STATUS_OK);
        assert_true(c == 0 || (!emulated && c == bf16_to_float(tiny)));
        compute_close(&compute);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_right),
        cmocka_unit_test(blocks_of_k_add_up),
        cmocka_unit_test(denormals_may_be_zero),
    };
    return cmocka_run_group_tests_name("tuned", tests, NULL, NULL);
}
