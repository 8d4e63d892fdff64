/* TF32 on the tensor cores: gradients whose transposes are written with them, or alone (c_only_operand). The
   next products have the same bits, and what reads a gradient as it is finds it restored. */
#include "tests/curves.h"
#include "tests/gpu.h"

#include <math.h>
#include <string.h>

#include "src/base/rng.h"

/* Rows: odd, and some of the last 64 are those of a fourth warp. DEPTH: in parts of k. */
enum { ROWS = 235, FEW_ROWS = 150, COLUMNS = 332, DEPTH = 1100, SIDE = 200, LARGEST = COLUMNS * DEPTH };
enum { LEFT, RIGHT, OUTPUT, SUMS, RESULT, OTHER, PRODUCT, MATRICES };

struct products {
    struct compute compute;
    void *matrix[MATRICES];
    size_t rows; /* of the gradient */
};

static void upload(struct products *bench, int matrix, const float *values) {
    bench->compute.device.driver->upload(&bench->compute.device, bench->matrix[matrix], values,
                                         LARGEST * sizeof(float));
}

static void download(struct products *bench, int matrix, float *values) {
    bench->compute.device.driver->download(&bench->compute.device, values, bench->matrix[matrix],
                                           LARGEST * sizeof(float));
}

static void poison(struct products *bench, int matrix) {
    static float nan[LARGEST];
    memset(nan, 0xff, sizeof nan);
    upload(bench, matrix, nan);
}

static void open_bench(struct products *bench) {
    static float values[LARGEST];
    struct rng rng = rng_open(16, RNG_TEST, 0);
    bench->rows = ROWS;
    gpu_open(&bench->compute, "cuda-tuned",
             &(struct compute_options){.threads = 2, .options = "tensor=always", .precision = GEMM_TF32});
    for (int i = 0; i < MATRICES; i++) {
        bench->matrix[i] = bench->compute.device.driver->alloc(&bench->compute.device, sizeof values);
        assert_true(bench->matrix[i]);
        for (int e = 0; e < LARGEST; e++) values[e] = (float)rng_uniform(&rng) - 0.5f;
        upload(bench, i, values);
    }
}

static void close_bench(struct products *bench) {
    for (int i = 0; i < MATRICES; i++)
        bench->compute.device.driver->free(&bench->compute.device, bench->matrix[i]);
    compute_close(&bench->compute);
}

/* With beta, other kernels run a call. */
static void run(struct products *bench, const struct gemm_call *call) {
    struct gemm_call plain = *call;
    struct gemm_kernel list[4] = {0};
    plain.epilogue = NULL;
    plain.backward = NULL;
    compute_kernels(&bench->compute, &plain, list, 4);
    assert_int_equal(strcmp(list[0].name, "tf32_kernel") == 0, call->beta == 0);
    assert_status(compute_gemm(&bench->compute, call), STATUS_OK);
}

/* RESULT = LEFT RIGHT^T through the derivative of tanh, and its column sums: downloaded. */
static void make_gradient(struct products *bench, bool only_operand, float *result, float *sums) {
    void *const *const matrix = bench->matrix;
    const struct gemm_backward backward = {
        .activation = ACTIVATION_TANH, .output = matrix[OUTPUT], .bias_grad = matrix[SUMS]};
    const struct gemm_call call = {.dtype = GEMM_F32,
                                   .op = GEMM_NT,
                                   .m = bench->rows,
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

/* PRODUCT = OTHER^T RESULT (TN), RESULT OTHER^T (NT) or RESULT OTHER (NN), plus beta: downloaded. */
static void read_with_beta(struct products *bench, enum gemm_op op, bool unchanged, double beta,
                           float *product) {
    static float ones[LARGEST];
    struct gemm_call call = {.dtype = GEMM_F32,
                             .op = op,
                             .m = op == GEMM_TN ? SIDE : bench->rows,
                             .n = op == GEMM_TN ? COLUMNS : SIDE,
                             .k = op == GEMM_TN ? bench->rows : COLUMNS,
                             .alpha = 1,
                             .a = bench->matrix[op == GEMM_TN ? OTHER : RESULT],
                             .lda = op == GEMM_TN ? SIDE : COLUMNS,
                             .b = bench->matrix[op == GEMM_TN ? RESULT : OTHER],
                             .ldb = op == GEMM_NN ? SIDE : COLUMNS,
                             .beta = beta,
                             .c = bench->matrix[PRODUCT],
                             .a_unchanged = op != GEMM_TN && unchanged,
                             .b_unchanged = op == GEMM_TN && unchanged};
    call.ldc = call.n;
    for (int e = 0; e < LARGEST; e++) ones[e] = 1;
    if (beta == 0)
        poison(bench, PRODUCT);
    else
        upload(bench, PRODUCT, ones);
    run(bench, &call);
    download(bench, PRODUCT, product);
}

static void read_gradient(struct products *bench, enum gemm_op op, bool unchanged, float *product) {
    read_with_beta(bench, op, unchanged, 0, product);
}

static float result[LARGEST], sums[LARGEST], nan_bits[LARGEST], got[LARGEST], got_sums[LARGEST],
    want[LARGEST], plain[LARGEST];
static const size_t BYTES = sizeof result;

/* A gradient as it is, and what the products with it are. */
static void make_first(struct products *bench, enum gemm_op op) {
    memset(nan_bits, 0xff, BYTES);
    make_gradient(bench, false, result, sums);
    read_gradient(bench, op, false, want);
}

static void transposes_are_written_with_gradients(void **state) {
    (void)state;
    static const enum gemm_op ops[] = {GEMM_TN, GEMM_NT};
    gpu_tensor_needed();
    for (int i = 0; i < 2; i++) {
        struct products bench;
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
        struct products bench;
        open_bench(&bench);
        make_first(&bench, ops[i]);
        for (int j = 0; j < 4; j++) { /* as the last batch of an epoch, with fewer rows */
            bench.rows = j / 2 ? FEW_ROWS : ROWS;
            if (j == 2) make_first(&bench, ops[i]);
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
        const int size = SIDE * (ops[i] == GEMM_TN ? COLUMNS : FEW_ROWS);
        for (int e = 0; e < size; e++) assert_true(got[e] == 2 * want[e]);
        close_bench(&bench);
    }
}

/* For a product that reads the gradient as it is, of this kernel (NN) or of others; from then on it is always
   written. */
static void gradients_are_restored(void **state) {
    (void)state;
    static const struct {
        enum gemm_op op;
        double beta;
    } readers[] = {{GEMM_NN, 0}, {GEMM_TN, 0.5}, {GEMM_NT, 0.5}};
    gpu_tensor_needed();
    for (int i = 0; i < 3; i++) {
        struct products bench;
        open_bench(&bench);
        make_gradient(&bench, false, result, sums);
        read_with_beta(&bench, readers[i].op, false, readers[i].beta, plain);
        make_first(&bench, GEMM_TN);
        make_gradient(&bench, true, got, got_sums);
        assert_memory_equal(got, nan_bits, BYTES);
        read_with_beta(&bench, readers[i].op, true, readers[i].beta, got);
        assert_memory_equal(got, plain, BYTES);
        download(&bench, RESULT, got);
        assert_memory_equal(got, result, BYTES);
        read_gradient(&bench, GEMM_TN, true, got);
        assert_memory_equal(got, want, BYTES);
        make_gradient(&bench, true, got, got_sums);
        assert_memory_equal(got, result, BYTES);
        close_bench(&bench);
    }
}

/* Engine graph keeps those of a training alone, engine eager writes them: also those of the output layer. Of
   the last batch, of 300 images, other kernels may write them. */
static void graphs_write_no_gradients(void **state) {
    (void)state;
    static const char *const engines[] = {"eager", "graph"};
    enum { UNITS = 2048, BATCH = 1100, LAST = 300 };
    static float grad[BATCH * UNITS];
    gpu_tensor_needed();
    for (int i = 0; i < 2; i++) {
        struct bench bench;
        struct run_summary summary;
        char settings[256];
        snprintf(
            settings, sizeof settings,
            "backend=cuda-tuned precision=tf32 layers=784-2048-2048-10 batch-size=1100 epochs=1 engine=%s",
            engines[i]);
        bench_open(&bench, settings, NULL);
        struct device *const device = &bench.compute.device;
        memset(grad, 0xff, sizeof grad);
        for (int l = 0; l < 2; l++)
            device->driver->upload(device, bench.trainer.mlp.layer[l].grad, grad, sizeof grad);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        for (int l = 0; l < 2; l++) {
            size_t unwritten = 0;
            device->driver->download(device, grad, bench.trainer.mlp.layer[l].grad, sizeof grad);
            for (size_t e = LAST * UNITS; e < BATCH * UNITS; e++) unwritten += isnan(grad[e]) != 0;
            assert_int_equal(unwritten, i * (BATCH - LAST) * UNITS);
        }
        bench_close(&bench);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposes_are_written_with_gradients),
        cmocka_unit_test(transposes_are_written_alone),
        cmocka_unit_test(gradients_are_restored),
        cmocka_unit_test(graphs_write_no_gradients),
    };
    return cmocka_run_group_tests_name("gpu tensor transposed", tests, NULL, NULL);
}
