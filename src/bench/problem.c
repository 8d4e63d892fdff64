#include "src/bench/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/oracle.h"
#include "src/base/profile.h"
#include "src/base/rng.h"
#include "src/base/statistics.h"

enum { A, B, C, GUARD = 256, SAMPLED_ROWS = 16, MOST_COPIES = 4096, TRANSFERS = 7, LONGEST = 1 << 24 };
static const unsigned char POISON = 0xFF; /* as a number of any dtype: NaN */
static const double AGAIN_SECONDS = 0.5;  /* no new copy is begun after that */

static size_t padded(size_t bytes) {
    return (bytes + GUARD - 1) / GUARD * GUARD;
}

enum status problem_open(struct problem *problem, struct compute *compute, enum gemm_dtype dtype,
                         const struct gemm_shape *shape, size_t rotate) {
    const size_t m = shape->m, n = shape->n, k = shape->k, size = dtype_size(dtype);
    const bool ta = gemm_transposes_a(shape->op), tb = gemm_transposes_b(shape->op);
    if (m > LONGEST || n > LONGEST || k > LONGEST)
        return status_set(STATUS_USAGE, "m=%zu n=%zu k=%zu: a side may be at most %d", m, n, k, LONGEST);
    *problem = (struct problem){.compute = compute, .shape = *shape};
    problem->call = (struct gemm_call){.dtype = dtype,
                                       .c_f32 = dtype == GEMM_BF16,
                                       .op = shape->op,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .alpha = 1,
                                       .lda = ta ? m : k,
                                       .ldb = tb ? k : n,
                                       .ldc = n};
    problem->bytes[A] = m * k * size;
    problem->bytes[B] = k * n * size;
    problem->bytes[C] = m * n * dtype_size(dtype_of_c(&problem->call));
    problem->pitch[A] = padded(problem->bytes[A]);
    problem->pitch[B] = padded(problem->bytes[B]);
    problem->pitch[C] = padded(problem->bytes[C]) + 2 * (size_t)GUARD;
    const size_t one = problem->pitch[A] + problem->pitch[B] + problem->pitch[C];
    problem->copies = rotate / one + 1 < MOST_COPIES ? rotate / one + 1 : MOST_COPIES;
    if (rotate && problem->copies < 2) problem->copies = 2;
    for (int x = A; x <= C; x++) {
        problem->host[x] = malloc(problem->pitch[x]);
        problem->device[x] =
            compute->device.driver->alloc(&compute->device, problem->copies * problem->pitch[x]);
        if (problem->host[x] && problem->device[x]) continue;
        const enum status status =
            problem->device[x] ? status_set(STATUS_FAILED, "out of memory") : STATUS_FAILED;
        problem_close(problem);
        return status;
    }
    return STATUS_OK;
}

void problem_close(struct problem *problem) {
    for (int x = A; x <= C; x++) {
        free(problem->host[x]);
        if (problem->compute)
            problem->compute->device.driver->free(&problem->compute->device, problem->device[x]);
    }
    *problem = (struct problem){0};
}

double problem_flops(const struct problem *problem) {
    return 2.0 * (double)problem->call.m * (double)problem->call.n * (double)problem->call.k;
}

double problem_bytes(const struct problem *problem) {
    return (double)(problem->bytes[A] + problem->bytes[B] + problem->bytes[C]);
}

/* --- calls --- */

static void *at_copy(const struct problem *problem, int matrix, size_t copy) {
    return (char *)problem->device[matrix] + copy * problem->pitch[matrix] + (matrix == C ? GUARD : 0);
}

static enum status call_next(struct problem *problem) {
    struct gemm_call call = problem->call;
    call.a = at_copy(problem, A, problem->next);
    call.b = at_copy(problem, B, problem->next);
    call.c = at_copy(problem, C, problem->next);
    problem->next = (problem->next + 1) % problem->copies;
    return compute_gemm(problem->compute, &call);
}

enum status problem_time(struct problem *problem, size_t calls, double *seconds) {
    struct device *device = &problem->compute->device;
    struct profile *before = device->profile, profile;
    const struct gemm_call *call = &problem->call;
    enum status status = device->driver->synchronize(device);
    profile_start(&profile);
    device->profile = &profile;
    if (!status)
        status = device->driver->synchronize(device); /* a device with a clock of its own starts it here */
    for (size_t c = 0; c < calls && !status; c++) status = call_next(problem);
    device->driver->lap(device, profile_gemm_slot(PART_GEMM_NN, 0, call->m, call->n, call->k));
    const enum status finished = device->driver->synchronize(device);
    *seconds = profile.seconds[PART_GEMM_NN] / (double)calls;
    device->profile = before;
    return status ? status : finished;
}

static enum status transfer(struct problem *problem, double *h2d, double *d2h) {
    struct device *device = &problem->compute->device;
    struct profile *before = device->profile, profile;
    enum status status = device->driver->synchronize(device);
    profile_start(&profile);
    device->profile = &profile;
    if (!status) status = device->driver->synchronize(device);
    device->driver->upload(device, at_copy(problem, A, 0), problem->host[A], problem->bytes[A]);
    device->driver->upload(device, at_copy(problem, B, 0), problem->host[B], problem->bytes[B]);
    device->driver->download(device, problem->host[C], at_copy(problem, C, 0), problem->bytes[C]);
    const enum status finished = device->driver->synchronize(device);
    *h2d = profile.seconds[PART_H2D];
    *d2h = profile.seconds[PART_D2H];
    device->profile = before;
    return status ? status : finished;
}

enum status problem_transfers(struct problem *problem, double *h2d, double *d2h) {
    double there[TRANSFERS], back[TRANSFERS];
    enum status status = transfer(problem, &there[0], &back[0]); /* the first touch of this memory */
    for (size_t i = 0; i < TRANSFERS && !status; i++) status = transfer(problem, &there[i], &back[i]);
    if (status) return status;
    *h2d = statistics_of(there, TRANSFERS).median;
    *d2h = statistics_of(back, TRANSFERS).median;
    return STATUS_OK;
}

/* --- verification --- */

static enum status wrong(const struct problem *problem, const char *what) {
    const enum gemm_dtype dtype = problem->call.dtype, c_dtype = dtype_of_c(&problem->call);
    return status_set(STATUS_VERIFY_FAILED, "backend '%s' is wrong: %s%s%s %s m=%zu n=%zu k=%zu: %s",
                      problem->compute->backend->name, dtype_name(dtype), c_dtype == dtype ? "" : " to ",
                      c_dtype == dtype ? "" : dtype_name(c_dtype), gemm_op_name(problem->call.op),
                      problem->call.m, problem->call.n, problem->call.k, what);
}

static void fill(const struct problem *problem, int matrix, enum problem_inputs inputs, struct rng *rng) {
    const size_t count = problem->bytes[matrix] / dtype_size(problem->call.dtype);
    for (size_t i = 0; i < count; i++) {
        const uint32_t word = rng_u32(rng);
        const double value =
            inputs == PROBLEM_INTEGERS ? (double)(word % 17) - 8 : (double)word * 0x1p-31 - 1;
        dtype_set(problem->call.dtype, problem->host[matrix], i, value);
    }
}

/* The same inputs in every copy, and NaN in every C. */
static void upload_inputs(struct problem *problem) {
    struct device *device = &problem->compute->device;
    memset(problem->host[C], POISON, problem->pitch[C]);
    for (size_t copy = 0; copy < problem->copies; copy++) {
        device->driver->upload(device, at_copy(problem, A, copy), problem->host[A], problem->bytes[A]);
        device->driver->upload(device, at_copy(problem, B, copy), problem->host[B], problem->bytes[B]);
        device->driver->upload(device, (char *)at_copy(problem, C, copy) - GUARD, problem->host[C],
                               problem->pitch[C]);
    }
}

static bool all_poison(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != POISON) return false;
    return true;
}

/* Each copy once; the C of the first stays in host[C], the others must have its bits. A slow backend does fewer. */
static enum status multiply_all(struct problem *problem) {
    struct device *device = &problem->compute->device;
    unsigned char *first = problem->host[C], *other = malloc(problem->pitch[C]);
    enum status status = other ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    upload_inputs(problem);
    problem->next = 0;
    const double start = clock_seconds();
    size_t done = 0;
    while (done < problem->copies && !status && (done == 0 || clock_seconds() - start < AGAIN_SECONDS)) {
        status = call_next(problem);
        done++;
    }
    if (!status) status = device->driver->synchronize(device);
    for (size_t copy = 0; copy < done && !status; copy++) {
        unsigned char *into = copy ? other : first;
        device->driver->download(device, into, (char *)at_copy(problem, C, copy) - GUARD, problem->pitch[C]);
        const size_t end = GUARD + problem->bytes[C];
        if (!all_poison(into, GUARD) || !all_poison(into + end, problem->pitch[C] - end)) {
            status = wrong(problem, "it wrote outside C");
        } else if (copy && memcmp(first + GUARD, other + GUARD, problem->bytes[C]) != 0) {
            status = wrong(problem, "the same call gave other bits the second time");
        }
    }
    free(other);
    return status;
}

static enum status element_wrong(const struct problem *problem, const struct oracle_mismatch *worst) {
    char what[160];
    snprintf(what, sizeof what, "C[%zu][%zu] is %.9g, should be %.9g within %.2g", worst->row, worst->col,
             worst->got, worst->want, worst->bound);
    return wrong(problem, what);
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

/* These rows of op(A) as a dense matrix, into `out`. */
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

/* What the checks need: vectors of Freivalds' check, and sampled rows of A, of the oracle and of C. */
struct checks {
    double *x, *bx, *abx, *cx, *want, *bound;
    void *a_rows, *c_rows;
};

/* Rows of C against the oracle; exactly, if `integers`. */
static enum status check_rows(const struct problem *problem, const size_t *rows, size_t count, bool integers,
                              struct checks *checks) {
    const enum gemm_dtype c_dtype = dtype_of_c(&problem->call);
    struct gemm_call call = problem->call;
    struct oracle_mismatch worst = {0};
    const size_t row_bytes = call.n * dtype_size(c_dtype);
    take_rows(problem, rows, count, checks->a_rows);
    for (size_t r = 0; r < count; r++)
        memcpy((char *)checks->c_rows + r * row_bytes,
               (const char *)problem->host[C] + GUARD + rows[r] * row_bytes, row_bytes);
    call.m = count;
    call.op = gemm_transposes_b(call.op) ? GEMM_NT : GEMM_NN;
    call.a = checks->a_rows;
    call.lda = call.k;
    call.b = problem->host[B];
    oracle_product(&call, inputs_of(problem), checks->want, checks->bound);
    if (integers) memset(checks->bound, 0, count * call.n * sizeof *checks->bound);
    for (size_t i = 0; c_dtype == GEMM_BF16 && i < count * call.n; i++) /* rounded once more */
        checks->bound[i] += dtype_epsilon(GEMM_BF16) * (fabs(checks->want[i]) + checks->bound[i]);
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
    times_vector(dtype_of_c(call), (const char *)problem->host[C] + GUARD, m, n, false, checks->x,
                 checks->cx);
    for (size_t i = 0; i < m; i++) {
        if (checks->cx[i] == checks->abx[i]) continue;
        const enum status status = check_rows(problem, &i, 1, true, checks);
        return status ? status : wrong(problem, "C x is not A (B x)");
    }
    return STATUS_OK;
}

static enum status check_reals(const struct problem *problem, struct checks *checks, struct rng *rng) {
    const size_t m = problem->call.m, count = m < SAMPLED_ROWS ? m : SAMPLED_ROWS;
    size_t rows[SAMPLED_ROWS];
    for (size_t r = 0; r < count; r++) rows[r] = count == m ? r : rng_below(rng, (uint32_t)m);
    if (count < m) rows[0] = m - 1;
    return check_rows(problem, rows, count, false, checks);
}

/* Is C what `exact` is, rounded once? */
static enum status check_rounding(const struct problem *problem, const float *exact) {
    const struct gemm_call *call = &problem->call;
    for (size_t i = 0; i < call->m * call->n; i++) {
        double rounded = 0;
        dtype_set(call->dtype, &rounded, 0, exact[i]);
        const double want = dtype_get(call->dtype, &rounded, 0),
                     got = dtype_get(call->dtype, (const char *)problem->host[C] + GUARD, i);
        if (got == want) continue;
        return element_wrong(problem, &(struct oracle_mismatch){
                                          .row = i / call->n, .col = i % call->n, .got = got, .want = want});
    }
    return STATUS_OK;
}

/* Once more with a bfloat16 C, right after a float32 C was found right. */
static enum status verify_rounded(struct problem *problem, enum problem_inputs inputs, struct checks *checks,
                                  struct rng *rng) {
    const size_t bytes = problem->bytes[C];
    float *exact = malloc(bytes);
    if (!exact) return status_set(STATUS_FAILED, "out of memory");
    memcpy(exact, (const char *)problem->host[C] + GUARD, bytes);
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

enum status problem_verify(struct problem *problem, enum problem_inputs inputs, uint64_t seed) {
    const struct gemm_call *call = &problem->call;
    const size_t m = call->m, n = call->n, k = call->k, sampled = SAMPLED_ROWS * n;
    double *memory = malloc((n + k + 2 * m + 3 * sampled + SAMPLED_ROWS * k) * sizeof *memory);
    if (!memory) return status_set(STATUS_FAILED, "out of memory");
    struct checks checks = {.x = memory};
    checks.bx = checks.x + n;
    checks.abx = checks.bx + k;
    checks.cx = checks.abx + m;
    checks.want = checks.cx + m;
    checks.bound = checks.want + sampled;
    checks.c_rows = checks.bound + sampled;
    checks.a_rows = checks.bound + 2 * sampled;
    struct rng rng = rng_open(seed, RNG_TEST, inputs);
    fill(problem, A, inputs, &rng);
    fill(problem, B, inputs, &rng);
    enum status status = multiply_all(problem);
    if (!status)
        status = inputs == PROBLEM_INTEGERS ? check_integers(problem, &checks, &rng)
                                            : check_reals(problem, &checks, &rng);
    if (!status && call->c_f32 && call->op != GEMM_TN)
        status = verify_rounded(problem, inputs, &checks, &rng);
    free(memory);
    return status;
}
