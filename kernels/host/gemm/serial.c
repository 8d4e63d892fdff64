/* serial: the readable reference, three loops on one thread. All other backends are measured against it.

   Idea       the innermost loop runs along memory (kernels/host/gemm/loops.h), and the compiler vectorises
              it.
   Bound by   load and store: NN and TN read B and read and write C once per multiply-add, 3 memory operations
              for 2 flops, where a register-blocked kernel needs a tenth of that.
   Improves   nothing: the course on the CPU starts here.
   Run        ./train --backend serial */
#include "kernels/host/gemm/serial.h"

#define ELEMENT_BITS 32
#include "kernels/host/element.h"
#include "kernels/host/gemm/loops.h"
#define ELEMENT_BITS 16
#include "kernels/host/element.h"
#include "kernels/host/gemm/loops.h"
#define ELEMENT_BITS 16
#define ELEMENT_HALF
#include "kernels/host/element.h"
#include "kernels/host/gemm/loops.h"
#define ELEMENT_BITS 64
#include "kernels/host/element.h"
#include "kernels/host/gemm/loops.h"

/* A C of 16 bits: the sums of 256 columns at a time in float32, then rounded once. */
static void block_rounded(const struct gemm_call *call, size_t row0, size_t row1, size_t col0, size_t col1) {
    enum { WIDTH = 256 };
    float sums[WIDTH] = {0};
    for (size_t i = row0; i < row1; i++)
        for (size_t col = col0; col < col1; col += WIDTH) {
            const size_t width = col1 - col < WIDTH ? col1 - col : WIDTH;
            uint16_t *c = (uint16_t *)call->c + i * call->ldc + col;
            struct gemm_call slice = *call;
            slice.b = (const uint16_t *)call->b + (call->op == GEMM_NT ? col * call->ldb : col);
            slice.c = sums;
            slice.c_f32 = true;
            slice.ldc = 0;
            slice.beta = 0; /* as the contract requires of such a C */
            gemm_reference_block(&slice, i, i + 1, 0, width);
            for (size_t j = 0; j < width; j++)
                c[j] = call->dtype == GEMM_F16 ? f16_from_float(sums[j]) : bf16_from_float(sums[j]);
        }
}

void gemm_reference_block(const struct gemm_call *call, size_t row0, size_t row1, size_t col0, size_t col1) {
    if (call->dtype == GEMM_F32) {
        block_f32(call, row0, row1, col0, col1);
    } else if (call->dtype == GEMM_F64) {
        block_f64(call, row0, row1, col0, col1);
    } else if (!call->c_f32) {
        block_rounded(call, row0, row1, col0, col1);
    } else if (call->dtype == GEMM_F16) {
        block_f16(call, row0, row1, col0, col1);
    } else {
        block_bf16(call, row0, row1, col0, col1);
    }
}

bool gemm_reference_supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)dtype;
    return op != GEMM_TT;
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
    .supports = gemm_reference_supports,
    .gemm = serial_gemm,
};
