/* Weight gradients of cuda-tuned that update the weights themselves (gemm_update in kernels/gemm.h): the bits
   of the gradient and the update apart, C unwritten. Trainings: test_gpu_weight_update_training.c. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/verify.h"
#include "src/base/rng.h"

static const struct update rules[] = {
    {.method = UPDATE_SGD},
    {.method = UPDATE_SGD, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01},
    {.method = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    {.method = UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.1},
    {.method = UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1},
};
enum { SGD_RULES = 4, RULES = sizeof rules / sizeof *rules };

/* The matrices of a call, in device memory. */
struct matrices {
    void *a, *b, *c, *array[3], *rounded; /* array: weights, moments */
    struct step_scalars *step;
    struct tally *guard;
};

static void *upload(struct compute *compute, const void *values, size_t bytes) {
    struct device *device = &compute->device;
    void *memory = device->driver->alloc(device, bytes);
    assert_non_null(memory);
    device->driver->upload(device, memory, values, bytes);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    return memory;
}

enum values { REALS, INTEGERS, NOT_FINITE }; /* sums of the second are exact in any order */

static void *random_matrix(struct compute *compute, enum gemm_dtype dtype, size_t count, enum values kind,
                           double least, uint32_t substream) {
    struct rng rng = rng_open(11, RNG_TEST, substream);
    void *values = malloc(count * dtype_size(dtype));
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        dtype_set(dtype, values, i,
                  kind == INTEGERS ? (double)rng_below(&rng, 7) - 3
                                   : least + (1 - least) * rng_uniform(&rng));
    for (size_t i = 0; i < count && kind == NOT_FINITE; i += 2000)
        dtype_set(dtype, values, i + rng_below(&rng, 2000) % (count - i), i % 3 ? INFINITY : NAN);
    void *memory = upload(compute, values, count * dtype_size(dtype));
    free(values);
    return memory;
}

static struct matrices open_matrices(struct compute *compute, const struct gemm_call *call, enum values kind,
                                     uint64_t bad_step) {
    const size_t elements = call->m * call->ldc;
    const struct step_scalars step = {.learning_rate = 0.05, .adam_rate = 0.07, .adam_root = 1.5};
    const struct tally guard = {.bad_step = bad_step};
    struct matrices all = {
        .a = random_matrix(compute, call->dtype, call->k * call->lda, kind, -1, 1),
        .b = random_matrix(compute, call->dtype, call->k * call->ldb, kind == NOT_FINITE ? REALS : kind, -1,
                           2),
        .c = random_matrix(compute, GEMM_F32, elements, REALS, -1, 3),
        .rounded =
            random_matrix(compute, call->dtype == GEMM_F32 ? GEMM_BF16 : call->dtype, elements, REALS, -1, 4),
        .step = upload(compute, &step, sizeof step),
        .guard = upload(compute, &guard, sizeof guard),
    };
    for (uint32_t i = 0; i < 3; i++)
        all.array[i] = random_matrix(compute, GEMM_F32, elements, REALS, i == 2 ? 0 : -1, 5 + i);
    return all;
}

static void close_matrices(struct compute *compute, struct matrices *all) {
    void *const memory[] = {all->a,        all->b,       all->c,    all->array[0], all->array[1],
                            all->array[2], all->rounded, all->step, all->guard};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        compute->device.driver->free(&compute->device, memory[i]);
}

static struct update rule_on(const struct matrices *all, enum gemm_dtype dtype, const struct update *rule) {
    struct update update = *rule;
    update.weights = all->array[0];
    update.grad = all->c;
    update.moment1 = uses_second_moment(rule->method) || rule->momentum > 0 ? all->array[1] : NULL;
    update.moment2 = uses_second_moment(rule->method) ? all->array[2] : NULL;
    update.rounded = dtype != GEMM_F32 ? all->rounded : NULL;
    return update;
}

static struct gemm_call call_on(const struct gemm_call *call, const struct matrices *all) {
    struct gemm_call on = *call;
    on.a = all->a;
    on.b = all->b;
    on.c = all->c;
    return on;
}

static void assert_same(struct compute *compute, const void *x, const void *y, size_t bytes,
                        const char *what) {
    struct device *device = &compute->device;
    unsigned char *copies[2] = {malloc(bytes), malloc(bytes)};
    assert_true(copies[0] && copies[1]);
    device->driver->download(device, copies[0], x, bytes);
    device->driver->download(device, copies[1], y, bytes);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    for (size_t i = 0; i < bytes; i++)
        if (copies[0][i] != copies[1][i]) fail_msg("%s differ from byte %zu on", what, i);
    free(copies[0]);
    free(copies[1]);
}

/* A call with the update against the gradient and the update apart. After a bad step neither changes
   anything. */
static void check_call(struct compute *compute, const struct gemm_call *shape, const struct update *rule,
                       enum values kind, uint64_t bad_step) {
    static const char *const names[] = {"weights", "first moments", "second moments"};
    const size_t elements = shape->m * shape->ldc;
    struct matrices fused = open_matrices(compute, shape, kind, bad_step),
                    apart = open_matrices(compute, shape, kind, bad_step),
                    before = open_matrices(compute, shape, kind, bad_step);
    const struct weight_update update = {rule_on(&fused, shape->dtype, rule), fused.step, fused.guard, NULL};
    const struct update after = rule_on(&apart, shape->dtype, rule);
    struct gemm_call call = call_on(shape, &fused);
    const struct ops *ops = compute->device.driver->ops(&compute->device, shape->dtype);
    bool updated;
    assert_true(compute_fuses_update(compute, &call, &update));
    assert_status(compute_gemm_update(compute, &call, &update, &updated), STATUS_OK);
    assert_true(updated);
    call = call_on(shape, &apart);
    assert_status(compute_gemm(compute, &call), STATUS_OK);
    ops->update(compute->device.ops_context, elements, &after, apart.step, apart.guard);
    const struct matrices *const want = bad_step ? &before : &apart;
    for (int i = 0; i < 3; i++)
        assert_same(compute, fused.array[i], want->array[i], elements * sizeof(float), names[i]);
    assert_same(compute, fused.rounded, want->rounded, elements * 2, "rounded weights");
    assert_same(compute, fused.c, before.c, elements * sizeof(float), "gradients, which it does not write,");
    close_matrices(compute, &fused);
    close_matrices(compute, &apart);
    close_matrices(compute, &before);
}

static struct gemm_call shape_of(enum gemm_dtype dtype, size_t m, size_t n, size_t k) {
    return (struct gemm_call){.dtype = dtype,
                              .c_f32 = dtype != GEMM_F32,
                              .op = GEMM_TN,
                              .m = m,
                              .n = n,
                              .k = k,
                              .alpha = 1,
                              .lda = m,
                              .ldb = n,
                              .ldc = n};
}

static bool updates(struct compute *compute, enum gemm_dtype dtype) {
    const struct gemm_call call = shape_of(dtype, 128, 128, 128);
    const struct weight_update update = {
        .rule = {.weights = (void *)256, .rounded = dtype == GEMM_BF16 ? (void *)256 : NULL}};
    return compute_fuses_update(compute, &call, &update);
}

/* float32: by six bf16 products, however small the product. */
static void open_updates(struct compute *compute, enum gemm_dtype dtype) {
    const bool bf16 = dtype == GEMM_BF16;
    gpu_tensor_needed();
    gpu_open(compute, "cuda-tuned",
             &(struct compute_options){.threads = 2,
                                       .precision = bf16 ? GEMM_MIXED_BF16 : GEMM_TRUE,
                                       .options = bf16 ? NULL : "tensor=bf16x6"});
    assert_true(updates(compute, dtype));
}

/* The product alone: any shape and kind of values, the same bits every time. */
static void the_product_is_right(void **state) {
    (void)state;
    static const size_t shapes[][4] = {
        {64, 64, 64, 0}, {304, 264, 128, 8}, {784, 504, 100, 0}, {72, 80, 127, 8}};
    struct compute compute;
    open_updates(&compute, GEMM_BF16);
    for (size_t i = 0; i < 4 * VERIFY_VALUES; i++) {
        struct verify_case test = {.dtype = GEMM_BF16,
                                   .c_f32 = true,
                                   .op = GEMM_TN,
                                   .m = shapes[i % 4][0],
                                   .n = shapes[i % 4][1],
                                   .k = shapes[i % 4][2],
                                   .pad = shapes[i % 4][3],
                                   .alpha = i % 3 ? 1 : -0.5,
                                   .twice = true,
                                   .integers = i / 4 == VERIFY_ORDINARY && i % 2,
                                   .values = (enum verify_values)(i / 4),
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
    open_updates(&compute, dtype);
    for (size_t i = 0; i < count * rules_count; i += support_stride() < 7 ? support_stride() : 7) {
        const size_t *const shape = shapes[i % count];
        const bool half = dtype != GEMM_F32 && i / 2 % 2;
        struct gemm_call call = shape_of(half ? GEMM_F16 : dtype, shape[0], shape[1], shape[2]);
        call.alpha = i % 4 == 3 ? 0.3 : 1;
        check_call(&compute, &call, &rules[i / count], (enum values)(i % kinds), i % 5 == 4);
    }
    compute_close(&compute);
}

static void the_bits_of_gradient_and_update(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{64, 64, 64},     {128, 128, 128}, {784, 504, 128}, {200, 136, 100},
                                       {2504, 2000, 96}, {304, 328, 125}, {72, 264, 80},   {72, 72, 65},
                                       {784, 2504, 128}, {1000, 72, 120}};
    check_shapes(GEMM_BF16, shapes, sizeof shapes / sizeof *shapes, 2, RULES);
}

/* By sgd alone; also k in several parts, and sums of infinities and NaN. */
static void the_bits_in_float32(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{64, 64, 64},     {128, 128, 128}, {784, 500, 128}, {200, 132, 100},
                                       {1300, 1000, 96}, {304, 324, 125}, {68, 260, 80},   {4, 8, 300},
                                       {784, 1300, 128}, {1000, 72, 256}, {900, 1100, 257}};
    check_shapes(GEMM_F32, shapes, sizeof shapes / sizeof *shapes, 3, SGD_RULES);
}

/* The output layer, by every rule. */
static void the_bits_of_few_columns(void **state) {
    (void)state;
    static const size_t shapes[][3] = {{500, 10, 128}, {1000, 10, 1000}, {77, 7, 33}, {1024, 1, 129}};
    check_shapes(GEMM_F32, shapes, sizeof shapes / sizeof *shapes, 3, RULES);
}

/* What it leaves to gemm and the op. */
static void other_calls_are_refused(void **state) {
    (void)state;
    struct compute compute;
    double clip;
    open_updates(&compute, GEMM_BF16);
    const struct gemm_call good = shape_of(GEMM_BF16, 128, 128, 128);
    struct matrices all = open_matrices(&compute, &good, INTEGERS, 0);
    const struct weight_update update = {rule_on(&all, GEMM_BF16, &rules[5]), all.step, all.guard, NULL};
    for (int i = 0; i < 17; i++) {
        struct gemm_call call = call_on(&good, &all);
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
        assert_int_equal(compute_fuses_update(&compute, &call, &other), i == 0);
    }
    close_matrices(&compute, &all);
    compute_close(&compute);
}

static void other_calls_in_float32_are_refused(void **state) {
    (void)state;
    struct compute compute;
    double clip;
    open_updates(&compute, GEMM_F32);
    const struct gemm_call good = shape_of(GEMM_F32, 128, 128, 128);
    struct matrices all = open_matrices(&compute, &good, INTEGERS, 0);
    const struct weight_update update = {rule_on(&all, GEMM_F32, &rules[2]), all.step, all.guard, NULL};
    for (int i = 0; i < 9; i++) {
        struct gemm_call call = call_on(&good, &all);
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
    close_matrices(&compute, &all);
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_product_is_right),    cmocka_unit_test(the_bits_of_gradient_and_update),
        cmocka_unit_test(the_bits_in_float32),     cmocka_unit_test(the_bits_of_few_columns),
        cmocka_unit_test(other_calls_are_refused), cmocka_unit_test(other_calls_in_float32_are_refused),
    };
    return cmocka_run_group_tests_name("gpu weight update", tests, NULL, NULL);
}
