/* Element-wise ops on the host: one pass over memory each, parallel when the pass is worth a fork.

   Bound by   bytes: a training step of 784-128-10 at batch 128 in float32 writes 0.4 MB (gather) and moves
              1.2 MB (update), 30 us at L2 speed on one core, beside 51 MFLOP in GEMM (0.1-0.2 ms).
   Run        ./train --backend openblas, and read "element-wise" in the summary */
#include "kernels/host/ops/ops.h"

#include "kernels/activation.h"
#include "kernels/bf16.h"
#include "kernels/host/ops/augment.h"
#include "kernels/host/ops/dropout.h"

enum {
    PARALLEL_ELEMENTS = 1 << 15, /* below this a fork and join (2 us) costs more than it saves */
    SLICES = 64,                 /* row slices of a reduction: fixed, so that the order of the sum is too */
    AHEAD = 4,                   /* images to fetch before they are needed */
    COLUMN_CHUNK = 64            /* columns that one pass over the rows sums up */
};

static int threads_for(const void *context, size_t elements) {
    const struct host_ops_context *host = context;
    return elements >= PARALLEL_ELEMENTS ? host->threads : 1;
}

/* What one slice of rows adds to the tally. */
struct partial {
    double loss;
    size_t correct;
};

#define REAL float
#define STORED float
#define LOAD(x) (x)
#define STORE(x) (x)
#define NAME(x) x##_f32
#include "kernels/host/ops/ops.inc"
#undef STORED
#undef LOAD
#undef STORE
#undef NAME
#define STORED uint16_t
#define LOAD(x) bf16_to_float(x)
#define STORE(x) bf16_from_float(x)
#define NAME(x) x##_bf16
#include "kernels/host/ops/ops.inc"
#undef REAL
#undef STORED
#undef LOAD
#undef STORE
#undef NAME
#define REAL double
#define STORED double
#define LOAD(x) (x)
#define STORE(x) (x)
#define NAME(x) x##_f64
#include "kernels/host/ops/ops.inc"

const struct ops *host_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? &ops_f32 : dtype == GEMM_F64 ? &ops_f64 : &ops_bf16;
}
