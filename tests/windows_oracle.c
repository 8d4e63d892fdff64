#include "tests/windows_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/qr_checks.h"

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

struct windows_errors windows_oracle_errors(const struct windows_shape *shape, struct values a, size_t window,
                                            double *r) {
    const size_t n = shape->n, cols = shape->cols;
    size_t rows;
    double *all = window_rows(shape, a, window, &rows), error = 0, size = 0;
    struct windows_errors errors = {.gram = qr_checks_gram_error(rows, n, cols, all, r)};
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

const struct windows_shape windows_oracle_shapes[WINDOWS_SHAPES] = {
    /* dtype, n, cols, window, stride, count, group, nb, ridge */
    {GEMM_F32, 1, 1, 1, 1, 1, 0, 0, 0, NULL},       {GEMM_F32, 1, 2, 1, 1, 5, 0, 0, 0, NULL},
    {GEMM_F64, 3, 3, 7, 1, 9, 0, 0, 0, NULL},       {GEMM_F32, 5, 6, 20, 1, 40, 0, 0, 0, NULL},
    {GEMM_F32, 16, 16, 64, 1, 33, 0, 16, 0, NULL},  {GEMM_F64, 20, 23, 50, 2, 17, 0, 16, 0, NULL},
    {GEMM_F32, 33, 35, 70, 3, 20, 0, 16, 0, NULL},  {GEMM_F64, 17, 17, 40, 5, 30, 0, 16, 0, NULL},
    {GEMM_F32, 40, 41, 300, 1, 20, 0, 32, 0, NULL}, {GEMM_F32, 10, 10, 30, 4, 50, 1, 0, 0, NULL},
    {GEMM_F64, 10, 11, 30, 1, 50, 2, 0, 0, NULL},   {GEMM_F32, 10, 10, 30, 1, 50, 3, 0, 0, NULL},
    {GEMM_F64, 10, 12, 30, 1, 77, 99, 0, 0, NULL},  {GEMM_F32, 9, 9, 12, 7, 11, 0, 0, 0, NULL},
    {GEMM_F32, 9, 10, 12, 20, 6, 0, 0, 0, NULL},    {GEMM_F64, 70, 71, 130, 1, 40, 40, 32, 0, NULL},
    {GEMM_F32, 20, 21, 7, 1, 15, 0, 0, 0.1, NULL},  {GEMM_F64, 20, 20, 1, 1, 9, 0, 0, 0.5, NULL},
    {GEMM_F32, 12, 13, 40, 2, 25, 0, 0, 0.3, NULL}, {GEMM_F64, 30, 31, 10, 3, 8, 0, 16, 2, NULL},
    {GEMM_F32, 8, 9, 40, 1, 200, 40, 0, 0, NULL},   {GEMM_F64, 8, 8, 8, 1, 20, 8, 0, 0, NULL},
};

/* The triangle in host memory; to be freed. */
static char *host_copy(const struct windows_received *received, const void *r, size_t bytes) {
    char *copy = malloc(bytes);
    if (received->device)
        received->device->driver->download(received->device, copy, r, bytes);
    else
        memcpy(copy, r, bytes);
    return copy;
}

enum status windows_oracle_receive(void *self, size_t first, size_t count, const struct qr_triangles *r) {
    struct windows_received *received = self;
    const struct windows_shape *shape = received->shape;
    const size_t size = dtype_size(shape->dtype);
    received->in_order &= first == received->next;
    for (size_t k = 0; k < count; k++) {
        if ((first + k) % received->every) continue;
        double *to = received->r + (first + k) / received->every * shape->n * shape->cols;
        char *values = host_copy(received, r->from[k], ((shape->n - 1) * r->ld + shape->cols) * size);
        for (size_t i = 0; i < shape->n; i++)
            for (size_t j = i; j < shape->cols; j++)
                to[i * shape->cols + j] = dtype_get(shape->dtype, values, i * r->ld + j);
        free(values);
    }
    received->next = first + count;
    return STATUS_OK;
}

struct windows_received windows_oracle_make(const struct windows_shape *shape, size_t every) {
    struct windows_received received = {.shape = shape, .every = every, .in_order = true};
    received.r = calloc((shape->count / every + 1) * shape->n * shape->cols, sizeof(double));
    return received;
}

enum status windows_oracle_run(struct compute *compute, enum windows_method method,
                               const struct windows_shape *shape, struct values a,
                               struct windows_received *received) {
    struct windows *windows;
    struct device *device = &compute->device;
    const bool on_host = device->driver->host_memory;
    const size_t bytes = windows_rows(shape) * shape->cols * dtype_size(shape->dtype);
    enum status status = windows_open(&windows, compute, method, shape);
    if (status) return status;
    void *copy = on_host ? NULL : device->driver->alloc(device, bytes);
    if (!on_host) {
        device->driver->upload(device, copy, a.data, bytes);
        received->device = device;
    }
    const struct windows_visitor visitor = {received, windows_oracle_receive};
    status = windows_run(windows, on_host ? a.data : copy, shape->cols, &visitor);
    const enum status finished = device->driver->synchronize(device);
    windows_close(windows);
    device->driver->free(device, copy);
    return status ? status : finished;
}

/* The largest multiple of epsilon by which a triangle may be wrong. Gram matrices lose kappa once more. */
static double bound(const struct windows_shape *shape) {
    return dtype_epsilon(shape->dtype) * sqrt((double)(shape->window + shape->n));
}

double windows_oracle_worst(const struct windows_shape *shape, enum windows_method method, struct values a,
                            const struct windows_received *received) {
    double most = received->in_order && received->next == shape->count ? 0 : INFINITY;
    for (size_t k = 0; k < shape->count; k += received->every) {
        const struct windows_errors errors =
            windows_oracle_errors(shape, a, k, received->r + k / received->every * shape->n * shape->cols);
        const double more = method == WINDOWS_GRAM ? errors.kappa : 1,
                     error = fmax(errors.gram, errors.triangle / more) / bound(shape);
        if (!(error <= most)) most = isnan(error) ? INFINITY : error;
    }
    return most;
}
