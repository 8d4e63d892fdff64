/* A case of verify.h made ready: its inputs, drawn on the host, and what the oracle expects of a backend. */
#ifndef TESSERA_BACKEND_VERIFY_PREPARE_H
#define TESSERA_BACKEND_VERIFY_PREPARE_H

#include "src/backend/oracle.h"
#include "src/backend/verify.h"

enum { VERIFY_GUARD_ROWS = 2, VERIFY_GUARD_BYTE = 0xFF }; /* the byte: as a float or a double NaN */

enum { A, B, C, BIAS, PRE, OUTPUT, BUFFERS }; /* BIAS: the bias or its gradient */

/* What a buffer that the call writes should hold, dense m x n, and the error allowed for each element. */
struct expected {
    double *want, *allowed;
};

/* A call and the structs that it points to, on the host's buffers or on the device's. */
struct pointed_call {
    struct gemm_call call;
    struct gemm_epilogue epilogue;
    struct gemm_backward backward;
};

/* A case: its inputs on the host, and what the oracle expects of every backend. */
struct prepared {
    const struct verify_case *test;
    struct oracle_inputs inputs;
    size_t bytes[BUFFERS], guard; /* guard: bytes in front of C */
    void *host[BUFFERS];
    struct pointed_call call;
    struct expected c, pre;       /* pre: only if the epilogue stores it */
    unsigned char *result, *sums; /* downloaded: any buffer; the gradient of the bias */
};

/* Allocates the case for backends of the precision of `compute`; its inputs are not drawn yet.
   verify_prepared_free is called after a failure, too. */
enum status verify_prepare(struct prepared *prepared, const struct verify_case *test,
                           const struct compute *compute);
void verify_prepared_free(struct prepared *prepared);

/* Fills the buffers with the guard byte, but A and B only if they have padding; then draws the inputs of this
   round. */
void verify_draw_inputs(const struct prepared *prepared, uint32_t round);

/* What the oracle expects of the inputs in the host's buffers. */
enum status verify_compute_expected(struct prepared *prepared);

/* The call on other buffers: `shape` has everything but pointers; `guard` bytes lie in front of C. */
void verify_point_call(struct pointed_call *to, const struct gemm_call *shape, const struct verify_case *test,
                       void *const *memory, size_t guard);

#endif
