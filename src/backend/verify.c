#include "src/backend/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/activation.h"
#include "src/backend/surroundings.h"
#include "src/backend/verify_hint.h"
#include "src/backend/verify_prepare.h"
#include "src/base/pages.h"
#include "src/base/progress.h"

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
    unsigned char same = VERIFY_GUARD_BYTE;
    for (size_t at = 0; at < count; at++) same &= bytes[at];
    return same == VERIFY_GUARD_BYTE; /* every bit is set */
}

/* All bytes outside the m x n elements must still hold the guard byte. */
static bool guards_intact(const struct verify_case *test, const unsigned char *c, size_t bytes, size_t ldc) {
    const size_t size = dtype_size(test->c_f32 ? GEMM_F32 : test->dtype), row = ldc * size;
    const size_t start = VERIFY_GUARD_ROWS * row, end = start + test->m * row, used = test->n * size;
    if (!all_guard(c, start) || !all_guard(c + end, bytes - end)) return false;
    for (size_t at = start; at < end; at += row)
        if (!all_guard(c + at + used, row - used)) return false;
    return true;
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

/* Allocates the buffers of a backend; *skipped if it does not fuse the epilogue of the case. */
static enum status join(struct candidate *candidate, const struct prepared *prepared, bool *skipped) {
    const struct verify_case *test = prepared->test;
    const enum status status = candidate_alloc(candidate, prepared);
    if (status) return status;
    verify_point_call(&candidate->call, &prepared->call.call, test, candidate->device, prepared->guard);
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
        if (computes[i]->precision != computes[0]->precision)
            return status_set(STATUS_USAGE,
                              "verify_gemm_together: backends '%s' and '%s' differ in precision",
                              computes[0]->backend->name, computes[i]->backend->name);
        skipped[i] = !computes[i]->backend->supports(test->dtype, test->op);
        running -= skipped[i];
    }
    if (running == 0) return STATUS_OK;
    enum status status = verify_prepare(&prepared, test, computes[0]);
    for (size_t i = 0; i < count && !status; i++) {
        if (skipped[i]) continue;
        status = join(&candidates[i], &prepared, &skipped[i]);
        running -= skipped[i];
    }
    for (uint32_t round = 0; running && !status && round <= (uint32_t)test->twice; round++) {
        verify_draw_inputs(&prepared, round);
        status = verify_compute_expected(&prepared);
        for (size_t i = 0; i < count && !status; i++)
            if (!skipped[i]) status = run_round(&candidates[i], &prepared);
    }
    for (size_t i = 0; i < count; i++) candidate_free(&candidates[i]);
    verify_prepared_free(&prepared);
    return status;
}

enum status verify_gemm(struct compute *compute, const struct verify_case *test, bool *skipped) {
    bool ignored;
    return verify_gemm_together(&compute, 1, test, skipped ? skipped : &ignored);
}
