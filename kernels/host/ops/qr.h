/* The operations of QR on the host: the tables of f32 and f64, whose functions take a struct
   host_ops_context. */
#ifndef TESSERA_KERNELS_HOST_OPS_QR_H
#define TESSERA_KERNELS_HOST_OPS_QR_H

#include "kernels/gemm.h"

struct qr_ops;

/* NULL for bfloat16. */
const struct qr_ops *host_qr_ops(enum gemm_dtype dtype);

#endif
