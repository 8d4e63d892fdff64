/* float32 GEMM on the tensor cores (kernels/cuda/tensor/): the planes that it keeps between calls, and the
   choice of the kernel (planes that other kernels write: test_gpu_tensor_planes.c; shapes:
   test_gpu_tensor_shapes.c; errors: test_gpu_tensor_errors.c). On other GPUs
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

static size_t kernels_of_rows(const char *option, enum gemm_precision precision, size_t rows, size_t side,
                              double beta, struct gemm_kernel *list) {
    struct compute compute;
    gpu_open(&compute, "cuda-tuned",
             &(struct compute_options){.threads = 1, .options = option, .precision = precision});
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .m = rows,
                                   .n = side,
                                   .k = side,
                                   .alpha = 1,
                                   .beta = beta,
                                   .lda = side,
                                   .ldb = side,
                                   .ldc = side};
    const size_t count = compute_kernels(&compute, &call, list, 4);
    compute_close(&compute);
    return count;
}

static size_t kernels_of(const char *option, enum gemm_precision precision, size_t side,
                         struct gemm_kernel *list) {
    return kernels_of_rows(option, precision, side, side, 0, list);
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
    assert_int_equal(kernels_of("tensor=never", GEMM_TF32, 2048, list), 0);
    assert_int_equal(kernels_of("tensor=auto", GEMM_TF32, 2048, list), 1);
    assert_string_equal(list[0].name, "tf32_kernel");
    assert_int_equal(kernels_of("tensor=auto", GEMM_TRUE, 512, list), 1);
    assert_string_equal(list[0].name, "bf16x6_kernel");
    assert_int_equal(kernels_of("tensor=auto", GEMM_TRUE, 64, list), 1);
    assert_true(strstr(list[0].name, "small_kernel"));
}

/* TF32 of 16 to 128 rows, without beta. */
static void few_rows_of_tf32_have_their_kernel(void **state) {
    (void)state;
    static const struct {
        size_t rows, side;
        double beta;
        enum gemm_precision precision;
        bool takes;
    } cases[] = {
        {128, 512, 0, GEMM_TF32, true},  {16, 512, 0, GEMM_TF32, true},   {128, 64, 0, GEMM_TF32, true},
        {15, 512, 0, GEMM_TF32, false},  {129, 512, 0, GEMM_TF32, false}, {128, 512, 1, GEMM_TF32, false},
        {128, 500, 0, GEMM_TF32, false}, {128, 56, 0, GEMM_TF32, false},  {128, 512, 0, GEMM_TRUE, false}};
    gpu_tensor_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gemm_kernel list[4] = {{.name = ""}};
        const size_t count = kernels_of_rows("tensor=auto", cases[i].precision, cases[i].rows, cases[i].side,
                                             cases[i].beta, list);
        assert_int_equal(count == 1 && strcmp(list[0].name, "short_kernel") == 0, cases[i].takes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unchanged_operands_are_split_once),
        cmocka_unit_test(without_memory_other_kernels_run),
        cmocka_unit_test(the_option_chooses),
        cmocka_unit_test(few_rows_of_tf32_have_their_kernel),
    };
    return cmocka_run_group_tests_name("gpu tensor", tests, NULL, NULL);
}
