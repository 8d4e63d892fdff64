/* Block QR and sliding windows on the GPU: the checks of the host, panels of every size, batches of products,
   each op against the host, and the same bits in every run. */
#include "src/window/readout.h"
#include "tests/gpu.h"
#include "tests/qr_checks.h"
#include "tests/windows_oracle.h"

#include <math.h>
#include <stdlib.h>

static const struct compute_options options = {.threads = 1};
static const char *const backends[] = {"cuda-tuned", "cublas", "cuda-shmem"};
enum { BACKENDS = sizeof backends / sizeof *backends };

static void matrices_are_factored(void **state) {
    (void)state;
    for (size_t b = 0; b < BACKENDS; b++) {
        struct compute compute;
        gpu_open(&compute, backends[b], &options);
        qr_checks_factor(&compute, NULL, support_every(3));
        compute_close(&compute);
    }
}

/* One to sixteen thread blocks for a panel, as many rows as they have, widths that are no multiple of 16, and
   batches that fill the GPU. */
static void panels_of_every_size(void **state) {
    (void)state;
    static const struct qr_case cases[] = {
        {192, 64, 0, 64, GEMM_F32, 1},  {193, 64, 3, 64, GEMM_F32, 1},   {700, 80, 0, 128, GEMM_F32, 1},
        {1500, 65, 1, 64, GEMM_F32, 1}, {2200, 40, 0, 64, GEMM_F32, 1},  {4200, 70, 2, 128, GEMM_F32, 1},
        {8192, 66, 0, 64, GEMM_F32, 1}, {300, 130, 5, 128, GEMM_F64, 1}, {1100, 70, 0, 64, GEMM_F64, 1},
        {4096, 90, 1, 96, GEMM_F64, 1}, {200, 70, 2, 64, GEMM_F32, 40},  {700, 33, 0, 32, GEMM_F32, 150},
        {300, 20, 1, 16, GEMM_F64, 90},
    };
    struct compute compute;
    gpu_open(&compute, "cuda-tuned", &options);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c += support_every(4))
        qr_checks_case(&compute, NULL, &cases[c]);
    compute_close(&compute);
}

static void rows_enter_a_triangle(void **state) {
    (void)state;
    struct compute compute;
    gpu_open(&compute, "cuda-tuned", &options);
    qr_checks_append(&compute, NULL);
    compute_close(&compute);
}

/* --panel host. */
static void panels_are_factored_on_the_host(void **state) {
    (void)state;
    struct compute compute, panels;
    gpu_open(&compute, "cublas", &options);
    support_open(&panels, "tuned", 2);
    qr_checks_factor(&compute, &panels, support_every(3));
    qr_checks_append(&compute, &panels);
    compute_close(&panels);
    compute_close(&compute);
}

/* The worst error of the windows that are kept, relative to the bound. */
static double worst_of(struct compute *compute, enum windows_method method, const struct windows_shape *shape,
                       size_t every) {
    struct values a = values_random(shape->dtype, windows_rows(shape) * shape->cols, 1, 7);
    struct windows_received received = windows_oracle_make(shape, every);
    assert_status(windows_oracle_run(compute, method, shape, a, &received), STATUS_OK);
    const double error = windows_oracle_worst(shape, method, a, &received);
    free(received.r);
    free(a.data);
    return error;
}

static void check_windows(struct compute *compute, const struct windows_shape *shape, size_t every) {
    for (int method = WINDOWS_NAIVE; method <= WINDOWS_GRAM; method++) {
        const double error = worst_of(compute, (enum windows_method)method, shape, every);
        if (!(error <= 1))
            fail_msg("%s, %zu windows of %zu x %zu, %s on %s: %.3g of the bound",
                     windows_method_name((enum windows_method)method), shape->count, shape->window, shape->n,
                     dtype_name(shape->dtype), compute->name, error);
    }
}

static void every_method_is_that_of_each_window(void **state) {
    (void)state;
    for (size_t b = 0; b < BACKENDS; b++) {
        struct compute compute;
        gpu_open(&compute, backends[b], &options);
        for (size_t s = 0; s < WINDOWS_SHAPES; s += support_every(5))
            check_windows(&compute, &windows_oracle_shapes[s], 1);
        compute_close(&compute);
    }
}

/* Triangles that a cluster shares, several of the tables of a launch, rows beyond one panel. */
static void large_windows(void **state) {
    (void)state;
    static const struct windows_shape shapes[] = {
        {GEMM_F32, 128, 128, 640, 1, 64, 0, 0, 0, NULL},   {GEMM_F32, 300, 303, 700, 1, 9, 9, 0, 0, NULL},
        {GEMM_F64, 270, 271, 400, 7, 5, 5, 0, 0, NULL},    {GEMM_F32, 40, 41, 100, 1, 300, 0, 0, 0, NULL},
        {GEMM_F64, 33, 34, 90, 2, 200, 40, 0, 0.25, NULL}, {GEMM_F32, 20, 20, 9000, 1, 3, 0, 0, 0, NULL},
        {GEMM_F64, 70, 70, 5000, 3, 2, 0, 0, 0.5, NULL},   {GEMM_F32, 600, 601, 900, 40, 4, 4, 0, 0, NULL},
    };
    struct compute compute;
    gpu_open(&compute, "cuda-tuned", &options);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s += support_every(4))
        check_windows(&compute, &shapes[s], shapes[s].count > 1 ? shapes[s].count - 1 : 1);
    compute_close(&compute);
}

static void runs_have_the_same_bits(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 200, 203, 1200, 1, 30, 30, 0, 0, NULL};
    const size_t elements = (shape.count + 1) * shape.n * shape.cols;
    struct compute compute;
    gpu_open(&compute, "cuda-tuned", &options);
    struct values a = values_random(shape.dtype, windows_rows(&shape) * shape.cols, 1, 3);
    for (int method = WINDOWS_NAIVE; method <= WINDOWS_GRAM; method++) {
        struct windows_received received[2];
        for (int i = 0; i < 2; i++) {
            received[i] = windows_oracle_make(&shape, 1);
            assert_status(windows_oracle_run(&compute, (enum windows_method)method, &shape, a, &received[i]),
                          STATUS_OK);
        }
        assert_memory_equal(received[0].r, received[1].r, elements * sizeof(double));
        free(received[0].r);
        free(received[1].r);
    }
    compute_close(&compute);
    free(a.data);
}

/* --- messages --- */

static void run_and_expect(struct compute *compute, const struct windows_shape *shape, struct values a,
                           const char *what) {
    for (int method = WINDOWS_NAIVE; method <= WINDOWS_GRAM; method++) {
        struct windows_received received = windows_oracle_make(shape, 1);
        assert_status(windows_oracle_run(compute, (enum windows_method)method, shape, a, &received),
                      STATUS_FAILED);
        if (!strstr(status_message(), what)) fail_msg("\"%s\" has no \"%s\"", status_message(), what);
        free(received.r);
    }
}

static void wrong_values_are_named(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 40, 41, 120, 1, 20, 0, 0, 0, NULL};
    const size_t elements = windows_rows(&shape) * shape.cols;
    struct compute compute;
    gpu_open(&compute, "cuda-tuned", &options);
    struct values a = values_random(shape.dtype, elements, 1, 11);
    const double before = values_get(a, 77 * 41 + 5);
    values_set(a, 77 * 41 + 5, NAN);
    run_and_expect(&compute, &shape, a, "at row 77 and column 5");
    values_set(a, 77 * 41 + 5, -INFINITY);
    run_and_expect(&compute, &shape, a, "at row 77 and column 5");
    values_set(a, 77 * 41 + 5, before);
    for (size_t i = 0; i < windows_rows(&shape); i++) values_set(a, i * 41 + 17, 0);
    run_and_expect(&compute, &shape, a, "column 17");
    compute_close(&compute);
    free(a.data);
}

/* --- solutions --- */

/* x = R^-1 (Q^T b) of a well-conditioned triangle, against float64. */
static void triangles_are_solved(void **state) {
    (void)state;
    static const size_t sizes[][2] = {{1, 1}, {5, 3}, {33, 10}, {200, 1}, {513, 17}};
    struct compute compute;
    gpu_open(&compute, "cublas", &options);
    struct device *device = &compute.device;
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof *sizes; s++) {
        const enum gemm_dtype dtype = s % 2 ? GEMM_F64 : GEMM_F32;
        const size_t n = sizes[s / 2][0], right = sizes[s / 2][1], cols = n + right;
        struct values r = values_random(dtype, n * cols, 1, (uint32_t)s), x = values_make(dtype, n * right);
        for (size_t i = 0; i < n; i++) {
            for (size_t j = i + 1; j < n; j++)
                values_set(r, i * cols + j, values_get(r, i * cols + j) / (double)n);
            values_set(r, i * cols + i, i % 2 ? 1.5 : -1.25);
        }
        const struct qr_matrix triangle = qr_checks_upload(&compute, r, n, cols, 1),
                               solution = qr_checks_upload(&compute, x, n, right, 1);
        device->driver->qr_ops(device, dtype)
            ->solve(device->ops_context, n, cols, triangle.values, cols, solution.values);
        qr_checks_download(&compute, solution, x, n * right);
        qr_checks_download(&compute, triangle, r, n * cols);
        for (size_t k = 0; k < right; k++)
            for (size_t i = 0; i < n; i++) {
                double residual = values_get(r, i * cols + n + k);
                for (size_t j = i; j < n; j++)
                    residual -= values_get(r, i * cols + j) * values_get(x, j * right + k);
                if (!(fabs(residual) <= 100 * dtype_epsilon(dtype)))
                    fail_msg("%zu x %zu, row %zu of right-hand side %zu: residual %.3g", n, right, i, k,
                             residual);
            }
        free(r.data);
        free(x.data);
    }
    compute_close(&compute);
}

/* Ridges that enter several triangles together, and one by one; more columns than enter together. */
static void ridges_enter_together(void **state) {
    (void)state;
    static const double ridges[] = {0.5, 100, 3, 0.01, 40, 7, 1000, 0.2, 9};
    enum { RIDGES = sizeof ridges / sizeof *ridges };
    const struct readout_shape shape = {.dtype = GEMM_F32, .n = 1100, .classes = 3, .rows = 4100};
    struct compute compute;
    struct readout readout;
    gpu_open(&compute, "cuda-tuned", &options);
    assert_status(readout_open(&readout, &compute, &shape), STATUS_OK);
    assert_true(readout.together > 1 && readout.together < RIDGES);
    struct qr_matrix triangles = readout_triangles(&readout, 2 * RIDGES);
    const size_t n = shape.n, ld = readout.ld, elements = n * ld;
    struct values rows = values_random(GEMM_F32, 1300 * ld, 1, 5), got = values_make(GEMM_F32, elements),
                  want = values_make(GEMM_F32, elements);
    compute.device.driver->upload(&compute.device, readout.rows.values, rows.data, 1300 * ld * sizeof(float));
    assert_status(readout_append(&readout, &triangles, &readout.rows, 1300), STATUS_OK);
    for (size_t k = 1; k < 2 * RIDGES; k++) {
        const struct qr_matrix copy = readout_triangle_at(&readout, &triangles, k);
        readout_copy(&readout, &triangles, &copy);
    }
    const struct qr_matrix others = readout_triangle_at(&readout, &triangles, RIDGES);
    assert_status(readout_add_ridges(&readout, &triangles, RIDGES, ridges), STATUS_OK);
    for (size_t k = 0; k < RIDGES; k++) {
        const struct qr_matrix one = readout_triangle_at(&readout, &triangles, k),
                               alone = readout_triangle_at(&readout, &others, k);
        assert_status(readout_add_ridges(&readout, &alone, 1, ridges + k), STATUS_OK);
        compute.device.driver->download(&compute.device, got.data, one.values, elements * sizeof(float));
        compute.device.driver->download(&compute.device, want.data, alone.values, elements * sizeof(float));
        /* the norms of the columns are about 40, and n eps times that is 5e-3 */
        for (size_t i = 0; i < n; i++)
            for (size_t j = i; j < n + shape.classes; j++)
                if (!(fabs(values_get(got, i * ld + j) - values_get(want, i * ld + j)) <= 1e-3))
                    fail_msg("ridge %g, row %zu, column %zu: %g and %g", ridges[k], i, j,
                             values_get(got, i * ld + j), values_get(want, i * ld + j));
    }
    readout_free(&readout, &triangles);
    readout_close(&readout);
    compute_close(&compute);
    free(rows.data);
    free(got.data);
    free(want.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_factored),
        cmocka_unit_test(panels_of_every_size),
        cmocka_unit_test(rows_enter_a_triangle),
        cmocka_unit_test(panels_are_factored_on_the_host),
        cmocka_unit_test(every_method_is_that_of_each_window),
        cmocka_unit_test(large_windows),
        cmocka_unit_test(runs_have_the_same_bits),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(triangles_are_solved),
        cmocka_unit_test(ridges_enter_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
