/* serial: the readable reference. Three loops, one thread; every other backend is measured against this one.

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
#define ELEMENT_BITS 64
#include "kernels/host/element.h"
#include "kernels/host/gemm/loops.h"

/* A bfloat16 C: a piece of a row at a time in float, rounded once. */
static void block_bf16_rounded(const struct gemm_call *call, size_t row0, size_t row1, size_t col0,
                               size_t col1) {
    enum { PIECE = 256 };
    float piece[PIECE] = {0};
    for (size_t i = row0; i < row1; i++)
        for (size_t col = col0; col < col1; col += PIECE) {
            const size_t width = col1 - col < PIECE ? col1 - col : PIECE;
            uint16_t *c = (uint16_t *)call->c + i * call->ldc + col;
            struct gemm_call sums = *call;
            sums.b = (const uint16_t *)call->b + (call->op == GEMM_NT ? col * call->ldb : col);
            sums.c = piece;
            sums.ldc = 0;
            sums.beta = 0; /* the contract has no other here */
            block_bf16(&sums, i, i + 1, 0, width);
            for (size_t j = 0; j < width; j++) c[j] = bf16_from_float(piece[j]);
        }
}

void gemm_reference_block(const struct gemm_call *call, size_t row0, size_t row1, size_t col0, size_t col1) {
    if (call->dtype == GEMM_F32) {
        block_f32(call, row0, row1, col0, col1);
    } else if (call->dtype == GEMM_F64) {
        block_f64(call, row0, row1, col0, col1);
    } else if (call->c_f32) {
        block_bf16(call, row0, row1, col0, col1);
    } else {
        block_bf16_rounded(call, row0, row1, col0, col1);
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
