/* Small n, A not transposed: dot products along k, as BLIS's "rd" kernels for small matrices (sup).

   Idea        Y = X W of an output layer: 10 columns of C would leave 6 of 16 lanes idle. So the lanes run
               along k: one vector of partial sums for each of 2 rows x 10 columns, whose lanes are reduced at
               the end, 16 vectors together. A is read in place; B is packed as [k / LANES][n][LANES].
   Registers   MR columns x 2 rows of sums, 2 vectors of A, 1 of B. More columns are split evenly.
   Bound by    FMA while A is in a cache: LANES steps of k for 2 rows are 20 FMAs and 12 loads (gemm_loops.h:
               32 and 34); the reduction costs as much as 40 steps of k. Else by reading A once: 2 n flops an
               element, 20 GFLOP/s at 4 GB/s.
   Same bits   each lane in the order of k, then a fixed tree: independent of the rows computed with it.
   Improves    gemm_loops.h
   Run         ./train bench gemm --backends tuned --layers 784-512-10 --sizes none */
#ifndef NAME
#    include "kernels/host/tuned/gemm_loops.h"
#endif

enum { NAME(DOT_ROWS) = 16 }; /* rows of C at a time: their vectors of sums stay in the L1 cache */

/* LANES steps of k for two rows of A and `cols` columns of B. */
INLINE void NAME(add_products)(const size_t cols, VECTOR sum[MR][2], VECTOR x, VECTOR y, const REAL *b) {
    UNROLL for (size_t j = 0; j < cols; j++) {
        VECTOR column = LOAD_VECTOR(b + j * LANES);
        IN_REGISTER(column);
        sum[j][0] = VECTOR_FMA(x, column, sum[j][0]);
        sum[j][1] = VECTOR_FMA(y, column, sum[j][1]);
    }
}

/* Adds k steps to the vectors of sums of rows `x` and `y`, [2][n][LANES], or starts them. `end`: of A.
   `ahead`: elements to the next two rows, which are prefetched. */
INLINE void NAME(dot_ukernel)(const size_t cols, size_t k, const REAL *x, const REAL *y, const REAL *end,
                              size_t ahead, const REAL *b, size_t n, REAL *sums_x, bool starts) {
    VECTOR sum[MR][2];
    REAL *sums_y = sums_x + n * LANES;
    OPAQUE(sums_y);
    UNROLL for (size_t j = 0; j < cols; j++) {
        sum[j][0] = starts ? (VECTOR){0} : LOAD_VECTOR(sums_x + j * LANES);
        sum[j][1] = starts ? (VECTOR){0} : LOAD_VECTOR(sums_y + j * LANES);
    }
    for (; k >= LANES; k -= LANES) {
        __builtin_prefetch(x + ahead);
        __builtin_prefetch(y + ahead);
        NAME(add_products)(cols, sum, LOAD_VECTOR(x), LOAD_VECTOR(y), b);
        x += LANES;
        y += LANES;
        b += n * LANES;
    }
    if (k) NAME(add_products)
    (cols, sum, NAME(load_partial_k)(x, k, x + LANES <= end), NAME(load_partial_k)(y, k, y + LANES <= end),
     b);
    UNROLL for (size_t j = 0; j < cols; j++) {
        STORE_VECTOR(sums_x + j * LANES, sum[j][0]);
        STORE_VECTOR(sums_y + j * LANES, sum[j][1]);
    }
}

#define DOT_UKERNEL NAME(dot_type)
typedef void DOT_UKERNEL(size_t k, const REAL *x, const REAL *y, const REAL *end, size_t ahead, const REAL *b,
                         size_t n, REAL *sums_x, bool starts);

#define DEFINE_DOT_UKERNEL(N)                                                                        \
    static void NAME(dot_##N)(size_t k, const REAL *x, const REAL *y, const REAL *end, size_t ahead, \
                              const REAL *b, size_t n, REAL *sums_x, bool starts) {                  \
        NAME(dot_ukernel)(N, k, x, y, end, ahead, b, n, sums_x, starts);                             \
    }
FOR_MR(DEFINE_DOT_UKERNEL)
#define DOT_ENTRY(N) NAME(dot_##N),
static DOT_UKERNEL *const NAME(dot_ukernels)[MR] = {FOR_MR(DOT_ENTRY)};

/* alpha times the sum of the lanes of each of `count` vectors, in log2(LANES) rounds that halve the number of
   vectors. Reads and writes multiples of LANES. */
static void NAME(reduce_lanes)(size_t count, const REAL *sums, REAL alpha, REAL *to) {
    for (size_t i = 0; i < count; i += LANES) {
        VECTOR sum[LANES];
        UNROLL for (size_t j = 0; j < LANES; j++) sum[j] = LOAD_VECTOR(sums + (i + j) * LANES);
        UNROLL for (size_t half = LANES / 2; half; half /= 2) UNROLL for (size_t j = 0; j < half; j++)
            sum[j] = SHUFFLE(sum[j], sum[j + half], LOW) + SHUFFLE(sum[j], sum[j + half], HIGH);
        STORE_VECTOR(to + i, alpha * sum[0]);
    }
}

/* Packs B, [k][n] or [n][k], as [k / LANES][n][LANES], padded with zeros along k. */
static void NAME(pack_b_along_k)(const struct gemm_call *call, REAL *packed) {
    const size_t n = call->n, k = call->k, ldb = call->ldb;
    const bool tb = gemm_transposes_b(call->op);
    const REAL *b = call->b, *end = b + (tb ? (n - 1) * ldb + k : (k - 1) * ldb + n);
    for (size_t p = 0; p < k; p += LANES, packed += n * LANES) {
        const size_t steps = k - p < LANES ? k - p : LANES;
        for (size_t j = 0; j < n && tb; j++) {
            const REAL *from = b + j * ldb + p;
            STORE_VECTOR(packed + j * LANES, NAME(load_partial_k)(from, steps, from + LANES <= end));
        }
        for (size_t j = 0; j < n && !tb; j += LANES) {
            VECTOR square[LANES];
            const size_t cols = n - j < LANES ? n - j : LANES;
            const REAL *from = b + p * ldb + j;
            NAME(load_square)(square, steps, cols, from, ldb, end);
            NAME(transpose)(square);
            NAME(store_rows)(square, cols, packed + j * LANES, LANES);
        }
    }
}

/* The vectors of sums of rows row .. row + rows - 1 of C. */
static void NAME(dot_rows)(const LOOPS *loops, size_t row, size_t rows, REAL *sums) {
    const struct gemm_call *call = loops->call;
    const size_t n = call->n, k = call->k, lda = call->lda, kc = loops->plan->kc;
    const TILES cols = NAME(split_rows)(0, n, MR);
    const REAL *a = call->a, *end = a + (call->m - 1) * lda + k;
    for (size_t p = 0; p < k; p += kc) {
        const size_t steps = k - p < kc ? k - p : kc;
        for (size_t r = 0; r < rows; r += 2) {
            const REAL *x = a + (row + r) * lda + p,
                       *y = r + 1 < rows ? x + lda : x; /* an odd last row: twice */
            size_t col = 0;
            for (size_t t = 0; t < cols.count; t++) {
                const size_t count = cols.height + (t < cols.taller);
                NAME(dot_ukernels)
                [count - 1](steps, x, y, end, 2 * lda, loops->packed_b + p * n + col * LANES, n,
                            sums + (r * n + col) * LANES, p == 0);
                col += count;
            }
        }
    }
}

static void NAME(part_dot)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part,
                           void *workspace) {
    const LOOPS loops = NAME(loops_of)(call, plan, part, workspace);
    REAL tile[NAME(DOT_ROWS) * TUNED_NARROW + LANES] __attribute__((aligned(BYTES)));
    NAME(clear_bias_grad)(call, 0, call->n);
    NAME(pack_b_along_k)(call, loops.packed_b);
    for (size_t from = 0; from < loops.rows; from += NAME(DOT_ROWS)) {
        const size_t left = loops.rows - from, rows = left < NAME(DOT_ROWS) ? left : NAME(DOT_ROWS);
        NAME(dot_rows)(&loops, loops.row + from, rows, loops.packed_a);
        NAME(reduce_lanes)(rows * call->n, loops.packed_a, (REAL)call->alpha, tile);
        NAME(tile_epilogue)
        (call, plan, tile, call->n, loops.row + from, rows, 0, call->n, (REAL)call->beta, true);
    }
}
