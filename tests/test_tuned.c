/* Backend tuned with bfloat16: cases beyond test_gemm.c. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

/* Pairs along k, a zero after an odd k, zeros beyond the columns, and nothing after the last row of pairs. */
static void packing_stores_its_rows_alone(void **state) {
    (void)state;
    const size_t lanes = tuned_emulated_lanes(), most = 4 * lanes + 3, ldb = most + 1;
    uint16_t *b = malloc(2 * lanes * ldb * sizeof *b);
    uint32_t *packed = malloc((most + 2) * 2 * lanes * sizeof *packed);
    assert_true(b && packed);
    for (size_t i = 0; i < 2 * lanes * ldb; i++) b[i] = (uint16_t)(1 + i);
    for (size_t k = 1; k <= most; k++)
        for (size_t width = lanes; width <= 2 * lanes; width += lanes) {
            const size_t cols = width - k % 3, rows = (k + 1) / 2;
            for (size_t i = 0; i < (most + 2) * width; i++) packed[i] = 0xDEADBEEF;
            tuned_emulated_pack(k, cols, width, b, ldb, (float *)packed);
            for (size_t i = 0; i < (most + 2) * width; i++) {
                const size_t row = i / width, col = i % width;
                const uint32_t low = row < rows && col < cols ? b[col * ldb + 2 * row] : 0,
                               high = col < cols && 2 * row + 1 < k ? b[col * ldb + 2 * row + 1] : 0;
                assert_int_equal(packed[i], row < rows ? low | high << 16 : 0xDEADBEEF);
            }
        }
    free(b);
    free(packed);
}

/* An instruction set is used on the processors that list it, and on no others. */
static void processors_that_list_an_instruction_set(void **state) {
    (void)state;
#if defined(__x86_64__)
    static const struct {
        const struct tuned_isa *isa;
        const char *flags[6];
    } sets[] = {{&tuned_avx2, {"avx2", "fma"}},
                {&tuned_avx512, {"avx512f", "avx512dq", "avx512bw", "avx512vl"}},
                {&tuned_avx512bf16, {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_bf16"}}};
    char line[8192] = "";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file) && strncmp(line, "flags", 5) != 0) line[0] = '\0';
    if (file) fclose(file);
    if (!line[0] || getenv("RUNNER")) {
        print_message("skipped: /proc/cpuinfo does not describe the processor that runs this\n");
        skip();
    }
    line[strcspn(line, "\n")] = ' ';
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        bool listed = true;
        for (size_t f = 0; f < 6 && sets[i].flags[f]; f++) {
            char word[32];
            snprintf(word, sizeof word, " %s ", sets[i].flags[f]);
            listed = listed && strstr(line, word);
        }
        assert_int_equal(sets[i].isa->usable(), listed);
    }
#else
    skip();
#endif
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
        cmocka_unit_test(packing_stores_its_rows_alone),
        cmocka_unit_test(processors_that_list_an_instruction_set),
    };
    return cmocka_run_group_tests_name("tuned", tests, NULL, NULL);
}
