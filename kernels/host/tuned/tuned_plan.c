/* How `tuned` cuts a call: into parts for threads, and parts into blocks for caches.

   A part is rows x cols of C. It reads (rows + cols) * k elements for rows * cols * k multiply-adds, so
   squares are best; but whole tiles count, and the L2 cache of a core should hold its share of B. What is
   narrow has ways of its own, chosen by the shape: so a slice of a product goes the way of the whole. */
#include <stdint.h>
#include <unistd.h>

#include "kernels/host/tuned/tuned.h"

static size_t cache(int name, size_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? (size_t)bytes : otherwise;
}

/* Data caches of a core, in bytes: what the system says, or what every processor of the last ten years has.
   Asked for once, when the first context is created. */
static size_t level1(void) {
    static size_t bytes;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    if (!bytes) bytes = cache(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
#endif
    return bytes ? bytes : 32 << 10;
}

static size_t level2(void) {
    static size_t bytes;
#ifdef _SC_LEVEL2_CACHE_SIZE
    if (!bytes) bytes = cache(_SC_LEVEL2_CACHE_SIZE, 256 << 10);
#endif
    return bytes ? bytes : 256 << 10;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

static const size_t DEEP = 512; /* steps of k after which reading and writing C costs little */

/* The most of k that a block has. */

/* Of one vector of columns: its panel of B and the rows of a tile stay in the L1 cache. */
static size_t narrow_depth(const struct tuned_code *code) {
    return larger(level1() / code->size / (code->lanes + code->rows), 32);
}

/* Where a panel of B is packed, read by few tiles and never met again: two thirds of the L1 cache. */
static size_t shallow_depth(const struct tuned_code *code) {
    return larger(level1() * 2 / 3 / code->size / code->cols, 32);
}

/* Else the rows of a tile take three fifths of the L1 cache, while panels of B pass; or, where the L2 cache
   is larger, both pass, and 16 panels of B are half of it. */
static size_t deep_depth(const struct tuned_code *code) {
    const size_t deep =
        larger(level1() * 3 / 5 / code->size / code->rows, level2() / 2 / 16 / code->size / code->cols);
    return larger(smaller(deep, DEEP), 32);
}

/* Does a quarter of the L2 cache keep so many rows of a block of A? Then each panel of B is used up at
   once. */
static bool stays(const struct tuned_code *code, size_t rows, size_t depth) {
    return rows * depth * code->size <= level2() / 4;
}

static size_t most_depth(const struct tuned_code *code, const struct gemm_call *call, size_t steps) {
    if (call->n <= code->lanes) return narrow_depth(code);
    return stays(code, call->m, smaller(steps, shallow_depth(code))) ? shallow_depth(code) : deep_depth(code);
}

static size_t deepest(const struct tuned_code *code) {
    return larger(narrow_depth(code), larger(shallow_depth(code), deep_depth(code)));
}

/* A block of B is half of the L2 cache, which keeps it while tiles of A come and go. All that stays packed is
   for the L3 cache: B eight blocks, A twice that, for B is packed anew for every block of A. But a panel, or
   a tile, at least, however deep. */
size_t tuned_b_elements(const struct tuned_code *code) {
    return larger(4 * level2() / code->size, deepest(code) * code->cols);
}

size_t tuned_a_elements(const struct tuned_code *code) {
    return larger(8 * level2() / code->size, deepest(code) * code->a_width);
}

size_t tuned_workspace(const struct tuned_code *code) {
    return (tuned_a_elements(code) + tuned_b_elements(code)) * code->size;
}

/* Multiply-adds of the largest part, with tiles and panels as if they were full; and what it reads. */
static double part_cost(const struct tuned_code *code, const struct gemm_call *call, size_t row_parts,
                        size_t col_parts) {
    const size_t rows = ceil_div(call->m, row_parts),
                 cols = ceil_div(ceil_div(call->n, code->cols), col_parts) * code->cols;
    const double least = 4; /* rows of a tile that keep the multiply-add units busy */
    return (double)cols * ((double)rows > least ? (double)rows : least) + 4.0 * (double)(rows + cols);
}

static void split(struct tuned_plan *plan, const struct tuned_code *code, const struct gemm_call *call,
                  size_t threads) {
    const size_t panels = ceil_div(call->n, code->cols);
    double best = 0;
    for (size_t col_parts = 1; col_parts <= smaller(threads, panels); col_parts++) {
        /* sums over columns want all rows of a column in one part */
        const size_t row_parts = call->backward && call->backward->bias_grad
                                     ? 1
                                     : larger(smaller(threads / col_parts, call->m), 1);
        const double cost = part_cost(code, call, row_parts, col_parts);
        if (best != 0 && cost >= best) continue;
        best = cost;
        plan->row_parts = row_parts;
        plan->col_parts = col_parts;
    }
}

/* Rows (or steps of k) a multiple of 2 KB apart share a few sets of the L1 cache. */
static bool collides(size_t ld, size_t size) {
    return ld * size % 2048 == 0;
}

/* The blocks, for a grid of parts. Those of k depend on nothing but the shape: so the sums, and their bits,
   do not change with the threads. */
static void block(struct tuned_plan *plan, const struct tuned_code *code, const struct gemm_call *call) {
    const bool narrow = call->n <= code->lanes, ta = gemm_transposes_a(call->op),
               collide = collides(call->lda, code->size);
    const size_t rows = ceil_div(call->m, plan->row_parts),
                 cols = ceil_div(ceil_div(call->n, code->cols), plan->col_parts) * code->cols;
    const size_t steps = ceil_div(call->k, code->pair),
                 blocks = larger(ceil_div(steps, most_depth(code, call, steps)), 1);
    plan->depth = larger(ceil_div(steps, blocks), 1);
    plan->cols = smaller(cols, larger(level2() / 2 / code->size / plan->depth / code->cols, 1) * code->cols);
    /* it pays from 9 panels of B on; from 5 where rows collide, or lie across k */
    plan->pack_a = code->converts || cols > (collide || ta ? 4 : 8) * code->cols;
    plan->tile_rows = narrow && collide && !plan->pack_a ? smaller(code->rows, 8) : code->rows;
    plan->by_panels = narrow;
    if (stays(code, rows, plan->depth)) {
        plan->cols = code->cols;
        plan->by_panels = true;
    }
    const size_t fit = tuned_a_elements(code) / (plan->depth * code->a_width) * code->rows;
    plan->rows = plan->pack_a ? ceil_div(rows, ceil_div(rows, fit)) : rows;
    plan->keep_b = plan->rows < rows && cols * plan->depth <= tuned_b_elements(code);
}

size_t tuned_rows_in_cache(const struct tuned_code *code, size_t cols) {
    return larger(level2() / 2 / code->size / cols, 1);
}

/* --- narrow products --- */

static const size_t SPREAD = 5;         /* vectors of k that pay for adding up their lanes */
static const size_t SHORT = 64;         /* rows of A that panels read side by side */
static const size_t LARGE = 8ULL << 20; /* bytes of C that no cache is to keep */

static bool sums_columns(const struct gemm_call *call) {
    return call->backward && call->backward->bias_grad;
}

struct gemm_call tuned_turn(const struct gemm_call *call) {
    static const enum gemm_op turned[] = {
        [GEMM_NN] = GEMM_TT, [GEMM_TN] = GEMM_TN, [GEMM_NT] = GEMM_NT, [GEMM_TT] = GEMM_NN};
    return (struct gemm_call){.dtype = call->dtype,
                              .op = turned[call->op],
                              .m = call->n,
                              .n = call->m,
                              .k = call->k,
                              .alpha = call->alpha,
                              .a = call->b,
                              .lda = call->ldb,
                              .b = call->a,
                              .ldb = call->lda};
}

/* Would more than a quarter of the lanes be empty? And k is long enough, for the lanes are added up at the
   end; and B stays packed. */
static bool wants_dots(const struct tuned_code *code, const struct gemm_call *call) {
    const size_t lanes = call->n <= code->lanes ? code->lanes : ceil_div(call->n, code->cols) * code->cols;
    return call->n <= TUNED_FEW && !gemm_transposes_a(call->op) && 4 * call->n <= 3 * lanes &&
           call->k >= SPREAD * code->lanes && call->m >= 4 &&
           call->n * (call->k + code->lanes) <= tuned_b_elements(code);
}

/* Blocks of k: half of the L1 cache. */
static void plan_dots(struct tuned_plan *plan, const struct tuned_code *code, const struct gemm_call *call,
                      size_t threads) {
    const size_t most = larger(level1() / 2 / code->size / call->n, code->lanes);
    plan->way = TUNED_DOTS;
    plan->row_parts = sums_columns(call) ? 1 : smaller(threads, call->m);
    plan->col_parts = 1;
    plan->depth = ceil_div(ceil_div(call->k, ceil_div(call->k, most)), code->lanes) * code->lanes;
}

static bool wants_turning(const struct tuned_code *code, const struct gemm_call *call) {
    return call->n <= TUNED_FEW && gemm_transposes_a(call->op) && call->m >= code->lanes;
}

/* As many rows of C as a quarter of the L2 cache has room for, with a vector more; blocks of k short enough
   to keep their rows of A, which the panels of C^T read side by side, in the L2 cache. */
static void plan_turned(struct tuned_plan *plan, const struct tuned_code *code, const struct gemm_call *call,
                        size_t threads) {
    const size_t room = level2() / 4 / code->size / TUNED_FEW - code->lanes,
                 panels = ceil_div(call->m, code->cols);
    plan->way = TUNED_TURNED;
    plan->row_parts = sums_columns(call) ? 1 : smaller(threads, panels);
    plan->col_parts = 1;
    plan->rows = smaller(room / code->cols, panels) * code->cols;
    plan->depth = larger(ceil_div(call->k, larger(ceil_div(call->k, SHORT), 1)), 1);
    plan->cols = code->cols;
    plan->tile_rows = code->rows;
    plan->by_panels = true;
}

static bool wants_thin(const struct tuned_code *code, const struct gemm_call *call) {
    return call->k >= 1 && call->k <= TUNED_FEW && !gemm_transposes_a(call->op) && call->n > code->lanes &&
           call->m >= 4 && (call->n + code->cols) * call->k <= tuned_b_elements(code);
}

/* Parts side by side, unless they would share lines of the cache. C past the caches: if it is large, and its
   rows are whole vectors. */
static void plan_thin(struct tuned_plan *plan, const struct tuned_code *code, const struct gemm_call *call,
                      size_t threads) {
    const size_t vector = code->lanes * code->size;
    split(plan, code, call, threads);
    if (call->ldc * code->size % 64 != 0 && !sums_columns(call)) {
        plan->row_parts = smaller(threads, call->m);
        plan->col_parts = 1;
    }
    plan->way = TUNED_THIN;
    plan->streams = call->beta == 0 && !call->epilogue && !call->backward && call->n % code->cols == 0 &&
                    (uintptr_t)call->c % vector == 0 && call->ldc * code->size % vector == 0 &&
                    call->m * call->n * code->size > LARGE;
}

static bool plan_narrow(struct tuned_plan *plan, const struct tuned_code *code, const struct gemm_call *call,
                        size_t threads) {
    if (code->converts) return false; /* they read A and B in place */
    if (wants_dots(code, call)) {
        plan_dots(plan, code, call, threads);
    } else if (wants_turning(code, call)) {
        plan_turned(plan, code, call, threads);
    } else if (wants_thin(code, call)) {
        plan_thin(plan, code, call, threads);
    } else {
        return false;
    }
    return true;
}

/* --- all of them --- */

struct tuned_plan tuned_plan_for(const struct tuned_code *code, const struct gemm_call *call,
                                 size_t threads) {
    struct tuned_plan plan = {0};
    if (plan_narrow(&plan, code, call, threads)) return plan;
    split(&plan, code, call, threads);
    block(&plan, code, call);
    return plan;
}

struct tuned_plan tuned_plan_by_columns(const struct tuned_code *code, const struct gemm_call *call,
                                        size_t threads) {
    struct tuned_plan plan = {0};
    if (plan_narrow(&plan, code, call, threads)) return plan;
    plan.col_parts = smaller(threads, ceil_div(call->n, code->cols));
    plan.row_parts = larger(smaller(threads / plan.col_parts, call->m), 1);
    block(&plan, code, call);
    return plan;
}
