/* Lists of updates (gemm_update in kernels/gemm.h): which of them one launch does. */
#ifndef TESSERA_KERNELS_CUDA_OPS_SAME_RULE_CUH
#define TESSERA_KERNELS_CUDA_OPS_SAME_RULE_CUH

extern "C" {
#include "kernels/gemm.h"
#include "kernels/ops.h"
}

/* Would one launch do both updates? */
static inline bool same_rule(const struct weight_update &x, const struct weight_update &y) {
    const struct update &a = x.rule, &b = y.rule;
    return a.method == b.method && a.nesterov == b.nesterov && a.momentum == b.momentum &&
           a.weight_decay == b.weight_decay && a.beta1 == b.beta1 && a.beta2 == b.beta2 &&
           a.epsilon == b.epsilon && !a.moment1 == !b.moment1 && x.step == y.step && x.guard == y.guard;
}

/* Is it an update whose gradient is complete, in C, of so few weights that it belongs in a list? The op, in a
   launch of its own, has more bytes in flight. */
static inline bool is_small_update(const struct gemm_call *call) {
    const size_t most = (size_t)1 << 16;
    return call->k == 0 && call->beta == 1 && call->m && call->n && call->m <= most / call->n;
}

#endif
