#include "src/backend/verify_prepare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/verify_values.h"

void verify_prepared_free(struct prepared *prepared) {
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

void verify_point_call(struct pointed_call *to, const struct gemm_call *shape, const struct verify_case *test,
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

enum status verify_compute_expected(struct prepared *prepared) {
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

void verify_draw_inputs(const struct prepared *prepared, uint32_t round) {
    const struct verify_case *test = prepared->test;
    const struct gemm_call *call = &prepared->call.call;
    const bool ta = gemm_transposes_a(test->op), tb = gemm_transposes_b(test->op);
    const enum gemm_dtype c_dtype = dtype_of_c(call), real = dtype_of_sums(test->dtype);
    const size_t start = VERIFY_GUARD_ROWS * call->ldc;
    void *const *host = prepared->host;
    uint64_t random = 2 * test->seed + round;
    for (int i = test->pad ? A : C; i < BUFFERS; i++) memset(host[i], VERIFY_GUARD_BYTE, prepared->bytes[i]);
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

enum status verify_prepare(struct prepared *prepared, const struct verify_case *test,
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
    const size_t row = call.ldc * dtype_size(c_dtype), c_bytes = (test->m + 2 * VERIFY_GUARD_ROWS) * row;
    *prepared = (struct prepared){
        .test = test,
        .inputs = inputs_of(compute, test),
        .guard = VERIFY_GUARD_ROWS * row,
        .bytes = {[A] = dtype_span(test->dtype, a_rows, a_cols, call.lda),
                  [B] = dtype_span(test->dtype, b_rows, b_cols, call.ldb),
                  [C] = c_bytes,
                  [BIAS] = test->epilogue || test->backward ? test->n * dtype_size(real) : 0,
                  [PRE] = test->keeps_pre || test->backward ? c_bytes : 0,
                  [OUTPUT] = test->backward ? c_bytes : 0}};
    const enum status status = prepared_alloc(prepared);
    if (!status) verify_point_call(&prepared->call, &call, test, prepared->host, prepared->guard);
    return status;
}
