/* The element-wise ops on the host. */
#ifndef TESSERA_KERNELS_HOST_OPS_OPS_H
#define TESSERA_KERNELS_HOST_OPS_OPS_H

#include "kernels/ops.h"

struct host_ops_context {
    int threads; /* limit; small passes use one */
};

/* The table for a dtype; its functions take a struct host_ops_context. */
const struct ops *host_ops(enum gemm_dtype dtype);

#endif
