/* Half precision on a GPU: its products have the errors of tf32, and gradients beyond its range become its
   largest number. The list of products: test_gpu_bf16.c, test_gpu_gemm.c; trainings: test_gpu_training.c. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* A kernel with an epilogue, or a product without one and an op. */
struct way {
    const char *option, *kernel; /* "": the op */
    size_t m, k;
};

enum { LONGEST = 512, WIDTH = 128, MOST_K = 128 };

/* An input gradient [m][WIDTH] of +-2^20 or more, one row in four negative, and column 5 infinite. The output
   of row 1 is 0 for the op, which replaces Inf before it applies the derivative 0. */
static void check_saturation(const struct way *way) {
    const bool op = !way->kernel[0];
    const size_t m = way->m, count = m * WIDTH;
    struct compute compute;
    static float a[LONGEST * MOST_K], b[WIDTH * MOST_K], y[LONGEST * WIDTH], sums[WIDTH];
    gpu_open(&compute, "cuda-tuned",
             &(struct compute_options){.threads = 2, .options = way->option, .precision = GEMM_MIXED_F16});
    struct device *device = &compute.device;
    for (size_t i = 0; i < m * way->k; i++) a[i] = i / way->k % 4 == 3 ? -256 : 256;
    for (size_t i = 0; i < WIDTH * way->k; i++) b[i] = i / way->k == 5 ? INFINITY : 256;
    for (size_t i = 0; i < count; i++) y[i] = op && i / WIDTH == 1 ? 0 : 1;
    for (size_t j = 0; j < WIDTH; j++) sums[j] = NAN;
    const struct gemm_backward backward = {.activation = ACTIVATION_RELU,
                                           .pre = upload(device, GEMM_F16, y, count),
                                           .output = upload(device, GEMM_F16, y, count),
                                           .bias_grad = upload(device, GEMM_F32, sums, WIDTH),
                                           .bias_scale = 0.25};
    const struct gemm_call call = {.dtype = GEMM_F16,
                                   .op = GEMM_NT,
                                   .m = m,
                                   .n = WIDTH,
                                   .k = way->k,
                                   .alpha = 1,
                                   .a = upload(device, GEMM_F16, a, m * way->k),
                                   .lda = way->k,
                                   .b = upload(device, GEMM_F16, b, WIDTH * way->k),
                                   .ldb = way->k,
                                   .c = upload(device, GEMM_F16, y, count),
                                   .ldc = WIDTH,
                                   .backward = op ? NULL : &backward};
    struct gemm_kernel list[4] = {0};
    if (!op) assert_true(compute_fuses(&compute, &call));
    compute_kernels(&compute, &call, list, 4);
    print_message("%s: %s\n", op ? "op" : "epilogue", list[0].name);
    if (!op && strstr(compute.gpu, "compute capability 9.0")) assert_true(strstr(list[0].name, way->kernel));
    assert_status(compute_gemm(&compute, &call), STATUS_OK);
    if (op)
        device->driver->ops(device, GEMM_F16)
            ->bias_activation_backward(device->ops_context, m, WIDTH, ACTIVATION_RELU, backward.pre,
                                       backward.output, call.c, 0.25, 0, backward.bias_grad);
    static uint16_t got[LONGEST * WIDTH];
    device->driver->download(device, got, call.c, count * sizeof *got);
    device->driver->download(device, sums, backward.bias_grad, sizeof sums);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        assert_true(dtype_get(GEMM_F16, got, i) == (double)y[i] * (i / WIDTH % 4 == 3 ? -65504 : 65504));
    for (size_t j = 0; j < WIDTH; j++) /* exact: multiples of 32 below 2^25 */
        assert_true((double)sums[j] == 0.25 * 65504 * ((double)m / 2 - op));
    void *const all[] = {
        (void *)(uintptr_t)backward.pre, (void *)(uintptr_t)backward.output, backward.bias_grad,
        (void *)(uintptr_t)call.a,       (void *)(uintptr_t)call.b,          call.c};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) device->driver->free(device, all[i]);
    compute_close(&compute);
}

static void gradients_saturate(void **state) {
    (void)state;
    static const struct way ways[] = {{"tensor=always", "fp16_kernel", 256, 128},
                                      {"tensor=always", "short_kernel", 128, 128},
                                      {"tensor=never", "small_kernel", 128, 128},
                                      {"", "narrow_fp16_nt", 512, 16},
                                      {"", "", 128, 128}};
    gpu_needed();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) check_saturation(&ways[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_those_of_tf32),
        cmocka_unit_test(gradients_saturate),
    };
    return cmocka_run_group_tests_name("gpu fp16", tests, NULL, NULL);
}
