/* Batches of products: the slot gemm_batch, on matrices that are apart by more than their size. */
#include "src/backend/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/oracle.h"
#include "src/backend/verify_values.h"
#include "src/base/progress.h"

enum { A, B, C, BUFFERS };
enum { SEPARATE, SHARED_A, SHARED_B, SHARINGS };
static const char *const sharings[] = {"", ", one A", ", one B"};
static const unsigned char GUARD_BYTE = 0xFF; /* as a float or a double: NaN */

/* m n k and the number of matrices: edges, thin panels, several blocks of k, work for several threads. */
static const size_t shapes[][4] = {{1, 1, 1, 3},     {5, 7, 3, 2},     {17, 33, 15, 4}, {16, 20, 300, 3},
                                   {33, 16, 16, 23}, {9, 18, 1100, 5}, {70, 96, 64, 5}, {130, 140, 40, 2}};
enum { SHAPES = sizeof shapes / sizeof *shapes, OPS = 3, TYPES = 6, KINDS = 2 };

struct batch {
    struct gemm_call call; /* without pointers */
    size_t count;
    struct gemm_strides strides;
    bool integers;
    size_t rows[BUFFERS], cols[BUFFERS], ld[BUFFERS], stride[BUFFERS], bytes[BUFFERS];
    unsigned char *host[BUFFERS], *result;
    void *device[BUFFERS];
    double *want, *bound;
};

static enum gemm_dtype dtype_of(const struct batch *batch, int buffer) {
    return buffer == C ? dtype_of_c(&batch->call) : batch->call.dtype;
}

static enum status failure(const struct compute *compute, const char *what) {
    return status_set(STATUS_VERIFY_FAILED, "backend '%s' is wrong: %s: %s", compute->backend->name,
                      progress_text(), what);
}

static void set_sizes(struct batch *batch, size_t sharing) {
    const struct gemm_call *call = &batch->call;
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t rows[] = {ta ? call->k : call->m, tb ? call->n : call->k, call->m},
                 cols[] = {ta ? call->m : call->k, tb ? call->k : call->n, call->n};
    const size_t pad = 1 + sharing, gap[] = {5, 7, 11}; /* elements between rows, and between matrices */
    for (int i = 0; i < BUFFERS; i++) {
        const bool shared = (i == A && sharing == SHARED_A) || (i == B && sharing == SHARED_B);
        batch->rows[i] = rows[i];
        batch->cols[i] = cols[i];
        batch->ld[i] = cols[i] + pad;
        batch->stride[i] = shared ? 0 : rows[i] * batch->ld[i] + gap[i];
        const size_t elements = rows[i] * batch->ld[i] + gap[i] + (batch->count - 1) * batch->stride[i];
        batch->bytes[i] = elements * dtype_size(dtype_of(batch, i));
    }
    batch->call.lda = batch->ld[A];
    batch->call.ldb = batch->ld[B];
    batch->call.ldc = batch->ld[C];
    batch->strides = (struct gemm_strides){batch->stride[A], batch->stride[B], batch->stride[C]};
}

static struct batch batch_at(size_t index) {
    static const enum gemm_dtype types[] = {GEMM_F32, GEMM_F64, GEMM_BF16, GEMM_BF16, GEMM_F16, GEMM_F16};
    const size_t type = index / OPS % TYPES, shape = index / OPS / TYPES / KINDS,
                 sharing = (index + index / OPS) % SHARINGS;
    struct batch batch = {.call = {.dtype = types[type],
                                   .c_f32 = type == 3 || type == 5,
                                   .op = (enum gemm_op)(index % OPS),
                                   .m = shapes[shape][0],
                                   .n = shapes[shape][1],
                                   .k = shapes[shape][2],
                                   .alpha = index / OPS % 2 ? -1 : 1,
                                   .beta = type == 2 || type == 4 || index % 2 ? 0 : 1},
                          .count = shapes[shape][3],
                          .integers = index / OPS / TYPES % KINDS == 0};
    set_sizes(&batch, sharing);
    progress_set("batch of %zu: %s%s %s m=%zu n=%zu k=%zu alpha=%g beta=%g %s%s", batch.count,
                 dtype_name(batch.call.dtype), batch.call.c_f32 ? " to f32" : "", gemm_op_name(batch.call.op),
                 batch.call.m, batch.call.n, batch.call.k, batch.call.alpha, batch.call.beta,
                 batch.integers ? "integers" : "reals", sharings[sharing]);
    return batch;
}

static enum status allocate(struct compute *compute, struct batch *batch) {
    bool all = true;
    for (int i = 0; i < BUFFERS; i++) {
        batch->host[i] = malloc(batch->bytes[i]);
        batch->device[i] = compute->device.driver->alloc(&compute->device, batch->bytes[i]);
        all = all && batch->host[i] && batch->device[i];
    }
    const size_t elements = batch->call.m * batch->call.n, a = batch->bytes[A], b = batch->bytes[B],
                 most = a > b ? a : b;
    batch->result = malloc(most > batch->bytes[C] ? most : batch->bytes[C]);
    batch->want = calloc(elements, sizeof *batch->want);
    batch->bound = calloc(elements, sizeof *batch->bound);
    all = all && batch->result && batch->want && batch->bound;
    return all ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

static void release(struct compute *compute, struct batch *batch) {
    for (int i = 0; i < BUFFERS; i++) {
        free(batch->host[i]);
        compute->device.driver->free(&compute->device, batch->device[i]);
    }
    free(batch->result);
    free(batch->want);
    free(batch->bound);
}

/* Guard bytes everywhere, then the matrices; C only if it is read. */
static void draw(struct batch *batch, uint64_t random) {
    for (int i = 0; i < BUFFERS; i++) {
        const enum gemm_dtype dtype = dtype_of(batch, i);
        memset(batch->host[i], GUARD_BYTE, batch->bytes[i]);
        for (size_t item = 0; item < batch->count && (i != C || batch->call.beta != 0); item++)
            verify_fill(batch->integers, dtype, &random,
                        batch->host[i] + item * batch->stride[i] * dtype_size(dtype), batch->rows[i],
                        batch->cols[i], batch->ld[i]);
    }
}

/* Replaces the elements of C by the guard byte: all bytes must be that one then. */
static bool gaps_intact(const struct batch *batch) {
    const size_t size = dtype_size(dtype_of(batch, C));
    for (size_t item = 0; item < batch->count; item++)
        for (size_t row = 0; row < batch->call.m; row++)
            memset(batch->result + (item * batch->stride[C] + row * batch->ld[C]) * size, GUARD_BYTE,
                   batch->call.n * size);
    for (size_t at = 0; at < batch->bytes[C]; at++)
        if (batch->result[at] != GUARD_BYTE) return false;
    return true;
}

/* Integers are exact; in 16 bits after one rounding. */
static void allow_rounding(struct batch *batch) {
    const enum gemm_dtype dtype = dtype_of(batch, C);
    for (size_t i = 0; i < batch->call.m * batch->call.n; i++) {
        double exact = 0;
        if (batch->integers) {
            dtype_set(dtype, &exact, 0, batch->want[i]);
            batch->want[i] = dtype_get(dtype, &exact, 0);
            batch->bound[i] = 0;
        } else {
            batch->bound[i] += dtype_rounding(dtype, fabs(batch->want[i]) + batch->bound[i]);
        }
    }
}

/* Matrix `item` of C against the oracle. */
static enum status check_item(struct compute *compute, struct batch *batch, size_t item) {
    const bool tf32 = compute->precision == GEMM_TF32 && batch->call.dtype == GEMM_F32 && !batch->integers;
    const struct oracle_inputs inputs = {.zero_mean = !batch->integers, .rounding = tf32 ? ORACLE_TF32 : 0};
    struct gemm_call call = batch->call;
    struct oracle_mismatch worst = {0};
    char what[256];
    call.a = batch->host[A];
    call.b = batch->host[B];
    call.c = batch->host[C];
    call = gemm_batch_item(&call, &batch->strides, item);
    const enum status status = oracle_product(&call, inputs, batch->want, batch->bound);
    if (status) return status;
    allow_rounding(batch);
    const unsigned char *got = batch->result + item * batch->stride[C] * dtype_size(dtype_of(batch, C));
    if (oracle_compare(dtype_of(batch, C), call.m, call.n, got, call.ldc, batch->want, batch->bound, &worst))
        return STATUS_OK;
    snprintf(what, sizeof what, "C[%zu][%zu] of matrix %zu is %.9g, should be %.9g within %.2g", worst.row,
             worst.col, item, isnan(worst.got) ? (double)NAN : worst.got, worst.want, worst.bound);
    return failure(compute, what);
}

static enum status run(struct compute *compute, struct batch *batch) {
    struct device *device = &compute->device;
    struct gemm_call call = batch->call;
    for (int i = 0; i < BUFFERS; i++)
        device->driver->upload(device, batch->device[i], batch->host[i], batch->bytes[i]);
    call.a = batch->device[A];
    call.b = batch->device[B];
    call.c = batch->device[C];
    enum status status = compute_gemm_batch(compute, &call, batch->count, &batch->strides);
    if (!status) status = device->driver->synchronize(device);
    if (status) return failure(compute, status_message());
    for (int i = A; i <= B; i++) {
        device->driver->download(device, batch->result, batch->device[i], batch->bytes[i]);
        if (memcmp(batch->result, batch->host[i], batch->bytes[i]) != 0)
            return failure(compute, i == A ? "it wrote to A" : "it wrote to B");
    }
    device->driver->download(device, batch->result, batch->device[C], batch->bytes[C]);
    for (size_t item = 0; item < batch->count && !status; item++) status = check_item(compute, batch, item);
    if (!status && !gaps_intact(batch)) status = failure(compute, "it wrote outside the matrices of C");
    return status;
}

enum status verify_batches(struct compute *compute, size_t *checked, size_t *skipped) {
    enum status status = STATUS_OK;
    if (!compute->backend->gemm_batch || compute->residency == RESIDENCY_HOST) return STATUS_OK;
    for (size_t i = 0; i < (size_t)SHAPES * OPS * TYPES * KINDS && !status; i++) {
        struct batch batch = batch_at(i);
        const bool skip = !compute->backend->supports(batch.call.dtype, batch.call.op);
        *(skip ? skipped : checked) += 1;
        if (skip) continue;
        status = allocate(compute, &batch);
        if (!status) {
            draw(&batch, i);
            status = run(compute, &batch);
        }
        release(compute, &batch);
    }
    return status;
}
