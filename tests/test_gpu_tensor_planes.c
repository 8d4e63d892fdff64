/* float32 GEMM on the tensor cores: planes that are written with a matrix, by a product, by one too narrow
   for tensor cores, and by an output layer. They are those of a split: the next product has the same bits.
   And low planes, which a split writes where they are not 0, and a product before it reads them.
   On other GPUs than those of compute capability 9.0 other kernels run. */
#include "tests/gpu.h"

#include <math.h>
#include <string.h>

#include "kernels/ops.h"
#include "src/base/rng.h"

static void open_tensor(struct compute *compute, const char *option) {
    gpu_open(compute, "cuda-tuned", &(struct compute_options){.threads = 2, .options = option});
}

static double gauss(struct rng *rng) {
    const double radius = sqrt(-2 * log(1 - rng_uniform(rng)));
    return radius * cos(6.283185307179586 * rng_uniform(rng));
}

/* --- planes that a product writes --- */

enum { ROWS = 200, COLUMNS = 328, DEPTH = 160, LARGEST = 330 * 330, POISONED = 1094 * 1100 };
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

static void poison(struct compute *compute, void *matrix, size_t bytes) {
    static float nan[POISONED];
    memset(nan, 0xff, bytes);
    compute->device.driver->upload(&compute->device, matrix, nan, bytes);
}

static void run_call(struct compute *compute, struct gemm_call call, float *result) {
    const size_t bytes = call.m * call.n * sizeof(float);
    poison(compute, call.c, bytes);
    assert_status(compute_gemm(compute, &call), STATUS_OK);
    compute->device.driver->download(&compute->device, result, call.c, bytes);
}

/* Does a product read nothing but the planes of an unchanged matrix of this kind? Wide blocks, and
   infinities, are read from the matrix itself. */
static bool reads_planes_alone(enum kind kind) {
    return kind == PLAIN || kind == FORWARD || kind == BACKWARD;
}

/* A matrix that a call reads has its planes written with it, when it is written again. They are those of a
   split: the next product has the same bits, also if only the planes are left. */
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
        if (reads_planes_alone(kind)) poison(&compute, matrix[RESULT], ROWS * COLUMNS * sizeof(float));
        run_call(&compute, second_call(matrix, op, true), got);
        const struct gemm_call call = second_call(matrix, op, true);
        assert_memory_equal(got, want, call.m * call.n * sizeof(float));
    }
    for (int i = 0; i < MATRICES; i++) driver->free(&compute.device, matrix[i]);
    compute_close(&compute);
}

/* --- planes that a narrow product writes --- */

/* SIDE: so that not the kernel for medium products runs. */
enum { TALL = 1094, BROAD = 1028, CLASSES = 10, SIDE = 1100, RESULTS = TALL * BROAD, MOST = TALL * SIDE };

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
        assert_memory_equal(got, first, RESULTS * sizeof(float));
        assert_memory_equal(sums[1], sums[0], sizeof sums[0]);
        if (reads_planes_alone(kinds[i])) poison(&compute, matrix[RESULT], RESULTS * sizeof(float));
        run_call(&compute, broad_call(matrix, true), got);
        assert_memory_equal(got, want, bytes);
    }
    for (int i = 0; i < MATRICES; i++) driver->free(&compute.device, matrix[i]);
    compute_close(&compute);
}

/* --- planes that an output layer writes --- */

/* In the memory of matrix[BIAS], elements from its beginning. */
enum {
    LABELS = 1 << 12,
    TALLY = 1 << 13,
    BELOW = 1 << 14,
    W_GRAD = 1 << 15,
    LOGITS = 1 << 16,
    GRADIENT = 1 << 17
};

/* RESULT = the input gradient of a layer with input OUTPUT and weights RIGHT. */
static void run_output_layer(struct compute *compute, void *const matrix[MATRICES], float *result) {
    float *const some = matrix[BIAS];
    const struct gemm_epilogue bias = {.bias = some};
    const struct gemm_backward below = {
        .activation = ACTIVATION_TANH, .output = matrix[OUTPUT], .bias_grad = some + BELOW};
    struct gemm_call input_gradient = narrow_call(matrix, &below);
    input_gradient.a = some + GRADIENT;
    const struct gemm_call logits = {.dtype = GEMM_F32,
                                     .op = GEMM_NN,
                                     .m = TALL,
                                     .n = CLASSES,
                                     .k = BROAD,
                                     .alpha = 1,
                                     .a = matrix[OUTPUT],
                                     .lda = BROAD,
                                     .b = matrix[RIGHT],
                                     .ldb = CLASSES,
                                     .c = some + LOGITS,
                                     .ldc = CLASSES,
                                     .epilogue = &bias},
                           gradient = {.dtype = GEMM_F32,
                                       .op = GEMM_TN,
                                       .m = BROAD,
                                       .n = CLASSES,
                                       .k = TALL,
                                       .alpha = 1,
                                       .a = matrix[OUTPUT],
                                       .lda = BROAD,
                                       .c = some + W_GRAD,
                                       .ldc = CLASSES};
    const struct output_layer layer = {.logits = &logits,
                                       .gradient = &gradient,
                                       .input_gradient = &input_gradient,
                                       .bias_grad = some + CLASSES,
                                       .batch = TALL,
                                       .labels = (const uint8_t *)(some + LABELS),
                                       .tally = (struct tally *)(some + TALLY)};
    bool done = false;
    assert_status(compute_output_layer(compute, &layer, &done), STATUS_OK);
    assert_true(done);
    compute->device.driver->download(&compute->device, result, matrix[RESULT], RESULTS * sizeof(float));
}

static void output_layers_write_planes(void **state) {
    (void)state;
    static float values[MOST], first[MOST], want[MOST], got[MOST];
    struct rng rng = rng_open(14, RNG_TEST, 0);
    gpu_tensor_needed();
    struct compute compute;
    open_tensor(&compute, "tensor=auto");
    const struct device_driver *const driver = compute.device.driver;
    void *matrix[MATRICES];
    for (int i = 0; i < MATRICES; i++) {
        matrix[i] = driver->alloc(&compute.device, sizeof values);
        assert_true(matrix[i]);
    }
    memset(values, 0, sizeof values);
    driver->upload(&compute.device, matrix[BIAS], values, sizeof values);
    static const enum kind kinds[] = {PLAIN, SMALL_ROW, NOT_FINITE};
    for (int i = 0; i < 3; i++) {
        for (int e = 0; e < MOST; e++) values[e] = (float)gauss(&rng);
        driver->upload(&compute.device, matrix[OTHER], values, sizeof values);
        for (int e = 0; e < BROAD * CLASSES; e++) /* small logits: no gradient of a row is much smaller */
            if (kinds[i] == PLAIN) values[e] *= 0x1p-5f;
        driver->upload(&compute.device, matrix[RIGHT], values, BROAD * CLASSES * sizeof(float));
        for (int e = 0; e < MOST; e++) values[e] = tanhf((float)gauss(&rng));
        for (int e = 0; e < BROAD; e++) { /* of tanh at 1 - 2^-24 the derivative is 2^-23 */
            if (kinds[i] == SMALL_ROW) values[70 * BROAD + e] = 1 - 0x1p-24f;
            if (kinds[i] == NOT_FINITE) values[70 * BROAD + e] = INFINITY;
        }
        driver->upload(&compute.device, matrix[OUTPUT], values, sizeof values);
        run_output_layer(&compute, matrix, first);
        run_call(&compute, broad_call(matrix, false), want);
        run_output_layer(&compute, matrix, got);
        assert_memory_equal(got, first, RESULTS * sizeof(float));
        if (reads_planes_alone(kinds[i])) poison(&compute, matrix[RESULT], RESULTS * sizeof(float));
        run_call(&compute, broad_call(matrix, true), got);
        assert_memory_equal(got, want, BROAD * SIDE * sizeof(float));
    }
    for (int i = 0; i < MATRICES; i++) driver->free(&compute.device, matrix[i]);
    compute_close(&compute);
}

/* --- low planes that the split leaves out --- */

enum low { PIXELS, HALVES, SOME_HALVES, BESIDE_WIDE, LOW_KINDS };

/* An element of row i, column j. Low planes of halves and of pixels are 0. BESIDE_WIDE: two blocks are wide,
   one of them has halves. */
static float draw(enum low kind, size_t i, size_t j, struct rng *rng) {
    const double x = gauss(rng);
    if (kind == PIXELS) return (float)input_scale(INPUT_UNIT) * (float)rint(255 * rng_uniform(rng));
    const double few_bits = kind >= SOME_HALVES && (i / 64 + j / 64) % 2 ? x : rint(16 * x) / 16;
    return (float)ldexp(few_bits, kind == BESIDE_WIDE && i < 64 && j < 128 && i % 2 ? -20 : 0);
}

/* `got` is the result of this second_call within 16 units of 2^-24, as in test_gpu_tensor_errors.c. Without
   the low plane of an operand it is off by thousands. */
static void assert_product(const struct gemm_call *call, const float *matrix, const float *other,
                           const float *got) {
    const bool a_t = call->op == GEMM_TN, b_t = call->op == GEMM_NT;
    const float *const a = b_t ? other : matrix, *const b = b_t ? matrix : other;
    const size_t a_row = a_t ? 1 : call->lda, a_k = a_t ? call->lda : 1, b_k = b_t ? 1 : call->ldb,
                 b_column = b_t ? call->ldb : 1;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double want = 0, magnitude = 0;
            for (size_t k = 0; k < call->k; k++) {
                const double x = (double)a[i * a_row + k * a_k] * (double)b[j * b_column + k * b_k];
                want += x;
                magnitude += fabs(x);
            }
            assert_true(fabs((double)got[i * call->ldc + j] - want) <= 0x1p-20 * magnitude);
        }
}

/* The split leaves low planes out where they are 0, and the memory keeps those of an earlier matrix: no
   product reads them there before they are written, be the matrix A of the next product, or B, whose low
   planes are always read. */
static void low_planes_are_written_before_they_are_read(void **state) {
    (void)state;
    static float earlier[ROWS * COLUMNS], values[ROWS * COLUMNS], other[64 * COLUMNS], got[LARGEST];
    static const enum gemm_op ops[] = {GEMM_NN, GEMM_TN, GEMM_NT};
    struct rng rng = rng_open(15, RNG_TEST, 0);
    struct compute compute;
    open_tensor(&compute, "tensor=always");
    const struct device_driver *const driver = compute.device.driver;
    void *matrix[MATRICES];
    for (int i = 0; i < MATRICES; i++) {
        matrix[i] = driver->alloc(&compute.device, LARGEST * sizeof(float));
        assert_true(matrix[i]);
    }
    for (int e = 0; e < 64 * COLUMNS; e++) other[e] = (float)gauss(&rng);
    driver->upload(&compute.device, matrix[OTHER], other, sizeof other);
    for (int e = 0; e < ROWS * COLUMNS; e++) earlier[e] = (float)gauss(&rng);
    for (int i = 0; i < LOW_KINDS * 9; i++) {
        const enum gemm_op first = ops[i / 3 % 3], second = ops[i % 3];
        const struct gemm_call calls[] = {second_call(matrix, first, false),
                                          second_call(matrix, second, true)};
        driver->upload(&compute.device, matrix[RESULT], earlier, sizeof earlier);
        run_call(&compute, calls[0], got);
        for (size_t e = 0; e < ROWS * COLUMNS; e++)
            values[e] = draw((enum low)(i / 9), e / COLUMNS, e % COLUMNS, &rng);
        driver->upload(&compute.device, matrix[RESULT], values, sizeof values);
        for (int c = 0; c < 2; c++) {
            run_call(&compute, calls[c], got);
            assert_product(&calls[c], values, other, got);
        }
    }
    for (int i = 0; i < MATRICES; i++) driver->free(&compute.device, matrix[i]);
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planes_are_written_with_c),
        cmocka_unit_test(narrow_products_write_planes),
        cmocka_unit_test(output_layers_write_planes),
        cmocka_unit_test(low_planes_are_written_before_they_are_read),
    };
    return cmocka_run_group_tests_name("gpu tensor planes", tests, NULL, NULL);
}
