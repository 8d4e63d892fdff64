/* TF32 on the tensor cores: gradients whose transposes are written with them, or alone (c_only_operand). The
   next products have the same bits, and what reads a gradient as it is finds it restored. */
#include "tests/gpu.h"

#include <string.h>

#include "src/base/rng.h"

/* Rows: odd, and one of the last 64 is in the rows of a fourth warp. */
enum { ROWS = 235, COLUMNS = 332, DEPTH = 160, SIDE = 200, LARGEST = 332 * 332 };
enum { LEFT, RIGHT, OUTPUT, SUMS, RESULT, OTHER, PRODUCT, MATRICES };

struct bench {
    struct compute compute;
    void *matrix[MATRICES];
};

static void upload(struct bench *bench, int matrix, const float *values) {
    bench->compute.device.driver->upload(&bench->compute.device, bench->matrix[matrix], values,
                                         LARGEST * sizeof(float));
}

static void download(struct bench *bench, int matrix, float *values) {
    bench->compute.device.driver->download(&bench->compute.device, values, bench->matrix[matrix],
                                           LARGEST * sizeof(float));
}

static void poison(struct bench *bench, int matrix) {
    static float nan[LARGEST];
    memset(nan, 0xff, sizeof nan);
    upload(bench, matrix, nan);
}

static void open_bench(struct bench *bench) {
    static float values[LARGEST];
    struct rng rng = rng_open(16, RNG_TEST, 0);
    gpu_open(&bench->compute, "cuda-tuned",
             &(struct compute_options){.threads = 2, .options = "tensor=always", .precision = GEMM_TF32});
    for (int i = 0; i < MATRICES; i++) {
        bench->matrix[i] = bench->compute.device.driver->alloc(&bench->compute.device, sizeof values);
        assert_true(bench->matrix[i]);
        for (int e = 0; e < LARGEST; e++) values[e] = (float)rng_uniform(&rng) - 0.5f;
        upload(bench, i, values);
    }
}

static void close_bench(struct bench *bench) {
    for (int i = 0; i < MATRICES; i++)
        bench->compute.device.driver->free(&bench->compute.device, bench->matrix[i]);
    compute_close(&bench->compute);
}

static void run(struct bench *bench, const struct gemm_call *call) {
    struct gemm_call plain = *call;
    struct gemm_kernel list[4];
    plain.epilogue = NULL;
    plain.backward = NULL;
    assert_int_equal(compute_kernels(&bench->compute, &plain, list, 4), 1);
    assert_string_equal(list[0].name, "tf32_kernel");
    assert_status(compute_gemm(&bench->compute, call), STATUS_OK);
}

/* RESULT = LEFT RIGHT^T through the derivative of tanh, and its column sums: downloaded. */
static void make_gradient(struct bench *bench, bool only_operand, float *result, float *sums) {
    void *const *const matrix = bench->matrix;
    const struct gemm_backward backward = {
        .activation = ACTIVATION_TANH, .output = matrix[OUTPUT], .bias_grad = matrix[SUMS]};
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = GEMM_NT,
                                   .m = ROWS,
                                   .n = COLUMNS,
                                   .k = DEPTH,
                                   .alpha = 1,
                                   .a = matrix[LEFT],
                                   .lda = DEPTH,
                                   .b = matrix[RIGHT],
                                   .ldb = DEPTH,
                                   .c = matrix[RESULT],
                                   .ldc = COLUMNS,
                                   .backward = &backward,
                                   .c_only_operand = only_operand};
    poison(bench, RESULT);
    poison(bench, SUMS);
    run(bench, &call);
    download(bench, RESULT, result);
    download(bench, SUMS, sums);
}

/* PRODUCT = OTHER^T RESULT (TN), RESULT OTHER^T (NT) or RESULT OTHER (NN): downloaded. */
static void read_gradient(struct bench *bench, enum gemm_op op, bool unchanged, float *product) {
    struct gemm_call call = {.dtype = GEMM_F32,
                             .op = op,
                             .m = op == GEMM_TN ? SIDE : ROWS,
                             .n = op == GEMM_TN ? COLUMNS : SIDE,
                             .k = op == GEMM_TN ? ROWS : COLUMNS,
                             .alpha = 1,
                             .a = bench->matrix[op == GEMM_TN ? OTHER : RESULT],
                             .lda = op == GEMM_TN ? SIDE : COLUMNS,
                             .b = bench->matrix[op == GEMM_TN ? RESULT : OTHER],
                             .ldb = op == GEMM_NN ? SIDE : COLUMNS,
                             .c = bench->matrix[PRODUCT],
                             .a_unchanged = op != GEMM_TN && unchanged,
                             .b_unchanged = op == GEMM_TN && unchanged};
    call.ldc = call.n;
    poison(bench, PRODUCT);
    run(bench, &call);
    download(bench, PRODUCT, product);
}

static float result[LARGEST], sums[LARGEST], nan_bits[LARGEST], got[LARGEST], got_sums[LARGEST],
    want[LARGEST], plain[LARGEST];
static const size_t BYTES = sizeof result;

/* A gradient as it is, and what the products with it are. */
static void make_first(struct bench *bench, enum gemm_op op) {
    memset(nan_bits, 0xff, BYTES);
    make_gradient(bench, false, result, sums);
    read_gradient(bench, op, false, want);
}

static void transposes_are_written_with_gradients(void **state) {
    (void)state;
    static const enum gemm_op ops[] = {GEMM_TN, GEMM_NT};
    gpu_tensor_needed();
    for (int i = 0; i < 2; i++) {
        struct bench bench;
        open_bench(&bench);
        make_first(&bench, ops[i]);
        make_gradient(&bench, false, got, got_sums);
        assert_memory_equal(got, result, BYTES);
        assert_memory_equal(got_sums, sums, BYTES);
        poison(&bench, RESULT);
        read_gradient(&bench, ops[i], true, got);
        assert_memory_equal(got, want, BYTES);
        close_bench(&bench);
    }
}

static void transposes_are_written_alone(void **state) {
    (void)state;
    static const enum gemm_op ops[] = {GEMM_TN, GEMM_NT};
    gpu_tensor_needed();
    for (int i = 0; i < 2; i++) {
        struct bench bench;
        open_bench(&bench);
        make_first(&bench, ops[i]);
        for (int j = 0; j < 2; j++) {
            make_gradient(&bench, true, got, got_sums);
            assert_memory_equal(got, nan_bits, BYTES);
            assert_memory_equal(got_sums, sums, BYTES);
            read_gradient(&bench, ops[i], true, got);
            assert_memory_equal(got, want, BYTES);
        }
        /* a matrix that has changed is not read from the transpose */
        for (int e = 0; e < LARGEST; e++) got[e] = 2 * result[e];
        upload(&bench, RESULT, got);
        read_gradient(&bench, ops[i], false, got);
        const int size = ops[i] == GEMM_TN ? SIDE * COLUMNS : ROWS * SIDE;
        for (int e = 0; e < size; e++) assert_true(got[e] == 2 * want[e]);
        close_bench(&bench);
    }
}

/* For a product that reads the gradient as it is; from then on it is always written. */
static void gradients_are_restored(void **state) {
    (void)state;
    gpu_tensor_needed();
    struct bench bench;
    open_bench(&bench);
    make_gradient(&bench, false, result, sums);
    read_gradient(&bench, GEMM_NN, false, plain);
    read_gradient(&bench, GEMM_TN, false, want);
    memset(nan_bits, 0xff, BYTES);
    make_gradient(&bench, true, got, got_sums);
    assert_memory_equal(got, nan_bits, BYTES);
    read_gradient(&bench, GEMM_NN, true, got);
    assert_memory_equal(got, plain, BYTES);
    download(&bench, RESULT, got);
    assert_memory_equal(got, result, BYTES);
    read_gradient(&bench, GEMM_TN, true, got);
    assert_memory_equal(got, want, BYTES);
    make_gradient(&bench, true, got, got_sums);
    assert_memory_equal(got, result, BYTES);
    close_bench(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposes_are_written_with_gradients),
        cmocka_unit_test(transposes_are_written_alone),
        cmocka_unit_test(gradients_are_restored),
    };
    return cmocka_run_group_tests_name("gpu tensor transposed", tests, NULL, NULL);
}
