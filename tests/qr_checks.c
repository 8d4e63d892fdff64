#include "tests/qr_checks.h"

#include <math.h>
#include <stdlib.h>

/* --- a matrix on a backend --- */

static struct values copy_of(struct values values, size_t count) {
    struct values copy = values_make(values.dtype, count);
    memcpy(copy.data, values.data, count * dtype_size(values.dtype));
    return copy;
}

struct qr_matrix qr_checks_upload(struct compute *compute, struct values values, size_t rows, size_t cols,
                                  size_t batch) {
    struct device *device = &compute->device;
    struct qr_matrix matrix = {values.data, cols, rows * cols};
    const size_t bytes = batch * rows * cols * dtype_size(values.dtype);
    if (device->driver->host_memory) return matrix;
    matrix.values = device->driver->alloc(device, bytes);
    assert_non_null(matrix.values);
    device->driver->upload(device, matrix.values, values.data, bytes);
    return matrix;
}

void qr_checks_download(struct compute *compute, struct qr_matrix matrix, struct values values,
                        size_t count) {
    struct device *device = &compute->device;
    if (device->driver->host_memory) return;
    device->driver->download(device, values.data, matrix.values, count * dtype_size(values.dtype));
    assert_status(device->driver->synchronize(device), STATUS_OK);
    device->driver->free(device, matrix.values);
}

void qr_checks_open(struct qr *qr, struct compute *compute, struct compute *panels,
                    const struct qr_case *test, bool keeps_q) {
    const struct qr_shape shape = {.dtype = test->dtype,
                                   .batch = test->batch,
                                   .rows = test->rows,
                                   .n = test->n,
                                   .cols = test->n + test->extra,
                                   .block = test->block,
                                   .keeps_q = keeps_q,
                                   .panels = panels};
    assert_status(qr_open(qr, compute, &shape), STATUS_OK);
}

/* --- errors, in float64 --- */

/* Row i of A^T A, from column i on. */
static void gram_row(const double *a, size_t rows, size_t cols, size_t i, double *row) {
    memset(row, 0, cols * sizeof *row);
    for (size_t p = 0; p < rows; p++)
        for (size_t j = i; j < cols; j++) row[j] += a[p * cols + i] * a[p * cols + j];
}

double qr_checks_gram_error(size_t rows, size_t n, size_t cols, const double *a, const double *r) {
    double *expected = calloc(2 * cols, sizeof *expected), *actual = expected + cols, error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        gram_row(a, rows, cols, i, expected);
        gram_row(r, i + 1, cols, i, actual);
        for (size_t j = i; j < cols; j++) {
            error += (actual[j] - expected[j]) * (actual[j] - expected[j]);
            size += expected[j] * expected[j];
        }
    }
    free(expected);
    return sqrt(error / size);
}

static double gram_error(struct values r, struct values a, size_t rows, size_t n, size_t cols) {
    double *a_doubles = values_doubles(a, rows * cols), *r_doubles = values_doubles(r, n * cols);
    const double error = qr_checks_gram_error(rows, n, cols, a_doubles, r_doubles);
    free(a_doubles);
    free(r_doubles);
    return error;
}

/* |A - Q R| / |A|, Frobenius: [rows][cols] each, Q with k columns. */
static double backward_error(const double *a, const double *q, const double *r, size_t k, size_t rows,
                             size_t n, size_t cols) {
    double *rest = calloc(n, sizeof *rest), error = 0, size = 0;
    for (size_t i = 0; i < rows; i++) {
        memcpy(rest, a + i * cols, n * sizeof *rest);
        for (size_t p = 0; p < k; p++)
            for (size_t j = p; j < n; j++) rest[j] -= q[i * cols + p] * r[p * cols + j];
        for (size_t j = 0; j < n; j++) {
            error += rest[j] * rest[j];
            size += a[i * cols + j] * a[i * cols + j];
        }
    }
    free(rest);
    return size > 0 ? sqrt(error / size) : sqrt(error);
}

/* |I - Q^T Q|, Frobenius. */
static double orthogonality_error(const double *q, size_t k, size_t rows, size_t cols) {
    double *row = calloc(cols, sizeof *row), sum = 0;
    for (size_t i = 0; i < k; i++) {
        gram_row(q, rows, cols, i, row);
        sum += (row[i] - 1) * (row[i] - 1);
        for (size_t j = i + 1; j < k; j++) sum += 2 * row[j] * row[j]; /* it is symmetric */
    }
    free(row);
    return sqrt(sum);
}

/* `a` is the matrix before, `factored` after. */
static void residuals(struct qr *qr, const struct qr_case *test, struct values a, struct values factored,
                      double *backward, double *orthogonality) {
    const size_t rows = test->rows, cols = test->n + test->extra, k = rows < test->n ? rows : test->n;
    struct values q = values_make(test->dtype, rows * cols);
    for (size_t i = 0; i < k; i++) values_set(q, i * cols + i, 1);
    const struct qr_matrix matrix = qr_checks_upload(qr->compute, q, rows, cols, 1);
    assert_status(qr_apply_q(qr, &matrix, k), STATUS_OK);
    qr_checks_download(qr->compute, matrix, q, rows * cols);
    double *before = values_doubles(a, rows * cols), *r = values_doubles(factored, rows * cols),
           *q_doubles = values_doubles(q, rows * cols);
    *backward = backward_error(before, q_doubles, r, k, rows, test->n, cols);
    *orthogonality = orthogonality_error(q_doubles, k, rows, cols);
    free(q.data);
    free(q_doubles);
    free(before);
    free(r);
}

/* --- factorisation --- */

static const struct qr_case cases[] = {
    {1, 1, 0, 16, GEMM_F32, 1},     {5, 1, 1, 16, GEMM_F32, 1},      {1, 5, 0, 16, GEMM_F64, 1},
    {16, 16, 2, 16, GEMM_F32, 1},   {17, 15, 0, 16, GEMM_F64, 1},    {15, 17, 3, 16, GEMM_F32, 1},
    {33, 32, 1, 32, GEMM_F32, 1},   {100, 33, 4, 32, GEMM_F64, 1},   {40, 100, 0, 32, GEMM_F32, 1},
    {300, 70, 5, 64, GEMM_F32, 1},  {257, 129, 10, 64, GEMM_F64, 1}, {700, 129, 1, 48, GEMM_F32, 1},
    {1030, 50, 2, 16, GEMM_F64, 1}, {515, 200, 0, 128, GEMM_F32, 1}, {60, 40, 3, 32, GEMM_F32, 5},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Matrix b of a batch, as one by one: the same bits on the host; a GPU divides a large batch otherwise, and
   the triangle is that of the matrix. */
static void check_matrix_of_batch(struct qr *qr, const struct qr_case *test, struct values a,
                                  struct values factored, size_t b) {
    const size_t cols = test->n + test->extra, count = test->rows * cols, size = dtype_size(test->dtype);
    struct values one = values_make(test->dtype, count), r = values_make(test->dtype, count);
    memcpy(one.data, (char *)a.data + b * count * size, count * size);
    memcpy(r.data, (char *)factored.data + b * count * size, count * size);
    const double error = gram_error(r, one, test->rows, test->n, cols);
    struct values before = copy_of(one, count);
    const struct qr_matrix alone = qr_checks_upload(qr->compute, one, test->rows, cols, 1);
    const double bound = 8 * dtype_epsilon(test->dtype) * sqrt((double)test->rows);
    assert_status(qr_factor(qr, 1, test->rows, &alone), STATUS_OK);
    qr_checks_download(qr->compute, alone, one, count);
    assert_true(error <= bound && gram_error(one, before, test->rows, test->n, cols) <= bound);
    free(before.data);
    for (size_t i = 0; i < test->n && qr->compute->device.driver->host_memory; i++)
        for (size_t j = i; j < cols; j++)
            assert_true(values_get(one, i * cols + j) == values_get(r, i * cols + j));
    free(one.data);
    free(r.data);
}

void qr_checks_case(struct compute *compute, struct compute *panels, const struct qr_case *test) {
    const size_t cols = test->n + test->extra, count = test->rows * cols, all = count * test->batch;
    struct values a = values_random(test->dtype, all, 1, (uint32_t)(test->rows + test->n)),
                  factored = copy_of(a, all);
    const struct qr_matrix matrix = qr_checks_upload(compute, factored, test->rows, cols, test->batch);
    const double epsilon = dtype_epsilon(test->dtype) * sqrt((double)test->n);
    struct qr qr;
    qr_checks_open(&qr, compute, panels, test, test->batch == 1);
    assert_status(qr_factor(&qr, test->batch, test->rows, &matrix), STATUS_OK);
    qr_checks_download(compute, matrix, factored, all);
    if (test->batch == 1) {
        double backward, orthogonality;
        residuals(&qr, test, a, factored, &backward, &orthogonality);
        if (!(backward <= 4 * epsilon && orthogonality <= 8 * epsilon))
            fail_msg("%zu x %zu block %zu %s on %s: backward %.3g, orthogonality %.3g of %.3g", test->rows,
                     test->n, test->block, dtype_name(test->dtype), compute->name, backward, orthogonality,
                     epsilon);
    }
    for (size_t b = 0; b < test->batch && test->batch > 1; b++)
        check_matrix_of_batch(&qr, test, a, factored, b);
    qr_close(&qr);
    free(a.data);
    free(factored.data);
}

void qr_checks_factor(struct compute *compute, struct compute *panels, size_t every) {
    for (size_t c = 0; c < CASES; c += every) qr_checks_case(compute, panels, &cases[c]);
}

/* --- rows that enter --- */

struct append_shape {
    size_t rows, portion, n, extra, block;
};

/* A triangle of zeros with NaN below its diagonal: nothing may be read there. */
static struct values empty_triangle(enum gemm_dtype dtype, size_t n, size_t cols) {
    struct values r = values_make(dtype, n * cols);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) values_set(r, i * cols + j, NAN);
    return r;
}

/* The portions enter two triangles in turn, each made from the other. Returns the last one. */
static struct values append_portions(struct qr *qr, const struct append_shape *shape, bool triangular,
                                     struct values a) {
    const size_t cols = shape->n + shape->extra, size = dtype_size(a.dtype);
    struct values r[2] = {empty_triangle(a.dtype, shape->n, cols), empty_triangle(a.dtype, shape->n, cols)};
    struct qr_matrix triangle[2];
    size_t last = 0;
    for (int i = 0; i < 2; i++) triangle[i] = qr_checks_upload(qr->compute, r[i], shape->n, cols, 1);
    for (size_t first = 0; first < shape->rows; first += shape->portion) {
        const size_t count = shape->rows - first < shape->portion ? shape->rows - first : shape->portion;
        struct values part = values_make(a.dtype, count * cols);
        memcpy(part.data, (char *)a.data + first * cols * size, count * cols * size);
        const struct qr_matrix matrix = qr_checks_upload(qr->compute, part, count, cols, 1);
        const void *from[] = {triangle[last].values};
        void *to[] = {triangle[1 - last].values};
        assert_status(qr_append(qr, 1, count, triangular, &(struct qr_triangles){from, to, cols}, &matrix),
                      STATUS_OK);
        qr_checks_download(qr->compute, matrix, part, count * cols);
        free(part.data);
        last = 1 - last;
    }
    for (int i = 0; i < 2; i++) qr_checks_download(qr->compute, triangle[i], r[i], shape->n * cols);
    free(r[1 - last].data);
    return r[last];
}

/* With `triangular`, row i of a portion is zero before column i. */
static void check_append(struct compute *compute, struct compute *panels, const struct append_shape *shape,
                         bool triangular, enum gemm_dtype dtype) {
    const size_t cols = shape->n + shape->extra;
    const struct qr_case test = {shape->portion, shape->n, shape->extra, shape->block, dtype, 1};
    struct values a = values_random(dtype, shape->rows * cols, 1, (uint32_t)(shape->rows + shape->n));
    for (size_t i = 0; i < shape->rows && triangular; i++)
        for (size_t j = 0; j < i % shape->portion && j < shape->n; j++) values_set(a, i * cols + j, 0);
    struct qr qr;
    qr_checks_open(&qr, compute, panels, &test, false);
    struct values r = append_portions(&qr, shape, triangular, a);
    const double error = gram_error(r, a, shape->rows, shape->n, cols);
    if (!(error <= 8 * dtype_epsilon(dtype) * sqrt((double)shape->rows)))
        fail_msg("%zu rows of %zu in portions of %zu: error %.3g", shape->rows, shape->n, shape->portion,
                 error);
    for (size_t i = 0; i < shape->n && shape->portion <= QR_APPEND_ROWS; i++)
        for (size_t j = 0; j < i; j++) assert_true(isnan(values_get(r, i * cols + j)));
    qr_close(&qr);
    free(a.data);
    free(r.data);
}

void qr_checks_append(struct compute *compute, struct compute *panels) {
    static const struct append_shape shapes[] = {
        {7, 1, 5, 0, 16},       {9, 3, 20, 2, 16},     {100, 16, 33, 4, 32},   {120, 17, 33, 4, 32},
        {300, 100, 64, 1, 64},  {90, 30, 130, 3, 64},  {64, 8, 200, 0, 16},    {200, 67, 33, 4, 32},
        {260, 130, 150, 3, 64}, {195, 65, 20, 0, 16},  {64, 64, 61, 7, 16},    {12, 5, 3, 40, 16},
        {140, 70, 200, 5, 32},  {12, 6, 70, 1000, 64}, {60, 30, 70, 1300, 64}, {100, 50, 70, 2300, 64}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++)
            for (int triangular = 0; triangular < 2; triangular++)
                check_append(compute, panels, &shapes[s], triangular, (enum gemm_dtype)dtype);
}
