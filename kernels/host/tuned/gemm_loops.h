/* The loops around the micro-kernel, for one part of C. BLIS's names; B is the operand in the L2 cache, so
   the ic loop stands outside the jc loop:

   pc loop  blocks of KC of k           C is read and written once a block
   ic loop  blocks of MC rows of A      all rows, or as many as the L3 cache holds
   jc loop  blocks of NC columns of B   half of the L2 cache
   ir loop  micro-tiles of MR rows
   jr loop  micro-panels of NR columns  inside the ir loop; outside it (jr_outer) if A fits in the L2 cache

   Packing    just before first use: a micro-panel of A before the first micro-panel of B is applied to it (16
              micro-panels together if A is transposed); a micro-panel of B by the first micro-kernel that
              reads it, or by pack_b if B is transposed, converted or narrower than NR.
   Bound by   FMA. A block of B, KC x NC, comes from the L2 cache; m * NC * KC FMAs stream m * KC elements of
              A and 2 m * NC of C from the L3 cache or memory: at 512 x 512, 12 bytes for 512 FMAs, 0.75 bytes
              a cycle. Bandwidth is a dozen times that; the latency is hidden by prefetching.
   Improves   ukernel.h alone
   Run        ./train bench gemm --backends tuned */
#ifndef NAME
#    include "kernels/host/tuned/ukernel.h"
#    include "kernels/host/tuned/pack.h"
#    include "kernels/host/tuned/epilogue.h"
static const struct tuned_kernel NAME(kernel);
#endif

#define LOOPS struct NAME(loops)
LOOPS {
    const struct gemm_call *call;
    const struct tuned_plan *plan;
    size_t row, rows, col, cols; /* of the part */
    size_t pc, kc, k_steps;      /* the block of k; k_steps: kc in packed elements */
    size_t jc, jc_end;           /* the columns of the block of B */
    size_t b_first;              /* the first column in packed_b */
    REAL *packed_a, *packed_b;
};

/* The offset of an element in a matrix with rows `ld` apart, or, if `panel` is not 0, in micro-panels. */
INLINE size_t NAME(offset_of)(size_t row, size_t col, size_t ld, size_t panel) {
    return panel ? col / NR * panel + row * NR + col % NR : row * ld + col;
}

/* The micro-tile of C at `row` and `col` of the whole matrix. */
INLINE void NAME(micro_tile)(const LOOPS *loops, UKERNEL *ukernel, const REAL *a, size_t rs_a, size_t cs_a,
                             const REAL *b, size_t ldb, REAL *b_out, struct tuned_next next, size_t row,
                             size_t rows, size_t col, size_t cols, size_t width) {
    const struct gemm_call *call = loops->call;
    const struct tuned_update *update = loops->plan->update;
    const bool first = loops->pc == 0, last = loops->pc + loops->kc == call->k;
    const REAL beta = first ? (REAL)call->beta : 1, scale[2] = {(REAL)call->alpha, beta};
    const size_t panel = loops->plan->c_panel_stride;
    if ((cols == width || panel) && !(last && (call->epilogue || call->backward)) && !update &&
        C_IS_REAL(call)) {
        REAL *c = (REAL *)call->c + NAME(offset_of)(row, col, call->ldc, panel);
        ukernel(loops->k_steps, a, rs_a, cs_a, b, ldb, c, panel ? NR : call->ldc, scale, beta != 0, b_out,
                next);
        return;
    }
    if (update && last) {
        NAME(prefetch_rows)(call->c, row * call->ldc + col, call->ldc, rows);
        if (update->velocity) NAME(prefetch_rows)(update->velocity, row * call->ldc + col, call->ldc, rows);
    }
    REAL tile[MR * NR] __attribute__((aligned(BYTES)));
    ukernel(loops->k_steps, a, rs_a, cs_a, b, ldb, tile, width, scale, false, b_out, next);
    TILE_EPILOGUE(call)(call, loops->plan, tile, width, row, rows, col, cols, beta, last);
}

/* Packs a micro-panel of B. A transposed B in micro-panels is packed in pieces, one from each of them. */
static void NAME(pack_b)(const LOOPS *loops, size_t col, size_t cols, size_t width, REAL *packed) {
    const struct gemm_call *call = loops->call;
    const size_t panel = loops->plan->b_panel_stride, ldb = call->ldb, end = loops->pc + loops->kc;
    const STORED *b = call->b;
    if (!gemm_transposes_b(call->op)) {
        NAME(pack_rows)(loops->kc, cols, width, b + loops->pc * ldb + col, ldb, packed);
        return;
    }
    for (size_t p = loops->pc, next; p < end; p = next) {
        const size_t panel_end = p / NR * NR + NR;
        next = panel && panel_end < end ? panel_end : end;
        NAME(pack_transposed)
        (next - p, cols, width, b + NAME(offset_of)(col, p, ldb, panel), panel ? NR : ldb,
         b + NAME(offset_of)(call->n - 1, next - 1, ldb, panel) + 1, packed + (p - loops->pc) / VNNI * width);
    }
}

/* Packs the micro-panels of tiles first .. end - 1 from A[k][m]; the first begins at `row`. A few steps of k
   of all of them at a time: these are contiguous in a row of A. */
static void NAME(pack_a_from_km)(const LOOPS *loops, const TILES *rows, size_t first, size_t end,
                                 size_t row) {
    const struct gemm_call *call = loops->call;
    const STORED *a = (const STORED *)call->a + loops->pc * call->lda;
    const size_t chunk = end - first > 1 ? 8 : loops->kc;
    for (size_t p = 0; p < loops->kc; p += chunk) {
        const size_t steps = loops->kc - p < chunk ? loops->kc - p : chunk;
        size_t at = row;
        for (size_t t = first; t < end; t++) {
            const size_t left = call->m - at;
            NAME(pack_rows)
            (steps, left < PACKMR ? left : PACKMR, PACKMR, a + p * call->lda + at, call->lda,
             loops->packed_a + (t * loops->k_steps + p / VNNI) * PACKMR);
            at += rows->height + (t < rows->taller);
        }
    }
}

/* Packs the micro-panel of A of tile `t`, which begins at `row`; its padding to whole vectors holds the rows
   below, if there are any: faster than zeros. With ir outside jr, 16 micro-panels of A[k][m] are packed
   together. */
static void NAME(pack_a)(const LOOPS *loops, const TILES *rows, size_t t, size_t row) {
    const struct gemm_call *call = loops->call;
    const size_t left = call->m - row, lda = call->lda, group = loops->plan->jr_outer ? 1 : 16;
    const STORED *a = call->a;
    if (!gemm_transposes_a(call->op)) {
        NAME(pack_transposed)
        (loops->kc, left < PACKMR ? left : PACKMR, PACKMR, a + row * lda + loops->pc, lda,
         a + (call->m - 1) * lda + call->k, loops->packed_a + t * loops->k_steps * PACKMR);
    } else if (t % group == 0) {
        NAME(pack_a_from_km)(loops, rows, t, t + group < rows->count ? t + group : rows->count, row);
    }
}

/* next_a: the micro-panel of A of the next tile, or the rows from `row` on from which it is packed. The
   micro-kernel prefetches one part of it for each micro-panel of B. */
INLINE struct tuned_next NAME(next_a)(const LOOPS *loops, const REAL *packed, size_t row, size_t col) {
    const struct gemm_call *call = loops->call;
    const size_t part = (col - loops->jc) / NR;
    if (part >= PACKMR) return (struct tuned_next){(const char *)packed, TUNED_NEXT_NONE};
    if (loops->jc != loops->col || gemm_transposes_a(call->op))
        return (struct tuned_next){(const char *)(packed + part * loops->k_steps), K_UNROLL * sizeof(REAL)};
    return (struct tuned_next){(const char *)((const STORED *)call->a + (row + part) * call->lda + loops->pc),
                               K_UNROLL * VNNI * sizeof(STORED)};
}

/* next_b: the elements from which the next micro-panel of B is packed, if B is not transposed. If A is packed
   and jr is outside ir, each of the first tiles prefetches one line of every K_UNROLL-th row; else the first
   tile prefetches the same rows of the next micro-panel. Beyond the last micro-panel of a part nothing is
   prefetched: if B is W, another thread may own those lines (false sharing). */
INLINE struct tuned_next NAME(next_b)(const LOOPS *loops, size_t tile, size_t col) {
    enum { LINE = 64 / sizeof(STORED) };
    const struct gemm_call *call = loops->call;
    const STORED *b = (const STORED *)call->b;
    const size_t line = tile / K_UNROLL * LINE;
    if (col + NR >= loops->col + loops->cols || loops->plan->b_panel_stride || gemm_transposes_b(call->op))
        return (struct tuned_next){(const char *)b, TUNED_NEXT_NONE};
    if (!loops->plan->pack_a || !loops->plan->jr_outer)
        return (struct tuned_next){(const char *)b, TUNED_NEXT_B_ROWS};
    if (line >= NR) return (struct tuned_next){(const char *)b, TUNED_NEXT_NONE};
    return (struct tuned_next){
        (const char *)(b + (loops->pc + tile % K_UNROLL * VNNI) * call->ldb + col + NR + line),
        K_UNROLL * VNNI * call->ldb * sizeof(STORED)};
}

/* Tiles first .. end - 1 of a block of rows times one micro-panel of B. No division here: a tile may take
   less than 2000 cycles. `fresh`: the micro-panel is not packed yet. */
static void NAME(ir_loop)(const LOOPS *loops, const TILES *rows, size_t first, size_t end, size_t col,
                          bool fresh) {
    const struct gemm_call *call = loops->call;
    const bool ta = gemm_transposes_a(call->op), pack_a = loops->plan->pack_a;
    const size_t left = loops->col + loops->cols - col;
    const bool in_panels = loops->plan->b_panel_stride && !gemm_transposes_b(call->op); /* of B as stored */
    const size_t cols = left < NR ? left : NR, width = cols > LANES || in_panels ? NR : LANES;
    const size_t rs_a = ta || pack_a ? 1 : call->lda, cs_a = pack_a ? PACKMR : ta ? call->lda : 1;
    const bool packs_b = fresh && !CONVERTS && !gemm_transposes_b(call->op) && (cols == NR || in_panels);
    const int kind = width == LANES ? (pack_a ? UKERNEL_NAME(PACKED_1V) : UKERNEL_NAME(UNPACKED_1V))
                                    : (pack_a ? UKERNEL_NAME(PACKED) : UKERNEL_NAME(UNPACKED));
    REAL *packed = loops->packed_b + (col - loops->b_first) * loops->k_steps;
    if (fresh && !packs_b) NAME(pack_b)(loops, col, cols, width, packed);
    const REAL *in_place = packs_b || in_panels
                               ? (const REAL *)call->b +
                                     NAME(offset_of)(loops->pc, col, call->ldb, loops->plan->b_panel_stride)
                               : packed,
               *b = in_panels ? in_place : packed;
    size_t row = rows->first_row + first * rows->height + (first < rows->taller ? first : rows->taller);
    for (size_t t = first; t < end; t++) {
        const size_t count = rows->height + (t < rows->taller);
        REAL *panel = loops->packed_a + t * loops->k_steps * PACKMR;
        if (pack_a && col == loops->col) NAME(pack_a)(loops, rows, t, row);
        const REAL *a = pack_a ? panel : (const REAL *)call->a + row * rs_a + loops->pc * cs_a;
        const struct tuned_next next =
            (fresh && !in_panels) || !pack_a
                ? NAME(next_b)(loops, t, col)
                : NAME(next_a)(loops, panel + loops->k_steps * PACKMR, row + count, col);
        if (packs_b && t == first) {
            NAME(micro_tile)
            (loops, UKERNEL_NAME(ukernels)[count - 1][UKERNEL_NAME(PACKS_B)], a, rs_a, cs_a, in_place,
             in_panels ? NR : call->ldb, rows->count > 1 && !in_panels ? packed : NULL, next, row, count, col,
             cols, width);
        } else {
            NAME(micro_tile)
            (loops, UKERNEL_NAME(ukernels)[count - 1][kind], a, rs_a, cs_a, b, width, NULL, next, row, count,
             col, cols, width);
        }
        row += count;
    }
}

static void NAME(macro_kernel)(const LOOPS *loops, const TILES *rows, bool fresh) {
    const size_t group = loops->plan->jr_outer ? rows->count : 1;
    for (size_t t = 0; t < rows->count; t += group)
        for (size_t col = loops->jc; col < loops->jc_end; col += NR)
            NAME(ir_loop)(loops, rows, t, t + group, col, fresh && t == 0);
}

/* One block of k. A is packed once; B once if all of its blocks fit (plan: pack_b_once), else for each block
   of A. */
static void NAME(ic_and_jc_loops)(LOOPS *loops) {
    const struct tuned_plan *plan = loops->plan;
    const size_t end = loops->col + loops->cols;
    for (size_t ic = 0; ic < loops->rows; ic += plan->mc) {
        const size_t left = loops->rows - ic, mc = left < plan->mc ? left : plan->mc;
        const TILES rows = NAME(split_rows)(loops->row + ic, mc, plan->mr);
        for (size_t jc = loops->col; jc < end; jc += plan->nc) {
            loops->jc = jc;
            loops->jc_end = end - jc < plan->nc ? end : jc + plan->nc;
            loops->b_first = plan->pack_b_once ? loops->col : jc;
            NAME(macro_kernel)(loops, &rows, ic == 0 || !plan->pack_b_once);
        }
    }
}

static void NAME(clear_bias_grad)(const struct gemm_call *call, size_t col, size_t cols) {
    if (!call->backward || !call->backward->bias_grad) return;
    for (size_t j = col; j < col + cols; j++) ((REAL *)call->backward->bias_grad)[j] = 0;
}

/* The loops of a part of C, which is a range of rows and of micro-panels. */
static LOOPS NAME(loops_of)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part,
                            void *workspace) {
    const size_t row_part = part / plan->col_parts, col_part = part % plan->col_parts;
    const size_t panels = (call->n + NR - 1) / NR;
    const size_t col = tuned_part_begin(panels, plan->col_parts, col_part) * NR,
                 col_end = tuned_part_begin(panels, plan->col_parts, col_part + 1) * NR,
                 row = tuned_part_begin(call->m, plan->row_parts, row_part);
    return (LOOPS){.call = call,
                   .plan = plan,
                   .row = row,
                   .rows = tuned_part_begin(call->m, plan->row_parts, row_part + 1) - row,
                   .col = col,
                   .cols = (col_end < call->n ? col_end : call->n) - col,
                   .kc = call->k,
                   .k_steps = (call->k + VNNI - 1) / VNNI,
                   .b_first = col,
                   .packed_a = workspace,
                   .packed_b = (REAL *)workspace + tuned_a_elements(&NAME(kernel))};
}

static void NAME(part_blocked)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part,
                               void *workspace) {
    LOOPS loops = NAME(loops_of)(call, plan, part, workspace);
    NAME(clear_bias_grad)(call, loops.col, loops.cols);
    const size_t steps = loops.k_steps, blocks = steps ? (steps + plan->kc - 1) / plan->kc : 1;
    for (size_t block = 0; block < blocks; block++) {
        const size_t first = tuned_part_begin(steps, blocks, block),
                     end = tuned_part_begin(steps, blocks, block + 1);
        loops.pc = first * VNNI;
        loops.k_steps = end - first;
        loops.kc = (end * VNNI < call->k ? end * VNNI : call->k) - loops.pc;
        NAME(ic_and_jc_loops)(&loops);
    }
}
