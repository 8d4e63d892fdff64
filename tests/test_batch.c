/* Batches of products: the slot gemm_batch has the bits of gemm, and wrong ones are found by the verification
   and by the audit. */
#include "tests/support.h"
#include "tests/values.h"

#include <stdlib.h>

#include "src/backend/audit.h"
#include "src/backend/verify.h"

/* --- the bits --- */

static const size_t shapes[][4] = {
    {3, 40, 300, 7}, {64, 200, 16, 5}, {200, 64, 64, 4}, {90, 130, 700, 3}, {16, 16, 16, 9}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* C of a batch, for dense matrices with all strides those of a matrix. */
static struct values product(struct compute *compute, enum gemm_dtype dtype, enum gemm_op op,
                             const size_t *shape, bool one_by_one) {
    const size_t m = shape[0], n = shape[1], k = shape[2], count = shape[3];
    const struct gemm_strides strides = {m * k, k * n, m * n};
    struct values a = values_random(dtype, count * strides.a, 1, 1),
                  b = values_random(dtype, count * strides.b, 1, 2),
                  c = values_random(dtype, count * strides.c, 1, 3);
    const struct gemm_call call = {.dtype = dtype,
                                   .op = op,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .alpha = -1,
                                   .beta = dtype == GEMM_BF16 ? 0 : 1,
                                   .a = a.data,
                                   .lda = gemm_transposes_a(op) ? m : k,
                                   .b = b.data,
                                   .ldb = gemm_transposes_b(op) ? k : n,
                                   .c = c.data,
                                   .ldc = n};
    for (size_t i = 0; i < count && one_by_one; i++) {
        const struct gemm_call item = gemm_batch_item(&call, &strides, i);
        assert_status(compute_gemm(compute, &item), STATUS_OK);
    }
    if (!one_by_one) assert_status(compute_gemm_batch(compute, &call, count, &strides), STATUS_OK);
    free(a.data);
    free(b.data);
    return c;
}

static void batches_have_the_bits_of_gemm(void **state) {
    (void)state;
    static const char *const backends[] = {"tuned", "openmp", "serial"};
    for (size_t b = 0; b < sizeof backends / sizeof *backends; b++)
        for (int threads = 1; threads <= 3; threads++) {
            struct compute compute;
            support_open(&compute, backends[b], threads);
            for (size_t i = 0; i < SHAPES * 9; i += support_every(5)) {
                const enum gemm_dtype dtype = (enum gemm_dtype)(i % 3);
                const enum gemm_op op = (enum gemm_op)(i / 3 % 3);
                const size_t *shape = shapes[i / 9];
                struct values one = product(&compute, dtype, op, shape, true),
                              all = product(&compute, dtype, op, shape, false);
                assert_memory_equal(one.data, all.data, shape[0] * shape[1] * shape[3] * dtype_size(dtype));
                free(one.data);
                free(all.data);
            }
            compute_close(&compute);
        }
}

/* --- wrong batches --- */

static const struct gemm_backend *right;

static enum gemm_status each(void *context, const struct gemm_call *call, size_t count,
                             const struct gemm_strides *strides) {
    for (size_t i = 0; i < count; i++) {
        const struct gemm_call item = gemm_batch_item(call, strides, i);
        if (right->gemm(context, &item) != GEMM_OK) return GEMM_FAILED;
    }
    return GEMM_OK;
}

static enum gemm_status drops_last(void *context, const struct gemm_call *call, size_t count,
                                   const struct gemm_strides *strides) {
    return each(context, call, count - 1, strides);
}

static enum gemm_status ignores_stride_of_b(void *context, const struct gemm_call *call, size_t count,
                                            const struct gemm_strides *strides) {
    const struct gemm_strides wrong = {strides->a, 0, strides->c};
    return each(context, call, count, &wrong);
}

/* As if the matrices of C were next to each other. */
static enum gemm_status packs_c(void *context, const struct gemm_call *call, size_t count,
                                const struct gemm_strides *strides) {
    const struct gemm_strides wrong = {strides->a, strides->b, call->m * call->ldc};
    return each(context, call, count, &wrong);
}

/* One element more than the last matrix has. */
static enum gemm_status writes_behind(void *context, const struct gemm_call *call, size_t count,
                                      const struct gemm_strides *strides) {
    const enum gemm_status status = each(context, call, count, strides);
    const struct gemm_call last = gemm_batch_item(call, strides, count - 1);
    dtype_set(dtype_of_c(call), last.c, (call->m - 1) * call->ldc + call->n, 0);
    return status;
}

static enum gemm_status squares_alpha(void *context, const struct gemm_call *call, size_t count,
                                      const struct gemm_strides *strides) {
    struct gemm_call wrong = *call;
    wrong.alpha *= call->alpha;
    return each(context, &wrong, count, strides);
}

static enum gemm_status (*const wrong_ones[])(void *, const struct gemm_call *, size_t,
                                              const struct gemm_strides *) = {
    drops_last, ignores_stride_of_b, packs_c, writes_behind, squares_alpha};
enum { WRONG = sizeof wrong_ones / sizeof *wrong_ones };

static void open_with(struct compute *compute, struct gemm_backend *backend,
                      enum gemm_status (*batch)(void *, const struct gemm_call *, size_t,
                                                const struct gemm_strides *)) {
    assert_status(registry_find("serial", &right), STATUS_OK);
    *backend = *right;
    backend->gemm_batch = batch;
    const struct compute_options options = {.threads = 1, .options = ""};
    assert_status(compute_open(compute, backend, &options), STATUS_OK);
}

static void verification_finds_wrong_batches(void **state) {
    (void)state;
    struct gemm_backend backend;
    struct compute compute;
    size_t checked = 0, skipped = 0;
    open_with(&compute, &backend, each);
    assert_status(verify_batches(&compute, &checked, &skipped), STATUS_OK);
    assert_true(checked > 100 && skipped == 0);
    compute_close(&compute);
    for (size_t i = 0; i < WRONG; i++) {
        open_with(&compute, &backend, wrong_ones[i]);
        assert_status(verify_batches(&compute, &checked, &skipped), STATUS_VERIFY_FAILED);
        print_message("    %s\n", status_message());
        assert_non_null(strstr(status_message(), "batch of"));
        compute_close(&compute);
    }
}

static void every_batch_is_right(void **state) {
    (void)state;
    static const char *const backends[] = {"tuned", "tuned:isa=portable", "openmp"};
    for (size_t b = 0; b < sizeof backends / sizeof *backends; b++) {
        struct compute compute;
        size_t checked = 0, skipped = 0;
        support_open(&compute, backends[b], 2);
        assert_status(verify_batches(&compute, &checked, &skipped), STATUS_OK);
        assert_true(checked > 100);
        compute_close(&compute);
    }
}

/* Of each audited call, one matrix is checked: a wrong one is found before long. */
static enum status audited_calls(struct compute *compute) {
    enum { M = 6, N = 5, K = 4, COUNT = 3, CALLS = 200 };
    const struct gemm_strides strides = {M * K, K * N, M * N};
    struct values a = values_random(GEMM_F32, COUNT * M * K, 1, 1),
                  b = values_random(GEMM_F32, COUNT * K * N, 1, 2),
                  c = values_random(GEMM_F32, COUNT * M * N, 1, 3);
    const struct gemm_call call = {.m = M,
                                   .n = N,
                                   .k = K,
                                   .alpha = -1,
                                   .a = a.data,
                                   .lda = K,
                                   .b = b.data,
                                   .ldb = N,
                                   .c = c.data,
                                   .ldc = N};
    struct audit audit;
    audit_start(&audit, AUDIT_ALL);
    compute->audit = &audit;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < CALLS && !status; i++)
        status = compute_gemm_batch(compute, &call, COUNT, &strides);
    assert_true(audit.checked > 0 && audit.checked == audit.calls);
    compute->audit = NULL;
    free(a.data);
    free(b.data);
    free(c.data);
    return status;
}

static void audit_finds_wrong_batches(void **state) {
    (void)state;
    struct gemm_backend backend;
    struct compute compute;
    open_with(&compute, &backend, NULL);
    assert_status(audited_calls(&compute), STATUS_OK);
    compute_close(&compute);
    open_with(&compute, &backend, each);
    assert_status(audited_calls(&compute), STATUS_OK);
    compute_close(&compute);
    for (size_t i = 0; i < 2; i++) {
        open_with(&compute, &backend, wrong_ones[i]);
        assert_status(audited_calls(&compute), STATUS_VERIFY_FAILED);
        assert_non_null(strstr(status_message(), "audit of call"));
        compute_close(&compute);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_have_the_bits_of_gemm),
        cmocka_unit_test(verification_finds_wrong_batches),
        cmocka_unit_test(every_batch_is_right),
        cmocka_unit_test(audit_finds_wrong_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
