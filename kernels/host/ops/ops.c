/* Element-wise ops on the host: one pass over memory each, parallel if that saves more than a fork costs.

   Bound by   bytes: a training step of 784-128-10 at batch 128 in float32 writes 0.4 MB (gather) and moves
              1.2 MB (update): 30 us at L2 speed on one core. Its GEMMs take 0.1-0.2 ms (52 MFLOP).
   Run        ./train --backend openblas, and see "element-wise" in the summary */
#include "kernels/host/ops/ops.h"

#include "kernels/host/ops/augment.h"
#include "kernels/host/ops/dropout.h"
#include "kernels/host/ops/parts.h"

#define ELEMENT_BITS 32
#include "kernels/host/element.h"
#include "kernels/host/ops/dtype_ops.h"
#define ELEMENT_BITS 16
#include "kernels/host/element.h"
#include "kernels/host/ops/dtype_ops.h"
#define ELEMENT_BITS 16
#define ELEMENT_HALF
#include "kernels/host/element.h"
#include "kernels/host/ops/dtype_ops.h"
#define ELEMENT_BITS 64
#include "kernels/host/element.h"
#include "kernels/host/ops/dtype_ops.h"

const struct ops *host_ops(enum gemm_dtype dtype) {
    static const struct ops *const tables[] = {
        [GEMM_F32] = &ops_f32, [GEMM_F64] = &ops_f64, [GEMM_BF16] = &ops_bf16, [GEMM_F16] = &ops_f16};
    return tables[dtype];
}
