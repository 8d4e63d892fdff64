/* Do Inf and NaN spread as IEEE 754 says, on the shape of this problem? */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/secret.h"
#include "src/bench/problem.h"

enum { A = PROBLEM_A, B = PROBLEM_B, C = PROBLEM_C };

static void set_a(const struct problem *problem, size_t i, size_t p, double value) {
    const struct gemm_call *call = &problem->call;
    const size_t at = gemm_transposes_a(call->op) ? p * call->lda + i : i * call->lda + p;
    dtype_set(call->dtype, problem->host[A], at, value);
}

static void set_b(const struct problem *problem, size_t p, size_t j, double value) {
    const struct gemm_call *call = &problem->call;
    const size_t at = gemm_transposes_b(call->op) ? j * call->ldb + p : p * call->ldb + j;
    dtype_set(call->dtype, problem->host[B], at, value);
}

/* All elements are 1, but for zeros of one operand that meet a special value of the other. */
static void set_inputs(struct problem *problem, size_t row, size_t col) {
    const struct gemm_call *call = &problem->call;
    const size_t p = secret_draw(&problem->random) % call->k,
                 q = (p + 1 + secret_draw(&problem->random) % (call->k - 1)) % call->k;
    const bool swapped = secret_draw(&problem->random) & 1;
    const size_t size = dtype_size(call->dtype);
    for (int x = A; x <= B; x++)
        for (size_t i = 0; i < problem->bytes[x] / size; i++) dtype_set(call->dtype, problem->host[x], i, 1);
    for (size_t i = 0; i < call->m; i++) set_a(problem, i, p, 0);
    for (size_t j = 0; j < call->n; j++) set_b(problem, q, j, 0);
    set_b(problem, p, col, swapped ? (double)NAN : (double)INFINITY);
    set_a(problem, row, q, swapped ? (double)INFINITY : (double)NAN);
}

static enum status multiply_first(struct problem *problem) {
    struct device *device = &problem->compute->device;
    void *const result = (char *)problem->host[C] + PROBLEM_GUARD;
    memset(problem->host[C], 0, problem->pitch[C]);
    for (int x = A; x <= C; x++)
        device->driver->upload(device, problem_at(problem, x, 0), x == C ? result : problem->host[x],
                               problem->bytes[x]);
    problem->next = 0;
    const enum status status = problem_call(problem);
    if (status) return status;
    device->driver->download(device, result, problem_at(problem, C, 0), problem->bytes[C]);
    return device->driver->synchronize(device);
}

enum status problem_verify_special(struct problem *problem) {
    const struct gemm_call *call = &problem->call;
    if (call->k < 2) return STATUS_OK;
    const size_t row = secret_draw(&problem->random) % call->m, col = secret_draw(&problem->random) % call->n;
    set_inputs(problem, row, col);
    const enum status status = multiply_first(problem);
    if (status) return status;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            const double got = dtype_get(dtype_of_c(call), (const char *)problem->host[C] + PROBLEM_GUARD,
                                         i * call->ldc + j);
            char what[160];
            if (i == row || j == col ? isnan(got) : got == (double)(call->k - 2)) continue;
            snprintf(what, sizeof what,
                     "with Inf and NaN where the other operand is 0: C[%zu][%zu] is %.9g, should be %.9g", i,
                     j, got, i == row || j == col ? (double)NAN : (double)(call->k - 2));
            return problem_wrong(problem, what);
        }
    return STATUS_OK;
}
