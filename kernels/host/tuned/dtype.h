/* Backend `tuned` for one dtype of one instruction set. */
#include "kernels/host/tuned/vector.h"

static const struct tuned_kernel NAME(kernel) __attribute__((unused)); /* kernel_f32 is, if BF16_ONLY */

#ifndef BORROWS_UKERNELS
#    include "kernels/host/tuned/ukernel.h"
#endif
#include "kernels/host/tuned/pack.h"
#include "kernels/host/tuned/epilogue.h"
#include "kernels/host/tuned/gemm_loops.h"

#if !CONVERTS
#    include "kernels/host/tuned/dot.h"
#    include "kernels/host/tuned/small_k.h"
#    include "kernels/host/tuned/transposed_c.h"
#    include "kernels/host/tuned/few_features.h"
#endif

static void NAME(part)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part,
                       void *workspace) {
    typedef void variant(const struct gemm_call *call, const struct tuned_plan *plan, size_t part,
                         void *workspace);
    static variant *const variants[TUNED_VARIANTS] = {
        [TUNED_BLOCKED] = NAME(part_blocked),
#if !CONVERTS
        [TUNED_DOT] = NAME(part_dot),
        [TUNED_TRANSPOSED_C] = NAME(part_transposed_c),
        [TUNED_SMALL_K] = NAME(part_small_k)
#endif
    };
    variants[plan->variant](call, plan, part, workspace);
}

static const struct tuned_kernel NAME(kernel) = {.size = sizeof(REAL),
                                                 .vnni = VNNI,
                                                 .converts = CONVERTS,
                                                 .mr = MR,
                                                 .nr = NR,
                                                 .lanes = LANES,
                                                 .packmr = PACKMR,
#if !CONVERTS
                                                 .pack_points = NAME(pack_points),
                                                 .nearest = NAME(nearest),
                                                 .survivors = NAME(survivors),
#endif
                                                 .part = NAME(part)};
