/* Weight gradients of cuda-tuned that update the weights themselves (gemm_update in kernels/gemm.h): the bits
   of the gradient and the update apart, C unwritten. Several at once: test_gpu_weight_update_lists.c;
   trainings: test_gpu_weight_update_training.c. */
#include "tests/gpu_updates.h"

#include "src/backend/verify.h"

/* One call with its update. */
static void check_call(struct compute *compute, const struct gemm_call *shape, const struct update *rule,
                       enum gpu_values kind, uint64_t bad_step) {
    struct gpu_copies copies = gpu_copies_open(compute, shape, kind, bad_step, 0);
    const struct weight_update update = {.rule = gpu_rule_on(&copies.fused, shape->dtype, rule),
                                         .step = copies.fused.step,
                                         .guard = copies.fused.guard};
    const struct gemm_call call = gpu_call_on(shape, &copies.fused);
    bool updated;
    assert_true(compute_fuses_update(compute, &call, &update));
    assert_status(compute_gemm_update(compute, &call, &update, &updated), STATUS_OK);
    assert_true(updated);
    gpu_copies_check(compute, shape, rule, bad_step, &copies);
}

/* The product alone: any shape and kind of values, the same bits every time. The last two shapes, a large one
   and one of several tiles a thread block, have ordinary values alone. */
static void the_product_is_right(void **state) {
    (void)state;
    static const size_t shapes[][4] = {{64, 64, 64, 0},     {304, 264, 128, 8},  {784, 504, 100, 0},
                                       {72, 80, 127, 8},    {520, 520, 129, 8},  {304, 1288, 256, 8},
                                       {784, 504, 500, 0},  {136, 3704, 520, 0}, {2040, 2032, 2100, 8},
                                       {2504, 2000, 136, 0}};
    const size_t count = sizeof shapes / sizeof *shapes;
    struct compute compute;
    gpu_open_updates(&compute, GEMM_BF16);
    for (size_t i = 0; i < count * VERIFY_VALUES; i++) {
        if (i % count >= count - 2 && i / count != VERIFY_ORDINARY) continue;
        struct verify_case test = {.dtype = GEMM_BF16,
                                   .c_f32 = true,
                                   .op = GEMM_TN,
                                   .m = shapes[i % count][0],
                                   .n = shapes[i % count][1],
                                   .k = shapes[i % count][2],
                                   .pad = shapes[i % count][3],
                                   .alpha = i % 3 ? 1 : -0.5,
                                   .as_update = true,
                                   .twice = true,
                                   .integers = i / count == VERIFY_ORDINARY && i % 2,
                                   .values = (enum verify_values)(i / count),
                                   .seed = i};
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        test.dtype = GEMM_F16;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

/* Edges, several tiles of a block; each rule on each shape. */
static void check_shapes(enum gemm_dtype dtype, const size_t (*shapes)[3], size_t count, size_t kinds,
                         size_t rules_count) {
    struct compute compute;
    gpu_open_updates(&compute, dtype);
    for (size_t i = 0; i < count * rules_count; i += support_stride() < 7 ? support_stride() : 7) {
        const size_t *const shape = shapes[i % count];
        const bool half = dtype != GEMM_F32 && i / 2 % 2;
        struct gemm_call call = gpu_shape_of(half ? GEMM_F16 : dtype, shape[0], shape[1], shape[2]);
        call.alpha = i % 4 == 3 ? 0.3 : 1;
        check_call(&compute, &call, &gpu_update_rules[i / count], (enum gpu_values)(i % kinds), i % 5 == 4);
    }
    compute_close(&compute);
}

static void the_bits_of_gradient_and_update(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{64, 64, 64},     {128, 128, 128}, {784, 504, 128}, {200, 136, 100},
                                       {2504, 2000, 96}, {304, 328, 125}, {72, 264, 80},   {72, 72, 65},
                                       {784, 2504, 128}, {1000, 72, 120}};
    check_shapes(GEMM_BF16, shapes, sizeof shapes / sizeof *shapes, 2, GPU_UPDATE_RULES);
}

/* Medium batches. */
static void the_bits_with_many_rows(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{512, 512, 129},   {2048, 128, 256},  {784, 504, 512},
                                       {200, 2304, 1000}, {2504, 2000, 192}, {304, 1000, 333},
                                       {72, 6832, 2048},  {6400, 72, 1111},  {1504, 1000, 1024}};
    check_shapes(GEMM_BF16, shapes, sizeof shapes / sizeof *shapes, 2, GPU_UPDATE_RULES);
}

/* Large ones: several tiles a thread block, edges, each rule on one of them. */
static void the_bits_in_large_batches(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{2040, 2040, 2049}, {2808, 3064, 2056}, {1272, 3320, 2112}};
    check_shapes(GEMM_BF16, shapes, sizeof shapes / sizeof *shapes, 2, GPU_UPDATE_RULES);
}

/* By sgd alone; also k in several parts, and sums of infinities and NaN. */
static void the_bits_in_float32(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{64, 64, 64},     {128, 128, 128}, {784, 500, 128}, {200, 132, 100},
                                       {1300, 1000, 96}, {304, 324, 125}, {68, 260, 80},   {4, 8, 300},
                                       {784, 1300, 128}, {1000, 72, 256}, {900, 1100, 257}};
    check_shapes(GEMM_F32, shapes, sizeof shapes / sizeof *shapes, 3, GPU_SGD_RULES);
}

/* The output layer, by every rule. */
static void the_bits_of_few_columns(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{500, 10, 128}, {1000, 10, 1000}, {77, 7, 33}, {1024, 1, 129}};
    check_shapes(GEMM_F32, shapes, sizeof shapes / sizeof *shapes, 3, GPU_UPDATE_RULES);
}

/* What it leaves to gemm and the op. */
static void other_calls_are_refused(void **state) {
    (void)state;
    struct compute compute;
    double clip;
    gpu_open_updates(&compute, GEMM_BF16);
    const struct gemm_call good = gpu_shape_of(GEMM_BF16, 128, 128, 128);
    struct gpu_matrices all = gpu_matrices_open(&compute, &good, GPU_INTEGERS, 0, 0);
    const struct weight_update update = {
        .rule = gpu_rule_on(&all, GEMM_BF16, &gpu_update_rules[5]), .step = all.step, .guard = all.guard};
    for (int i = 0; i < 19; i++) {
        struct gemm_call call = gpu_call_on(&good, &all);
        struct weight_update other = update;
        if (i == 1) other.rule.weights = (char *)all.array[0] + 4;
        if (i == 2) other.rule.moment2 = (char *)all.array[2] + 8;
        if (i == 3) other.rule.rounded = (char *)all.rounded + 4;
        if (i == 4) other.rule.rounded = NULL;
        if (i == 5) other.rule.average = all.c;
        if (i == 6) other.rule.clip = &clip;
        if (i == 7) other.rule.method = UPDATE_NONE;
        if (i == 8) call.op = GEMM_NN;
        if (i == 9) call.c_f32 = false;
        if (i == 10) call.beta = 0.5;
        if (i == 11) call.ldc = 130;
        if (i == 12) call.ldb = 132;
        if (i == 13) call.k = 48;
        if (i == 15) call.m = 124;
        if (i == 16) call.n = 132;
        if (i == 14) call.a = (char *)all.a + 8;
        if (i == 17) call.k = 200; /* too few weights */
        if (i == 18) call.m = call.lda = 8192, call.k = 2049;
        assert_int_equal(compute_fuses_update(&compute, &call, &other), i == 0);
    }
    gpu_matrices_close(&compute, &all);
    compute_close(&compute);
}

static void other_calls_in_float32_are_refused(void **state) {
    (void)state;
    struct compute compute;
    double clip;
    gpu_open_updates(&compute, GEMM_F32);
    const struct gemm_call good = gpu_shape_of(GEMM_F32, 128, 128, 128);
    struct gpu_matrices all = gpu_matrices_open(&compute, &good, GPU_INTEGERS, 0, 0);
    const struct weight_update update = {
        .rule = gpu_rule_on(&all, GEMM_F32, &gpu_update_rules[2]), .step = all.step, .guard = all.guard};
    for (int i = 0; i < 9; i++) {
        struct gemm_call call = gpu_call_on(&good, &all);
        struct weight_update other = update;
        if (i == 1) other.rule.weights = (char *)all.array[0] + 4;
        if (i == 2) other.rule.moment1 = (char *)all.array[1] + 8;
        if (i == 3) other.rule.rounded = all.rounded;
        if (i == 4) other.rule.average = all.c;
        if (i == 5) other.rule.clip = &clip;
        if (i == 6) other.rule.method = UPDATE_ADAM;
        if (i == 7) call.op = GEMM_NN;
        if (i == 8) call.beta = 0.5;
        assert_int_equal(compute_fuses_update(&compute, &call, &other), i == 0);
    }
    gpu_matrices_close(&compute, &all);
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_product_is_right),    cmocka_unit_test(the_bits_of_gradient_and_update),
        cmocka_unit_test(the_bits_with_many_rows), cmocka_unit_test(the_bits_in_large_batches),
        cmocka_unit_test(the_bits_in_float32),     cmocka_unit_test(the_bits_of_few_columns),
        cmocka_unit_test(other_calls_are_refused), cmocka_unit_test(other_calls_in_float32_are_refused),
    };
    return cmocka_run_group_tests_name("gpu weight update", tests, NULL, NULL);
}
