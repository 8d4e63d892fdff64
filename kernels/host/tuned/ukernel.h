/* The micro-kernel: an MR x NR micro-tile of C stays in registers while k runs.

   Idea       a step of k is a rank-1 update: each element of A, broadcast, times NR_VECTORS vectors of B.
   Registers  AVX-512 has 32: 14 x 2 sums, 2 vectors of B, 1 broadcast of A. AVX2 has 16: 6 x 2, 2 and 1.
   Bound by   FMA: a step is 28 FMAs (896 flops) and 16 loads, and a core starts two of each a cycle: 14
              cycles. It reads 4 * (14 + 32) bytes, 13 a cycle, a quarter of the L2 bandwidth; in float64 17.
              8 independent sums would hide the FMA latency of 4 cycles.
   Prefetch   out-of-order execution hides the latency of the L2 cache, but not of the L3 cache and memory. So
              the kernel prefetches rows of B ahead, C shortly before k ends (earlier, the L1 cache would
              evict it), and next_a or next_b (gemm_loops.h). A core has few line-fill buffers: the
              prefetches are spread over the steps.
   Packing    the first micro-tile that reads a micro-panel of B has its rows in registers, and packs them.
   Improves   kernels/host/gemm/openblas.c
   Run        ./train bench gemm --backends tuned

   Array sizes and loop counts are constants, so that the compiler keeps the arrays in registers. */
#ifndef NAME
#    include "kernels/host/tuned/vector.h"
#endif

/* One step of k. Row i of A is at a_rows[i / 3][i % 3 * rs_a]: x86-64 has too few registers for MR pointers,
   but addresses of the form base + {0, 1, 2} * stride. */
INLINE void NAME(rank1_update)(const size_t rows, const size_t vectors, VECTOR sum[MR][NR_VECTORS],
                               const REAL *const *a_rows, size_t rs_a, const REAL *b) {
    VECTOR row[NR_VECTORS];
    UNROLL for (size_t v = 0; v < vectors; v++) {
        row[v] = LOAD_VECTOR(b + v * LANES);
        IN_REGISTER(row[v]);
    }
    UNROLL for (size_t i = 0; i < rows; i++) {
        const REAL x = a_rows[i / 3][i % 3 * rs_a];
        UNROLL for (size_t v = 0; v < vectors; v++) {
            MULTIPLY_ADD(sum[i][v], x, row[v]);
            IN_REGISTER(sum[i][v]);
        }
    }
}

/* k steps with A and B in place. With `packs_b` this micro-tile is the first to read its micro-panel of B: it
   prefetches B some rows ahead, and into the L2 cache those `next_b` elements to the right of each row. It
   packs the rows to `b_out` unless that is NULL; then fewer rows ahead are better: as many as a set of the L1
   cache holds. */
INLINE void NAME(ukernel_unpacked)(const size_t rows, const size_t vectors, const bool packs_b, size_t k,
                                   VECTOR sum[MR][NR_VECTORS], const REAL *a, size_t rs_a, size_t cs_a,
                                   const REAL *b, size_t ldb, REAL *b_out, size_t next_b) {
    const REAL *a_rows[(MR + 2) / 3];
    UNROLL for (size_t i = 0; i < rows; i += 3) a_rows[i / 3] = a + i * rs_a;
    const size_t ahead = (b_out ? B_PREFETCH_ROWS / 2 : B_PREFETCH_ROWS) * ldb;
    for (size_t p = 0; p < k; p++) {
        if (packs_b) {
            UNROLL for (size_t v = 0; v < vectors; v++) {
                __builtin_prefetch(b + ahead + v * LANES);
                __builtin_prefetch(b + next_b + v * LANES, 0, 2);
                if (b_out) STORE_VECTOR(b_out + v * LANES, LOAD_VECTOR(b + v * LANES));
            }
            if (b_out) b_out += vectors * LANES;
        }
        NAME(rank1_update)(rows, vectors, sum, a_rows, rs_a, b);
        UNROLL for (size_t i = 0; i < rows; i += 3) {
            a_rows[i / 3] += cs_a;
            OPAQUE(a_rows[i / 3]);
        }
        b += ldb;
    }
}

/* `count` steps with A and B packed: all offsets are constants. */
INLINE void NAME(ukernel_packed)(const size_t rows, const size_t vectors, const size_t count,
                                 VECTOR sum[MR][NR_VECTORS], const REAL *a, const REAL *b) {
    UNROLL for (size_t p = 0; p < count; p++) {
        const REAL *a_rows[(MR + 2) / 3], *row = b + p * vectors * LANES;
        UNROLL for (size_t i = 0; i < rows; i += 3) a_rows[i / 3] = a + p * PACKMR + i;
        UNROLL for (size_t v = 0; v < vectors; v++) if (v * BYTES % 64 == 0)
            __builtin_prefetch(row + (B_PREFETCH_ROWS * vectors + v) * LANES);
        NAME(rank1_update)(rows, vectors, sum, a_rows, 1, row);
    }
}

/* C = alpha A B + beta C, with alpha and beta in `scale` and beta = 0 unless `reads_c`. If `packed`, A and B
   are micro-panels; else a(i, p) = a[i * rs_a + p * cs_a], and row p of B is at b + p * ldb. */
INLINE void NAME(ukernel)(const size_t rows, const size_t vectors, const bool packed, const bool packs_b,
                          size_t k, const REAL *a, size_t rs_a, size_t cs_a, const REAL *b, size_t ldb,
                          REAL *c, size_t ldc, const REAL *scale, bool reads_c, REAL *b_out,
                          struct tuned_next next) {
    VECTOR sum[MR][NR_VECTORS];
    UNROLL for (size_t i = 0; i < rows; i++) UNROLL for (size_t v = 0; v < vectors; v++) sum[i][v] =
        (VECTOR){0};
    const REAL *c_line = c;
    if (packed) {
        size_t c_step = vectors > 1 ? LANES : ldc;
        for (; k >= K_UNROLL; k -= K_UNROLL) {
            const bool late = k > C_PREFETCH_STEPS && k <= C_PREFETCH_STEPS + rows * vectors * K_UNROLL;
            __builtin_prefetch(c_line, 1);
            c_line += late ? c_step : 0;
            c_step = vectors > 1 && late ? ldc - c_step : c_step;
            OPAQUE(c_line);
            __builtin_prefetch(next.address, 0, 2);
            next.address += next.stride;
            NAME(ukernel_packed)(rows, vectors, K_UNROLL, sum, a, b);
            a += K_UNROLL * PACKMR;
            b += K_UNROLL * vectors * LANES;
        }
        for (; k; k--) {
            NAME(ukernel_packed)(rows, vectors, 1, sum, a, b);
            a += PACKMR;
            b += vectors * LANES;
        }
    } else {
        UNROLL for (size_t i = 0; i < rows; i++) {
            UNROLL for (size_t v = 0; v < vectors; v++) __builtin_prefetch(c_line + v * LANES, 1);
            c_line += ldc;
            OPAQUE(c_line);
        }
        NAME(ukernel_unpacked)
        (rows, vectors, packs_b, k, sum, a, rs_a, cs_a, b, ldb, b_out,
         next.stride == TUNED_NEXT_B_ROWS ? vectors * LANES : 0);
    }
    const REAL alpha = scale[0], beta = scale[1]; /* loaded here: the loop has no register left */
    UNROLL for (size_t i = 0; i < rows; i++) {
        UNROLL for (size_t v = 0; v < vectors; v++) {
            REAL *to = c + v * LANES;
            const VECTOR product = alpha * sum[i][v];
            STORE_VECTOR(to, reads_c ? VECTOR_FMA(SPLAT(beta), LOAD_VECTOR(to), product) : product);
        }
        c += ldc;
        OPAQUE(c);
    }
}

typedef void UKERNEL(size_t k, const REAL *a, size_t rs_a, size_t cs_a, const REAL *b, size_t ldb, REAL *c,
                     size_t ldc, const REAL *scale, bool reads_c, REAL *b_out, struct tuned_next next);

#define DEFINE_UKERNEL(KIND, R, V, PACKED, PACKS)                                                          \
    static void NAME(KIND##_##R##x##V)(size_t k, const REAL *a, size_t rs_a, size_t cs_a, const REAL *b,   \
                                       size_t ldb, REAL *c, size_t ldc, const REAL *scale, bool reads_c,   \
                                       REAL *b_out, struct tuned_next next) {                              \
        NAME(ukernel)(R, V, PACKED, PACKS, k, a, rs_a, cs_a, b, ldb, c, ldc, scale, reads_c, b_out, next); \
    }
#define DEFINE_UKERNELS(R)                       \
    DEFINE_UKERNEL(unpacked, R, 1, false, false) \
    DEFINE_UKERNEL(unpacked, R, 2, false, false) \
    DEFINE_UKERNEL(packs_b, R, 2, false, true)   \
    DEFINE_UKERNEL(packed, R, 1, true, false)    \
    DEFINE_UKERNEL(packed, R, 2, true, false)
FOR_MR(DEFINE_UKERNELS)

/* By rows - 1, then kind. 1V: one vector wide. */
#define UKERNELS_OF(R)                                                                            \
    {NAME(unpacked_##R##x1), NAME(unpacked_##R##x2), NAME(packs_b_##R##x2), NAME(packed_##R##x1), \
     NAME(packed_##R##x2)},
enum { NAME(UNPACKED_1V), NAME(UNPACKED), NAME(PACKS_B), NAME(PACKED_1V), NAME(PACKED), NAME(KINDS) };
static UKERNEL *const NAME(ukernels)[MR][NAME(KINDS)] = {FOR_MR(UKERNELS_OF)};
