/* float32 GEMM on the tensor cores (kernels/cuda/tensor/): right for every shape, as accurate as SGEMM, the
   same bits every time. On other GPUs than those of compute capability 9.0 the option of the backend has no
   effect, and these tests check its other kernels. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "src/backend/verify.h"
#include "src/base/rng.h"

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

enum { SIDE = 192, LONGEST = 8192 };

enum family { GAUSS, RELU, POSITIVE, LOGNORMAL, PIXELS, ROWS_DIFFER, K_DIFFERS, FAMILIES };
static const char *const family_names[] = {
    "gauss",          "relu x gauss",           "positive",           "log-normal x gauss",
    "pixels x gauss", "rows of different size", "k of different size"};

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
    case PIXELS:
        return (float)(second ? x : u < 0.8 ? 0 : floor((u - 0.8) * 5 * 256) / 255);
    case ROWS_DIFFER:
        return (float)ldexp(x, (int)(i * 37 % 81) - 40);
    case K_DIFFERS: /* A shrinks where B grows: all products are of one size */
        return (float)ldexp(x, ((int)(p * 37 % 41) - 20) * (second ? -1 : 1));
    default:
        return (float)x;
    }
}

/* A [SIDE][k], B [k][SIDE] or [SIDE][k], and of each element of C its value and the sum of absolute terms. */
struct problem {
    enum gemm_op op;
    size_t k;
    float *a, *b, *c[2];
    double *want, *magnitude;
};

static void problem_open(struct problem *problem, enum family family, enum gemm_op op, size_t k) {
    struct rng rng = rng_open(7, RNG_TEST, (uint32_t)(family * 100 + k));
    *problem = (struct problem){.op = op, .k = k};
    problem->a = malloc(SIDE * k * sizeof(float));
    problem->b = malloc(SIDE * k * sizeof(float));
    for (int i = 0; i < 2; i++) problem->c[i] = malloc((size_t)SIDE * SIDE * sizeof(float));
    problem->want = calloc((size_t)SIDE * SIDE, sizeof(double));
    problem->magnitude = calloc((size_t)SIDE * SIDE, sizeof(double));
    assert_true(problem->a && problem->b && problem->c[1] && problem->want && problem->magnitude);
    const bool a_t = gemm_transposes_a(op), b_t = gemm_transposes_b(op);
    for (size_t i = 0; i < SIDE; i++)
        for (size_t p = 0; p < k; p++) {
            problem->a[a_t ? p * SIDE + i : i * k + p] = draw(family, false, i, p, &rng);
            problem->b[b_t ? i * k + p : p * SIDE + i] = draw(family, true, i, p, &rng);
        }
    for (size_t i = 0; i < SIDE; i++)
        for (size_t p = 0; p < k; p++)
            for (size_t j = 0; j < SIDE; j++) {
                const double x = (double)problem->a[a_t ? p * SIDE + i : i * k + p] *
                                 (double)problem->b[b_t ? j * k + p : p * SIDE + j];
                problem->want[i * SIDE + j] += x;
                problem->magnitude[i * SIDE + j] += fabs(x);
            }
}

static void problem_close(struct problem *problem) {
    free(problem->a);
    free(problem->b);
    for (int i = 0; i < 2; i++) free(problem->c[i]);
    free(problem->want);
    free(problem->magnitude);
}

static void multiply(struct compute *compute, const struct problem *problem, float *c) {
    struct device *const device = &compute->device;
    const struct device_driver *const driver = device->driver;
    const size_t bytes = SIDE * problem->k * sizeof(float), c_bytes = (size_t)SIDE * SIDE * sizeof(float);
    void *const a = driver->alloc(device, bytes), *const b = driver->alloc(device, bytes),
                *const out = driver->alloc(device, c_bytes);
    assert_true(a && b && out);
    driver->upload(device, a, problem->a, bytes);
    driver->upload(device, b, problem->b, bytes);
    memset(c, 0xff, c_bytes);
    driver->upload(device, out, c, c_bytes);
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = problem->op,
                                   .m = SIDE,
                                   .n = SIDE,
                                   .k = problem->k,
                                   .alpha = 1,
                                   .a = a,
                                   .lda = gemm_transposes_a(problem->op) ? SIDE : problem->k,
                                   .b = b,
                                   .ldb = gemm_transposes_b(problem->op) ? problem->k : SIDE,
                                   .c = out,
                                   .ldc = SIDE};
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

static struct errors errors_of(const struct problem *problem, const float *c) {
    struct errors errors = {0};
    const double count = (double)SIDE * SIDE;
    for (size_t i = 0; i < (size_t)SIDE * SIDE; i++) {
        const double want = problem->want[i];
        const double e = ((double)c[i] - want) / (problem->magnitude[i] * 0x1p-24) * (want < 0 ? -1 : 1);
        assert_true(isfinite(e));
        errors.rms += e * e / count;
        errors.bias += e / count;
        if (fabs(e) > errors.most) errors.most = fabs(e);
    }
    errors.rms = sqrt(errors.rms);
    return errors;
}

static void errors_are_those_of_float32(void **state) {
    (void)state;
    static const size_t lengths[] = {784, 2048, LONGEST};
    struct compute own, library;
    open_tensor(&own, "tensor=always");
    gpu_open(&library, "cublas", &(struct compute_options){.threads = 2});
    for (size_t i = 0; i < FAMILIES * 3; i += support_stride() < 5 ? support_stride() : 5) {
        const enum family family = (enum family)(i / 3);
        const enum gemm_op op = (enum gemm_op)((i + i / 3) % 3);
        struct problem problem;
        problem_open(&problem, family, op, lengths[i % 3]);
        multiply(&own, &problem, problem.c[0]);
        multiply(&own, &problem, problem.c[1]);
        assert_memory_equal(problem.c[0], problem.c[1], (size_t)SIDE * SIDE * sizeof(float));
        multiply(&library, &problem, problem.c[1]);
        const struct errors mine = errors_of(&problem, problem.c[0]),
                            sgemm = errors_of(&problem, problem.c[1]);
        print_message("%-24s k = %4zu: rms %.3f max %.2f bias %+.2f; SGEMM %.3f %.2f %+.2f\n",
                      family_names[family], problem.k, mine.rms, mine.most, mine.bias, sgemm.rms, sgemm.most,
                      sgemm.bias);
        if (family == POSITIVE) {
            assert_true(mine.most <= 16 && fabs(mine.bias) <= 4);
        } else { /* SGEMM splits k of small results: fewer roundings in a row than in one sum */
            assert_true(mine.rms <= sgemm.rms || mine.rms <= 0.3);
            assert_true(mine.most <= sgemm.most || mine.most <= 2);
        }
        problem_close(&problem);
    }
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
        cmocka_unit_test(the_option_chooses),
    };
    return cmocka_run_group_tests_name("gpu tensor", tests, NULL, NULL);
}
