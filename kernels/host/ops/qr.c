/* The operations of QR on the host.

   Bound by   bytes of the L2 cache: a panel of `rows` x 16 is passed over 16 times, each time with a load, a
              store and two FMAs for the columns that are left.
   Run        ./train bench qr */
#include "kernels/host/ops/qr.h"

#define ELEMENT_BITS 32
#include "kernels/host/element.h"
#include "kernels/host/ops/panel.h"
#include "kernels/host/ops/append.h"
#include "kernels/host/ops/triangles.h"
#include "kernels/host/ops/solve.h"
#include "kernels/host/ops/blocks.h"
#define ELEMENT_BITS 64
#include "kernels/host/element.h"
#include "kernels/host/ops/panel.h"
#include "kernels/host/ops/append.h"
#include "kernels/host/ops/triangles.h"
#include "kernels/host/ops/solve.h"
#include "kernels/host/ops/blocks.h"

const struct qr_ops *host_qr_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? &qr_ops_f32 : dtype == GEMM_F64 ? &qr_ops_f64 : NULL;
}
