/* Small n, A transposed: C^T is computed instead of C.

   Idea        dW = X^T dY of an output layer: 10 columns of C would leave 6 of 16 lanes idle. X as [k][m] has
               m along the lanes: C^T = dY^T X is an ordinary blocked product, with micro-tiles of 10 rows x 2
               whole vectors, which reads X and dY in place. C^T stays in the workspace until k ends; then it
               is transposed into C, through the epilogue.
   Bound by    FMA while X is in a cache: a step of k for 32 rows of C is 20 FMAs and 12 loads, in
               gemm_loops.h 32 and 34. Else by reading X once: 2 n flops an element, 20 GFLOP/s at 4 GB/s.
   Improves    gemm_loops.h
   Run         ./train bench gemm --backends tuned --layers 784-512-10 --sizes none */
#ifndef NAME
#    include "kernels/host/tuned/gemm_loops.h"
#endif

/* Rows from .. from + count - 1 of C from their transpose in `sums`, which has room for whole vectors of rows
   and for TUNED_NARROW columns. */
static void NAME(store_transposed)(const struct gemm_call *call, const struct tuned_plan *plan,
                                   const REAL *sums, size_t ld, size_t from, size_t count) {
    const size_t width = (call->n + LANES - 1) / LANES * LANES;
    REAL tile[NR * (TUNED_NARROW > LANES ? TUNED_NARROW : LANES)] __attribute__((aligned(BYTES)));
    for (size_t row = 0; row < count; row += NR) {
        const size_t rows = count - row < NR ? count - row : NR;
        NAME(pack_transposed)(NR, width, width, sums + row, ld, sums + width * ld, tile);
        NAME(tile_epilogue)(call, plan, tile, width, from + row, rows, 0, call->n, (REAL)call->beta, true);
    }
}

static void NAME(part_transposed_c)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part,
                                    void *workspace) {
    const size_t panels = (call->m + NR - 1) / NR;
    const size_t first = tuned_part_begin(panels, plan->row_parts, part) * NR,
                 last = tuned_part_begin(panels, plan->row_parts, part + 1) * NR,
                 end = last < call->m ? last : call->m;
    struct tuned_plan blocked = *plan;
    blocked.row_parts = 1;
    blocked.mc = call->n;
    blocked.update = NULL;
    blocked.partial_sums = NULL;
    struct gemm_call transposed = tuned_transposed_call(call);
    transposed.c = workspace;
    transposed.ldc = plan->mc + LANES; /* padded, against conflict misses */
    NAME(clear_bias_grad)(call, 0, call->n);
    for (size_t row = first; row < end; row += plan->mc) {
        transposed.n = end - row < plan->mc ? end - row : plan->mc;
        transposed.b = (const REAL *)call->a + row;
        NAME(part_blocked)(&transposed, &blocked, 0, workspace);
        NAME(store_transposed)(call, plan, transposed.c, transposed.ldc, row, transposed.n);
    }
}
