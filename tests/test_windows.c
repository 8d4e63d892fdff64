/* Triangles of sliding windows: every method against a float64 QR of each window, long streams, wrong kernels,
   and inputs that have no answer. */
#include "tests/support.h"
#include "tests/values.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "src/window/windows.h"

static const enum windows_method methods[] = {WINDOWS_NAIVE, WINDOWS_COMMON, WINDOWS_TREE, WINDOWS_GRAM};
enum { METHODS = sizeof methods / sizeof *methods };

/* --- the oracle: Householder QR in float64, in plain loops --- */

/* A, [rows][cols], becomes R in its first n rows, with a diagonal that is not negative. */
static void oracle_factor(size_t rows, size_t n, size_t cols, double *a) {
    double *v = calloc(rows, sizeof *v);
    for (size_t c = 0; c < n && c < rows; c++) {
        double norm = 0, product = 0;
        for (size_t i = c; i < rows; i++) norm = hypot(norm, a[i * cols + c]);
        if (norm == 0) continue;
        for (size_t i = c; i < rows; i++) v[i] = a[i * cols + c];
        v[c] += v[c] < 0 ? -norm : norm;
        for (size_t i = c; i < rows; i++) product += v[i] * v[i];
        for (size_t j = c; j < cols; j++) {
            double sum = 0;
            for (size_t i = c; i < rows; i++) sum += v[i] * a[i * cols + j];
            for (size_t i = c; i < rows; i++) a[i * cols + j] -= 2 * sum / product * v[i];
        }
    }
    for (size_t c = 0; c < n && c < rows; c++)
        for (size_t j = cols; a[c * cols + c] < 0 && j-- > c;) a[c * cols + j] = -a[c * cols + j];
    free(v);
}

/* The window's rows, and below them sqrt(ridge) I. The caller frees it. */
static double *window_rows(const struct windows_shape *shape, struct values a, size_t window, size_t *rows) {
    const size_t cols = shape->cols;
    *rows = shape->window + (shape->ridge > 0 ? shape->n : 0);
    if (*rows < shape->n) *rows = shape->n;
    double *all = calloc(*rows * cols, sizeof *all);
    for (size_t i = 0; i < shape->window * cols; i++)
        all[i] = values_get(a, window * shape->stride * cols + i);
    for (size_t j = 0; shape->ridge > 0 && j < shape->n; j++)
        all[(shape->window + j) * cols + j] = sqrt(shape->ridge);
    return all;
}

/* |R| |R^-1|, Frobenius, of the first n columns. */
static double condition(size_t n, size_t cols, const double *r) {
    double *inverse = calloc(n * n, sizeof *inverse), size = 0, inverse_size = 0;
    for (size_t j = 0; j < n; j++)
        for (size_t i = j + 1; i-- > 0;) {
            double sum = i == j;
            for (size_t k = i + 1; k <= j; k++) sum -= r[i * cols + k] * inverse[k * n + j];
            inverse[i * n + j] = sum / r[i * cols + i];
        }
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++) {
            size += r[i * cols + j] * r[i * cols + j];
            inverse_size += inverse[i * n + j] * inverse[i * n + j];
        }
    free(inverse);
    return sqrt(size * inverse_size);
}

/* |R^T R - A^T A| / |A^T A| of all columns. */
static double gram_error(size_t rows, size_t n, size_t cols, const double *a, const double *r) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < cols; j++) {
            double expected = 0, sum = 0;
            for (size_t p = 0; p < rows; p++) expected += a[p * cols + i] * a[p * cols + j];
            for (size_t p = 0; p <= i; p++) sum += r[p * cols + i] * r[p * cols + j];
            error += (sum - expected) * (sum - expected);
            size += expected * expected;
        }
    return sqrt(error / size);
}

struct errors {
    double gram;     /* |R^T R - A^T A| / |A^T A| */
    double triangle; /* |R - R of the oracle| / (|R| kappa), up to the signs of rows */
    double kappa;
};

/* Of a triangle [n][cols] that claims to be that of the window. Its rows' signs become those of the oracle. */
static struct errors measure(const struct windows_shape *shape, struct values a, size_t window, double *r) {
    const size_t n = shape->n, cols = shape->cols;
    size_t rows;
    double *all = window_rows(shape, a, window, &rows), error = 0, size = 0;
    struct errors errors = {.gram = gram_error(rows, n, cols, all, r)};
    oracle_factor(rows, n, cols, all);
    for (size_t i = 0; i < n; i++) {
        const double sign = r[i * cols + i] < 0 ? -1 : 1;
        for (size_t j = i; j < cols; j++) {
            const double expected = all[i * cols + j], value = sign * r[i * cols + j];
            error += (value - expected) * (value - expected);
            size += expected * expected;
            r[i * cols + j] = value;
        }
    }
    errors.kappa = condition(n, cols, all);
    errors.triangle = sqrt(error / size) / errors.kappa;
    free(all);
    return errors;
}

/* --- a run --- */

/* What the visitor receives, as float64. */
struct received {
    const struct windows_shape *shape;
    size_t next, every; /* the window that must come next; keep those that are multiples of `every` */
    double *r;          /* [count / every + 1][n][cols] */
    bool in_order;
};

static enum status receive(void *self, size_t first, size_t count, const struct qr_triangles *r) {
    struct received *received = self;
    const struct windows_shape *shape = received->shape;
    const size_t size = dtype_size(shape->dtype);
    received->in_order &= first == received->next;
    for (size_t k = 0; k < count; k++) {
        if ((first + k) % received->every) continue;
        double *to = received->r + (first + k) / received->every * shape->n * shape->cols;
        for (size_t i = 0; i < shape->n; i++)
            for (size_t j = i; j < shape->cols; j++)
                to[i * shape->cols + j] =
                    dtype_get(shape->dtype, (const char *)r->from[k] + (i * r->ld + j) * size, 0);
    }
    received->next = first + count;
    return STATUS_OK;
}

static struct received received_make(const struct windows_shape *shape, size_t every) {
    struct received received = {.shape = shape, .every = every, .in_order = true};
    received.r = calloc((shape->count / every + 1) * shape->n * shape->cols, sizeof(double));
    return received;
}

static enum status run(struct compute *compute, enum windows_method method, const struct windows_shape *shape,
                       struct values a, struct received *received) {
    struct windows *windows;
    enum status status = windows_open(&windows, compute, method, shape);
    if (status) return status;
    const struct windows_visitor visitor = {received, receive};
    status = windows_run(windows, a.data, shape->cols, &visitor);
    windows_close(windows);
    return status;
}

static struct values random_rows(const struct windows_shape *shape) {
    return values_random(shape->dtype, windows_rows(shape) * shape->cols, 1,
                         (uint32_t)(shape->window + 7 * shape->n));
}

/* The largest multiple of epsilon by which a triangle may be wrong. Gram matrices lose kappa once more. */
static double bound(const struct windows_shape *shape) {
    return 8 * dtype_epsilon(shape->dtype) * sqrt((double)(shape->window + shape->n));
}

/* The worst error of all windows, relative to the bound: above 1 the triangles are wrong. Infinite if they
   are not in order or not finite. */
static double worst(const struct windows_shape *shape, enum windows_method method, struct values a,
                    const struct received *received) {
    double most = received->in_order && received->next == shape->count ? 0 : INFINITY;
    for (size_t k = 0; k < shape->count; k += received->every) {
        const struct errors errors =
            measure(shape, a, k, received->r + k / received->every * shape->n * shape->cols);
        const double more = method == WINDOWS_GRAM ? errors.kappa : 1,
                     error = fmax(errors.gram, errors.triangle / more) / bound(shape);
        if (!(error <= most)) most = isnan(error) ? INFINITY : error;
    }
    return most;
}

/* --- every method against the oracle --- */

static const struct windows_shape shapes[] = {
    /* dtype, n, cols, window, stride, count, group, nb, ridge */
    {GEMM_F32, 1, 1, 1, 1, 1, 0, 0, 0},       {GEMM_F32, 1, 2, 1, 1, 5, 0, 0, 0},
    {GEMM_F64, 3, 3, 7, 1, 9, 0, 0, 0},       {GEMM_F32, 5, 6, 20, 1, 40, 0, 0, 0},
    {GEMM_F32, 16, 16, 64, 1, 33, 0, 16, 0},  {GEMM_F64, 20, 23, 50, 2, 17, 0, 16, 0},
    {GEMM_F32, 33, 35, 70, 3, 20, 0, 16, 0},  {GEMM_F64, 17, 17, 40, 5, 30, 0, 16, 0},
    {GEMM_F32, 40, 41, 300, 1, 20, 0, 32, 0}, {GEMM_F32, 10, 10, 30, 4, 50, 1, 0, 0},
    {GEMM_F64, 10, 11, 30, 1, 50, 2, 0, 0},   {GEMM_F32, 10, 10, 30, 1, 50, 3, 0, 0},
    {GEMM_F64, 10, 12, 30, 1, 77, 99, 0, 0},  {GEMM_F32, 9, 9, 12, 7, 11, 0, 0, 0},
    {GEMM_F32, 9, 10, 12, 20, 6, 0, 0, 0},    {GEMM_F64, 70, 71, 130, 1, 40, 40, 32, 0},
    {GEMM_F32, 20, 21, 7, 1, 15, 0, 0, 0.1},  {GEMM_F64, 20, 20, 1, 1, 9, 0, 0, 0.5},
    {GEMM_F32, 12, 13, 40, 2, 25, 0, 0, 0.3}, {GEMM_F64, 30, 31, 10, 3, 8, 0, 16, 2},
    {GEMM_F32, 8, 9, 40, 1, 200, 40, 0, 0},   {GEMM_F64, 8, 8, 8, 1, 20, 8, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void every_method_is_that_of_each_window(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t s = 0; s < SHAPES; s += support_every(3))
        for (size_t m = 0; m < METHODS; m++) {
            const struct windows_shape *shape = &shapes[s];
            struct values a = random_rows(shape);
            struct received received = received_make(shape, 1);
            assert_status(run(&compute, methods[m], shape, a, &received), STATUS_OK);
            const double error = worst(shape, methods[m], a, &received);
            if (!(error <= 1))
                fail_msg("%s, shape %zu (%zu windows of %zu x %zu, stride %zu): %.3g of the bound",
                         windows_method_name(methods[m]), s, shape->count, shape->window, shape->n,
                         shape->stride, error);
            free(received.r);
            free(a.data);
        }
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_is_that_of_each_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
