/* The checks of backends in half precision: whole steps of a plug-in, and numbers beyond 65504, which become
   Inf in a product and 65504 in a gradient. */
#include "tests/training_bench.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/activation.h"
#include "src/backend/audit.h"
#include "src/backend/verify.h"

/* --- plug-ins --- */

static enum status train_plugin(const char *kind, struct bench *bench, struct run_summary *summary) {
    char settings[700];
    snprintf(
        settings, sizeof settings,
        "backend=%s:kind=%s precision=fp16 engine=eager audit=all threads=1 layers=42-16-4 batch-size=32 "
        "epochs=60 lr=0.05",
        support_plugin("plugins/half/gradients.so"), kind);
    bench_open(bench, settings, NULL);
    assert_non_null(bench->trainer.step_audit.trusted);
    return bench_run(bench, summary);
}

static void steps_of_plug_ins_are_audited(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    assert_status(train_plugin("none", &bench, &summary), STATUS_OK);
    assert_true(summary.steps_audited >= 60 && summary.audited >= 300);
    bench_close(&bench);
    assert_status(train_plugin("halved", &bench, &summary), STATUS_VERIFY_FAILED);
    assert_says(status_message(), "audit of engine eager");
    bench_close(&bench);
}

/* --- overflow --- */

extern const struct gemm_backend gemm_serial;

enum mistake { RIGHT, CLAMPS, DOES_NOT_SATURATE };
static enum mistake mistake;

static enum gemm_status multiply(const struct gemm_call *call) {
    const enum gemm_status status = gemm_serial.gemm(NULL, call);
    for (size_t i = 0; i < call->m && mistake == CLAMPS && !call->c_f32; i++)
        for (size_t j = 0; j < call->n; j++) {
            uint16_t *const c = (uint16_t *)call->c + i * call->ldc + j;
            *c = f16_from_float(f16_bounded(f16_to_float(*c)));
        }
    return status;
}

/* With a backward epilogue. */
static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    const struct gemm_backward *backward = call->backward;
    struct gemm_call plain = *call;
    plain.backward = NULL;
    if (!backward) return multiply(&plain);
    float *const sums = malloc(call->m * call->n * sizeof *sums + 1), *const bias_grad = backward->bias_grad;
    assert_non_null(sums);
    plain.c = sums;
    plain.ldc = call->n;
    plain.c_f32 = true;
    const enum gemm_status status = multiply(&plain);
    for (size_t j = 0; j < call->n; j++) {
        double sum = 0;
        for (size_t i = 0; i < call->m; i++) {
            const size_t at = i * call->ldc + j;
            const enum gemm_dtype dtype = dtype_of_c(call);
            const float slope = derivative(backward->activation, (float)dtype_get(dtype, backward->pre, at),
                                           (float)dtype_get(dtype, backward->output, at));
            const float value = sums[i * call->n + j] * slope;
            const bool saturates = mistake != DOES_NOT_SATURATE && !call->c_f32;
            dtype_set(dtype, call->c, at, (double)(saturates ? f16_bounded(value) : value));
            sum += dtype_get(dtype, call->c, at);
        }
        bias_grad[j] = (float)(sum * backward->bias_scale);
    }
    free(sums);
    return status;
}

static bool fuses_backward(void *context, const struct gemm_call *call) {
    (void)context;
    return call->backward && call->dtype == GEMM_F16;
}

static struct compute open_with(enum mistake made) {
    static struct gemm_backend backend;
    struct compute compute;
    backend = gemm_serial;
    backend.gemm = gemm;
    backend.fuses = fuses_backward;
    mistake = made;
    assert_status(compute_open(&compute, &backend,
                               &(struct compute_options){.threads = 1, .precision = GEMM_MIXED_F16}),
                  STATUS_OK);
    return compute;
}

static enum status verify(struct compute *compute, bool backward) {
    enum status status = STATUS_OK;
    size_t cases = 0;
    for (size_t i = 0; i < verify_case_count() && !status; i++) {
        const struct verify_case test = verify_case_at(i);
        if (test.dtype != GEMM_F16 || test.values != VERIFY_LARGE || test.backward != backward) continue;
        status = verify_gemm(compute, &test, NULL);
        cases++;
    }
    assert_true(status || cases > 50);
    return status;
}

static void overflow_is_verified(void **state) {
    (void)state;
    static const enum status wanted[][2] = {[RIGHT] = {STATUS_OK, STATUS_OK},
                                            [CLAMPS] = {STATUS_VERIFY_FAILED, STATUS_OK},
                                            [DOES_NOT_SATURATE] = {STATUS_OK, STATUS_VERIFY_FAILED}};
    for (enum mistake made = RIGHT; made <= DOES_NOT_SATURATE; made++)
        for (int backward = 0; backward < 2; backward++) {
            struct compute compute = open_with(made);
            assert_status(verify(&compute, backward), wanted[made][backward]);
            compute_close(&compute);
        }
}

/* Products and gradients of which many are beyond 65504. */
static void overflow_is_audited(void **state) {
    (void)state;
    enum { SIDE = 24 };
    uint16_t a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE], ones[SIDE * SIDE];
    float sums[SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = f16_from_float((float)(i * 37 % 101 - 50) * 8);
        b[i] = f16_from_float((float)(i * 53 % 103 - 51) * 4);
        ones[i] = f16_from_float(1);
    }
    const struct gemm_backward backward = {
        .activation = ACTIVATION_RELU, .pre = ones, .output = ones, .bias_grad = sums, .bias_scale = 0.5};
    for (enum mistake made = RIGHT; made <= DOES_NOT_SATURATE; made++)
        for (int way = 0; way < 2; way++) {
            const struct gemm_call call = {.dtype = GEMM_F16,
                                           .op = GEMM_NT,
                                           .m = SIDE,
                                           .n = SIDE,
                                           .k = SIDE,
                                           .alpha = 1,
                                           .a = a,
                                           .lda = SIDE,
                                           .b = b,
                                           .ldb = SIDE,
                                           .c = c,
                                           .ldc = SIDE,
                                           .backward = way ? &backward : NULL};
            struct compute compute = open_with(made);
            struct audit audit;
            audit_start(&audit, AUDIT_ALL);
            compute.audit = &audit;
            const bool wrong = made == (way ? DOES_NOT_SATURATE : CLAMPS);
            assert_status(compute_gemm(&compute, &call), wrong ? STATUS_VERIFY_FAILED : STATUS_OK);
            compute_close(&compute);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_plug_ins_are_audited),
        cmocka_unit_test(overflow_is_verified),
        cmocka_unit_test(overflow_is_audited),
    };
    return cmocka_run_group_tests_name("fp16 checks", tests, NULL, NULL);
}
