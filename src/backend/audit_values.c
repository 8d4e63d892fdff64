#include "src/backend/audit_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/oracle.h"
#include "src/base/secret.h"

enum { SAMPLED = 4 /* rows, and columns */ };

/* --- copies of the operands --- */

enum { A, B, C, BIAS, PRE, OUTPUT, BUFFERS = AUDIT_BUFFERS };

static const void *source(const struct gemm_call *call, int buffer) {
    switch (buffer) {
    case A:
        return call->a;
    case B:
        return call->b;
    case C:
        return call->c;
    case BIAS:
        return call->epilogue ? call->epilogue->bias : call->backward ? call->backward->bias_grad : NULL;
    case PRE:
        return call->epilogue ? call->epilogue->pre : call->backward ? call->backward->pre : NULL;
    default:
        return call->backward ? call->backward->output : NULL;
    }
}

void audit_copy_close(struct audit_copy *copy) {
    for (int i = 0; i < BUFFERS; i++) free(copy->memory[i]);
}

bool audit_copy_open(struct audit_copy *copy, struct compute *compute, const struct gemm_call *call) {
    struct device *device = &compute->device;
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t c_bytes = dtype_span(dtype_of_c(call), call->m, call->n, call->ldc);
    *copy = (struct audit_copy){
        .call = *call,
        .bytes = {[A] = dtype_span(call->dtype, ta ? call->k : call->m, ta ? call->m : call->k, call->lda),
                  [B] = dtype_span(call->dtype, tb ? call->n : call->k, tb ? call->k : call->n, call->ldb),
                  [C] = c_bytes,
                  [BIAS] = call->n * dtype_size(dtype_of_sums(call->dtype)),
                  [PRE] = c_bytes,
                  [OUTPUT] = c_bytes}};
    for (int i = 0; i < BUFFERS; i++) {
        if (!source(call, i)) continue;
        copy->memory[i] = malloc(copy->bytes[i] + 1);
        if (!copy->memory[i]) return false;
        device->driver->download(device, copy->memory[i], source(call, i), copy->bytes[i]);
    }
    copy->call.a = copy->memory[A];
    copy->call.b = copy->memory[B];
    copy->call.c = copy->memory[C];
    if (call->epilogue) {
        copy->epilogue = *call->epilogue;
        copy->epilogue.bias = copy->memory[BIAS];
        copy->epilogue.pre = copy->memory[PRE];
        copy->call.epilogue = &copy->epilogue;
    }
    if (call->backward) {
        copy->backward = *call->backward;
        copy->backward.bias_grad = copy->memory[BIAS];
        copy->backward.pre = copy->memory[PRE];
        copy->backward.output = copy->memory[OUTPUT];
        copy->call.backward = &copy->backward;
    }
    return true;
}

/* Names what the call may not write, and wrote; NULL if there is nothing. */
static const char *overwritten(const struct audit_copy *before, const struct audit_copy *after) {
    const struct gemm_call *call = &before->call;
    const bool inputs[BUFFERS] = {
        [A] = true, [B] = true, [BIAS] = call->epilogue, [PRE] = call->backward, [OUTPUT] = call->backward};
    static const char *const what[] = {
        [A] = "it wrote to A",
        [B] = "it wrote to B",
        [BIAS] = "it wrote to the bias",
        [PRE] = "it wrote to the stored input of the activation",
        [OUTPUT] = "it wrote to the stored output of the activation",
    };
    for (int i = 0; i < BUFFERS; i++)
        if (inputs[i] && before->memory[i] && memcmp(before->memory[i], after->memory[i], before->bytes[i]))
            return what[i];
    const size_t size = dtype_size(dtype_of_c(call)), row = call->ldc * size, used = call->n * size;
    for (size_t i = 0; i + 1 < call->m && row > used; i++)
        if (memcmp((char *)before->memory[C] + i * row + used, (char *)after->memory[C] + i * row + used,
                   row - used))
            return "it wrote between the rows of C";
    return NULL;
}

/* --- the values --- */

/* The largest number. */
static double largest(enum gemm_dtype dtype) {
    return dtype == GEMM_F64 ? 0x1.fffffffffffffp1023 : dtype == GEMM_F16 ? 65504 : 0x1.fffffep127;
}

/* Rows and columns of C, as lists of indices. */
struct block {
    const size_t *rows, *cols;
    size_t m, n;
};

static void gather(enum gemm_dtype dtype, void *to, const void *from, size_t ld, const struct block *block) {
    for (size_t i = 0; from && i < block->m; i++)
        for (size_t j = 0; j < block->n; j++)
            dtype_set(dtype, to, i * block->n + j,
                      dtype_get(dtype, from, block->rows[i] * ld + block->cols[j]));
}

/* op(A) or op(B)^T for some rows of it, contiguous along k. */
static void gather_along_k(const struct gemm_call *call, void *to, const void *from, size_t ld, bool along_k,
                           const size_t *rows, size_t count) {
    for (size_t i = 0; i < count; i++)
        for (size_t p = 0; p < call->k; p++)
            dtype_set(call->dtype, to, i * call->k + p,
                      dtype_get(call->dtype, from, along_k ? rows[i] * ld + p : p * ld + rows[i]));
}

/* The relative rounding of the operands that the precision allows. */
static struct oracle_inputs inputs_of(const struct compute *compute, const struct gemm_call *call) {
    const bool tf32 = compute->precision == GEMM_TF32 && call->dtype == GEMM_F32;
    return (struct oracle_inputs){.rounding = tf32 ? ORACLE_TF32 : 0};
}

/* Is this block of C, and of the stored input of the activation, what the oracle gives? `what` says what is
   not. */
static enum status check_block(const struct compute *compute, const struct audit_copy *before,
                               const struct audit_copy *after, const struct block *block, char *what,
                               size_t size) {
    const struct gemm_call *call = &before->call;
    const enum gemm_dtype c_dtype = dtype_of_c(call), real = dtype_of_sums(call->dtype);
    const size_t count = block->m * block->n, column[] = {0};
    double *memory = calloc(7 * count + (block->m + block->n) * call->k + block->n + 1, sizeof *memory);
    if (!memory) return status_set(STATUS_FAILED, "out of memory");
    double *want = memory, *bound = want + count, *old = bound + count, *got = old + count,
           *pre = got + count, *output = pre + count, *got_pre = output + count, *a = got_pre + count,
           *b = a + block->m * call->k, *bias = b + block->n * call->k;
    const struct block one_row = {column, block->cols, 1, block->n};
    gather_along_k(call, a, call->a, call->lda, !gemm_transposes_a(call->op), block->rows, block->m);
    gather_along_k(call, b, call->b, call->ldb, gemm_transposes_b(call->op), block->cols, block->n);
    gather(c_dtype, old, before->memory[C], call->ldc, block);
    gather(c_dtype, got, after->memory[C], call->ldc, block);
    gather(c_dtype, pre, before->memory[PRE], call->ldc, block);
    gather(c_dtype, got_pre, after->memory[PRE], call->ldc, block);
    gather(c_dtype, output, before->memory[OUTPUT], call->ldc, block);
    gather(real, bias, before->memory[BIAS], call->n, &one_row);
    struct gemm_epilogue epilogue = before->epilogue;
    struct gemm_backward backward = before->backward;
    epilogue.bias = bias;
    backward.pre = pre;
    backward.output = output;
    struct gemm_call part = *call;
    part.op = GEMM_NT;
    part.m = block->m;
    part.n = part.ldc = block->n;
    part.lda = part.ldb = call->k;
    part.a = a;
    part.b = b;
    part.c = old;
    part.epilogue = call->epilogue ? &epilogue : NULL;
    part.backward = call->backward ? &backward : NULL;

    struct oracle_mismatch worst = {0};
    const enum status status = oracle_product(&part, inputs_of(compute, call), want, bound);
    if (status) {
        free(memory);
        return status;
    }
    for (size_t i = 0; i < count; i++) /* a diverging training: the sum may overflow on its way */
        if (bound[i] > (double)call->k * dtype_epsilon(real) * largest(real)) bound[i] = (double)INFINITY;
    if (call->epilogue) oracle_add_bias(&part, want, bound);
    if (call->backward) oracle_backward(&part, want, bound);
    bool right = true;
    for (int stage = 0; stage < 2 && right; stage++) { /* the input of the activation, then C */
        const bool stored = stage == 0;
        if (stored && (!call->epilogue || !before->memory[PRE])) continue;
        if (!stored && call->epilogue) oracle_activate(&part, want, bound);
        for (size_t i = 0; i < count; i++) /* one more rounding */
            bound[i] += dtype_rounding(c_dtype, fabs(want[i]) + bound[i]);
        for (size_t i = 0; i < count; i++)
            if (isinf(bound[i])) want[i] = dtype_get(c_dtype, stored ? got_pre : got, i);
        if (call->backward) oracle_saturate(&part, want, bound);
        right = oracle_compare(c_dtype, part.m, part.n, stored ? got_pre : got, part.n, want, bound, &worst);
        if (!right)
            snprintf(what, size, "%s[%zu][%zu] is %.9g, should be %.9g within %.2g",
                     stored ? "the input of the activation" : "C", block->rows[worst.row],
                     block->cols[worst.col], worst.got, worst.want, worst.bound);
    }
    free(memory);
    return right ? STATUS_OK : STATUS_VERIFY_FAILED;
}

static enum status check_sample(uint64_t *random, const struct compute *compute,
                                const struct audit_copy *before, const struct audit_copy *after, char *what,
                                size_t size) {
    const size_t m = before->call.m, n = before->call.n, most = m > n ? m : n;
    size_t *all = malloc((most + SAMPLED) * sizeof *all);
    if (!all) return status_set(STATUS_FAILED, "out of memory");
    size_t *some = all + most;
    for (size_t i = 0; i < most; i++) all[i] = i;
    for (size_t i = 0; i < SAMPLED; i++) some[i] = secret_draw(random) % m;
    const struct block rows = {some, all, m < SAMPLED ? m : SAMPLED, n};
    enum status status = check_block(compute, before, after, &rows, what, size);
    for (size_t i = 0; i < SAMPLED; i++) some[i] = secret_draw(random) % n;
    const struct block cols = {all, some, m, n < SAMPLED ? n : SAMPLED};
    if (!status) status = check_block(compute, before, after, &cols, what, size);
    free(all);
    return status;
}

/* y = matrix x, and magnitude = |matrix| |x|-bound; matrix is rows x cols, transposed in memory or not. */
static void times(enum gemm_dtype dtype, const void *matrix, size_t ld, bool transposed, size_t rows,
                  size_t cols, const double *x, const double *x_magnitude, double *y, double *magnitude) {
    for (size_t i = 0; i < rows; i++) y[i] = magnitude[i] = 0;
    for (size_t u = 0; u < (transposed ? cols : rows); u++)
        for (size_t v = 0; v < (transposed ? rows : cols); v++) {
            const double value = dtype_get(dtype, matrix, u * ld + v);
            const size_t i = transposed ? v : u, j = transposed ? u : v;
            y[i] += value * x[j];
            magnitude[i] += fabs(value) * x_magnitude[j];
        }
}

/* Freivalds' check of a call without an epilogue. `what` says what is wrong. */
static enum status check_product(uint64_t *random, const struct compute *compute,
                                 const struct audit_copy *before, const struct audit_copy *after, char *what,
                                 size_t size) {
    const struct gemm_call *call = &before->call;
    const enum gemm_dtype c_dtype = dtype_of_c(call);
    const size_t m = call->m, n = call->n, k = call->k;
    double *memory = malloc((2 * n + 2 * k + 6 * m) * sizeof *memory);
    if (!memory) return status_set(STATUS_FAILED, "out of memory");
    double *x = memory, *ones = x + n, *bx = ones + n, *b1 = bx + k, *abx = b1 + k, *ab1 = abx + m,
           *old = ab1 + m, *old1 = old + m, *cx = old1 + m, *c1 = cx + m;
    for (size_t j = 0; j < n; j++) {
        x[j] = secret_draw(random) & 1 ? 1 : -1;
        ones[j] = 1;
    }
    times(call->dtype, call->b, call->ldb, gemm_transposes_b(call->op), k, n, x, ones, bx, b1);
    times(call->dtype, call->a, call->lda, gemm_transposes_a(call->op), m, k, bx, b1, abx, ab1);
    times(c_dtype, after->memory[C], call->ldc, false, m, n, x, ones, cx, c1);
    if (call->beta != 0) times(c_dtype, before->memory[C], call->ldc, false, m, n, x, ones, old, old1);
    const double rounding = inputs_of(compute, call).rounding,
                 eps = dtype_epsilon(dtype_of_sums(call->dtype));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < m && !status; i++) {
        const double beta = call->beta == 0 ? 0 : call->beta * old[i],
                     beta1 = call->beta == 0 ? 0 : fabs(call->beta) * old1[i];
        const double want = call->alpha * abx[i] + beta, magnitude = fabs(call->alpha) * ab1[i];
        double bound = ((double)k + 4) * eps * (magnitude + beta1) + 2 * rounding * magnitude;
        bound += (double)(n * (k + 4)) * dtype_underflow(call->dtype);
        bound += (double)n * dtype_rounding(c_dtype, 0) + dtype_rounding(c_dtype, magnitude + beta1 + bound);
        if (!isfinite(want) || magnitude + beta1 > largest(dtype_of_sums(call->dtype)) ||
            (!isfinite(cx[i]) && magnitude + beta1 > largest(c_dtype)) || fabs(cx[i] - want) <= bound)
            continue; /* rows with NaN: check_sample has them */
        snprintf(what, size, "row %zu of C, times a vector of signs, is %.9g, should be %.9g within %.2g", i,
                 cx[i], want, bound);
        status = STATUS_VERIFY_FAILED;
    }
    free(memory);
    return status;
}

/* The gradient of the bias is the sum of the columns of C as stored. */
static enum status check_sums(const struct audit_copy *after, char *what, size_t size) {
    const struct gemm_call *call = &after->call;
    const enum gemm_dtype real = dtype_of_sums(call->dtype);
    for (size_t j = 0; j < call->n; j++) {
        double sum = 0, magnitude = 0;
        for (size_t i = 0; i < call->m; i++) {
            const double value = dtype_get(dtype_of_c(call), after->memory[C], i * call->ldc + j);
            sum += value;
            magnitude += fabs(value);
        }
        const double got = dtype_get(real, after->memory[BIAS], j) / gemm_bias_scale(call);
        if (!isfinite(sum) || magnitude > largest(real) ||
            fabs(got - sum) <= (double)(call->m + 4) * dtype_epsilon(real) * magnitude)
            continue;
        snprintf(what, size, "the gradient of bias %zu is %.9g, and the column sums to %.9g", j, got, sum);
        return STATUS_VERIFY_FAILED;
    }
    return STATUS_OK;
}

enum status audit_values(uint64_t *random, struct compute *compute, const struct audit_copy *before,
                         const struct gemm_call *call, char *what, size_t size) {
    struct audit_copy after;
    enum status status =
        audit_copy_open(&after, compute, call) ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    const char *written = status ? NULL : overwritten(before, &after);
    if (written) {
        snprintf(what, size, "%s", written);
        status = STATUS_VERIFY_FAILED;
    }
    if (!status) status = check_sample(random, compute, before, &after, what, size);
    if (!status && !call->epilogue && !call->backward)
        status = check_product(random, compute, before, &after, what, size);
    if (!status && call->backward && call->backward->bias_grad) status = check_sums(&after, what, size);
    audit_copy_close(&after);
    return status;
}
