/* Several weight gradients of cuda-tuned that update their weights at once, also without a product: each has
   the bits of gradient and update apart. */
#include "tests/gpu_updates.h"

/* More than one launch takes: some without product, some for the kernel of medium batches. */
static const size_t listed[][3] = {{470, 16, 0},    {64, 64, 64},    {784, 504, 128},   {200, 136, 100},
                                   {72, 264, 80},   {63, 4, 0},      {1000, 72, 120},   {72, 72, 65},
                                   {304, 328, 125}, {1, 8, 0},       {64, 64, 64},      {128, 128, 128},
                                   {520, 1000, 96}, {64, 4096, 129}, {315, 16, 0},      {512, 512, 300},
                                   {72, 6400, 777}, {2, 8, 0},       {200, 2464, 2048}, {784, 592, 1024}};
enum { LISTED = sizeof listed / sizeof *listed };

/* In float32: the same; also other k, k in several parts, and few columns, which another kernel takes. */
static const size_t listed_f32[LISTED][3] = {
    {500, 10, 128},   {304, 500, 128}, {1800, 1300, 128}, {68, 260, 128}, {1300, 1000, 128},
    {470, 16, 0},     {4, 20, 128},    {200, 132, 128},   {315, 16, 0},   {900, 1100, 100},
    {900, 1100, 257}, {4, 8, 257},     {784, 640, 257},   {77, 7, 60},    {300, 16, 0},
    {9, 7, 0},        {72, 260, 128},  {10, 16, 0},       {4, 8, 128},    {200, 132, 200}};

/* Several updates at once. mixed: of different rules and types; of float32, some with infinities and NaN. */
static void check_list(struct compute *compute, bool floats, size_t first, bool mixed, uint64_t bad_step) {
    const size_t(*const shape)[3] = floats ? listed_f32 : listed;
    const size_t rules = floats ? GPU_SGD_RULES : GPU_UPDATE_RULES;
    struct gemm_call shapes[LISTED], calls[LISTED];
    struct weight_update updates[LISTED];
    struct gpu_copies copies[LISTED];
    bool done;
    for (size_t i = 0; i < LISTED; i++) {
        const enum gemm_dtype half = (mixed ? i : first) % 3 ? GEMM_BF16 : GEMM_F16,
                              dtype = floats ? GEMM_F32 : half;
        const struct update *const rule = &gpu_update_rules[(mixed ? first + i / 4 : first) % rules];
        const bool finite = !floats || !mixed || i % 3 != 2;
        shapes[i] = gpu_shape_of(dtype, shape[i][0], shape[i][1], shape[i][2]);
        shapes[i].alpha = floats && i % 4 == 3 ? 0.3 : 1;
        copies[i] = gpu_copies_open(compute, &shapes[i], finite ? GPU_REALS : GPU_NOT_FINITE, bad_step,
                                    10 * (uint32_t)i);
        calls[i] = gpu_call_on(&shapes[i], &copies[i].fused);
        calls[i].b_complete = i % 3 > 0; /* no kernel writes the operands */
        updates[i] = (struct weight_update){.rule = gpu_rule_on(&copies[i].fused, dtype, rule),
                                            .step = copies[0].fused.step,
                                            .guard = copies[0].fused.guard};
        assert_true(compute_fuses_update(compute, &calls[i], &updates[i]));
    }
    assert_status(compute_gemm_updates(compute, calls, updates, LISTED, &done), STATUS_OK);
    assert_true(done);
    for (size_t i = 0; i < LISTED; i++)
        gpu_copies_check(compute, &shapes[i], &gpu_update_rules[(mixed ? first + i / 4 : first) % rules],
                         bad_step, &copies[i]);
}

static void the_bits_of_lists(void **state) {
    (void)state;
    struct compute compute;
    gpu_open_updates(&compute, GEMM_BF16);
    for (size_t i = 0; i < 2 * GPU_UPDATE_RULES; i += support_every(5))
        check_list(&compute, false, i % GPU_UPDATE_RULES, i >= GPU_UPDATE_RULES, i % 5 == 4);
    compute_close(&compute);
}

static void the_bits_of_lists_in_float32(void **state) {
    (void)state;
    struct compute compute;
    gpu_open_updates(&compute, GEMM_F32);
    for (size_t i = 0; i < 2 * GPU_SGD_RULES; i += support_every(5))
        check_list(&compute, true, i % GPU_SGD_RULES, i >= GPU_SGD_RULES, i % 5 == 4);
    compute_close(&compute);
}

/* C is the gradient: small ones alone. */
static void other_calls_without_product_are_refused(void **state) {
    (void)state;
    for (int i = 0; i < 2 * 13; i++) {
        const bool floats = i % 2;
        const enum gemm_dtype dtype = floats ? GEMM_F32 : GEMM_BF16;
        struct compute compute;
        double clip;
        gpu_open_updates(&compute, dtype);
        const struct gemm_call good = gpu_shape_of(dtype, 4096, 16, 0);
        struct gpu_matrices all = gpu_matrices_open(&compute, &good, GPU_REALS, 0, 0);
        struct gemm_call call = gpu_call_on(&good, &all);
        struct weight_update update = {.rule = gpu_rule_on(&all, dtype, &gpu_update_rules[floats ? 3 : 5]),
                                       .step = all.step,
                                       .guard = all.guard};
        bool taken = false;
        switch (i / 2) {
        case 0:
            taken = true;
            break;
        case 1:
            update.rule.weights = (char *)all.array[0] + 4;
            taken = floats;
            break;
        case 2:
            update.rule.moment1 = (char *)all.array[1] + 8;
            taken = floats;
            break;
        case 3:
            update.rule.rounded = floats ? all.rounded : NULL;
            break;
        case 4:
            update.rule.average = all.c;
            break;
        case 5:
            update.rule.clip = &clip;
            break;
        case 6:
            call.beta = 0;
            break;
        case 7:
            call.beta = 0.5;
            break;
        case 8:
            call.c = (char *)all.c + 4;
            taken = floats;
            break;
        case 9:
            call.n = 14;
            break;
        case 10:
            call.m = 4097;
            break;
        case 11:
            call.dtype = floats ? GEMM_BF16 : GEMM_F32;
            break;
        default:
            update.rule.method = floats ? UPDATE_ADAM : UPDATE_NONE;
        }
        if (compute_fuses_update(&compute, &call, &update) != taken) fail_msg("case %d of %d", i / 2, floats);
        gpu_matrices_close(&compute, &all);
        compute_close(&compute);
    }
}

/* One refused call, the last: nothing is launched. */
static void lists_are_refused_as_a_whole(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        const enum gemm_dtype dtype = i % 2 ? GEMM_F32 : GEMM_BF16;
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
        if (i < 2)
            calls[1].beta = 0.5;
        else
            updates[1].rule.weights = (char *)copies[1].fused.array[0] + 4;
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
                                       cmocka_unit_test(the_bits_of_lists_in_float32),
                                       cmocka_unit_test(other_calls_without_product_are_refused),
                                       cmocka_unit_test(lists_are_refused_as_a_whole)};
    return cmocka_run_group_tests_name("gpu weight update, lists", tests, NULL, NULL);
}
