/* float32 GEMM on the tensor cores (kernels/cuda/tensor/): the planes that it keeps between calls, and the
   choice of the kernel (shapes: test_gpu_tensor_shapes.c; errors: test_gpu_tensor_errors.c). On other GPUs
   than those of compute capability 9.0 the option of the backend has no effect, and these tests check its
   other kernels. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/verify.h"
#include "src/base/rng.h"

static void open_tensor(struct compute *compute, const char *option) {
    gpu_open(compute, "cuda-tuned", &(struct compute_options){.threads = 2, .options = option});
}

static double gauss(struct rng *rng) {
    const double radius = sqrt(-2 * log(1 - rng_uniform(rng)));
    return radius * cos(6.283185307179586 * rng_uniform(rng));
}

/* --- operands that are unchanged --- */

enum { WIDTH = 256, ELEMENTS = WIDTH * WIDTH };

/* C = A B, or other matrices; the memory of the device. */
static void product(struct compute *compute, void *const matrix[3], enum gemm_op op, bool a_unchanged,
                    bool b_unchanged, float *result) {
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = op,
                                   .m = WIDTH,
                                   .n = WIDTH,
                                   .k = WIDTH,
                                   .alpha = 1,
                                   .a = matrix[0],
                                   .lda = WIDTH,
                                   .b = matrix[1],
                                   .ldb = WIDTH,
                                   .c = matrix[2],
                                   .ldc = WIDTH,
                                   .a_unchanged = a_unchanged,
                                   .b_unchanged = b_unchanged};
    assert_status(compute_gemm(compute, &call), STATUS_OK);
    compute->device.driver->download(&compute->device, result, matrix[2], ELEMENTS * sizeof(float));
}

/* Says a call that an operand is unchanged, it gives the bits of one that does not say so; a call that does
   not reads what is in memory now, and so does one after another call wrote to the operand. */
static void unchanged_operands_are_split_once(void **state) {
    (void)state;
    static float values[ELEMENTS], want[ELEMENTS], got[ELEMENTS];
    const size_t bytes = sizeof values;
    struct rng rng = rng_open(11, RNG_TEST, 0);
    struct compute compute;
    open_tensor(&compute, "tensor=always");
    const struct device_driver *const driver = compute.device.driver;
    void *matrix[3];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < ELEMENTS; j++) values[j] = (float)gauss(&rng);
        matrix[i] = driver->alloc(&compute.device, bytes);
        assert_true(matrix[i]);
        driver->upload(&compute.device, matrix[i], values, bytes);
    }
    for (int op = GEMM_NN; op <= GEMM_NT; op++) {
        product(&compute, matrix, (enum gemm_op)op, false, false, want);
        for (int which = 1; which < 4; which++) {
            product(&compute, matrix, (enum gemm_op)op, which & 1, which & 2, got);
            assert_memory_equal(got, want, bytes);
        }
    }
    driver->upload(&compute.device, matrix[0], want, bytes); /* A is another one now */
    product(&compute, matrix, GEMM_NN, false, true, got);
    assert_memory_not_equal(got, want, bytes);
    memcpy(want, got, bytes);
    product(&compute, matrix, GEMM_NN, true, true, got);
    assert_memory_equal(got, want, bytes);
    void *const swapped[3] = {matrix[2], matrix[1], matrix[0]}; /* C becomes A, and A becomes C */
    product(&compute, swapped, GEMM_NN, false, true, got);
    product(&compute, matrix, GEMM_NN, false, true, want);
    product(&compute, matrix, GEMM_NN, true, true, got);
    assert_memory_equal(got, want, bytes);
    for (int i = 0; i < 3; i++) driver->free(&compute.device, matrix[i]);
    compute_close(&compute);
}

/* --- planes that a product writes --- */

enum { ROWS = 200, COLUMNS = 328, DEPTH = 160, LARGEST = 330 * 330, POISONED = 1094 * 1028 };
enum kind { PLAIN, FORWARD, BACKWARD, SMALL_ROW, NOT_FINITE, KINDS };
enum { LEFT, RIGHT, BIAS, OUTPUT, RESULT, OTHER, PRODUCT, MATRICES };

/* RESULT = LEFT RIGHT, [ROWS][COLUMNS], with an epilogue. */
static struct gemm_call first_call(void *const matrix[MATRICES], enum kind kind,
                                   const struct gemm_epilogue *epilogue,
                                   const struct gemm_backward *backward) {
    return (struct gemm_call){.dtype = GEMM_F32,
                              .op = kind == BACKWARD ? GEMM_NT : GEMM_NN,
                              .m = ROWS,
                              .n = COLUMNS,
                              .k = DEPTH,
                              .alpha = 1,
                              .a = matrix[LEFT],
                              .lda = DEPTH,
                              .b = matrix[RIGHT],
                              .ldb = kind == BACKWARD ? DEPTH : COLUMNS,
                              .c = matrix[RESULT],
                              .ldc = COLUMNS,
                              .epilogue = kind == FORWARD ? epilogue : NULL,
                              .backward = kind == BACKWARD ? backward : NULL};
}

/* PRODUCT = RESULT OTHER (NN), RESULT^T OTHER (TN) or OTHER RESULT^T (NT), with 64 rows or columns of
   OTHER. */
static struct gemm_call second_call(void *const matrix[MATRICES], enum gemm_op op, bool unchanged) {
    struct gemm_call call = {.dtype = GEMM_F32,
                             .op = op,
                             .m = op == GEMM_NN   ? ROWS
                                  : op == GEMM_TN ? COLUMNS
                                                  : 64,
                             .n = op == GEMM_NT ? ROWS : 64,
                             .k = op == GEMM_TN ? ROWS : COLUMNS,
                             .alpha = 1,
                             .a = matrix[op == GEMM_NT ? OTHER : RESULT],
                             .lda = COLUMNS,
                             .b = matrix[op == GEMM_NT ? RESULT : OTHER],
                             .ldb = op == GEMM_NT ? COLUMNS : 64,
                             .c = matrix[PRODUCT],
                             .a_unchanged = op != GEMM_NT && unchanged,
                             .b_unchanged = op == GEMM_NT && unchanged};
    call.ldc = call.n;
    return call;
}

static void run_call(struct compute *compute, struct gemm_call call, float *result) {
    static float poison[POISONED];
    const size_t bytes = call.m * call.n * sizeof(float);
    memset(poison, 0xff, bytes);
    compute->device.driver->upload(&compute->device, call.c, poison, bytes);
    assert_status(compute_gemm(compute, &call), STATUS_OK);
    compute->device.driver->download(&compute->device, result, call.c, bytes);
}

/* A matrix that a call reads has its planes written with it, when it is written again. They are those of a
   split: the next product has the same bits. */
static void planes_are_written_with_c(void **state) {
    (void)state;
    static float values[LARGEST], first[LARGEST], want[LARGEST], got[LARGEST];
    struct rng rng = rng_open(12, RNG_TEST, 0);
    struct compute compute;
    open_tensor(&compute, "tensor=always");
    const struct device_driver *const driver = compute.device.driver;
    void *matrix[MATRICES];
    for (int i = 0; i < MATRICES; i++) {
        matrix[i] = driver->alloc(&compute.device, sizeof values);
        assert_true(matrix[i]);
    }
    const struct gemm_epilogue epilogue = {.bias = matrix[BIAS], .activation = ACTIVATION_TANH};
    const struct gemm_backward backward = {
        .activation = ACTIVATION_TANH, .output = matrix[OUTPUT], .bias_grad = matrix[BIAS]};
    for (int i = 0; i < KINDS * 3; i++) {
        const enum kind kind = (enum kind)(i / 3);
        const enum gemm_op op = (enum gemm_op)(i % 3);
        for (int j = 0; j < RESULT; j++) {
            for (int e = 0; e < LARGEST; e++) values[e] = (float)gauss(&rng);
            for (int e = 0; e < DEPTH && j == LEFT; e++) {
                if (kind == SMALL_ROW) values[70 * DEPTH + e] *= 0x1p-30f;
                if (kind == NOT_FINITE) values[70 * DEPTH + e] = INFINITY;
            }
            driver->upload(&compute.device, matrix[j], values, sizeof values);
        }
        driver->upload(&compute.device, matrix[OTHER], values, sizeof values);
        run_call(&compute, first_call(matrix, kind, &epilogue, &backward), first);
        run_call(&compute, second_call(matrix, op, false), want);
        run_call(&compute, first_call(matrix, kind, &epilogue, &backward), got);
        assert_memory_equal(got, first, ROWS * COLUMNS * sizeof(float));
        run_call(&compute, second_call(matrix, op, true), got);
        const struct gemm_call call = second_call(matrix, op, true);
        assert_memory_equal(got, want, call.m * call.n * sizeof(float));
    }
    for (int i = 0; i < MATRICES; i++) driver->free(&compute.device, matrix[i]);
    compute_close(&compute);
}

/* --- planes that a narrow product writes --- */

enum { TALL = 1094, BROAD = 1028, CLASSES = 10, SIDE = 768, MOST = TALL * BROAD };

/* RESULT = LEFT RIGHT^T with CLASSES of k: too narrow for tensor cores. */
static struct gemm_call narrow_call(void *const matrix[MATRICES], const struct gemm_backward *backward) {
    return (struct gemm_call){.dtype = GEMM_F32,
                              .op = GEMM_NT,
                              .m = TALL,
                              .n = BROAD,
                              .k = CLASSES,
                              .alpha = 1,
                              .a = matrix[LEFT],
                              .lda = CLASSES,
                              .b = matrix[RIGHT],
                              .ldb = CLASSES,
                              .c = matrix[RESULT],
                              .ldc = BROAD,
                              .backward = backward};
}

/* PRODUCT = RESULT^T OTHER. */
static struct gemm_call broad_call(void *const matrix[MATRICES], bool unchanged) {
    return (struct gemm_call){.dtype = GEMM_F32,
                              .op = GEMM_TN,
                              .m = BROAD,
                              .n = SIDE,
                              .k = TALL,
                              .alpha = 1,
                              .a = matrix[RESULT],
                              .lda = BROAD,
                              .b = matrix[OTHER],
                              .ldb = SIDE,
                              .c = matrix[PRODUCT],
                              .ldc = SIDE,
                              .a_unchanged = unchanged};
}

static void narrow_products_write_planes(void **state) {
    (void)state;
    static float values[MOST], first[MOST], want[MOST], got[MOST], sums[2][BROAD];
    struct rng rng = rng_open(13, RNG_TEST, 0);
    struct compute compute;
    open_tensor(&compute, "tensor=auto");
    const struct device_driver *const driver = compute.device.driver;
    void *matrix[MATRICES];
    for (int i = 0; i < MATRICES; i++) {
        matrix[i] = driver->alloc(&compute.device, sizeof values);
        assert_true(matrix[i]);
    }
    const struct gemm_backward backward = {
        .activation = ACTIVATION_TANH, .output = matrix[OUTPUT], .bias_grad = matrix[BIAS]};
    static const enum kind kinds[] = {PLAIN, BACKWARD, SMALL_ROW, NOT_FINITE};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < RESULT; j++) {
            for (int e = 0; e < MOST; e++) values[e] = (float)gauss(&rng);
            for (int e = 0; e < CLASSES && j == LEFT; e++) {
                if (kinds[i] == SMALL_ROW) values[70 * CLASSES + e] *= 0x1p-30f;
                if (kinds[i] == NOT_FINITE) values[70 * CLASSES + e] = INFINITY;
            }
            driver->upload(&compute.device, matrix[j], values, sizeof values);
        }
        driver->upload(&compute.device, matrix[OTHER], values, sizeof values);
        const struct gemm_call call = narrow_call(matrix, kinds[i] == BACKWARD ? &backward : NULL);
        const size_t bytes = BROAD * SIDE * sizeof(float);
        run_call(&compute, call, first);
        driver->download(&compute.device, sums[0], matrix[BIAS], sizeof sums[0]);
        run_call(&compute, broad_call(matrix, false), want);
        run_call(&compute, call, got);
        driver->download(&compute.device, sums[1], matrix[BIAS], sizeof sums[1]);
        assert_memory_equal(got, first, sizeof got);
        assert_memory_equal(sums[1], sums[0], sizeof sums[0]);
        run_call(&compute, broad_call(matrix, true), got);
        assert_memory_equal(got, want, bytes);
    }
    for (int i = 0; i < MATRICES; i++) driver->free(&compute.device, matrix[i]);
    compute_close(&compute);
}

/* --- memory --- */

/* Ever larger operands, two of them with each call, until FLOAT32_MOST_ALLOCATIONS is reached: the calls
   after that have other kernels, and are right. */
static void without_memory_other_kernels_run(void **state) {
    (void)state;
    enum { CALLS = 140 };
    struct compute compute;
    open_tensor(&compute, "tensor=always");
    for (size_t i = 0; i < CALLS; i++) {
        const struct verify_case test = {.op = GEMM_NN,
                                         .m = 64,
                                         .n = 64,
                                         .k = 64 * (i + 1),
                                         .alpha = 1,
                                         .epilogue = true,
                                         .activation = ACTIVATION_TANH,
                                         .seed = i};
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

/* --- the choice --- */

static size_t kernels_of(const char *option, enum gemm_precision precision, size_t side,
                         struct gemm_kernel *list) {
    struct compute compute;
    gpu_open(&compute, "cuda-tuned",
             &(struct compute_options){.threads = 1, .options = option, .precision = precision});
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .m = side,
                                   .n = side,
                                   .k = side,
                                   .alpha = 1,
                                   .lda = side,
                                   .ldb = side,
                                   .ldc = side};
    const size_t count = compute_kernels(&compute, &call, list, 4);
    compute_close(&compute);
    return count;
}

static void the_option_chooses(void **state) {
    (void)state;
    struct gemm_kernel list[4] = {0};
    if (kernels_of("tensor=always", GEMM_TRUE, 2048, list) == 0) {
        print_message("skipped: this GPU is not of compute capability 9.0\n");
        skip();
    }
    assert_string_equal(list[0].name, "split_kernel");
    assert_string_equal(list[2].name, "float32_kernel");
    assert_int_equal(kernels_of("tensor=never", GEMM_TRUE, 2048, list), 0);
    assert_int_equal(kernels_of("tensor=always", GEMM_TF32, 2048, list), 0);
    assert_int_equal(kernels_of("tensor=auto", GEMM_TRUE, 512, list), 1);
    assert_string_equal(list[0].name, "bf16x6_kernel");
    assert_int_equal(kernels_of("tensor=auto", GEMM_TRUE, 64, list), 1);
    assert_true(strstr(list[0].name, "small_kernel"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unchanged_operands_are_split_once),
        cmocka_unit_test(planes_are_written_with_c),
        cmocka_unit_test(narrow_products_write_planes),
        cmocka_unit_test(without_memory_other_kernels_run),
        cmocka_unit_test(the_option_chooses),
    };
    return cmocka_run_group_tests_name("gpu tensor", tests, NULL, NULL);
}
