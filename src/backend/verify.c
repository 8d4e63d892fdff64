#include "src/backend/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/activation.h"
#include "src/backend/oracle.h"
#include "src/backend/surroundings.h"
#include "src/backend/verify_hint.h"
#include "src/backend/verify_values.h"
#include "src/base/pages.h"
#include "src/base/progress.h"

enum { GUARD_ROWS = 2 };
static const unsigned char GUARD_BYTE = 0xFF; /* as a float or a double: NaN */

enum { A, B, C, BIAS, PRE, OUTPUT, BUFFERS }; /* BIAS: the bias or its gradient */

/* What a buffer that the call writes should hold, dense m x n, and the error allowed for each element. */
struct expected {
    double *want, *allowed;
};

/* A call and the structs that it points to, on the host's buffers or on the device's. */
struct pointed_call {
    struct gemm_call call;
    struct gemm_epilogue epilogue;
    struct gemm_backward backward;
};

/* A case: its inputs on the host, and what the oracle expects of every backend. */
struct prepared {
    const struct verify_case *test;
    struct oracle_inputs inputs;
    size_t bytes[BUFFERS], guard; /* guard: bytes in front of C */
    void *host[BUFFERS];
    struct pointed_call call;
    struct expected c, pre;       /* pre: only if the epilogue stores it */
    unsigned char *result, *sums; /* downloaded: any buffer; the gradient of the bias */
};

/* A backend that runs the case. */
struct candidate {
    struct compute *compute;
    bool guarded; /* what is only read lies next to a page that cannot be accessed */
    void *device[BUFFERS];
    struct pointed_call call;
};

static bool is_guarded(const struct candidate *candidate, int buffer) {
    return candidate->guarded && (buffer == A || buffer == B || buffer == BIAS); /* C has guard bytes */
}

static void prepared_free(struct prepared *prepared) {
    for (int i = 0; i < BUFFERS; i++) free(prepared->host[i]);
    free(prepared->c.want);
    free(prepared->c.allowed);
    free(prepared->pre.want);
    free(prepared->pre.allowed);
    free(prepared->result);
    free(prepared->sums);
}

static bool expected_alloc(struct expected *expected, size_t elements) {
    expected->want = malloc((elements + 1) * sizeof *expected->want); /* + 1: not NULL if m = 0 */
    expected->allowed = malloc((elements + 1) * sizeof *expected->allowed);
    return expected->want && expected->allowed;
}

static enum status prepared_alloc(struct prepared *prepared) {
    const struct verify_case *test = prepared->test;
    size_t largest = 1;
    bool all = expected_alloc(&prepared->c, test->m * test->n) &&
               (!test->keeps_pre || expected_alloc(&prepared->pre, test->m * test->n));
    for (int i = 0; i < BUFFERS; i++) {
        prepared->host[i] = malloc(prepared->bytes[i] + 1); /* + 1: not NULL if k = 0 */
        all = all && prepared->host[i];
        if (prepared->bytes[i] > largest) largest = prepared->bytes[i];
    }
    prepared->result = malloc(largest);
    prepared->sums = malloc(prepared->bytes[BIAS] + 1);
    all = all && prepared->result && prepared->sums;
    return all ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

static void candidate_free(struct candidate *candidate) {
    struct device *device = &candidate->compute->device;
    for (int i = 0; i < BUFFERS; i++)
        if (!is_guarded(candidate, i)) device->driver->free(device, candidate->device[i]);
}

/* Kept from case to case: to map these pages takes longer than most products. Backends take turns on them. */
static _Thread_local struct pages_guarded guarded[BUFFERS];

/* The read buffers lie in front of a page that cannot be accessed, or behind it. */
static enum status candidate_alloc(struct candidate *candidate, const struct prepared *prepared) {
    struct device *device = &candidate->compute->device;
    const bool at_end = prepared->test->seed % 2;
    for (int i = 0; i < BUFFERS; i++) {
        candidate->device[i] = is_guarded(candidate, i)
                                   ? pages_guarded_take(&guarded[i], prepared->bytes[i], at_end)
                                   : device->driver->alloc(device, prepared->bytes[i]);
        if (!candidate->device[i]) return status_set(STATUS_FAILED, "out of memory");
    }
    return STATUS_OK;
}

static void note(const struct verify_case *test) {
    char epilogue[64] = "";
    if (test->epilogue || test->backward)
        snprintf(epilogue, sizeof epilogue, " %s activation %s%s",
                 test->backward ? "backward through" : "and", activation_name(test->activation),
                 test->keeps_pre ? " storing its input" : "");
    static const char *const values[] = {"reals",      "rows of zeros", "large reals",   "small reals",
                                         "tiny reals", "Inf and NaN",   "positive reals"};
    progress_set("%s%s %s m=%zu n=%zu k=%zu pad=%zu alpha=%g beta=%g %s%s", dtype_name(test->dtype),
                 test->c_f32 ? " to f32" : "", gemm_op_name(test->op), test->m, test->n, test->k, test->pad,
                 test->alpha, test->beta, test->integers ? "integers" : values[test->values], epilogue);
}

static enum status failure(const struct compute *compute, const char *what) {
    return status_set(STATUS_VERIFY_FAILED, "backend '%s' is wrong: %s: %s", compute->backend->name,
                      progress_text(), what);
}

static bool all_guard(const unsigned char *bytes, size_t count) {
    unsigned char same = GUARD_BYTE;
    for (size_t at = 0; at < count; at++) same &= bytes[at];
    return same == GUARD_BYTE; /* every bit is set */
}

/* All bytes outside the m x n elements must still hold the guard byte. */
static bool guards_intact(const struct verify_case *test, const unsigned char *c, size_t bytes, size_t ldc) {
    const size_t size = dtype_size(test->c_f32 ? GEMM_F32 : test->dtype), row = ldc * size;
    const size_t start = GUARD_ROWS * row, end = start + test->m * row, used = test->n * size;
    if (!all_guard(c, start) || !all_guard(c + end, bytes - end)) return false;
    for (size_t at = start; at < end; at += row)
        if (!all_guard(c + at + used, row - used)) return false;
    return true;
}

/* Sums of small integers are the same in every dtype and order. */
static bool is_exact(const struct verify_case *test) {
    return test->integers && !test->epilogue && !test->backward;
}

/* Reals are drawn from [-1, 1), or are positive; precision tf32 rounds them. Sums of 16 bits may be
   truncated, as tensor cores do. */
static struct oracle_inputs inputs_of(const struct compute *compute, const struct verify_case *test) {
    const bool tf32 = compute->precision == GEMM_TF32 && test->dtype == GEMM_F32 && !test->integers,
               positive = test->values == VERIFY_POSITIVE;
    return (struct oracle_inputs){.zero_mean = !test->integers && !positive,
                                  .positive = positive && !gemm_is_16bit(test->dtype),
                                  .rounding = tf32 ? ORACLE_TF32 : 0};
}

/* Is the root mean square of the errors bounded, too? */
static bool bounds_rms(const struct prepared *prepared) {
    const struct verify_case *test = prepared->test;
    return !gemm_is_16bit(test->dtype) && prepared->inputs.rounding == 0 && !test->integers &&
           !test->epilogue && !test->backward && test->values != VERIFY_TINY &&
           test->values != VERIFY_SPECIAL && test->k >= ORACLE_RMS_TERMS &&
           test->m * test->n >= ORACLE_RMS_ELEMENTS;
}

static enum status check_rms(const struct candidate *candidate, const struct prepared *prepared) {
    const struct verify_case *test = prepared->test;
    char what[300];
    if (!bounds_rms(prepared)) return STATUS_OK;
    const double rms = oracle_rms(test->dtype, test->m, test->n, prepared->result + prepared->guard,
                                  prepared->call.call.ldc, prepared->c.want, prepared->c.allowed);
    if (rms <= ORACLE_RMS) return STATUS_OK;
    snprintf(
        what, sizeof what,
        "each element of C is within its bound, but the root mean square of the errors is %.2g of it, and "
        "that of %s sums at most %.2g: is the mantissa of an operand or of a sum too short?",
        rms, dtype_name(test->dtype), ORACLE_RMS);
    return failure(candidate->compute, what);
}

static void download(const struct candidate *candidate, const struct prepared *prepared, int buffer,
                     void *to) {
    struct device *device = &candidate->compute->device;
    device->driver->download(device, to, candidate->device[buffer], prepared->bytes[buffer]);
}

/* Compares buffer C or PRE with what is expected. */
static enum status check(const struct candidate *candidate, const struct prepared *prepared, int buffer) {
    const struct verify_case *test = prepared->test;
    const struct gemm_call *call = &prepared->call.call;
    const struct expected *expected = buffer == C ? &prepared->c : &prepared->pre;
    const void *const got = prepared->result + prepared->guard;
    struct oracle_mismatch worst = {0};
    char what[400];
    download(candidate, prepared, buffer, prepared->result);
    if (!guards_intact(test, prepared->result, prepared->bytes[buffer], call->ldc))
        return failure(candidate->compute,
                       buffer == C ? "it wrote outside C" : "it wrote outside the input of the activation");
    if (oracle_compare(dtype_of_c(call), test->m, test->n, got, call->ldc, expected->want, expected->allowed,
                       &worst))
        return buffer == C ? check_rms(candidate, prepared) : STATUS_OK;
    snprintf(what, sizeof what, "%s[%zu][%zu] is %.9g, should be %.9g within %.2g",
             buffer == C ? "C" : "the input of the activation", worst.row, worst.col,
             isnan(worst.got) ? (double)NAN : worst.got /* not -nan */, worst.want, worst.bound);
    if (!test->epilogue && !test->backward) {
        const struct wrong_result wrong = {call, got, expected->want, expected->allowed, prepared->inputs};
        verify_hint(&wrong, what, sizeof what);
    }
    return failure(candidate->compute, what);
}

/* The gradient of the bias must be the column sums of C as stored, which `check` left in `result`. */
static enum status check_sums(const struct candidate *candidate, const struct prepared *prepared) {
    const struct verify_case *test = prepared->test;
    const struct gemm_call *call = &prepared->call.call;
    const enum gemm_dtype real = dtype_of_sums(test->dtype);
    download(candidate, prepared, BIAS, prepared->sums);
    for (size_t j = 0; j < test->n; j++) {
        double sum = 0, magnitude = 0;
        for (size_t i = 0; i < test->m; i++) {
            const double value =
                dtype_get(dtype_of_c(call), prepared->result + prepared->guard, i * call->ldc + j);
            sum += value;
            magnitude += fabs(value);
        }
        const double got = dtype_get(real, prepared->sums, j) / gemm_bias_scale(call);
        if (!(fabs(got - sum) <= (double)(test->m + 4) * dtype_epsilon(real) * magnitude))
            return failure(candidate->compute, "the gradient of the bias is not the sum of the columns");
    }
    return STATUS_OK;
}

/* What the call only reads must be as uploaded, padding included. */
static enum status check_inputs(const struct candidate *candidate, const struct prepared *prepared) {
    const struct verify_case *test = prepared->test;
    const bool input[BUFFERS] = {
        [A] = true, [B] = true, [BIAS] = test->epilogue, [PRE] = test->backward, [OUTPUT] = test->backward};
    static const char *const what[BUFFERS] = {"it wrote to A",
                                              "it wrote to B",
                                              "",
                                              "it wrote to the bias",
                                              "it wrote to the stored input of the activation",
                                              "it wrote to the stored output of the activation"};
    for (int i = 0; i < BUFFERS; i++) {
        if (!input[i]) continue;
        download(candidate, prepared, i, prepared->result);
        if (memcmp(prepared->result, prepared->host[i], prepared->bytes[i]) != 0)
            return failure(candidate->compute, what[i]);
    }
    return STATUS_OK;
}

/* `shape` has everything but pointers; `guard` bytes lie in front of C. */
static void point_call(struct pointed_call *to, const struct gemm_call *shape, const struct verify_case *test,
                       void *const *memory, size_t guard) {
    unsigned char *const pre = (unsigned char *)memory[PRE] + guard;
    to->call = *shape;
    to->call.a = memory[A];
    to->call.b = memory[B];
    to->call.c = (unsigned char *)memory[C] + guard;
    to->epilogue = (struct gemm_epilogue){
        .bias = memory[BIAS], .activation = test->activation, .pre = test->keeps_pre ? pre : NULL};
    to->backward = (struct gemm_backward){.activation = test->activation,
                                          .pre = pre,
                                          .output = (unsigned char *)memory[OUTPUT] + guard,
                                          .bias_grad = memory[BIAS],
                                          .bias_scale = 0x1p-9};
    to->call.epilogue = test->epilogue ? &to->epilogue : NULL;
    to->call.backward = test->backward ? &to->backward : NULL;
}

/* A result of 16 bits is rounded once. Integers are exact before it, and equality is expected. */
static void allow_rounding(const struct prepared *prepared, const struct expected *expected) {
    const enum gemm_dtype dtype = dtype_of_c(&prepared->call.call);
    const size_t elements = prepared->test->m * prepared->test->n;
    const bool exact = is_exact(prepared->test), rounds = gemm_is_16bit(dtype);
    if (exact) memset(expected->allowed, 0, elements * sizeof *expected->allowed);
    for (size_t i = 0; i < elements && rounds; i++) {
        double rounded = 0;
        if (exact) {
            dtype_set(dtype, &rounded, 0, expected->want[i]);
            expected->want[i] = dtype_get(dtype, &rounded, 0);
        } else {
            expected->allowed[i] += dtype_rounding(dtype, fabs(expected->want[i]) + expected->allowed[i]);
        }
    }
}

/* What the oracle expects of the inputs in the host's buffers. */
static enum status compute_expected(struct prepared *prepared) {
    const struct verify_case *test = prepared->test;
    const struct gemm_call *call = &prepared->call.call;
    const struct expected *c = &prepared->c, *pre = &prepared->pre;
    const size_t bytes = test->m * test->n * sizeof *c->want;
    const enum status status = oracle_product(call, prepared->inputs, c->want, c->allowed);
    if (status) return status;
    if (test->epilogue) oracle_add_bias(call, c->want, c->allowed);
    if (test->keeps_pre) {
        memcpy(pre->want, c->want, bytes);
        memcpy(pre->allowed, c->allowed, bytes);
        allow_rounding(prepared, pre);
    }
    if (test->epilogue) oracle_activate(call, c->want, c->allowed);
    if (test->backward) oracle_backward(call, c->want, c->allowed);
    allow_rounding(prepared, c);
    if (test->backward) oracle_saturate(call, c->want, c->allowed);
    return STATUS_OK;
}

/* One call on the inputs in the host's buffers, and its checks. */
static enum status run_round(const struct candidate *candidate, const struct prepared *prepared) {
    struct compute *compute = candidate->compute;
    struct device *device = &compute->device;
    const struct device_driver *driver = device->driver;
    for (int i = 0; i < BUFFERS; i++)
        driver->upload(device, candidate->device[i], prepared->host[i], prepared->bytes[i]);
    struct surroundings before, after;
    surroundings_observe(&before);
    enum status status = compute_gemm(compute, &candidate->call.call);
    if (!status) status = driver->synchronize(device);
    if (status) return failure(compute, status_message()); /* every shape is valid */
    surroundings_observe(&after);
    const char *change = surroundings_changed(&before, &after);
    if (change) return failure(compute, change);
    status = check_inputs(candidate, prepared);
    if (!status && prepared->test->keeps_pre) status = check(candidate, prepared, PRE);
    if (!status) status = check(candidate, prepared, C);
    return status || !prepared->test->backward ? status : check_sums(candidate, prepared);
}

/* Fills the buffers with the guard byte, but A and B only if they have padding; then draws the inputs of this
   round. */
static void draw_inputs(const struct prepared *prepared, uint32_t round) {
    const struct verify_case *test = prepared->test;
    const struct gemm_call *call = &prepared->call.call;
    const bool ta = gemm_transposes_a(test->op), tb = gemm_transposes_b(test->op);
    const enum gemm_dtype c_dtype = dtype_of_c(call), real = dtype_of_sums(test->dtype);
    const size_t start = GUARD_ROWS * call->ldc;
    void *const *host = prepared->host;
    uint64_t random = 2 * test->seed + round;
    for (int i = test->pad ? A : C; i < BUFFERS; i++) memset(host[i], GUARD_BYTE, prepared->bytes[i]);
    verify_fill(test->integers, test->dtype, &random, host[A], ta ? test->k : test->m, ta ? test->m : test->k,
                call->lda);
    verify_fill(test->integers, test->dtype, &random, host[B], tb ? test->n : test->k, tb ? test->k : test->n,
                call->ldb);
    verify_change_values(test, call, host[A], host[B]);
    if (test->beta != 0)
        verify_fill(test->integers, c_dtype, &random, (unsigned char *)host[C] + start * dtype_size(c_dtype),
                    test->m, test->n, call->ldc);
    if (test->epilogue) verify_fill(test->integers, real, &random, host[BIAS], 1, test->n, test->n);
    if (!test->backward) return;
    unsigned char *const pre = (unsigned char *)host[PRE] + start * dtype_size(c_dtype);
    verify_fill(test->integers, c_dtype, &random, pre, test->m, test->n, call->ldc);
    verify_scale(c_dtype, pre, test->m, test->n, call->ldc, 3); /* to -8 and 8 */
    for (size_t i = 0; i < test->m * test->n; i++) {
        const size_t at = start + i / test->n * call->ldc + i % test->n;
        dtype_set(c_dtype, host[OUTPUT], at,
                  oracle_activated(test->activation, dtype_get(c_dtype, host[PRE], at)));
    }
}

/* Allocates the case; its inputs are not drawn yet. */
static enum status prepare(struct prepared *prepared, const struct verify_case *test,
                           const struct compute *compute) {
    const bool ta = gemm_transposes_a(test->op), tb = gemm_transposes_b(test->op);
    const size_t a_rows = ta ? test->k : test->m, a_cols = ta ? test->m : test->k;
    const size_t b_rows = tb ? test->n : test->k, b_cols = tb ? test->k : test->n;
    const struct gemm_call call = {.dtype = test->dtype,
                                   .c_f32 = test->c_f32,
                                   .op = test->op,
                                   .m = test->m,
                                   .n = test->n,
                                   .k = test->k,
                                   .alpha = test->alpha,
                                   .beta = test->beta,
                                   .lda = a_cols + test->pad,
                                   .ldb = b_cols + test->pad,
                                   .ldc = test->n + test->pad,
                                   .as_update = test->as_update};
    const enum gemm_dtype c_dtype = dtype_of_c(&call), real = dtype_of_sums(test->dtype);
    const size_t row = call.ldc * dtype_size(c_dtype), c_bytes = (test->m + 2 * GUARD_ROWS) * row;
    *prepared = (struct prepared){
        .test = test,
        .inputs = inputs_of(compute, test),
        .guard = GUARD_ROWS * row,
        .bytes = {[A] = dtype_span(test->dtype, a_rows, a_cols, call.lda),
                  [B] = dtype_span(test->dtype, b_rows, b_cols, call.ldb),
                  [C] = c_bytes,
                  [BIAS] = test->epilogue || test->backward ? test->n * dtype_size(real) : 0,
                  [PRE] = test->keeps_pre || test->backward ? c_bytes : 0,
                  [OUTPUT] = test->backward ? c_bytes : 0}};
    const enum status status = prepared_alloc(prepared);
    if (!status) point_call(&prepared->call, &call, test, prepared->host, prepared->guard);
    return status;
}

/* Allocates the buffers of a backend; *skipped if it does not fuse the epilogue of the case. */
static enum status join(struct candidate *candidate, const struct prepared *prepared, bool *skipped) {
    const struct verify_case *test = prepared->test;
    const enum status status = candidate_alloc(candidate, prepared);
    if (status) return status;
    point_call(&candidate->call, &prepared->call.call, test, candidate->device, prepared->guard);
    *skipped =
        (test->epilogue || test->backward) && !compute_fuses(candidate->compute, &candidate->call.call);
    return STATUS_OK;
}

enum status verify_gemm_together(struct compute *const *computes, size_t count,
                                 const struct verify_case *test, bool *skipped) {
    struct candidate candidates[VERIFY_TOGETHER] = {{0}};
    struct prepared prepared;
    size_t running = count;
    note(test);
    for (size_t i = 0; i < count; i++) {
        candidates[i] =
            (struct candidate){.compute = computes[i], .guarded = computes[i]->device.driver->host_memory};
        skipped[i] = !computes[i]->backend->supports(test->dtype, test->op);
        running -= skipped[i];
    }
    if (running == 0) return STATUS_OK;
    enum status status = prepare(&prepared, test, computes[0]);
    for (size_t i = 0; i < count && !status; i++) {
        if (skipped[i]) continue;
        status = join(&candidates[i], &prepared, &skipped[i]);
        running -= skipped[i];
    }
    for (uint32_t round = 0; running && !status && round <= (uint32_t)test->twice; round++) {
        draw_inputs(&prepared, round);
        status = compute_expected(&prepared);
        for (size_t i = 0; i < count && !status; i++)
            if (!skipped[i]) status = run_round(&candidates[i], &prepared);
    }
    for (size_t i = 0; i < count; i++) candidate_free(&candidates[i]);
    prepared_free(&prepared);
    return status;
}

enum status verify_gemm(struct compute *compute, const struct verify_case *test, bool *skipped) {
    bool ignored;
    return verify_gemm_together(&compute, 1, test, skipped ? skipped : &ignored);
}
