/* float32 GEMM on the tensor cores (kernels/cuda/tensor/): right for every shape, as accurate as SGEMM, the
   same bits every time. On other GPUs than those of compute capability 9.0 the option of the backend has no
   effect, and these tests check its other kernels. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "src/backend/verify.h"
#include "src/base/rng.h"
#include "src/data/dataset.h"

static void open_tensor(struct compute *compute, const char *option) {
    gpu_open(compute, "cuda-tuned", &(struct compute_options){.threads = 2, .options = option});
}

/* --- shapes --- */

static void the_list_is_right(void **state) {
    (void)state;
    struct compute compute;
    open_tensor(&compute, "tensor=always");
    for (size_t i = 0; i < verify_case_count(); i += 5 * support_stride()) {
        const struct verify_case test = verify_case_at(i);
        if (test.dtype == GEMM_F32) assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

/* Several tiles, clusters and bands, which the list is too small for, with everything that a call
   can have. */
static void large_shapes_are_right(void **state) {
    (void)state;
    static const size_t shapes[][3] = {
        {1030, 520, 1100}, {784, 2048, 300}, {129, 2500, 65}, {2048, 640, 257}};
    struct compute compute;
    open_tensor(&compute, "tensor=always");
    for (size_t i = 0; i < 4 * 3 * VERIFY_VALUES; i += support_stride() < 23 ? support_stride() : 23) {
        const size_t *const shape = shapes[i % 4];
        const enum gemm_op op = (enum gemm_op)(i / 4 % 3);
        struct verify_case test = {.op = op,
                                   .m = shape[0],
                                   .n = shape[1],
                                   .k = shape[2],
                                   .pad = i % 7 ? 0 : 3,
                                   .alpha = i % 5 ? 1 : -0.5,
                                   .beta = i % 3 ? 0 : 0.5,
                                   .integers = i % 2,
                                   .twice = true,
                                   .values = (enum verify_values)(i / 12),
                                   .seed = i};
        if (test.values != VERIFY_ORDINARY) test.integers = false;
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
        if (op == GEMM_TN || test.values == VERIFY_SPECIAL) continue;
        test.beta = 0;
        test.integers = false;
        test.epilogue = op == GEMM_NN;
        test.backward = op == GEMM_NT;
        test.activation = (enum activation)(i % ACTIVATION_COUNT);
        test.keeps_pre = test.epilogue && activation_needs_input(test.activation);
        assert_status(verify_gemm(&compute, &test, NULL), STATUS_OK);
    }
    compute_close(&compute);
}

/* --- errors --- */

enum family { GAUSS, RELU, LOGNORMAL, POSITIVE, PIXELS, ROWS_DIFFER, K_DIFFERS, FAMILIES };
static const char *const family_names[] = {
    "gauss",           "relu x gauss",           "log-normal x gauss", "positive",
    "digits x gauss", "rows of different size", "k of different size"};

/* Products of a training step, with fewer rows or columns: cuBLAS sums them as it sums those. */
static const struct {
    enum gemm_op op;
    size_t m, k;
} products[] = {{GEMM_NN, 1024, 784}, {GEMM_NN, 1024, 2048}, {GEMM_NT, 1024, 2048}, {GEMM_TN, 784, 8192}};
enum { PRODUCTS = 4, WIDE = 1024, CHECKED = 16 }; /* columns of C; each 16th row is checked */

static double gauss(struct rng *rng) {
    const double radius = sqrt(-2 * log(1 - rng_uniform(rng)));
    return radius * cos(6.283185307179586 * rng_uniform(rng));
}

/* Element of A (second: of B) at index i of its row (column) and p of k. */
static float draw(enum family family, bool second, size_t i, size_t p, struct rng *rng) {
    const double x = gauss(rng), u = rng_uniform(rng);
    switch (family) {
    case RELU:
        return (float)(second || x > 0 ? x : 0);
    case POSITIVE:
        return (float)u;
    case LOGNORMAL:
        return (float)(second ? x : exp(3 * x) * (u < 0.5 ? -1 : 1));
    case ROWS_DIFFER:
        return (float)ldexp(x, (int)(i * 37 % 81) - 40);
    case K_DIFFERS: /* A shrinks where B grows: all products are of one size */
        return (float)ldexp(x, ((int)(p * 37 % 41) - 20) * (second ? -1 : 1));
    default:
        return (float)x;
    }
}

/* op(A) [m][k], op(B) [k][WIDE], C [m][WIDE]. */
struct problem {
    enum gemm_op op;
    size_t m, k;
    float *a, *b, *c[2];
};

static void problem_open(struct problem *problem, enum family family, size_t product) {
    const size_t m = products[product].m, k = products[product].k;
    const bool a_t = gemm_transposes_a(products[product].op), b_t = gemm_transposes_b(products[product].op);
    struct rng rng = rng_open(7, RNG_TEST, (uint32_t)(family * 100 + product));
    *problem = (struct problem){.op = products[product].op, .m = m, .k = k};
    problem->a = malloc(m * k * sizeof(float));
    problem->b = malloc(WIDE * k * sizeof(float));
    for (int i = 0; i < 2; i++) problem->c[i] = malloc(m * WIDE * sizeof(float));
    assert_true(problem->a && problem->b && problem->c[0] && problem->c[1]);
    for (size_t i = 0; i < m && family != PIXELS; i++)
        for (size_t p = 0; p < k; p++) problem->a[a_t ? p * m + i : i * k + p] = draw(family, false, i, p, &rng);
    for (size_t j = 0; j < WIDE; j++)
        for (size_t p = 0; p < k; p++)
            problem->b[b_t ? j * k + p : p * WIDE + j] = draw(family, true, j, p, &rng);
    if (family != PIXELS) return;
    struct dataset digits = {0}; /* as the input of a network: one image after the other, in NN and in TN */
    const size_t images = a_t ? k : m;
    assert_status(dataset_synthesize(&digits, images, 1, 0), STATUS_OK);
    for (size_t i = 0; i < m * k; i++) problem->a[i] = (float)input_scale(INPUT_UNIT) * (float)digits.images[i];
    dataset_free(&digits);
}

static void problem_close(struct problem *problem) {
    free(problem->a);
    free(problem->b);
    for (int i = 0; i < 2; i++) free(problem->c[i]);
}

static void multiply(struct compute *compute, const struct problem *problem, float *c) {
    struct device *const device = &compute->device;
    const struct device_driver *const driver = device->driver;
    const size_t a_bytes = problem->m * problem->k * sizeof(float), b_bytes = WIDE * problem->k * sizeof(float),
                 c_bytes = problem->m * WIDE * sizeof(float);
    void *const a = driver->alloc(device, a_bytes), *const b = driver->alloc(device, b_bytes),
                *const out = driver->alloc(device, c_bytes);
    assert_true(a && b && out);
    driver->upload(device, a, problem->a, a_bytes);
    driver->upload(device, b, problem->b, b_bytes);
    memset(c, 0xff, c_bytes);
    driver->upload(device, out, c, c_bytes);
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = problem->op,
                                   .m = problem->m,
                                   .n = WIDE,
                                   .k = problem->k,
                                   .alpha = 1,
                                   .a = a,
                                   .lda = gemm_transposes_a(problem->op) ? problem->m : problem->k,
                                   .b = b,
                                   .ldb = gemm_transposes_b(problem->op) ? problem->k : WIDE,
                                   .c = out,
                                   .ldc = WIDE};
    assert_status(compute_gemm(compute, &call), STATUS_OK);
    driver->download(device, c, out, c_bytes);
    driver->free(device, a);
    driver->free(device, b);
    driver->free(device, out);
}

/* In units of 2^-24 of the sum of absolute terms; bias: towards larger magnitudes. */
struct errors {
    double rms, most, bias;
};

/* The float64 values of row i of C, and the sums of its absolute terms. */
static void expect_row(const struct problem *problem, size_t i, double *want, double *magnitude) {
    const bool a_t = gemm_transposes_a(problem->op), b_t = gemm_transposes_b(problem->op);
    const size_t k = problem->k;
    memset(want, 0, WIDE * sizeof *want);
    memset(magnitude, 0, WIDE * sizeof *magnitude);
    for (size_t p = 0; p < k; p++) {
        const double a = (double)problem->a[a_t ? p * problem->m + i : i * k + p];
        for (size_t j = 0; j < WIDE && a != 0; j++) {
            const double x = a * (double)problem->b[b_t ? j * k + p : p * WIDE + j];
            want[j] += x;
            magnitude[j] += fabs(x);
        }
    }
}

static void errors_of(const struct problem *problem, struct errors errors[2]) {
    static double want[WIDE], magnitude[WIDE];
    size_t count = 0;
    for (size_t i = 0; i < problem->m; i += CHECKED) {
        expect_row(problem, i, want, magnitude);
        for (size_t j = 0; j < WIDE; j++)
            for (int c = 0; c < 2 && magnitude[j] > 0; c++) {
                const double e = ((double)problem->c[c][i * WIDE + j] - want[j]) / (magnitude[j] * 0x1p-24) *
                                 (want[j] < 0 ? -1 : 1);
                assert_true(isfinite(e));
                errors[c].rms += e * e;
                errors[c].bias += e;
                errors[c].most = fmax(errors[c].most, fabs(e));
                count += c;
            }
    }
    for (int c = 0; c < 2; c++) {
        errors[c].rms = sqrt(errors[c].rms / (double)count);
        errors[c].bias /= (double)count;
    }
}

/* Neither the root mean square of the errors nor the largest is above that of SGEMM; where all terms are
   positive, they are bounded (docs/tensor-cores.md). */
static void errors_are_those_of_float32(void **state) {
    (void)state;
    struct compute own, library;
    bool passes = true;
    open_tensor(&own, "tensor=always");
    gpu_open(&library, "cublas", &(struct compute_options){.threads = 2});
    for (size_t i = 0; i < FAMILIES * PRODUCTS; i += support_stride() < 5 ? support_stride() : 5) {
        const enum family family = (enum family)(i / PRODUCTS);
        if (family == PIXELS && products[i % PRODUCTS].k % 784 && products[i % PRODUCTS].m % 784) continue;
        struct problem problem;
        struct errors errors[2] = {0};
        problem_open(&problem, family, i % PRODUCTS);
        multiply(&own, &problem, problem.c[0]);
        multiply(&own, &problem, problem.c[1]);
        assert_memory_equal(problem.c[0], problem.c[1], problem.m * WIDE * sizeof(float));
        multiply(&library, &problem, problem.c[1]);
        errors_of(&problem, errors);
        const bool right = family == POSITIVE
                               ? errors[0].most <= 16 && fabs(errors[0].bias) <= 4
                               : errors[0].rms <= errors[1].rms && errors[0].most <= errors[1].most;
        print_message("%-24s %s k = %4zu: rms %.3f max %.2f bias %+.2f; SGEMM %.3f %.2f %+.2f%s\n",
                      family_names[family], gemm_op_name(problem.op), problem.k, errors[0].rms,
                      errors[0].most, errors[0].bias, errors[1].rms, errors[1].most, errors[1].bias,
                      right ? "" : "  LARGER");
        passes = passes && right;
        problem_close(&problem);
    }
    assert_true(passes);
    compute_close(&own);
    compute_close(&library);
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

enum { ROWS = 200, COLUMNS = 328, DEPTH = 160, LARGEST = 330 * 330 };
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
    static float poison[LARGEST];
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
    assert_int_equal(kernels_of("tensor=auto", GEMM_TRUE, 64, list), 1);
    assert_true(strstr(list[0].name, "small_kernel"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_is_right),           cmocka_unit_test(large_shapes_are_right),
        cmocka_unit_test(errors_are_those_of_float32), cmocka_unit_test(unchanged_operands_are_split_once),
        cmocka_unit_test(planes_are_written_with_c),
        cmocka_unit_test(the_option_chooses),
    };
    return cmocka_run_group_tests_name("gpu tensor", tests, NULL, NULL);
}
