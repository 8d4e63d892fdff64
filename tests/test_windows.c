/* Triangles of sliding windows: every method against a float64 QR of each window, exact triangles, condition
   numbers, long streams, the same bits on any number of threads, and wrong kernels, which must be caught. */
#include "tests/support.h"
#include "tests/windows_oracle.h"

#include <math.h>
#include <stdlib.h>

static const enum windows_method methods[] = {WINDOWS_NAIVE, WINDOWS_COMMON, WINDOWS_TREE, WINDOWS_GRAM};
enum { METHODS = sizeof methods / sizeof *methods };

static struct values random_rows(const struct windows_shape *shape) {
    return values_random(shape->dtype, windows_rows(shape) * shape->cols, 1,
                         (uint32_t)(shape->window + 7 * shape->n));
}

/* The worst error of a run that must succeed. */
static double worst_of(struct compute *compute, enum windows_method method, const struct windows_shape *shape,
                       struct values a, size_t every) {
    struct windows_received received = windows_oracle_make(shape, every);
    assert_status(windows_oracle_run(compute, method, shape, a, &received), STATUS_OK);
    const double error = windows_oracle_worst(shape, method, a, &received);
    free(received.r);
    return error;
}

/* --- every method against the oracle --- */

static void every_method_is_that_of_each_window(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t s = 0; s < WINDOWS_SHAPES; s += support_every(3))
        for (size_t m = 0; m < METHODS; m++) {
            const struct windows_shape *shape = &windows_oracle_shapes[s];
            struct values a = random_rows(shape);
            const double error = worst_of(&compute, methods[m], shape, a, 1);
            if (!(error <= 1))
                fail_msg("%s, shape %zu (%zu windows of %zu x %zu, stride %zu): %.3g of the bound",
                         windows_method_name(methods[m]), s, shape->count, shape->window, shape->n,
                         shape->stride, error);
            free(a.data);
        }
    compute_close(&compute);
}

static void every_backend_has_windows(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 40, 41, 90, 2, 30, 20, 16, 0, NULL};
    struct values a = random_rows(&shape);
    for (size_t b = 0; b < registry_count(); b++) {
        const struct registry_entry *entry = registry_at(b);
        char why[256];
        struct compute compute;
        if (!support_on_host(entry) || !entry->backend || !registry_usable(entry, why, sizeof why)) continue;
        if (strcmp(entry->name, "cblas") == 0) continue; /* it needs the path of a library */
        support_open(&compute, entry->name, 2);
        for (size_t m = 0; m < METHODS; m++) assert_true(worst_of(&compute, methods[m], &shape, a, 1) <= 1);
        compute_close(&compute);
    }
    free(a.data);
}

/* --- an exact triangle --- */

/* Row i is row i mod 64 of H[:, 0 .. n - 1] R0, with a Hadamard matrix H of order 64 (Sylvester) and integers
   R0. Every window of 64 rows has each row of H once: R = 8 R0 for all of them, up to the signs of rows. */
static void windows_of_a_hadamard_matrix(void **state) {
    (void)state;
    enum { N = 12, ORDER = 64 };
    double exact[N][N] = {{0}};
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t i = 0; i < N; i++)
        for (size_t j = i; j < N; j++) exact[i][j] = i == j ? 3 : (double)((7 * i + 5 * j) % 5) - 2;
    for (size_t m = 0; m < METHODS; m++) {
        const struct windows_shape shape = {GEMM_F32, N, N, ORDER, 3, 50, 0, 0, 0, NULL};
        struct values a = values_make(shape.dtype, windows_rows(&shape) * N);
        for (size_t i = 0; i < windows_rows(&shape); i++)
            for (size_t j = 0; j < N; j++) {
                double sum = 0;
                for (size_t p = 0; p <= j; p++)
                    sum += (__builtin_parityll(i % ORDER & p) ? -1 : 1) * exact[p][j];
                values_set(a, i * N + j, sum);
            }
        struct windows_received received = windows_oracle_make(&shape, 1);
        assert_status(windows_oracle_run(&compute, methods[m], &shape, a, &received), STATUS_OK);
        for (size_t k = 0; k < shape.count; k++)
            for (size_t i = 0; i < N; i++) {
                const double *row = received.r + (k * N + i) * N;
                const double sign = row[i] < 0 ? -1 : 1;
                for (size_t j = i; j < N; j++)
                    assert_true(fabs(sign * row[j] - 8 * exact[i][j]) <= 100 * dtype_epsilon(GEMM_F32) * 24);
            }
        free(received.r);
        free(a.data);
    }
    compute_close(&compute);
}

/* --- condition numbers --- */

/* Rows of a random matrix times H D H', where D has the singular values 1 to 1 / kappa and H, H' are
   reflectors. */
static struct values rows_of_condition(const struct windows_shape *shape, double kappa) {
    const size_t n = shape->n, rows = windows_rows(shape);
    struct values a = random_rows(shape);
    for (size_t i = 0; i < rows; i++) {
        double row[16], sum = 0, next = 0;
        for (size_t j = 0; j < n; j++) {
            row[j] = values_get(a, i * n + j);
            sum += row[j] * (j + 1 == n ? 2 : 1);
        }
        for (size_t j = 0; j < n; j++) {
            row[j] -= 2 * sum / (double)(n + 3) * (j + 1 == n ? 2 : 1);
            row[j] *= pow(kappa, -(double)j / (double)(n - 1));
            next += row[j];
        }
        for (size_t j = 0; j < n; j++) values_set(a, i * n + j, row[j] - 2 * next / (double)n);
    }
    return a;
}

/* |R^T R - A^T A| of QR does not depend on kappa; Gram matrices lose the triangle when kappa^2 nears
   1 / epsilon. */
static void only_gram_suffers_from_the_condition_number(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 5, 5, 60, 1, 40, 0, 0, 0, NULL};
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int exponent = 0; exponent <= 7; exponent++) {
        struct values a = rows_of_condition(&shape, pow(10, exponent));
        double qr = 0;
        for (size_t m = 0; m < METHODS; m++) {
            struct windows_received received = windows_oracle_make(&shape, 1);
            const enum status status = windows_oracle_run(&compute, methods[m], &shape, a, &received);
            double gram = 0, triangle = 0;
            for (size_t k = 0; k < shape.count && !status; k++) {
                const struct windows_errors errors =
                    windows_oracle_errors(&shape, a, k, received.r + k * shape.n * shape.cols);
                gram = fmax(gram, errors.gram);
                triangle = fmax(triangle, errors.triangle);
                if (exponent) assert_true(errors.kappa > 0.3 * pow(10, exponent));
            }
            if (methods[m] != WINDOWS_GRAM) {
                assert_status(status, STATUS_OK);
                assert_true(gram <= 16 * dtype_epsilon(shape.dtype));
                qr = fmax(qr, triangle);
            } else if (exponent <= 2) {
                assert_status(status, STATUS_OK);
            } else if (exponent >= 5) { /* no pivot, or a triangle that is not that of the window */
                assert_true(status == STATUS_FAILED || triangle > 100 * qr);
                if (status) assert_says(status_message(), "the square of the condition number");
            }
            free(received.r);
        }
        free(a.data);
    }
    compute_close(&compute);
}

/* --- streams --- */

static void errors_do_not_grow_over_a_long_stream(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 8, 8, 64, 1, 100000, 0, 0, 0, NULL};
    struct values a = random_rows(&shape);
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t m = 0; m < METHODS; m++) {
        const size_t every = (shape.count - 1) / 99;
        struct windows_received received = windows_oracle_make(&shape, every);
        assert_status(windows_oracle_run(&compute, methods[m], &shape, a, &received), STATUS_OK);
        assert_true(windows_oracle_worst(&shape, methods[m], a, &received) <= 1);
        double first = 0, last = 0;
        for (size_t k = 0; k < 10; k++) {
            const size_t size = shape.n * shape.cols, end = 99 - k;
            first = fmax(first, windows_oracle_errors(&shape, a, k * every, received.r + k * size).gram);
            last = fmax(last, windows_oracle_errors(&shape, a, end * every, received.r + end * size).gram);
        }
        assert_true(last <= 4 * first);
        free(received.r);
    }
    compute_close(&compute);
    free(a.data);
}

static void threads_change_no_bit(void **state) {
    (void)state;
    static const struct windows_shape list[] = {{GEMM_F32, 70, 72, 400, 1, 60, 0, 32, 0, NULL},
                                                {GEMM_F64, 33, 34, 80, 2, 100, 0, 16, 0.1, NULL},
                                                {GEMM_F32, 9, 9, 40, 1, 3000, 0, 0, 0, NULL}};
    static const int threads[] = {1, 2, 7, 7};
    for (size_t s = 0; s < sizeof list / sizeof *list; s++)
        for (size_t m = 0; m < METHODS; m++) {
            struct values a = random_rows(&list[s]);
            struct windows_received received[4];
            for (size_t i = 0; i < 4; i++) {
                struct compute compute;
                support_open(&compute, "tuned", threads[i]);
                received[i] = windows_oracle_make(&list[s], 1);
                assert_status(windows_oracle_run(&compute, methods[m], &list[s], a, &received[i]), STATUS_OK);
                compute_close(&compute);
            }
            for (size_t i = 1; i < 4; i++) {
                assert_memory_equal(received[i].r, received[0].r,
                                    list[s].count * list[s].n * list[s].cols * sizeof(double));
                free(received[i].r);
            }
            free(received[0].r);
            free(a.data);
        }
}

/* --- wrong kernels --- */

enum fault { NO_FAULT, T_TRANSPOSED, SIGN_OF_V, ROW_TOO_FEW, ROW_NOT_DROPPED, ORDER_REVERSED };

static struct {
    enum fault fault;
    struct device_driver driver;
    struct qr_ops ops;
    const struct qr_ops *real;
    struct gemm_backend backend;
    const struct gemm_backend *real_backend;
    const char *data; /* the first row: there is none before it */
} planted;

static void wrong_panel(void *context, const struct qr_panel *panel) {
    planted.real->panel(context, panel);
    for (size_t i = 0; i < panel->count; i++) {
        float *t = (float *)panel->t.values + i * panel->t.stride,
              *vt = (float *)panel->vt.values + i * panel->vt.stride + panel->lead +
                    (panel->triangular ? 0 : panel->top_rows);
        for (size_t c = 0; c < panel->width; c++) {
            for (size_t j = 0; planted.fault == T_TRANSPOSED && j < c; j++) {
                t[c * panel->t.ld + j] = t[j * panel->t.ld + c];
                t[j * panel->t.ld + c] = 0;
            }
            for (size_t k = 0; planted.fault == SIGN_OF_V && k < panel->rows; k++)
                vt[c * panel->vt.ld + k] *= -1;
        }
    }
}

static void wrong_append(void *context, const struct qr_append *append) {
    struct qr_append less = *append;
    if (planted.fault == ROW_TOO_FEW) less.rows--;
    planted.real->append(context, &less);
}

static void wrong_gather(void *context, size_t count, size_t to_rows, size_t cols,
                         const struct qr_rows *pieces, size_t from_ld, const double *scale,
                         const struct qr_matrix *to) {
    struct qr_rows *wrong = malloc(count * sizeof *wrong);
    const size_t row = from_ld * sizeof(float);
    for (size_t i = 0; i < count; i++) {
        wrong[i] = pieces[i];
        for (size_t k = 0; k < 2 && planted.fault == ROW_NOT_DROPPED; k++)
            if (wrong[i].rows[k] && (const char *)wrong[i].from[k] >= planted.data + row)
                wrong[i].from[k] = (const char *)wrong[i].from[k] - row;
    }
    planted.real->gather(context, count, to_rows, cols, wrong, from_ld, scale, to);
    free(wrong);
}

static const struct qr_ops *wrong_ops(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    (void)dtype;
    return &planted.ops;
}

/* Gram matrices lose what leaves the window. */
static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    if (planted.fault == ROW_NOT_DROPPED && call->alpha < 0 && call->k == 1) return GEMM_OK;
    struct gemm_call less = *call;
    if (planted.fault == ROW_TOO_FEW && call->beta == 1 && less.k > 1) less.k--;
    return planted.real_backend->gemm(context, &less);
}

static void plant(struct compute *compute, enum fault fault, struct values a) {
    planted.fault = fault;
    planted.data = a.data;
    planted.real = compute->device.driver->qr_ops(&compute->device, GEMM_F32);
    planted.ops = *planted.real;
    planted.ops.panel = wrong_panel;
    planted.ops.append = wrong_append;
    planted.ops.gather = wrong_gather;
    planted.driver = *compute->device.driver;
    planted.driver.qr_ops = wrong_ops;
    compute->device.driver = &planted.driver;
    planted.real_backend = compute->backend;
    planted.backend = *compute->backend;
    planted.backend.gemm = wrong_gemm;
    planted.backend.gemm_batch = NULL;
    compute->backend = &planted.backend;
}

static enum status receive_reversed(void *self, size_t first, size_t count, const struct qr_triangles *r) {
    const void **from = malloc(count * sizeof *from);
    for (size_t i = 0; i < count; i++) from[i] = r->from[count - 1 - i];
    const struct qr_triangles reversed = {from, r->to, r->ld};
    const enum status status = windows_oracle_receive(self, first, count, &reversed);
    free(from);
    return status;
}

/* Of a run on planted kernels; it may also fail. */
static double worst_of_planted(enum windows_method method, enum fault fault) {
    const struct windows_shape shape = {GEMM_F32, 20, 21, 60, 1, 41, 20, 16, 0, NULL};
    struct values a = random_rows(&shape);
    struct windows_received received = windows_oracle_make(&shape, 1);
    const struct windows_visitor visitor = {&received, fault == ORDER_REVERSED ? receive_reversed
                                                                               : windows_oracle_receive};
    struct windows *windows;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    const struct device_driver *driver = compute.device.driver;
    plant(&compute, fault, a);
    assert_status(windows_open(&windows, &compute, method, &shape), STATUS_OK);
    const enum status status = windows_run(windows, a.data, shape.cols, &visitor);
    windows_close(windows);
    const double worst = status ? INFINITY : windows_oracle_worst(&shape, method, a, &received);
    compute.device.driver = driver;
    compute.backend = planted.real_backend;
    compute_close(&compute);
    free(received.r);
    free(a.data);
    return worst;
}

static void wrong_kernels_are_caught(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++)
        for (int fault = NO_FAULT; fault <= ORDER_REVERSED; fault++) {
            const bool reaches = methods[m] != WINDOWS_GRAM || fault > SIGN_OF_V; /* gram has no panels */
            const double error = worst_of_planted(methods[m], (enum fault)fault);
            if (reaches && fault ? !(error > 3) : !(error <= 1))
                fail_msg("fault %d in %s: %.3g of the bound", fault, windows_method_name(methods[m]), error);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_is_that_of_each_window),
        cmocka_unit_test(every_backend_has_windows),
        cmocka_unit_test(windows_of_a_hadamard_matrix),
        cmocka_unit_test(only_gram_suffers_from_the_condition_number),
        cmocka_unit_test(errors_do_not_grow_over_a_long_stream),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(wrong_kernels_are_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
