/* The operands and the result of an audited call. */
#ifndef TESSERA_BACKEND_AUDIT_VALUES_H
#define TESSERA_BACKEND_AUDIT_VALUES_H

#include "src/backend/compute.h"

enum { AUDIT_BUFFERS = 6 };

/* A call whose pointers are copies on the host. */
struct audit_copy {
    struct gemm_call call;
    struct gemm_epilogue epilogue;
    struct gemm_backward backward;
    size_t bytes[AUDIT_BUFFERS];
    void *memory[AUDIT_BUFFERS];
};

/* False if memory ran out. The caller closes the copy in any case. */
bool audit_copy_open(struct audit_copy *copy, struct compute *compute, const struct gemm_call *call);
void audit_copy_close(struct audit_copy *copy);

/* Checks the values after the call, of which `before` is a copy, as audit_call says. `random`: the state of
   the secret generator. STATUS_VERIFY_FAILED: `what` says what is wrong. */
enum status audit_values(uint64_t *random, struct compute *compute, const struct audit_copy *before,
                         const struct gemm_call *call, char *what, size_t size);

#endif
