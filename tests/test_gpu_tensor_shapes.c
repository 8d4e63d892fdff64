/* float32 GEMM on the tensor cores (kernels/cuda/tensor/), by planes, by six products and as TF32: it is
   right for every shape, and gives the same bits every time. On other GPUs than those of compute capability
   9.0 the option of the backend has no effect, and these tests check its other kernels. */
#include "tests/gpu.h"

#include "src/backend/verify.h"

/* Numbers of shapes; no multiples of 3, so that each shape occurs with each beta. */
enum { LARGE = 4, MEDIUM = 7, TF32 = 10, SHORT = 11 };

static void open_tensor(struct compute *compute, const char *option, enum gemm_precision precision) {
    gpu_open(compute, "cuda-tuned",
             &(struct compute_options){.threads = 2, .options = option, .precision = precision});
}

static void check_list(const char *option, enum gemm_precision precision) {
    struct compute compute;
    open_tensor(&compute, option, precision);
    for (size_t i = 0; i < verify_case_count(); i += 5 * support_stride()) {
        const struct verify_case test = verify_case_at(i);
        if (test.dtype == GEMM_F32) assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

static void the_list_is_right(void **state) {
    (void)state;
    check_list("tensor=always", GEMM_TRUE);
}

static void the_list_is_right_as_tf32(void **state) {
    (void)state;
    check_list("tensor=always", GEMM_TF32);
}

static void the_list_is_right_by_six_products(void **state) {
    (void)state;
    check_list("tensor=bf16x6", GEMM_TRUE);
}

static void the_list_is_right_by_three_products(void **state) {
    (void)state;
    check_list("tensor=bf16x6", GEMM_TF32);
}

static size_t case_count(size_t shapes) {
    return shapes * 3 * VERIFY_VALUES;
}

/* Case i of case_count. Shape, op, padding and beta have periods of their own, so that each value of one
   occurs with each value of the others. */
static struct verify_case shape_case(const size_t (*shapes)[3], size_t count, size_t i) {
    static const size_t pads[] = {3, 4, 0};
    const size_t *const shape = shapes[i % count];
    const enum verify_values values = (enum verify_values)(i / (3 * count));
    return (struct verify_case){.op = (enum gemm_op)(i / count % 3),
                                .m = shape[0],
                                .n = shape[1],
                                .k = shape[2],
                                .pad = pads[i / 3 % 3],
                                .alpha = i % 5 ? 1 : -0.5,
                                .beta = i % 3 ? 0 : 0.5,
                                .integers = values == VERIFY_ORDINARY && i % 5 % 2,
                                .twice = true,
                                .values = values,
                                .seed = i};
}

/* Several tiles, clusters and bands, which the list is too small for, with everything that a call
   can have. */
static void check_shapes(const char *option, enum gemm_precision precision, const size_t (*shapes)[3],
                         size_t count) {
    struct compute compute;
    open_tensor(&compute, option, precision);
    for (size_t i = 0; i < case_count(count); i += support_stride() < 23 ? support_stride() : 23) {
        struct verify_case test = shape_case(shapes, count, i);
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        if (test.op == GEMM_TN || test.values == VERIFY_SPECIAL) continue;
        test.beta = 0;
        test.integers = false;
        test.epilogue = test.op == GEMM_NN;
        test.backward = test.op == GEMM_NT;
        test.activation = (enum activation)(i % ACTIVATION_COUNT);
        test.keeps_pre = test.epilogue && activation_needs_input(test.activation);
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

static void large_shapes_are_right(void **state) {
    (void)state;
    check_shapes(
        "tensor=always", GEMM_TRUE,
        (const size_t[LARGE][3]){{1030, 520, 1100}, {784, 2048, 300}, {129, 2500, 65}, {2048, 640, 257}},
        LARGE);
}

/* One part of k and two tiles of a block, two parts, five, eight, three and four, with column sums over four
   rows of tiles; rows of one tile and of several. Rows of odd length suit the kernel where padding makes them
   multiples of 16 bytes. */
static const size_t medium_shapes[MEDIUM][3] = {{1300, 1028, 100}, {384, 1044, 300}, {96, 1004, 2500},
                                                {129, 777, 301},   {128, 2500, 784}, {512, 500, 1000},
                                                {256, 1000, 500}};

static void medium_shapes_are_right_by_six_products(void **state) {
    (void)state;
    check_shapes("tensor=bf16x6", GEMM_TRUE, medium_shapes, MEDIUM);
}

static void medium_shapes_are_right_by_three_products(void **state) {
    (void)state;
    check_shapes("tensor=bf16x6", GEMM_TF32, medium_shapes, MEDIUM);
}

/* Of up to 128 rows: each number of parts of k, for up to 64 rows and for more; pairs of tiles that copy A
   together, one of them outside C; rings that are reused; ends of k and columns that are no whole stage or
   tile. */
static const size_t short_shapes[SHORT][3] = {
    {128, 2504, 784}, {65, 136, 300}, {100, 1512, 500}, {127, 2000, 2500}, {64, 1000, 1500}, {17, 72, 1600},
    {48, 2304, 204},  {33, 2568, 68}, {100, 2632, 300}, {128, 2568, 2500}, {7, 520, 1000}};

static void short_shapes_are_right_as_tf32(void **state) {
    (void)state;
    check_shapes("tensor=always", GEMM_TF32, short_shapes, SHORT);
}

/* Of more than 128 rows: pairs of tiles, parts of k, several tiles of a block;
   ends of rows, columns and k that are no whole tile or stage. */
static const size_t tf32_shapes[TF32][3] = {
    {1032, 520, 1100}, {784, 2048, 300}, {132, 2500, 68},  {2048, 640, 260}, {300, 200, 4100},
    {4100, 2056, 72},  {264, 516, 2052}, {260, 5000, 132}, {2052, 256, 4},   {200, 264, 520}};

static void many_rows_are_right_as_tf32(void **state) {
    (void)state;
    check_shapes("tensor=always", GEMM_TF32, tf32_shapes, TF32);
    /* rows of C that are no multiples of four: with the kernel or, for what it cannot do, without */
    check_shapes("tensor=always", GEMM_TF32, (const size_t[2][3]){{300, 202, 260}, {301, 1002, 516}}, 2);
}

/* Without beta, as calls with an epilogue are. */
static size_t kernels_of(struct compute *compute, const struct verify_case *test, struct gemm_kernel *list) {
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = test->op,
                                   .m = test->m,
                                   .n = test->n,
                                   .k = test->k,
                                   .alpha = test->alpha,
                                   .lda = (gemm_transposes_a(test->op) ? test->m : test->k) + test->pad,
                                   .ldb = (gemm_transposes_b(test->op) ? test->k : test->n) + test->pad,
                                   .ldc = test->n + test->pad};
    return compute_kernels(compute, &call, list, 4);
}

/* Otherwise the tests of these shapes would check another kernel. */
static void shapes_take(const char *option, enum gemm_precision precision, const size_t (*shapes)[3],
                        size_t count, const char *kernel, unsigned ops) {
    struct compute compute;
    struct gemm_kernel list[4] = {0};
    size_t taken[SHORT][3] = {0};
    assert_true(count <= SHORT);
    open_tensor(&compute, option, precision);
    for (size_t i = 0; i < case_count(count); i++) {
        const struct verify_case test = shape_case(shapes, count, i);
        const bool one = kernels_of(&compute, &test, list) == 1;
        taken[i % count][test.op] += one && strcmp(list[0].name, kernel) == 0;
    }
    for (size_t i = 0; i < count; i++)
        for (int op = GEMM_NN; op <= GEMM_NT; op++) assert_int_equal(taken[i][op] > 0, ops >> op & 1);
    compute_close(&compute);
}

static void shapes_take_their_kernels(void **state) {
    (void)state;
    gpu_tensor_needed();
    const unsigned nn = 1u << GEMM_NN, tn = 1u << GEMM_TN, nt = 1u << GEMM_NT;
    shapes_take("tensor=bf16x6", GEMM_TRUE, medium_shapes, MEDIUM, "bf16x6_kernel", nn | tn | nt);
    shapes_take("tensor=bf16x6", GEMM_TF32, medium_shapes, MEDIUM, "bf16x3_kernel",
                nn | tn | nt); /* three, with tf32 */
    shapes_take("tensor=always", GEMM_TF32, short_shapes, SHORT, "short_kernel", nn | nt);
    shapes_take("tensor=always", GEMM_TF32, tf32_shapes, TF32, "tf32_kernel", nn | tn | nt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_is_right),
        cmocka_unit_test(the_list_is_right_as_tf32),
        cmocka_unit_test(the_list_is_right_by_six_products),
        cmocka_unit_test(the_list_is_right_by_three_products),
        cmocka_unit_test(large_shapes_are_right),
        cmocka_unit_test(medium_shapes_are_right_by_six_products),
        cmocka_unit_test(medium_shapes_are_right_by_three_products),
        cmocka_unit_test(short_shapes_are_right_as_tf32),
        cmocka_unit_test(many_rows_are_right_as_tf32),
        cmocka_unit_test(shapes_take_their_kernels),
    };
    return cmocka_run_group_tests_name("gpu tensor shapes", tests, NULL, NULL);
}
