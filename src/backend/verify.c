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

/* The buffers of one case: on the host, and the same on the device. */
struct workspace {
    size_t bytes[BUFFERS];
    bool guarded; /* what is only read lies next to a page that cannot be accessed */
    bool at_end;  /* in front of that page, else behind it */
    void *host[BUFFERS], *device[BUFFERS];
    unsigned char *result;          /* room for the largest buffer */
    double *want, *bound, *allowed; /* allowed: the bound plus the rounding of C */
};

static bool is_guarded(const struct workspace *work, int buffer) {
    return work->guarded && (buffer == A || buffer == B || buffer == BIAS); /* C has guard bytes */
}

static void workspace_free(struct compute *compute, struct workspace *work) {
    for (int i = 0; i < BUFFERS; i++) {
        free(work->host[i]);
        if (!is_guarded(work, i)) compute->device.driver->free(&compute->device, work->device[i]);
    }
    free(work->result);
    free(work->want);
    free(work->bound);
    free(work->allowed);
}

/* Kept from case to case: to map these pages takes longer than most products. */
static _Thread_local struct pages_guarded guarded[BUFFERS];

static enum status workspace_alloc(struct compute *compute, struct workspace *work, size_t elements) {
    struct device *device = &compute->device;
    for (int i = 0; i < BUFFERS; i++) {
        work->host[i] = malloc(work->bytes[i] + 1); /* + 1: not NULL if k = 0 */
        work->device[i] = is_guarded(work, i) ? pages_guarded_take(&guarded[i], work->bytes[i], work->at_end)
                                              : device->driver->alloc(device, work->bytes[i]);
        if (!work->host[i] || !work->device[i]) return status_set(STATUS_FAILED, "out of memory");
    }
    size_t largest = 1;
    for (int i = 0; i < BUFFERS; i++)
        if (work->bytes[i] > largest) largest = work->bytes[i];
    work->result = malloc(largest);
    work->want = malloc((elements + 1) * sizeof *work->want);
    work->bound = malloc((elements + 1) * sizeof *work->bound);
    work->allowed = malloc((elements + 1) * sizeof *work->allowed);
    if (!work->result || !work->want || !work->bound || !work->allowed)
        return status_set(STATUS_FAILED, "out of memory");
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
static bool bounds_rms(const struct compute *compute, const struct verify_case *test) {
    return !gemm_is_16bit(test->dtype) && inputs_of(compute, test).rounding == 0 && !test->integers &&
           !test->epilogue && !test->backward && test->values != VERIFY_TINY &&
           test->values != VERIFY_SPECIAL && test->k >= ORACLE_RMS_TERMS &&
           test->m * test->n >= ORACLE_RMS_ELEMENTS;
}

static enum status check_rms(struct compute *compute, const struct verify_case *test,
                             const struct workspace *work, const struct gemm_call *call, size_t guard) {
    char what[300];
    if (!bounds_rms(compute, test)) return STATUS_OK;
    const double rms =
        oracle_rms(test->dtype, test->m, test->n, work->result + guard, call->ldc, work->want, work->allowed);
    if (rms <= ORACLE_RMS) return STATUS_OK;
    snprintf(
        what, sizeof what,
        "each element of C is within its bound, but the root mean square of the errors is %.2g of it, and "
        "that of %s sums at most %.2g: is the mantissa of an operand or of a sum too short?",
        rms, dtype_name(test->dtype), ORACLE_RMS);
    return failure(compute, what);
}

/* Compares buffer C or PRE with the oracle. */
static enum status check(struct compute *compute, const struct verify_case *test, struct workspace *work,
                         int buffer, const struct gemm_call *call, size_t guard) {
    struct device *device = &compute->device;
    struct oracle_mismatch worst = {0};
    char what[400];
    device->driver->download(device, work->result, work->device[buffer], work->bytes[buffer]);
    if (!guards_intact(test, work->result, work->bytes[buffer], call->ldc))
        return failure(compute,
                       buffer == C ? "it wrote outside C" : "it wrote outside the input of the activation");
    for (size_t i = 0; i < test->m * test->n; i++) /* a C of 16 bits is rounded once, unless it is exact */
        work->allowed[i] =
            work->bound[i] +
            (is_exact(test) ? 0 : dtype_rounding(dtype_of_c(call), fabs(work->want[i]) + work->bound[i]));
    if (test->backward) oracle_saturate(call, work->want, work->allowed);
    if (oracle_compare(dtype_of_c(call), test->m, test->n, work->result + guard, call->ldc, work->want,
                       work->allowed, &worst))
        return check_rms(compute, test, work, call, guard);
    snprintf(what, sizeof what, "%s[%zu][%zu] is %.9g, should be %.9g within %.2g",
             buffer == C ? "C" : "the input of the activation", worst.row, worst.col,
             isnan(worst.got) ? (double)NAN : worst.got /* not -nan */, worst.want, worst.bound);
    if (!test->epilogue && !test->backward) {
        const struct wrong_result wrong = {call, work->result + guard, work->want, work->allowed,
                                           inputs_of(compute, test)};
        verify_hint(&wrong, what, sizeof what);
    }
    return failure(compute, what);
}

/* The gradient of the bias must be the column sums of C as stored, which `check` left in `result`. */
static enum status check_sums(struct compute *compute, const struct verify_case *test, struct workspace *work,
                              const struct gemm_call *call, size_t guard) {
    struct device *device = &compute->device;
    const enum gemm_dtype real = dtype_of_sums(test->dtype);
    device->driver->download(device, work->host[BIAS], work->device[BIAS], work->bytes[BIAS]);
    for (size_t j = 0; j < test->n; j++) {
        double sum = 0, magnitude = 0;
        for (size_t i = 0; i < test->m; i++) {
            const double value = dtype_get(dtype_of_c(call), work->result + guard, i * call->ldc + j);
            sum += value;
            magnitude += fabs(value);
        }
        const double got = dtype_get(real, work->host[BIAS], j) / gemm_bias_scale(call);
        if (!(fabs(got - sum) <= (double)(test->m + 4) * dtype_epsilon(real) * magnitude))
            return failure(compute, "the gradient of the bias is not the sum of the columns");
    }
    return STATUS_OK;
}

/* What the call only reads must be as uploaded, padding included. */
static enum status check_inputs(struct compute *compute, const struct verify_case *test,
                                struct workspace *work) {
    struct device *device = &compute->device;
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
        device->driver->download(device, work->result, work->device[i], work->bytes[i]);
        if (memcmp(work->result, work->host[i], work->bytes[i]) != 0) return failure(compute, what[i]);
    }
    return STATUS_OK;
}

/* Integers are exact; in 16 bits after one rounding. */
static void expect_equality(const struct gemm_call *call, struct workspace *work) {
    for (size_t i = 0; i < call->m * call->n; i++) {
        double exact = 0;
        dtype_set(dtype_of_c(call), &exact, 0, work->want[i]);
        work->want[i] = dtype_get(dtype_of_c(call), &exact, 0);
        work->bound[i] = 0;
    }
}

/* A call and the structs that it points to, on the host's buffers or on the device's. */
struct pointed_call {
    struct gemm_call call;
    struct gemm_epilogue epilogue;
    struct gemm_backward backward;
};

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

/* The expected C before the activation of the epilogue, and its bound. */
static enum status compute_expected(const struct compute *compute, const struct verify_case *test,
                                    const struct gemm_call *call, struct workspace *work) {
    const enum status status = oracle_product(call, inputs_of(compute, test), work->want, work->bound);
    if (status) return status;
    if (test->epilogue) {
        oracle_add_bias(call, work->want, work->bound);
    } else if (test->backward) {
        oracle_backward(call, work->want, work->bound);
    } else if (is_exact(test)) {
        expect_equality(call, work);
    }
    return STATUS_OK;
}

/* One call on the inputs in the host's buffers, and its checks. */
static enum status run_round(struct compute *compute, const struct verify_case *test, struct workspace *work,
                             const struct gemm_call *on_host, const struct gemm_call *on_device,
                             size_t guard) {
    struct device *device = &compute->device;
    const struct device_driver *driver = device->driver;
    enum status status = compute_expected(compute, test, on_host, work);
    if (status) return status;
    for (int i = 0; i < BUFFERS; i++) driver->upload(device, work->device[i], work->host[i], work->bytes[i]);
    struct surroundings before, after;
    surroundings_observe(&before);
    status = compute_gemm(compute, on_device);
    if (!status) status = driver->synchronize(device);
    if (status) return failure(compute, status_message()); /* every shape is valid */
    surroundings_observe(&after);
    const char *change = surroundings_changed(&before, &after);
    if (change) return failure(compute, change);
    status = check_inputs(compute, test, work);
    if (status) return status;
    if (test->keeps_pre) status = check(compute, test, work, PRE, on_host, guard);
    if (status) return status;
    if (test->epilogue) oracle_activate(on_host, work->want, work->bound);
    status = check(compute, test, work, C, on_host, guard);
    return status || !test->backward ? status : check_sums(compute, test, work, on_host, guard);
}

/* Fills all buffers with the guard byte, then draws the inputs of this round. */
static void draw_inputs(const struct verify_case *test, const struct gemm_call *call, struct workspace *work,
                        uint32_t round) {
    const bool ta = gemm_transposes_a(test->op), tb = gemm_transposes_b(test->op);
    const enum gemm_dtype c_dtype = dtype_of_c(call), real = dtype_of_sums(test->dtype);
    const size_t start = GUARD_ROWS * call->ldc;
    void *const *host = work->host;
    uint64_t random = 2 * test->seed + round;
    for (int i = 0; i < BUFFERS; i++) memset(host[i], GUARD_BYTE, work->bytes[i]);
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

enum status verify_gemm(struct compute *compute, const struct verify_case *test, bool *skipped) {
    bool ignored;
    if (!skipped) skipped = &ignored;
    note(test);
    *skipped = !compute->backend->supports(test->dtype, test->op);
    if (*skipped) return STATUS_OK;

    const bool ta = gemm_transposes_a(test->op), tb = gemm_transposes_b(test->op);
    const size_t a_rows = ta ? test->k : test->m, a_cols = ta ? test->m : test->k;
    const size_t b_rows = tb ? test->n : test->k, b_cols = tb ? test->k : test->n;
    struct gemm_call call = {.dtype = test->dtype,
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
    const size_t c_size = dtype_size(c_dtype);
    const size_t c_bytes = (test->m + 2 * GUARD_ROWS) * call.ldc * c_size;
    struct workspace work = {
        .guarded = compute->device.driver->host_memory,
        .at_end = test->seed % 2,
        .bytes = {[A] = dtype_span(test->dtype, a_rows, a_cols, call.lda),
                  [B] = dtype_span(test->dtype, b_rows, b_cols, call.ldb),
                  [C] = c_bytes,
                  [BIAS] = test->epilogue || test->backward ? test->n * dtype_size(real) : 0,
                  [PRE] = test->keeps_pre || test->backward ? c_bytes : 0,
                  [OUTPUT] = test->backward ? c_bytes : 0}};
    const size_t guard = GUARD_ROWS * call.ldc * c_size;
    struct pointed_call on_host, on_device;
    enum status status = workspace_alloc(compute, &work, test->m * test->n);
    if (!status) {
        point_call(&on_host, &call, test, work.host, guard);
        point_call(&on_device, &call, test, work.device, guard);
        *skipped = (test->epilogue || test->backward) && !compute_fuses(compute, &on_device.call);
    }
    for (uint32_t round = 0; !status && !*skipped && round <= (uint32_t)test->twice; round++) {
        draw_inputs(test, &call, &work, round);
        status = run_round(compute, test, &work, &on_host.call, &on_device.call, guard);
    }
    workspace_free(compute, &work);
    return status;
}
