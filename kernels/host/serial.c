/* serial: the readable reference. Three loops, one thread; every other backend is measured against this one.

   Idea       the innermost loop runs along memory (kernels/host/loops.inc), and the compiler vectorises it.
   Bound by   load and store: NN and TN read B and read and write C once per multiply-add, 3 memory operations for
              2 flops, where a register-blocked kernel needs a tenth of that.
   Improves   nothing: it is the start of the series.
   Run        ./train --backend serial */
#include "kernels/host/serial.h"

#define REAL float
#define NAME(x) x##_f32
#include "kernels/host/loops.inc"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "kernels/host/loops.inc"
#undef REAL
#undef NAME

void gemm_reference_block(const struct gemm_call *call, size_t row0, size_t row1, size_t col0, size_t col1) {
    if (call->dtype == GEMM_F32) {
        block_f32(call, row0, row1, col0, col1);
    } else {
        block_f64(call, row0, row1, col0, col1);
    }
}

bool gemm_reference_supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)dtype;
    return op != GEMM_TT;
}

static bool serial_probe(char *why, size_t size) {
    (void)why;
    (void)size;
    return true;
}

static void *serial_create(const struct gemm_options *options, char *why, size_t size) {
    static const char no_state;
    (void)options;
    (void)why;
    (void)size;
    return (void *)&no_state;
}

static void serial_destroy(void *context) {
    (void)context;
}

static enum gemm_status serial_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    gemm_reference_block(call, 0, call->m, 0, call->n);
    return GEMM_OK;
}

const struct gemm_backend gemm_serial = {
    .name = "serial",
    .summary = "three loops on one thread: the readable reference",
    .device = GEMM_ON_HOST,
    .probe = serial_probe,
    .create = serial_create,
    .destroy = serial_destroy,
    .supports = gemm_reference_supports,
    .gemm = serial_gemm,
};
