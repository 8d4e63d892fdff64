/* Block QR: exact triangles, residuals and orthogonality, on every backend of the host, and wrong kernels. */
#include "tests/qr_checks.h"

#include <math.h>
#include <stdlib.h>

/* --- factorisation --- */

static void every_backend_factors(void **state) {
    (void)state;
    for (size_t b = 0; b < registry_count(); b++) {
        const struct registry_entry *entry = registry_at(b);
        char why[256];
        struct compute compute;
        if (!support_on_host(entry) || !entry->backend || !registry_usable(entry, why, sizeof why)) continue;
        if (strcmp(entry->name, "cblas") == 0) continue; /* it needs the path of a library */
        support_open(&compute, entry->name, 2);
        qr_checks_factor(&compute, NULL, support_every(3));
        compute_close(&compute);
    }
}

/* --- an exact triangle --- */

/* Element (i, j) of the Hadamard matrix of order 4^k (Sylvester): the parity of the common bits. */
static double hadamard(size_t i, size_t j) {
    return __builtin_parityll(i & j) ? -1 : 1;
}

/* A = H[:, 0..n-1] R0 with integers R0: then R = 2^k R0 up to the signs of its rows. */
static void triangle_of_a_hadamard_matrix(void **state) {
    (void)state;
    enum { ROWS = 256, N = 40 };
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
        const struct qr_case test = {ROWS, N, 0, 32, (enum gemm_dtype)dtype, 1};
        struct values a = values_make(test.dtype, (size_t)ROWS * N);
        static double r[N][N];
        for (size_t i = 0; i < N; i++)
            for (size_t j = i; j < N; j++) r[i][j] = i == j ? 3 : (double)((7 * i + 5 * j) % 5) - 2;
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < N; j++) {
                double sum = 0;
                for (size_t p = 0; p <= j; p++) sum += hadamard(i, p) * r[p][j];
                values_set(a, i * N + j, sum);
            }
        struct qr qr;
        const struct qr_matrix matrix = qr_checks_upload(&compute, a, ROWS, N, 1);
        qr_checks_open(&qr, &compute, NULL, &test, false);
        assert_status(qr_factor(&qr, 1, ROWS, &matrix), STATUS_OK);
        for (size_t i = 0; i < N; i++) {
            const double sign = values_get(a, i * N + i) < 0 ? -1 : 1;
            for (size_t j = i; j < N; j++)
                assert_true(fabs(sign * values_get(a, i * N + j) - 16 * r[i][j]) <=
                            200 * dtype_epsilon(test.dtype) * 16 * 3);
        }
        qr_close(&qr);
        free(a.data);
    }
    compute_close(&compute);
}

/* --- rows that enter --- */

static void rows_enter_a_triangle(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    qr_checks_append(&compute, NULL);
    compute_close(&compute);
}

/* As on a GPU, whose panels another compute factors. */
static void panels_are_factored_elsewhere(void **state) {
    (void)state;
    struct compute compute, panels;
    support_open(&compute, "serial", 1);
    support_open(&panels, "tuned", 2);
    qr_checks_factor(&compute, &panels, support_every(3));
    qr_checks_append(&compute, &panels);
    compute_close(&panels);
    compute_close(&compute);
}

/* --- a device whose panels have few rows --- */

static struct qr_ops few_ops[2];

static size_t few_rows(void *context) {
    (void)context;
    return 37;
}

static const struct qr_ops *ops_of_few_rows(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    return &few_ops[dtype == GEMM_F64];
}

/* More rows enter in portions; more columns than such rows are refused. */
static void panels_of_few_rows(void **state) {
    (void)state;
    static const struct qr_case cases[] = {{200, 30, 2, 16, GEMM_F32, 3}, {38, 37, 0, 32, GEMM_F64, 2}},
                                wide = {50, 38, 0, 16, GEMM_F32, 1};
    struct compute compute;
    struct qr qr;
    support_open(&compute, "tuned", 2);
    const struct device_driver *real = compute.device.driver;
    struct device_driver driver = *real;
    for (int i = 0; i < 2; i++) {
        few_ops[i] = *real->qr_ops(&compute.device, i ? GEMM_F64 : GEMM_F32);
        few_ops[i].panel_rows = few_rows;
    }
    driver.qr_ops = ops_of_few_rows;
    compute.device.driver = &driver;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) qr_checks_case(&compute, NULL, &cases[c]);
    qr_checks_append(&compute, NULL);
    struct values a = values_random(wide.dtype, wide.rows * wide.n, 1, 5);
    const struct qr_matrix matrix = {a.data, wide.n, wide.rows * wide.n};
    qr_checks_open(&qr, &compute, NULL, &wide, false);
    assert_status(qr_factor(&qr, 1, wide.rows, &matrix), STATUS_UNAVAILABLE);
    free(a.data);
    assert_non_null(strstr(status_message(), "at most 37 rows"));
    qr_close(&qr);
    compute.device.driver = real;
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_backend_factors), cmocka_unit_test(triangle_of_a_hadamard_matrix),
        cmocka_unit_test(rows_enter_a_triangle), cmocka_unit_test(panels_are_factored_elsewhere),
        cmocka_unit_test(panels_of_few_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
