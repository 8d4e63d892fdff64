#include "src/backend/verify.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/rng.h"

enum { GUARD_ROWS = 2 };
static const unsigned char GUARD_BYTE = 0xFF; /* as a float or a double: NaN */

/* --- the comparator --- */

static double element(enum gemm_dtype dtype, const void *base, size_t index) {
    return dtype == GEMM_F32 ? (double)((const float *)base)[index] : ((const double *)base)[index];
}

/* How far outside its bound, >= 0 is a mismatch (NaN counts as infinitely far), < 0 is fine. */
static double excess(double got, double want, double bound) {
    if (isnan(want)) return isnan(got) ? -1 : INFINITY;
    if (isinf(want)) return got == want ? -1 : INFINITY;
    const double error = fabs(got - want);
    if (!(error <= bound)) return isnan(error) ? INFINITY : error - bound;
    return -1;
}

bool verify_compare(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                    const double *want, const double *bound, struct verify_mismatch *worst) {
    double furthest = -1;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const double value = element(dtype, got, i * ldc + j);
            const double off = excess(value, want[i * n + j], bound[i * n + j]);
            if (off < 0 || off <= furthest) continue;
            furthest = off;
            *worst = (struct verify_mismatch){i, j, value, want[i * n + j], bound[i * n + j]};
        }
    return furthest < 0;
}

/* --- the oracle --- */

static bool transposed_a(enum gemm_op op) {
    return op == GEMM_TN || op == GEMM_TT;
}

static bool transposed_b(enum gemm_op op) {
    return op == GEMM_NT || op == GEMM_TT;
}

void verify_oracle(const struct gemm_call *call, double *want, double *bound) {
    const bool ta = transposed_a(call->op), tb = transposed_b(call->op);
    const double eps = call->dtype == GEMM_F32 ? (double)FLT_EPSILON : DBL_EPSILON;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = 0, magnitude = 0;
            for (size_t p = 0; p < call->k; p++) {
                const double a = element(call->dtype, call->a, ta ? p * call->lda + i : i * call->lda + p);
                const double b = element(call->dtype, call->b, tb ? j * call->ldb + p : p * call->ldb + j);
                sum += a * b;
                magnitude += fabs(a * b);
            }
            const double c =
                call->beta == 0 ? 0 : call->beta * element(call->dtype, call->c, i * call->ldc + j);
            want[i * call->n + j] = call->alpha * sum + c;
            bound[i * call->n + j] = (double)(call->k + 4) * eps * (fabs(call->alpha) * magnitude + fabs(c));
        }
}

/* --- one case --- */

/* rows x cols with leading dimension ld; everything else keeps the guard byte. */
static void fill(const struct verify_case *test, struct rng *rng, void *matrix, size_t rows, size_t cols,
                 size_t ld) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            const double value = test->integers ? (double)rng_below(rng, 17) - 8 : 2 * rng_uniform(rng) - 1;
            if (test->dtype == GEMM_F32) {
                ((float *)matrix)[i * ld + j] = (float)value;
            } else {
                ((double *)matrix)[i * ld + j] = value;
            }
        }
}

/* The buffers of one case: on the host, and the same on the device. */
struct workspace {
    size_t bytes[3];
    void *host[3], *device[3];
    unsigned char *result;
    double *want, *bound;
};

static void workspace_free(struct compute *compute, struct workspace *work) {
    for (int i = 0; i < 3; i++) {
        free(work->host[i]);
        compute->device.driver->free(&compute->device, work->device[i]);
    }
    free(work->result);
    free(work->want);
    free(work->bound);
}

static enum status workspace_alloc(struct compute *compute, struct workspace *work, size_t elements) {
    struct device *device = &compute->device;
    for (int i = 0; i < 3; i++) {
        work->host[i] = malloc(work->bytes[i] + 1); /* k = 0: no bytes, but not NULL */
        work->device[i] = device->driver->alloc(device, work->bytes[i]);
        if (!work->device[i]) return STATUS_FAILED;
        if (!work->host[i]) return status_set(STATUS_FAILED, "out of memory");
        memset(work->host[i], GUARD_BYTE, work->bytes[i]);
    }
    work->result = malloc(work->bytes[2]);
    work->want = calloc(elements + 1, sizeof *work->want);
    work->bound = calloc(elements + 1, sizeof *work->bound);
    if (!work->result || !work->want || !work->bound) return status_set(STATUS_FAILED, "out of memory");
    return STATUS_OK;
}

static enum status failure(const struct compute *compute, const struct verify_case *test, const char *what) {
    return status_set(STATUS_VERIFY_FAILED,
                      "backend '%s' is wrong: %s %s m=%zu n=%zu k=%zu pad=%zu alpha=%g beta=%g %s: %s",
                      compute->backend->name, dtype_name(test->dtype), gemm_op_name(test->op), test->m,
                      test->n, test->k, test->pad, test->alpha, test->beta,
                      test->integers ? "integers" : "reals", what);
}

/* Everything of C outside its m x n elements must hold the guard byte still. */
static bool guards_intact(const struct verify_case *test, const unsigned char *c, size_t bytes, size_t ldc) {
    const size_t size = dtype_size(test->dtype), row_bytes = ldc * size;
    for (size_t at = 0; at < bytes; at++) {
        const size_t row = at / row_bytes, col = at % row_bytes / size;
        const bool inside = row >= GUARD_ROWS && row < GUARD_ROWS + test->m && col < test->n;
        if (!inside && c[at] != GUARD_BYTE) return false;
    }
    return true;
}

static enum status run_case(struct compute *compute, const struct verify_case *test, struct workspace *work,
                            struct gemm_call *call) {
    struct device *device = &compute->device;
    const struct device_driver *driver = device->driver;
    const size_t guard = GUARD_ROWS * call->ldc * dtype_size(test->dtype);

    call->a = work->host[0];
    call->b = work->host[1];
    call->c = (unsigned char *)work->host[2] + guard;
    verify_oracle(call, work->want, work->bound);
    if (test->integers) memset(work->bound, 0, test->m * test->n * sizeof *work->bound);

    for (int i = 0; i < 3; i++) driver->upload(device, work->device[i], work->host[i], work->bytes[i]);
    call->a = work->device[0];
    call->b = work->device[1];
    call->c = (unsigned char *)work->device[2] + guard;
    enum status status = compute_gemm(compute, call);
    if (!status) status = driver->synchronize(device);
    if (status) return status;
    driver->download(device, work->result, work->device[2], work->bytes[2]);

    struct verify_mismatch worst = {0};
    if (!guards_intact(test, work->result, work->bytes[2], call->ldc))
        return failure(compute, test, "it wrote outside C");
    if (!verify_compare(test->dtype, test->m, test->n, work->result + guard, call->ldc, work->want,
                        work->bound, &worst)) {
        char what[160];
        snprintf(what, sizeof what, "C[%zu][%zu] is %.9g, should be %.9g within %.2g", worst.row, worst.col,
                 worst.got, worst.want, worst.bound);
        return failure(compute, test, what);
    }
    return STATUS_OK;
}

enum status verify_gemm(struct compute *compute, const struct verify_case *test, bool *skipped) {
    const bool refused = !compute->backend->supports(test->dtype, test->op);
    if (skipped) *skipped = refused;
    if (refused) return STATUS_OK;

    const bool ta = transposed_a(test->op), tb = transposed_b(test->op);
    const size_t a_rows = ta ? test->k : test->m, a_cols = ta ? test->m : test->k;
    const size_t b_rows = tb ? test->n : test->k, b_cols = tb ? test->k : test->n;
    struct gemm_call call = {.dtype = test->dtype,
                             .op = test->op,
                             .m = test->m,
                             .n = test->n,
                             .k = test->k,
                             .alpha = test->alpha,
                             .beta = test->beta,
                             .lda = a_cols + test->pad,
                             .ldb = b_cols + test->pad,
                             .ldc = test->n + test->pad};
    const size_t size = dtype_size(test->dtype);
    struct workspace work = {.bytes = {a_rows * call.lda * size, b_rows * call.ldb * size,
                                       (test->m + 2 * GUARD_ROWS) * call.ldc * size}};
    enum status status = workspace_alloc(compute, &work, test->m * test->n);
    if (!status) {
        struct rng rng = rng_open(test->seed, RNG_TEST, 0);
        fill(test, &rng, work.host[0], a_rows, a_cols, call.lda);
        fill(test, &rng, work.host[1], b_rows, b_cols, call.ldb);
        if (test->beta != 0)
            fill(test, &rng, (unsigned char *)work.host[2] + GUARD_ROWS * call.ldc * size, test->m, test->n,
                 call.ldc);
        status = run_case(compute, test, &work, &call);
    }
    workspace_free(compute, &work);
    return status;
}

/* --- the list --- */

static const size_t edge[] = {1, 15, 16, 17, 31, 32, 33};
enum { EDGES = sizeof edge / sizeof *edge, CUBE = EDGES * EDGES * EDGES };

/* m n k of odd shapes, empty sums, and the layers of the configs: forward, weight and input gradient. */
static const size_t shapes[][3] = {
    {127, 65, 130}, {5, 7, 0},      {1, 10, 128},   {128, 128, 784}, {784, 128, 128},
    {128, 10, 128}, {128, 128, 10}, {96, 128, 784}, {784, 128, 96},  {96, 10, 128},
    {128, 10, 96},  {96, 128, 10},  {257, 300, 3},  {2, 513, 70},    {300, 1, 259},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const double betas[] = {0, 1, 0.5};
enum { OPS = 3, DTYPES = 2, BETAS = 3, KINDS = 2, VARIANTS = OPS * DTYPES * BETAS * KINDS };

size_t verify_case_count(void) {
    return (CUBE + SHAPES) * (size_t)VARIANTS;
}

struct verify_case verify_case_at(size_t index) {
    const size_t shape = index / VARIANTS, variant = index % VARIANTS;
    struct verify_case test = {
        .op = (enum gemm_op)(variant % OPS),
        .dtype = (enum gemm_dtype)(variant / OPS % DTYPES),
        .beta = betas[variant / OPS / DTYPES % BETAS],
        .integers = variant / OPS / DTYPES / BETAS == 0,
        .pad = (shape + variant) % 2 ? 3 : 0, /* each variant meets both, shape by shape */
        .alpha = shape / 2 % 3 ? 1 : -0.5,
        .seed = index,
    };
    if (shape < CUBE) {
        test.m = edge[shape / EDGES / EDGES];
        test.n = edge[shape / EDGES % EDGES];
        test.k = edge[shape % EDGES];
    } else {
        test.m = shapes[shape - CUBE][0];
        test.n = shapes[shape - CUBE][1];
        test.k = shapes[shape - CUBE][2];
    }
    return test;
}

enum status verify_backend(struct compute *compute, size_t *checked, size_t *skipped) {
    *checked = *skipped = 0;
    for (size_t i = 0; i < verify_case_count(); i++) {
        const struct verify_case test = verify_case_at(i);
        bool skip;
        const enum status status = verify_gemm(compute, &test, &skip);
        if (status) return status;
        *(skip ? skipped : checked) += 1;
    }
    return STATUS_OK;
}
