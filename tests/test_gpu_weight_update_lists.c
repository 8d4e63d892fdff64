/* Several weight gradients of cuda-tuned that update their weights in one launch, also without a product:
   each has the bits of gradient and update apart. */
#include "tests/gpu_updates.h"

/* More than one launch takes; some without product. */
static const size_t listed[][3] = {{470, 16, 0},    {64, 64, 64},    {784, 504, 128}, {200, 136, 100},
                                   {72, 264, 80},   {63, 4, 0},      {1000, 72, 120}, {72, 72, 65},
                                   {304, 328, 125}, {1, 8, 0},       {64, 64, 64},    {128, 128, 128},
                                   {128, 128, 128}, {520, 1000, 96}, {64, 712, 127},  {315, 16, 0}};
enum { LISTED = sizeof listed / sizeof *listed };

/* Several updates at once. mixed: of different rules and types. */
static void check_list(struct compute *compute, size_t first, bool mixed, uint64_t bad_step) {
    struct gemm_call shapes[LISTED], calls[LISTED];
    struct weight_update updates[LISTED];
    struct gpu_copies copies[LISTED];
    bool done;
    for (size_t i = 0; i < LISTED; i++) {
        const enum gemm_dtype dtype = (mixed ? i : first) % 3 ? GEMM_BF16 : GEMM_F16;
        const struct update *const rule =
            &gpu_update_rules[(mixed ? first + i / 4 : first) % GPU_UPDATE_RULES];
        shapes[i] = gpu_shape_of(dtype, listed[i][0], listed[i][1], listed[i][2]);
        copies[i] = gpu_copies_open(compute, &shapes[i], GPU_REALS, bad_step, 10 * (uint32_t)i);
        calls[i] = gpu_call_on(&shapes[i], &copies[i].fused);
        updates[i] = (struct weight_update){.rule = gpu_rule_on(&copies[i].fused, dtype, rule),
                                            .step = copies[0].fused.step,
                                            .guard = copies[0].fused.guard};
        assert_true(compute_fuses_update(compute, &calls[i], &updates[i]));
    }
    assert_status(compute_gemm_updates(compute, calls, updates, LISTED, &done), STATUS_OK);
    assert_true(done);
    for (size_t i = 0; i < LISTED; i++)
        gpu_copies_check(compute, &shapes[i],
                         &gpu_update_rules[(mixed ? first + i / 4 : first) % GPU_UPDATE_RULES], bad_step,
                         &copies[i]);
}

static void the_bits_of_lists(void **state) {
    (void)state;
    struct compute compute;
    gpu_open_updates(&compute, GEMM_BF16);
    for (size_t i = 0; i < 2 * GPU_UPDATE_RULES; i += support_every(5))
        check_list(&compute, i % GPU_UPDATE_RULES, i >= GPU_UPDATE_RULES, i % 5 == 4);
    compute_close(&compute);
}

/* C is the gradient: small ones alone. */
static void other_calls_without_product_are_refused(void **state) {
    (void)state;
    struct compute compute;
    double clip;
    gpu_open_updates(&compute, GEMM_BF16);
    const struct gemm_call good = gpu_shape_of(GEMM_BF16, 4096, 16, 0);
    struct gpu_matrices all = gpu_matrices_open(&compute, &good, GPU_REALS, 0, 0);
    const struct weight_update update = {
        .rule = gpu_rule_on(&all, GEMM_BF16, &gpu_update_rules[5]), .step = all.step, .guard = all.guard};
    for (int i = 0; i < 12; i++) {
        struct gemm_call call = gpu_call_on(&good, &all);
        struct weight_update other = update;
        if (i == 1) other.rule.weights = (char *)all.array[0] + 4;
        if (i == 2) other.rule.moment2 = (char *)all.array[2] + 8;
        if (i == 3) other.rule.rounded = NULL;
        if (i == 4) other.rule.average = all.c;
        if (i == 5) other.rule.clip = &clip;
        if (i == 6) call.beta = 0;
        if (i == 7) call.beta = 0.5;
        if (i == 8) call.c = (char *)all.c + 4;
        if (i == 9) call.n = 14;
        if (i == 10) call.m = 4097;
        if (i == 11) call.dtype = GEMM_F32;
        assert_int_equal(compute_fuses_update(&compute, &call, &other), i == 0);
    }
    gpu_matrices_close(&compute, &all);
    compute_close(&compute);
}

/* One refused call, or float32: nothing is launched. */
static void lists_are_refused_as_a_whole(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const enum gemm_dtype dtype = i ? GEMM_F32 : GEMM_BF16;
        struct compute compute;
        bool done;
        gpu_open_updates(&compute, dtype);
        const struct gemm_call shape = gpu_shape_of(dtype, 128, 128, 128);
        struct gpu_copies copies[2];
        struct gemm_call calls[2];
        struct weight_update updates[2];
        for (int c = 0; c < 2; c++) {
            copies[c] = gpu_copies_open(&compute, &shape, GPU_REALS, 0, 10 * (uint32_t)c);
            calls[c] = gpu_call_on(&shape, &copies[c].fused);
            updates[c] =
                (struct weight_update){.rule = gpu_rule_on(&copies[c].fused, dtype, &gpu_update_rules[0]),
                                       .step = copies[c].fused.step,
                                       .guard = copies[c].fused.guard};
        }
        if (dtype == GEMM_BF16) calls[1].beta = 0.5;
        assert_status(compute_gemm_updates(&compute, calls, updates, 2, &done), STATUS_OK);
        assert_false(done);
        for (int c = 0; c < 2; c++) {
            gpu_assert_same(&compute, copies[c].fused.array[0], copies[c].before.array[0], 128 * 128 * 4,
                            "weights of a refused list");
            gpu_matrices_close(&compute, &copies[c].fused);
            gpu_matrices_close(&compute, &copies[c].apart);
            gpu_matrices_close(&compute, &copies[c].before);
        }
        compute_close(&compute);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_bits_of_lists),
                                       cmocka_unit_test(other_calls_without_product_are_refused),
                                       cmocka_unit_test(lists_are_refused_as_a_whole)};
    return cmocka_run_group_tests_name("gpu weight update, lists", tests, NULL, NULL);
}
