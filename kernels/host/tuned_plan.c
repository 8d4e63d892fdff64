/* How `tuned` cuts a call: into parts for threads, and parts into blocks for caches.

   A part is rows x cols of C. It reads (rows + cols) * k elements for rows * cols * k multiply-adds, so squares are best; but whole
   tiles count, and the L2 cache of a core should hold its share of B. */
#include <unistd.h>

#include "kernels/host/tuned.h"

static size_t cache(int name, size_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? (size_t)bytes : otherwise;
}

/* Data caches of a core, in bytes: what the system says, or what every processor of the last ten years has. Asked for once, when the
   first context is created. */
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

/* The most of k that a block has. In its place, a panel of B just fills the L1 cache; packed, the rows of a tile take three fifths of it,
   while panels of B pass. */
static size_t most_depth(const struct tuned_code *code, bool narrow, bool in_place) {
    const size_t elements = level1() / code->size;
    return larger(narrow     ? elements / (code->lanes + code->rows)
                  : in_place ? elements * 9 / 8 / code->cols
                             : smaller(elements * 3 / 5 / code->rows, DEEP),
                  32);
}

/* Of all kinds of blocks. */
static size_t deepest(const struct tuned_code *code) {
    return larger(most_depth(code, false, true),
                  larger(most_depth(code, true, false), most_depth(code, false, false)));
}

/* A block of B is half of the L2 cache, and all that stays packed eight times that, for the L3 cache; a block of A is a quarter. But a panel, or
   a tile, at least, however deep. */
size_t tuned_b_elements(const struct tuned_code *code) {
    return larger(4 * level2() / code->size, deepest(code) * code->cols);
}

size_t tuned_a_elements(const struct tuned_code *code) {
    return larger(level2() / 4 / code->size, (deepest(code) + 2 * code->lanes) * code->rows);
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

/* Few rows do not pay for packing B, if its panels can be read where they are: as rows, and all of them kept by the L2 cache. */
static bool stays_in_place(const struct tuned_code *code, const struct gemm_call *call) {
    return !gemm_transposes_b(call->op) && call->m <= 16 * code->rows && call->n > code->lanes &&
           most_depth(code, false, true) * call->ldb * code->size <= level2();
}

/* The blocks, for a grid of parts. Those of k depend on nothing but the shape: so the sums, and their bits, do not change with the
   threads. */
static void block(struct tuned_plan *plan, const struct tuned_code *code, const struct gemm_call *call) {
    const bool narrow = call->n <= code->lanes, ta = gemm_transposes_a(call->op),
               in_place = !code->converts && stays_in_place(code, call),
               collide = collides(call->lda, code->size);
    const size_t rows = ceil_div(call->m, plan->row_parts),
                 cols = ceil_div(ceil_div(call->n, code->cols), plan->col_parts) * code->cols;
    const size_t steps = ceil_div(call->k, code->pair),
                 blocks = larger(ceil_div(steps, most_depth(code, narrow, in_place)), 1);
    plan->depth = larger(ceil_div(steps, blocks), 1);
    plan->cols = smaller(cols, larger(level2() / 2 / code->size / plan->depth / code->cols, 1) * code->cols);
    plan->keep_b = cols * plan->depth <= tuned_b_elements(code);
    plan->pack_b = !in_place;
    plan->pack_a = code->converts ||
                   (collide && (cols > 4 * code->cols || (ta && call->m * call->k * code->size > level2())));
    plan->tile_rows = narrow && collide && !plan->pack_a ? smaller(code->rows, 8) : code->rows;
    plan->by_panels = in_place || narrow;
    const size_t fit = tuned_a_elements(code) / (plan->depth + 2 * code->lanes) / code->rows * code->rows;
    plan->rows = plan->by_panels && !plan->pack_a ? rows : smaller(fit, rows);
}

struct tuned_plan tuned_plan_for(const struct tuned_code *code, const struct gemm_call *call,
                                 size_t threads) {
    struct tuned_plan plan = {0};
    split(&plan, code, call, threads);
    block(&plan, code, call);
    return plan;
}

struct tuned_plan tuned_plan_by_columns(const struct tuned_code *code, const struct gemm_call *call,
                                        size_t threads) {
    struct tuned_plan plan = {.col_parts = smaller(threads, ceil_div(call->n, code->cols))};
    plan.row_parts = larger(smaller(threads / plan.col_parts, call->m), 1);
    block(&plan, code, call);
    return plan;
}
