#include "src/bench/qr_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"
#include "src/base/rng.h"
#include "src/device/dtype.h"

enum { BLOCK_ROWS = 32 /* a multiple of 4 */, DRAWN_ROWS = 256, PROBES = 4 };
static const size_t MOST_ELEMENTS = (size_t)1 << 40;

size_t qr_problem_rows(const struct qr_problem *problem) {
    return (problem->most - 1) * problem->stride + problem->window;
}

size_t qr_problem_elements(const struct qr_problem *problem) {
    return qr_problem_rows(problem) * problem->n;
}

/* --- the matrix --- */

static void draw_row(const struct qr_problem *problem, struct rng *rng, double ratio, double *row) {
    const size_t n = problem->n;
    double scale = 1, sum = 0;
    for (size_t j = 0; j < n; j++, scale *= ratio) {
        row[j] = scale * rng_normal(rng);
        sum += row[j];
    }
    for (size_t j = 0; j < n && problem->condition > 1; j++) row[j] -= 2 * sum / (double)n;
}

/* Blocks of rows are substreams: the values do not depend on the number of threads. */
static void draw(struct qr_problem *problem, double *row, size_t block) {
    const size_t rows = qr_problem_rows(problem), n = problem->n;
    const double ratio = n > 1 ? pow(problem->condition, -1 / (double)(n - 1)) : 1;
    struct rng rng = rng_open(problem->seed, RNG_POINTS, (uint32_t)block);
    for (size_t r = block * DRAWN_ROWS; r < rows && r < (block + 1) * DRAWN_ROWS; r++) {
        draw_row(problem, &rng, ratio, row);
        for (size_t j = 0; j < n; j++) dtype_set(problem->dtype, problem->a, r * n + j, row[j]);
    }
}

/* --- products --- */

/* g += sign x^T x for the BLOCK_ROWS rows of x; the upper triangle, from row and column `first` on. */
static void add_products(double *restrict g, size_t n, const double *restrict x, size_t first, double sign) {
#pragma omp parallel for schedule(dynamic, 16)
    for (size_t i = first; i < n; i++)
        for (size_t r = 0; r < BLOCK_ROWS; r += 4) {
            const double *a = x + r * n, *b = a + n, *c = b + n, *d = c + n;
            const double p = sign * a[i], q = sign * b[i], s = sign * c[i], t = sign * d[i];
            for (size_t j = i; j < n; j++) g[i * n + j] += p * a[j] + q * b[j] + s * c[j] + t * d[j];
        }
}

/* g += A^T A of the rows from `first` to `last` - 1. */
static void add_rows(const struct qr_problem *problem, size_t first, size_t last, double *g) {
    const size_t n = problem->n;
    for (size_t block = first; block < last; block += BLOCK_ROWS) {
        for (size_t i = 0; i < BLOCK_ROWS * n; i++) {
            const size_t row = block + i / n;
            problem->rows[i] = row < last ? dtype_get(problem->dtype, problem->a, block * n + i) : 0;
        }
        add_products(g, n, problem->rows, 0, 1);
    }
}

static double norm_of(const double *g, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i; j < n; j++) sum += (i == j ? 1 : 2) * g[i * n + j] * g[i * n + j];
    return sqrt(sum);
}

/* Only additions: no rows are subtracted from the products of another window. */
static void multiply_window(struct qr_problem *problem, struct qr_checked *checked) {
    const size_t n = problem->n, first = checked->index * problem->stride, last = first + problem->window,
                 from = (problem->most - 1) * problem->stride, to = problem->window;
    memcpy(checked->gram, problem->common, n * n * sizeof(double));
    if (from < to) {
        add_rows(problem, first, from, checked->gram);
        add_rows(problem, to, last, checked->gram);
    } else {
        add_rows(problem, first, last, checked->gram);
    }
    checked->norm = norm_of(checked->gram, n);
}

void qr_problem_use(struct qr_problem *problem, size_t count) {
    if (count == problem->count) return;
    problem->count = count;
    for (size_t i = 0; i < QR_CHECKED; i++) {
        problem->checked[i].index = i * (count - 1) / (QR_CHECKED - 1);
        multiply_window(problem, &problem->checked[i]);
    }
}

/* --- open and close --- */

static enum status check_sizes(const struct qr_problem *problem) {
    const double rows = (double)(problem->most - 1) * (double)problem->stride + (double)problem->window;
    if (!problem->window || !problem->n || !problem->stride || !problem->most)
        return status_set(STATUS_USAGE, "windows of %zu x %zu, %zu rows apart: no size may be 0",
                          problem->window, problem->n, problem->stride);
    if (rows * (double)problem->n > (double)MOST_ELEMENTS ||
        (double)problem->n * (double)problem->n > (double)MOST_ELEMENTS)
        return status_set(STATUS_USAGE, "%zu windows of %zu x %zu, %zu rows apart, are too large",
                          problem->most, problem->window, problem->n, problem->stride);
    return STATUS_OK;
}

static double *square(const struct qr_problem *problem) {
    const size_t bytes = problem->n * problem->n * sizeof(double);
    double *memory = pages_alloc(bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

enum status qr_problem_open(struct qr_problem *problem) {
    const enum status status = check_sizes(problem);
    if (status) return status;
    const size_t rows = qr_problem_rows(problem), from = (problem->most - 1) * problem->stride;
    problem->count = 0;
    problem->a = pages_alloc(qr_problem_elements(problem) * dtype_size(problem->dtype));
    problem->common = square(problem);
    problem->error = square(problem);
    problem->rows = malloc(BLOCK_ROWS * problem->n * sizeof(double));
    bool complete = problem->a && problem->common && problem->error && problem->rows;
    for (size_t i = 0; i < QR_CHECKED; i++) {
        problem->checked[i].gram = square(problem);
        complete = complete && problem->checked[i].gram;
    }
    if (!complete) return status_set(STATUS_FAILED, "out of memory for %zu rows of %zu", rows, problem->n);
    for (size_t block = 0; block * DRAWN_ROWS < rows; block++) draw(problem, problem->rows, block);
    add_rows(problem, from, problem->window, problem->common);
    return STATUS_OK;
}

void qr_problem_close(struct qr_problem *problem) {
    free(problem->a);
    free(problem->common);
    free(problem->error);
    free(problem->rows);
    for (size_t i = 0; i < QR_CHECKED; i++) free(problem->checked[i].gram);
    *problem = (struct qr_problem){0};
}

/* --- errors --- */

static double backward_error(const struct qr_problem *problem, const struct qr_checked *checked,
                             const double *r) {
    const size_t n = problem->n;
    memcpy(problem->error, checked->gram, n * n * sizeof(double));
    for (size_t block = 0; block < n; block += BLOCK_ROWS) {
        for (size_t i = 0; i < BLOCK_ROWS * n; i++) {
            const size_t row = block + i / n;
            problem->rows[i] = row < n && i % n >= row ? r[block * n + i] : 0;
        }
        add_products(problem->error, n, problem->rows, block, -1);
    }
    return norm_of(problem->error, n) / checked->norm;
}

/* x = R^-1 x, and x = R^-T x. */
static void solve(const double *r, size_t n, double *x) {
    for (size_t i = n; i-- > 0;) {
        for (size_t j = i + 1; j < n; j++) x[i] -= r[i * n + j] * x[j];
        x[i] /= r[i * n + i];
    }
}

static void solve_transposed(const double *r, size_t n, double *x) {
    for (size_t i = 0; i < n; i++) {
        x[i] /= r[i * n + i];
        for (size_t j = i + 1; j < n; j++) x[j] -= r[i * n + j] * x[i];
    }
}

/* out = A^T A x of a window. */
static void multiply(const struct qr_problem *problem, size_t first, const double *x, double *out) {
    const size_t n = problem->n;
    memset(out, 0, n * sizeof(double));
    for (size_t row = first; row < first + problem->window; row++) {
        double sum = 0;
        for (size_t j = 0; j < n; j++) sum += dtype_get(problem->dtype, problem->a, row * n + j) * x[j];
        for (size_t j = 0; j < n; j++) out[j] += dtype_get(problem->dtype, problem->a, row * n + j) * sum;
    }
}

/* |Q^T Q x - x|^2 summed over the probes x. */
static double orthogonality(const struct qr_problem *problem, const struct qr_checked *checked,
                            const double *r) {
    const size_t n = problem->n;
    double sum = 0, *x = problem->rows, *z = x + n, *out = z + n;
    for (uint32_t probe = 0; probe < PROBES; probe++) {
        struct rng rng = rng_open(problem->seed, RNG_TEST, probe);
        for (size_t j = 0; j < n; j++) z[j] = x[j] = rng_normal(&rng);
        solve(r, n, z);
        multiply(problem, checked->index * problem->stride, z, out);
        solve_transposed(r, n, out);
        for (size_t j = 0; j < n; j++) sum += (out[j] - x[j]) * (out[j] - x[j]);
    }
    return sqrt(sum / PROBES);
}

struct qr_errors qr_problem_errors(const struct qr_problem *problem, size_t which, const double *r) {
    const struct qr_checked *checked = &problem->checked[which];
    return (struct qr_errors){backward_error(problem, checked, r), orthogonality(problem, checked, r)};
}

double qr_problem_bound(const struct qr_problem *problem) {
    return 2 * (sqrt((double)problem->n) + sqrt((double)problem->window)) * dtype_epsilon(problem->dtype);
}
