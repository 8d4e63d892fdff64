/* Small k: B stays in registers, A and C stream.

   Idea        dX = dY W^T of an output layer: k = 10 is too short for a micro-tile of C in registers. So the
               registers hold B: a micro-panel of 10 steps x 2 vectors is loaded once for 32 rows of A, and
               each row of C is written once.
   Registers   MR steps of k x 2 vectors of B, 2 sums, 1 broadcast of A. A larger k is split evenly.
   Bound by    FMA while C is in a cache: a row is 20 FMAs for 10 loads and 2 stores, and rows are
               independent. Else by writing C once: 2 k flops an element, 20 GFLOP/s at 4 GB/s. An ordinary
               store reads the line first, so a C larger than the caches is written by non-temporal stores.
   Improves    gemm_loops.h
   Run         ./train bench gemm --backends tuned --layers 784-512-10 --sizes none */
#ifndef NAME
#    include "kernels/host/tuned/gemm_loops.h"
#endif

enum { NAME(SMALL_K_ROWS) = 32 }; /* rows of C at a time: the L1 TLB holds a page for each */

/* C = alpha A B, plus `partial` unless that is NULL. */
INLINE void NAME(small_k_ukernel)(const size_t k, size_t rows, const REAL *a, size_t lda, const REAL *b,
                                  size_t ldb, REAL alpha, const REAL *partial, REAL *c, size_t ldc,
                                  bool nontemporal) {
    VECTOR panel[MR][NR_VECTORS];
    UNROLL for (size_t p = 0; p < k; p++) UNROLL for (size_t v = 0; v < NR_VECTORS; v++) panel[p][v] =
        alpha * LOAD_VECTOR(b + p * ldb + v * LANES);
    for (size_t i = 0; i < rows; i++) {
        VECTOR sum[NR_VECTORS];
        UNROLL for (size_t v = 0; v < NR_VECTORS; v++) sum[v] =
            partial ? LOAD_VECTOR(partial + (i * NR_VECTORS + v) * LANES) : (VECTOR){0};
        UNROLL for (size_t p = 0; p < k; p++) UNROLL for (size_t v = 0; v < NR_VECTORS; v++)
            MULTIPLY_ADD(sum[v], a[p], panel[p][v]);
        UNROLL for (size_t v = 0; v < NR_VECTORS; v++) {
            if (nontemporal) {
                STREAM((VECTOR *)(c + v * LANES), sum[v]);
            } else {
                STORE_VECTOR(c + v * LANES, sum[v]);
            }
        }
        a += lda;
        c += ldc;
    }
}

#define SMALL_K_UKERNEL NAME(small_k_type)
typedef void SMALL_K_UKERNEL(size_t rows, const REAL *a, size_t lda, const REAL *b, size_t ldb, REAL alpha,
                             const REAL *partial, REAL *c, size_t ldc, bool nontemporal);

#define DEFINE_SMALL_K_UKERNEL(K)                                                                           \
    static void NAME(small_k_##K)(size_t rows, const REAL *a, size_t lda, const REAL *b, size_t ldb,        \
                                  REAL alpha, const REAL *partial, REAL *c, size_t ldc, bool nontemporal) { \
        NAME(small_k_ukernel)(K, rows, a, lda, b, ldb, alpha, partial, c, ldc, nontemporal);                \
    }
FOR_MR(DEFINE_SMALL_K_UKERNEL)
#define SMALL_K_ENTRY(K) NAME(small_k_##K),
static SMALL_K_UKERNEL *const NAME(small_k_ukernels)[MR] = {FOR_MR(SMALL_K_ENTRY)};

/* All of k for some rows of a micro-panel. Partial sums stay in `tile`; the result goes to `c`. */
INLINE void NAME(small_k_rows)(const LOOPS *loops, const TILES *steps, size_t row, size_t rows, const REAL *b,
                               size_t ldb, REAL *tile, REAL *c, size_t ldc) {
    const struct gemm_call *call = loops->call;
    const REAL *a = (const REAL *)call->a + row * call->lda;
    for (size_t t = 0; t < steps->count; t++) {
        const size_t count = steps->height + (t < steps->taller);
        const bool last = t + 1 == steps->count;
        NAME(small_k_ukernels)
        [count - 1](rows, a, call->lda, b, ldb, (REAL)call->alpha, t ? tile : NULL, last ? c : tile,
                    last ? ldc : NR, last && loops->plan->nontemporal);
        a += count;
        b += count * ldb;
    }
}

static void NAME(part_small_k)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part,
                               void *workspace) {
    const LOOPS loops = NAME(loops_of)(call, plan, part, workspace);
    const TILES steps = NAME(split_rows)(0, call->k, MR);
    const bool plain = call->beta == 0 && !call->epilogue && !call->backward && !plan->update;
    REAL tile[NAME(SMALL_K_ROWS) * NR] __attribute__((aligned(BYTES)));
    NAME(clear_bias_grad)(call, loops.col, loops.cols);
    for (size_t strip = 0; strip < loops.rows; strip += NAME(SMALL_K_ROWS)) {
        const size_t left = loops.rows - strip, rows = left < NAME(SMALL_K_ROWS) ? left : NAME(SMALL_K_ROWS),
                     row = loops.row + strip;
        for (size_t col = loops.col; col < loops.col + loops.cols; col += NR) {
            const size_t rest = loops.col + loops.cols - col, cols = rest < NR ? rest : NR;
            const bool packed = gemm_transposes_b(call->op) || cols < NR;
            REAL *panel = loops.packed_b + (col - loops.col) * call->k;
            if (packed && strip == 0) NAME(pack_b)(&loops, col, cols, NR, panel);
            const REAL *b = packed ? panel : (const REAL *)call->b + col;
            const size_t ldb = packed ? NR : call->ldb;
            if (plain && cols == NR) {
                NAME(small_k_rows)
                (&loops, &steps, row, rows, b, ldb, tile, (REAL *)call->c + row * call->ldc + col, call->ldc);
            } else {
                NAME(small_k_rows)(&loops, &steps, row, rows, b, ldb, tile, tile, NR);
                NAME(tile_epilogue)(call, plan, tile, NR, row, rows, col, cols, (REAL)call->beta, true);
            }
        }
    }
    if (plan->nontemporal) STREAM_FENCE();
}
