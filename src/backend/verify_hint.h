/* Which mistake gives this wrong result? For the message of a failed verification. */
#ifndef TESSERA_BACKEND_VERIFY_HINT_H
#define TESSERA_BACKEND_VERIFY_HINT_H

#include "src/backend/oracle.h"
#include "src/backend/verify.h"

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

/* After `failed` has failed: runs a sample of the small cases of the same dtype, and appends to the status
   message what the wrong ones have in common: "; 96 of 270 small cases are wrong, all with op TN". */
void verify_pattern(struct compute *compute, const struct verify_case *failed);

#endif
