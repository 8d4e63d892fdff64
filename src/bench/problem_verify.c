/* Is the result of a backend on one shape right? */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/oracle.h"
#include "src/base/profile.h"
#include "src/base/rng.h"
#include "src/base/secret.h"
#include "src/bench/problem.h"

enum { A = PROBLEM_A, B = PROBLEM_B, C = PROBLEM_C, SAMPLED_ROWS = 16 };
static const unsigned char POISON = 0xFF; /* NaN in every dtype */
static const double AGAIN_SECONDS = 0.5;  /* no further copy is multiplied after that */
static const double CHECK_SECONDS = 0.03; /* nor checked after the timing */

enum status problem_wrong(const struct problem *problem, const char *what) {
    const enum gemm_dtype dtype = problem->call.dtype, c_dtype = dtype_of_c(&problem->call);
    return status_set(STATUS_VERIFY_FAILED, "backend '%s' is wrong: %s%s%s %s m=%zu n=%zu k=%zu: %s",
                      problem->compute->backend->name, dtype_name(dtype), c_dtype == dtype ? "" : " to ",
                      c_dtype == dtype ? "" : dtype_name(c_dtype), gemm_op_name(problem->call.op),
                      problem->call.m, problem->call.n, problem->call.k, what);
}

static void fill_one(const struct problem *problem, int matrix, struct rng *rng) {
    const size_t count = problem->bytes[matrix] / dtype_size(problem->call.dtype);
    for (size_t i = 0; i < count; i++) {
        const uint32_t word = rng_u32(rng);
        const double value = problem->inputs == PROBLEM_INTEGERS    ? (double)(word % 17) - 8
                             : matrix == A && problem->shape.pixels ? problem_pixel(word)
                                                                    : (double)word * 0x1p-31 - 1;
        dtype_set(problem->call.dtype, problem->host[matrix], i, value);
    }
}

static void fill(struct problem *problem, enum problem_inputs inputs, struct rng *rng) {
    problem->inputs = inputs;
    fill_one(problem, A, rng);
    fill_one(problem, B, rng);
}

/* The same inputs in every copy, and NaN in every C. */
static void upload_inputs(struct problem *problem) {
    struct device *device = &problem->compute->device;
    memset(problem->host[C], POISON, problem->pitch[C]);
    for (size_t copy = 0; copy < problem->copies; copy++) {
        device->driver->upload(device, problem_at(problem, A, copy), problem->host[A], problem->bytes[A]);
        device->driver->upload(device, problem_at(problem, B, copy), problem->host[B], problem->bytes[B]);
        device->driver->upload(device, (char *)problem_at(problem, C, copy) - PROBLEM_GUARD, problem->host[C],
                               problem->pitch[C]);
    }
}

static bool all_poison(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != POISON) return false;
    return true;
}

/* Multiplies each copy once, fewer on a slow backend. The C of the first stays in host[C]; the others must be
   bit-identical. */
static enum status multiply_all(struct problem *problem) {
    struct device *device = &problem->compute->device;
    unsigned char *first = problem->host[C], *other = malloc(problem->pitch[C]);
    enum status status = other ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    upload_inputs(problem);
    problem->next = 0;
    const double start = clock_seconds();
    size_t done = 0;
    while (done < problem->copies && !status && (done == 0 || clock_seconds() - start < AGAIN_SECONDS)) {
        status = problem_call(problem);
        done++;
    }
    if (!status) status = device->driver->synchronize(device);
    for (size_t copy = 0; copy < done && !status; copy++) {
        unsigned char *into = copy ? other : first;
        device->driver->download(device, into, (char *)problem_at(problem, C, copy) - PROBLEM_GUARD,
                                 problem->pitch[C]);
        const size_t end = PROBLEM_GUARD + problem->bytes[C];
        if (!all_poison(into, PROBLEM_GUARD) || !all_poison(into + end, problem->pitch[C] - end)) {
            status = problem_wrong(problem, "it wrote outside C");
        } else if (copy && memcmp(first + PROBLEM_GUARD, other + PROBLEM_GUARD, problem->bytes[C]) != 0) {
            status = problem_wrong(problem, "the same call gave other bits the second time");
        }
    }
    free(other);
    return status;
}

static enum status element_wrong(const struct problem *problem, const struct oracle_mismatch *worst) {
    char what[160];
    snprintf(what, sizeof what, "C[%zu][%zu] is %.9g, should be %.9g within %.2g", worst->row, worst->col,
             worst->got, worst->want, worst->bound);
    return problem_wrong(problem, what);
}

/* out = X v for a stored matrix, or X^T v. */
static void times_vector(enum gemm_dtype dtype, const void *x, size_t rows, size_t cols, bool transposed,
                         const double *v, double *out) {
    memset(out, 0, (transposed ? cols : rows) * sizeof *out);
    for (size_t i = 0; i < rows; i++) {
        double sum = 0;
        for (size_t j = 0; j < cols; j++) {
            const double value = dtype_get(dtype, x, i * cols + j);
            if (transposed) {
                out[j] += value * v[i];
            } else {
                sum += value * v[j];
            }
        }
        if (!transposed) out[i] = sum;
    }
}

/* Copies these rows of op(A) to `out`, a dense matrix. */
static void take_rows(const struct problem *problem, const size_t *rows, size_t count, void *out) {
    const struct gemm_call *call = &problem->call;
    const bool ta = gemm_transposes_a(call->op);
    for (size_t r = 0; r < count; r++)
        for (size_t p = 0; p < call->k; p++) {
            const size_t at = ta ? p * call->lda + rows[r] : rows[r] * call->lda + p;
            dtype_set(call->dtype, out, r * call->k + p, dtype_get(call->dtype, problem->host[A], at));
        }
}

static struct oracle_inputs inputs_of(const struct problem *problem) {
    const bool tf32 = problem->compute->precision == GEMM_TF32 && problem->call.dtype == GEMM_F32;
    return (struct oracle_inputs){.zero_mean = true, .rounding = tf32 ? ORACLE_TF32 : 0};
}

/* Memory of the checks: vectors of Freivalds' check; sampled rows of A, of the oracle and of C. */
struct checks {
    double *x, *bx, *abx, *cx, *want, *bound;
    void *a_rows, *c_rows;
};

/* Compares rows of C with the oracle; `integers`: for equality. */
static enum status check_rows(const struct problem *problem, const size_t *rows, size_t count, bool integers,
                              struct checks *checks) {
    const enum gemm_dtype c_dtype = dtype_of_c(&problem->call);
    struct gemm_call call = problem->call;
    struct oracle_mismatch worst = {0};
    const size_t row_bytes = call.n * dtype_size(c_dtype);
    take_rows(problem, rows, count, checks->a_rows);
    for (size_t r = 0; r < count; r++)
        memcpy((char *)checks->c_rows + r * row_bytes,
               (const char *)problem->host[C] + PROBLEM_GUARD + rows[r] * row_bytes, row_bytes);
    call.m = count;
    call.op = gemm_transposes_b(call.op) ? GEMM_NT : GEMM_NN;
    call.a = checks->a_rows;
    call.lda = call.k;
    call.b = problem->host[B];
    const enum status status = oracle_product(&call, inputs_of(problem), checks->want, checks->bound);
    if (status) return status;
    if (integers) memset(checks->bound, 0, count * call.n * sizeof *checks->bound);
    for (size_t i = 0; i < count * call.n; i++) /* one more rounding */
        checks->bound[i] += dtype_rounding(c_dtype, fabs(checks->want[i]) + checks->bound[i]);
    if (oracle_compare(c_dtype, count, call.n, checks->c_rows, call.n, checks->want, checks->bound, &worst))
        return STATUS_OK;
    worst.row = rows[worst.row];
    return element_wrong(problem, &worst);
}

/* Exact in double: |B x| <= 64 n, |A B x| <= 512 n k < 2^53 for all sizes that fit into memory. */
static enum status check_integers(const struct problem *problem, struct checks *checks, struct rng *rng) {
    const struct gemm_call *call = &problem->call;
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t m = call->m, n = call->n, k = call->k;
    for (size_t j = 0; j < n; j++) {
        const int32_t value = (int32_t)rng_below(rng, 16) - 8;
        checks->x[j] = value < 0 ? value : value + 1;
    }
    times_vector(call->dtype, problem->host[B], tb ? n : k, tb ? k : n, tb, checks->x, checks->bx);
    times_vector(call->dtype, problem->host[A], ta ? k : m, ta ? m : k, ta, checks->bx, checks->abx);
    times_vector(dtype_of_c(call), (const char *)problem->host[C] + PROBLEM_GUARD, m, n, false, checks->x,
                 checks->cx);
    for (size_t i = 0; i < m; i++) {
        if (checks->cx[i] == checks->abx[i]) continue;
        const enum status status = check_rows(problem, &i, 1, true, checks);
        return status ? status : problem_wrong(problem, "C x is not A (B x)");
    }
    return STATUS_OK;
}

static enum status check_reals(struct problem *problem, struct checks *checks, struct rng *rng) {
    const size_t m = problem->call.m, n = problem->call.n, count = m < SAMPLED_ROWS ? m : SAMPLED_ROWS;
    size_t rows[SAMPLED_ROWS];
    for (size_t r = 0; r < count; r++) rows[r] = count == m ? r : rng_below(rng, (uint32_t)m);
    if (count < m) rows[0] = m - 1;
    const enum status status = check_rows(problem, rows, count, false, checks);
    const enum gemm_dtype c_dtype = dtype_of_c(&problem->call);
    if (!status && !gemm_is_16bit(c_dtype)) /* else it is that of rounding C */
        problem->relative_error = oracle_relative_error(c_dtype, count, n, checks->c_rows, n, checks->want);
    return status;
}

/* Is C equal to `exact`, rounded once? */
static enum status check_rounding(const struct problem *problem, const float *exact) {
    const struct gemm_call *call = &problem->call;
    for (size_t i = 0; i < call->m * call->n; i++) {
        double rounded = 0;
        dtype_set(call->dtype, &rounded, 0, exact[i]);
        const double want = dtype_get(call->dtype, &rounded, 0),
                     got = dtype_get(call->dtype, (const char *)problem->host[C] + PROBLEM_GUARD, i);
        if (got == want) continue;
        return element_wrong(problem, &(struct oracle_mismatch){
                                          .row = i / call->n, .col = i % call->n, .got = got, .want = want});
    }
    return STATUS_OK;
}

/* Verifies again with a C of 16 bits, right after the float32 C. */
static enum status verify_rounded(struct problem *problem, enum problem_inputs inputs, struct checks *checks,
                                  struct rng *rng) {
    const size_t bytes = problem->bytes[C];
    float *exact = malloc(bytes);
    if (!exact) return status_set(STATUS_FAILED, "out of memory");
    memcpy(exact, (const char *)problem->host[C] + PROBLEM_GUARD, bytes);
    problem->call.c_f32 = false;
    problem->bytes[C] = problem->call.m * problem->call.n * dtype_size(problem->call.dtype);
    enum status status = multiply_all(problem);
    if (!status)
        status =
            inputs == PROBLEM_INTEGERS ? check_rounding(problem, exact) : check_reals(problem, checks, rng);
    problem->call.c_f32 = true;
    problem->bytes[C] = bytes;
    free(exact);
    return status;
}

/* Memory for the checks; false if there is none left. The caller frees checks->x. */
static bool open_checks(const struct problem *problem, struct checks *checks) {
    const size_t m = problem->call.m, n = problem->call.n, k = problem->call.k, sampled = SAMPLED_ROWS * n;
    checks->x = malloc((n + k + 2 * m + 3 * sampled + SAMPLED_ROWS * k) * sizeof *checks->x);
    if (!checks->x) return false;
    checks->bx = checks->x + n;
    checks->abx = checks->bx + k;
    checks->cx = checks->abx + m;
    checks->want = checks->cx + m;
    checks->bound = checks->want + sampled;
    checks->c_rows = checks->bound + sampled;
    checks->a_rows = checks->bound + 2 * sampled;
    return true;
}

static void download(struct problem *problem, size_t copy) {
    struct device *device = &problem->compute->device;
    for (int x = A; x <= C; x++)
        device->driver->download(device, (char *)problem->host[x] + (x == C ? PROBLEM_GUARD : 0),
                                 problem_at(problem, x, copy), problem->bytes[x]);
}

enum status problem_check(struct problem *problem, size_t copy, size_t row, size_t other) {
    const size_t rows[] = {row, other};
    struct checks checks;
    if (!open_checks(problem, &checks)) return status_set(STATUS_FAILED, "out of memory");
    download(problem, copy);
    const enum status status = check_rows(problem, rows, 2, false, &checks);
    free(checks.x);
    return status == STATUS_VERIFY_FAILED ? status_context(status, "in the timed calls") : status;
}

enum status problem_check_all(struct problem *problem, size_t calls) {
    const size_t copies = problem->copies, count = calls < copies ? calls : copies;
    const double start = clock_seconds();
    struct rng rng = rng_open(secret_draw(&problem->random), RNG_TEST, 0);
    struct checks checks;
    if (!open_checks(problem, &checks)) return status_set(STATUS_FAILED, "out of memory");
    enum status status = STATUS_OK;
    for (size_t i = 1; i <= count && !status && (i == 1 || clock_seconds() - start < CHECK_SECONDS); i++) {
        download(problem, (problem->next + copies - i) % copies);
        status = check_integers(problem, &checks, &rng);
    }
    free(checks.x);
    return status == STATUS_VERIFY_FAILED ? status_context(status, "in the timed calls") : status;
}

enum status problem_renew(struct problem *problem, uint64_t seed) {
    struct rng rng = rng_open(seed, RNG_TEST, PROBLEM_INTEGERS);
    fill(problem, PROBLEM_INTEGERS, &rng);
    upload_inputs(problem);
    enum status status = STATUS_OK;
    for (int call = 0; call < 2 && !status; call++) {
        problem->next = (problem->next + problem->copies - 1) % problem->copies;
        if (call) problem_change(problem, problem->next);
        status = problem_call(problem);
        if (!status) status = problem->compute->device.driver->synchronize(&problem->compute->device);
        if (!status) status = problem_check_all(problem, 1);
    }
    return status;
}

enum status problem_verify(struct problem *problem, enum problem_inputs inputs, uint64_t seed) {
    const struct gemm_call *call = &problem->call;
    struct checks checks;
    if (!open_checks(problem, &checks)) return status_set(STATUS_FAILED, "out of memory");
    struct rng rng = rng_open(seed, RNG_TEST, inputs);
    fill(problem, inputs, &rng);
    enum status status = multiply_all(problem);
    if (!status)
        status = inputs == PROBLEM_INTEGERS ? check_integers(problem, &checks, &rng)
                                            : check_reals(problem, &checks, &rng);
    if (!status && call->c_f32 && call->op != GEMM_TN)
        status = verify_rounded(problem, inputs, &checks, &rng);
    free(checks.x);
    return status;
}
