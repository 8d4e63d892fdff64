/* Which mistake gives this wrong result? For the message of a failed verification. */
#ifndef TESSERA_BACKEND_VERIFY_HINT_H
#define TESSERA_BACKEND_VERIFY_HINT_H

#include "src/backend/oracle.h"

/* A wrong C of a call without an epilogue. All matrices are host memory. */
struct wrong_result {
    const struct gemm_call *call; /* call->c holds C as it was before the call */
    const void *got;              /* C after it, with ldc */
    const double *want, *bound;   /* dense m x n: the expected C, and the error allowed for each */
    struct oracle_inputs inputs;
};

/* Appends to `text` where the wrong elements are, and the usual mistake that gives exactly this C: "; only
   the last column is wrong; as if beta were 0". */
void verify_hint(const struct wrong_result *wrong, char *text, size_t size);

#endif
