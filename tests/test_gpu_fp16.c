/* Half precision on a GPU: its products have the errors of tf32, and gradients beyond its range become its
   largest number. The list of products: test_gpu_bf16.c, test_gpu_gemm.c; trainings: test_gpu_training.c. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "src/base/rng.h"
#include "src/data/dataset.h"

/* --- errors --- */

enum family { GAUSS, RELU, LOGNORMAL, POSITIVE, PIXELS, FAMILIES };
static const char *const family_names[] = {"gauss", "relu x gauss", "log-normal x gauss", "positive",
                                           "digits x gauss"};
enum { ROWS = 784, COLUMNS = 256, CHECKED = 14 }; /* each 14th row is checked */

static double gauss(struct rng *rng) {
    const double radius = sqrt(-2 * log(1 - rng_uniform(rng)));
    return radius * cos(6.283185307179586 * rng_uniform(rng));
}

/* As in test_gpu_tensor_errors.c; 1/16 of the log-normal numbers, which reach 3e5. */
static float draw(enum family family, bool second, struct rng *rng) {
    const double x = gauss(rng), u = rng_uniform(rng);
    if (family == RELU) return (float)(second || x > 0 ? x : 0);
    if (family == POSITIVE) return (float)u;
    if (family == LOGNORMAL) return (float)(second ? x : 0x1p-4 * exp(3 * x) * (u < 0.5 ? -1 : 1));
    return (float)x;
}

struct problem {
    size_t k;
    float *a, *b, *c; /* [ROWS][k], [k][COLUMNS] */
};

static struct problem problem_open(enum family family, size_t k) {
    struct problem problem = {k, malloc(ROWS * k * sizeof(float)), malloc(k * COLUMNS * sizeof(float)),
                              malloc(ROWS * COLUMNS * sizeof(float))};
    struct rng rng = rng_open(7, RNG_TEST, (uint32_t)(family * 10000 + k));
    assert_true(problem.a && problem.b && problem.c);
    for (size_t i = 0; i < ROWS * k; i++) problem.a[i] = draw(family, false, &rng);
    for (size_t i = 0; i < k * COLUMNS; i++) problem.b[i] = draw(family, true, &rng);
    if (family != PIXELS) return problem;
    struct dataset digits = {0};
    assert_status(dataset_synthesize(&digits, ROWS * k / 784, 1, 0), STATUS_OK);
    for (size_t i = 0; i < ROWS * k; i++)
        problem.a[i] = (float)input_scale(INPUT_UNIT) * (float)digits.images[i];
    dataset_free(&digits);
    return problem;
}

static void problem_close(struct problem *problem) {
    free(problem->a);
    free(problem->b);
    free(problem->c);
}

static void *upload(struct device *device, enum gemm_dtype dtype, const float *values, size_t count) {
    void *host = malloc(count * dtype_size(dtype)),
         *memory = device->driver->alloc(device, count * dtype_size(dtype));
    assert_true(host && memory);
    for (size_t i = 0; i < count; i++) dtype_set(dtype, host, i, (double)values[i]);
    device->driver->upload(device, memory, host, count * dtype_size(dtype));
    device->driver->synchronize(device);
    free(host);
    return memory;
}

/* The product in c, with a float32 C. */
static void multiply(struct compute *compute, enum gemm_dtype dtype, struct problem *problem) {
    struct device *const device = &compute->device;
    const struct device_driver *const driver = device->driver;
    void *const a = upload(device, dtype, problem->a, ROWS * problem->k),
                *const b = upload(device, dtype, problem->b, problem->k * COLUMNS),
                *const c = driver->alloc(device, ROWS * COLUMNS * sizeof(float));
    const struct gemm_call call = {.dtype = dtype,
                                   .c_f32 = gemm_is_16bit(dtype),
                                   .m = ROWS,
                                   .n = COLUMNS,
                                   .k = problem->k,
                                   .alpha = 1,
                                   .a = a,
                                   .lda = problem->k,
                                   .b = b,
                                   .ldb = COLUMNS,
                                   .c = c,
                                   .ldc = COLUMNS};
    assert_status(compute_gemm(compute, &call), STATUS_OK);
    driver->download(device, problem->c, c, ROWS * COLUMNS * sizeof(float));
    driver->free(device, a);
    driver->free(device, b);
    driver->free(device, c);
}

/* The root mean square of the errors, in units of 2^-24 of the sum of absolute terms. */
static double error_of(const struct problem *problem) {
    double squares = 0, count = 0;
    for (size_t i = 0; i < ROWS; i += CHECKED)
        for (size_t j = 0; j < COLUMNS; j++) {
            double want = 0, magnitude = 0;
            for (size_t p = 0; p < problem->k; p++) {
                const double x = (double)problem->a[i * problem->k + p] * (double)problem->b[p * COLUMNS + j];
                want += x;
                magnitude += fabs(x);
            }
            if (magnitude == 0) continue;
            squares += pow(((double)problem->c[i * COLUMNS + j] - want) / (magnitude * 0x1p-24), 2);
            count++;
        }
    return sqrt(squares / count);
}

/* Both keep 11 significant bits of an operand. Of positive data the errors of operands cancel, and the
   truncated sums of the tensor cores count: kernels of cuBLAS differ there. */
static void errors_are_those_of_tf32(void **state) {
    (void)state;
    enum { WAYS = 5 };
    static const struct {
        const char *backend;
        enum gemm_precision precision;
    } ways[WAYS] = {{"cublas", GEMM_TF32},
                    {"cublas", GEMM_MIXED_F16},
                    {"cuda-tuned", GEMM_MIXED_F16},
                    {"cublas", GEMM_MIXED_BF16},
                    {"cublas", GEMM_TRUE}};
    struct compute computes[WAYS];
    for (int w = 0; w < WAYS; w++)
        gpu_open(&computes[w], ways[w].backend,
                 &(struct compute_options){
                     .threads = 2, .options = w == 2 ? "tensor=always" : "", .precision = ways[w].precision});
    for (int family = 0; family < FAMILIES; family++)
        for (size_t k = 784; k <= 1568; k += 784) {
            struct problem problem = problem_open((enum family)family, k);
            double errors[WAYS];
            for (int w = 0; w < WAYS; w++) {
                multiply(&computes[w], dtype_of_operands(ways[w].precision, GEMM_F32), &problem);
                errors[w] = error_of(&problem);
            }
            print_message("%-18s k = %4zu: tf32 %.0f, fp16 %.0f and %.0f, bf16 %.0f, f32 %.3f\n",
                          family_names[family], k, errors[0], errors[1], errors[2], errors[3], errors[4]);
            for (int w = 1; w < 3; w++) assert_true(errors[w] <= (family == POSITIVE ? 2 : 1.1) * errors[0]);
            assert_true(errors[3] > 3 * errors[1]);
            problem_close(&problem);
        }
    for (int w = 0; w < WAYS; w++) compute_close(&computes[w]);
}

/* --- gradients --- */

/* Input gradients of 2^17 and of Inf, with their epilogue or an op: 65504, and nothing infinite. */
static void gradients_saturate(void **state) {
    (void)state;
    enum { SIDE = 128 };
    static const char *const options[] = {"tensor=always", "tensor=never"};
    for (int way = 0; way < 2; way++) {
        struct compute compute;
        gpu_open(
            &compute, "cuda-tuned",
            &(struct compute_options){.threads = 2, .options = options[way], .precision = GEMM_MIXED_F16});
        struct device *device = &compute.device;
        static float a[SIDE * SIDE], b[SIDE * SIDE], y[SIDE * SIDE], sums[SIDE];
        for (size_t i = 0; i < SIDE * SIDE; i++) {
            a[i] = i / SIDE % 2 ? -32 : 32;
            b[i] = i / SIDE == 5 ? INFINITY : 32;
            y[i] = 1;
        }
        const struct gemm_backward backward = {.activation = ACTIVATION_RELU,
                                               .pre = upload(device, GEMM_F16, y, SIDE * SIDE),
                                               .output = upload(device, GEMM_F16, y, SIDE * SIDE),
                                               .bias_grad = upload(device, GEMM_F32, sums, SIDE),
                                               .bias_scale = 0.25};
        struct gemm_call call = {.dtype = GEMM_F16,
                                 .op = GEMM_NT,
                                 .m = SIDE,
                                 .n = SIDE,
                                 .k = SIDE,
                                 .alpha = 1,
                                 .a = upload(device, GEMM_F16, a, SIDE * SIDE),
                                 .lda = SIDE,
                                 .b = upload(device, GEMM_F16, b, SIDE * SIDE),
                                 .ldb = SIDE,
                                 .c = upload(device, GEMM_F16, y, SIDE * SIDE),
                                 .ldc = SIDE,
                                 .backward = &backward};
        const bool fuses = compute_fuses(&compute, &call);
        if (!fuses) call.backward = NULL;
        assert_status(compute_gemm(&compute, &call), STATUS_OK);
        if (!fuses)
            device->driver->ops(device, GEMM_F16)
                ->bias_activation_backward(device->ops_context, SIDE, SIDE, ACTIVATION_RELU, backward.pre,
                                           backward.output, call.c, 0.25, 0, backward.bias_grad);
        static uint16_t got[SIDE * SIDE];
        device->driver->download(device, got, call.c, sizeof got);
        device->driver->download(device, sums, backward.bias_grad, sizeof sums);
        assert_status(device->driver->synchronize(device), STATUS_OK);
        for (size_t i = 0; i < SIDE * SIDE; i++)
            assert_true(dtype_get(GEMM_F16, got, i) == (i / SIDE % 2 ? -65504 : 65504));
        for (size_t j = 0; j < SIDE; j++) assert_true(sums[j] == 0);
        void *const all[] = {
            (void *)(uintptr_t)backward.pre, (void *)(uintptr_t)backward.output, backward.bias_grad,
            (void *)(uintptr_t)call.a,       (void *)(uintptr_t)call.b,          call.c};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) device->driver->free(device, all[i]);
        compute_close(&compute);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_those_of_tf32),
        cmocka_unit_test(gradients_saturate),
    };
    return cmocka_run_group_tests_name("gpu fp16", tests, NULL, NULL);
}
