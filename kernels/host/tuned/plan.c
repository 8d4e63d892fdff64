/* How `tuned` partitions a call among threads, and chooses the cache blocks of each part.

   A part of rows x cols of C reads (rows + cols) * k elements for rows * cols * k FMAs, so squares are best;
   but micro-tiles should be full, and the packed B of a part should fit in the L2 cache of its core. The
   variant depends on the shape alone, so that a slice of a product is computed as the whole is: the same
   bits. */
#include <stdint.h>
#include <unistd.h>

#include "kernels/host/tuned/tuned.h"

static size_t cache(int name, size_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? (size_t)bytes : otherwise;
}

/* Data caches of a core, in bytes. If the system does not know: sizes that every processor of the last ten
   years has. The system is queried once, when the first context is created. */
static size_t l1_bytes(void) {
    static size_t bytes;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    if (!bytes) bytes = cache(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
#endif
    return bytes ? bytes : 32 << 10;
}

static size_t l2_bytes(void) {
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

static const size_t KC_LIMIT = 512; /* a larger KC saves little: C is seldom read and written */

/* The largest KC. If n fits in one vector: a micro-panel of B and one of A fit in the L1 cache. */
static size_t kc_one_vector(const struct tuned_kernel *kernel) {
    return larger(l1_bytes() / kernel->size / (kernel->lanes + kernel->mr), 32);
}

/* If the block of A fits in the L2 cache: a micro-panel of B, which few micro-tiles read, takes two thirds of
   the L1 cache. */
static size_t kc_for_l1(const struct tuned_kernel *kernel) {
    return larger(l1_bytes() * 2 / 3 / kernel->size / kernel->nr, 32);
}

/* Else the larger of two: a micro-panel of A takes three fifths of the L1 cache while those of B stream; or
   both stream, and 16 micro-panels of B take half of the L2 cache. */
static size_t kc_for_l2(const struct tuned_kernel *kernel) {
    const size_t kc = larger(l1_bytes() * 3 / 5 / kernel->size / kernel->mr,
                             l2_bytes() / 2 / 16 / kernel->size / kernel->nr);
    return larger(smaller(kc, KC_LIMIT), 32);
}

/* Does a block of `rows` rows of A fit in a quarter of the L2 cache? Then each micro-panel of B is applied to
   the whole block before the next one (jr outside ir). */
static bool a_fits_l2(const struct tuned_kernel *kernel, size_t rows, size_t kc) {
    return rows * kc * kernel->size <= l2_bytes() / 4;
}

static size_t kc_limit(const struct tuned_kernel *kernel, const struct gemm_call *call, size_t steps) {
    if (call->n <= kernel->lanes) return kc_one_vector(kernel);
    return a_fits_l2(kernel, call->m, smaller(steps, kc_for_l1(kernel))) ? kc_for_l1(kernel)
                                                                         : kc_for_l2(kernel);
}

static size_t kc_max(const struct tuned_kernel *kernel) {
    return larger(kc_one_vector(kernel), larger(kc_for_l1(kernel), kc_for_l2(kernel)));
}

/* A block of B is half of the L2 cache, and stays there while A streams. The packed buffers are for the L3
   cache: eight blocks of B, and twice that of A, because B may be packed again for every block of A. They
   hold one micro-panel at least, for any KC. */
size_t tuned_b_elements(const struct tuned_kernel *kernel) {
    return larger(4 * l2_bytes() / kernel->size, kc_max(kernel) * kernel->nr);
}

size_t tuned_a_elements(const struct tuned_kernel *kernel) {
    return larger(8 * l2_bytes() / kernel->size, kc_max(kernel) * kernel->packmr);
}

size_t tuned_workspace(const struct tuned_kernel *kernel) {
    return (tuned_a_elements(kernel) + tuned_b_elements(kernel)) * kernel->size;
}

/* The cost of the largest part: FMAs, with partial micro-tiles counted as full, and elements read. */
static double part_cost(const struct tuned_kernel *kernel, const struct gemm_call *call, size_t row_parts,
                        size_t col_parts) {
    const size_t rows = ceil_div(call->m, row_parts),
                 cols = ceil_div(ceil_div(call->n, kernel->nr), col_parts) * kernel->nr;
    const double busy = 4; /* rows of a micro-tile that keep the FMA units busy */
    return (double)cols * ((double)rows > busy ? (double)rows : busy) + 4.0 * (double)(rows + cols);
}

/* Column sums need all rows of a column in one part. */
static bool has_bias_grad(const struct gemm_call *call) {
    return call->backward && call->backward->bias_grad;
}

static void partition(struct tuned_plan *plan, const struct tuned_kernel *kernel,
                      const struct gemm_call *call, size_t threads) {
    const size_t panels = ceil_div(call->n, kernel->nr);
    double best = 0;
    for (size_t col_parts = 1; col_parts <= smaller(threads, panels); col_parts++) {
        const size_t row_parts = has_bias_grad(call) ? 1 : larger(smaller(threads / col_parts, call->m), 1);
        const double cost = part_cost(kernel, call, row_parts, col_parts);
        if (best != 0 && cost >= best) continue;
        best = cost;
        plan->row_parts = row_parts;
        plan->col_parts = col_parts;
    }
}

/* Rows a multiple of 2 KB apart fall into a few sets of the L1 cache (conflict misses). */
static bool rows_alias(size_t ld, size_t size) {
    return ld * size % 2048 == 0;
}

/* The cache blocks. KC depends on the shape alone: the same bits for any number of threads. */
static void choose_blocks(struct tuned_plan *plan, const struct tuned_kernel *kernel,
                          const struct gemm_call *call) {
    const bool narrow = call->n <= kernel->lanes, ta = gemm_transposes_a(call->op),
               alias = rows_alias(call->lda, kernel->size);
    const size_t rows = ceil_div(call->m, plan->row_parts),
                 cols = ceil_div(ceil_div(call->n, kernel->nr), plan->col_parts) * kernel->nr;
    const size_t steps = ceil_div(call->k, kernel->vnni),
                 blocks = larger(ceil_div(steps, kc_limit(kernel, call, steps)), 1);
    plan->kc = larger(ceil_div(steps, blocks), 1);
    plan->nc = smaller(cols, larger(l2_bytes() / 2 / kernel->size / plan->kc / kernel->nr, 1) * kernel->nr);
    /* packing A pays from 9 micro-panels of B on; from 5 if rows alias or A is transposed */
    plan->pack_a = kernel->converts || cols > (alias || ta ? 4 : 8) * kernel->nr;
    plan->mr = narrow && alias && !plan->pack_a ? smaller(kernel->mr, 8) : kernel->mr;
    plan->jr_outer = narrow;
    if (a_fits_l2(kernel, rows, plan->kc)) {
        plan->nc = kernel->nr;
        plan->jr_outer = true;
    }
    const size_t fit = tuned_a_elements(kernel) / (plan->kc * kernel->packmr) * kernel->mr;
    plan->mc = plan->pack_a ? ceil_div(rows, ceil_div(rows, fit)) : rows;
    plan->pack_b_once = plan->mc < rows && cols * plan->kc <= tuned_b_elements(kernel);
}

size_t tuned_rows_in_l2(const struct tuned_kernel *kernel, size_t cols) {
    return larger(l2_bytes() / 2 / kernel->size / cols, 1);
}

/* --- small n or k --- */

static const size_t DOT_MIN_VECTORS = 5;            /* of k, to amortise the reduction across lanes */
static const size_t TRANSPOSED_C_KC = 64;           /* rows of A that the micro-panels of C^T share */
static const size_t NONTEMPORAL_BYTES = 8ULL << 20; /* a larger C is not kept in a cache */

struct gemm_call tuned_transposed_call(const struct gemm_call *call) {
    static const enum gemm_op transposed[] = {
        [GEMM_NN] = GEMM_TT, [GEMM_TN] = GEMM_TN, [GEMM_NT] = GEMM_NT, [GEMM_TT] = GEMM_NN};
    return (struct gemm_call){.dtype = call->dtype,
                              .op = transposed[call->op],
                              .m = call->n,
                              .n = call->m,
                              .k = call->k,
                              .alpha = call->alpha,
                              .a = call->b,
                              .lda = call->ldb,
                              .b = call->a,
                              .ldb = call->lda};
}

/* Pays if at least a quarter of the lanes would be idle and k is long enough for the reduction across lanes;
   all of B must fit packed. */
static bool wants_dot(const struct tuned_kernel *kernel, const struct gemm_call *call) {
    const size_t lanes =
        call->n <= kernel->lanes ? kernel->lanes : ceil_div(call->n, kernel->nr) * kernel->nr;
    return call->n <= TUNED_NARROW && !gemm_transposes_a(call->op) && 4 * call->n <= 3 * lanes &&
           call->k >= DOT_MIN_VECTORS * kernel->lanes && call->m >= 4 &&
           call->n * (call->k + kernel->lanes) <= tuned_b_elements(kernel);
}

/* A block of B is half of the L1 cache. */
static void plan_dot(struct tuned_plan *plan, const struct tuned_kernel *kernel, const struct gemm_call *call,
                     size_t threads) {
    const size_t most = larger(l1_bytes() / 2 / kernel->size / call->n, kernel->lanes);
    plan->variant = TUNED_DOT;
    plan->row_parts = has_bias_grad(call) ? 1 : smaller(threads, call->m);
    plan->col_parts = 1;
    plan->kc = ceil_div(ceil_div(call->k, ceil_div(call->k, most)), kernel->lanes) * kernel->lanes;
}

static bool wants_transposed_c(const struct tuned_kernel *kernel, const struct gemm_call *call) {
    return call->n <= TUNED_NARROW && gemm_transposes_a(call->op) && call->m >= kernel->lanes;
}

/* MC: C^T, with rows padded by a vector, takes a quarter of the L2 cache. KC: the rows of A that the
   micro-panels of C^T share stay in the L2 cache. */
static void plan_transposed_c(struct tuned_plan *plan, const struct tuned_kernel *kernel,
                              const struct gemm_call *call, size_t threads) {
    const size_t room = l2_bytes() / 4 / kernel->size / TUNED_NARROW - kernel->lanes,
                 panels = ceil_div(call->m, kernel->nr);
    plan->variant = TUNED_TRANSPOSED_C;
    plan->row_parts = has_bias_grad(call) ? 1 : smaller(threads, panels);
    plan->col_parts = 1;
    plan->mc = smaller(room / kernel->nr, panels) * kernel->nr;
    plan->kc = larger(ceil_div(call->k, larger(ceil_div(call->k, TRANSPOSED_C_KC), 1)), 1);
    plan->nc = kernel->nr;
    plan->mr = kernel->mr;
    plan->jr_outer = true;
}

static bool wants_small_k(const struct tuned_kernel *kernel, const struct gemm_call *call) {
    return call->k >= 1 && call->k <= TUNED_NARROW && !gemm_transposes_a(call->op) &&
           call->n > kernel->lanes && call->m >= 4 &&
           (call->n + kernel->nr) * call->k <= tuned_b_elements(kernel);
}

/* Parts along n, unless they would share cache lines of C (false sharing). Non-temporal stores: if C is large
   and its rows are whole, aligned vectors. */
static void plan_small_k(struct tuned_plan *plan, const struct tuned_kernel *kernel,
                         const struct gemm_call *call, size_t threads) {
    const size_t vector = kernel->lanes * kernel->size;
    partition(plan, kernel, call, threads);
    if (call->ldc * kernel->size % 64 != 0 && !has_bias_grad(call)) {
        plan->row_parts = smaller(threads, call->m);
        plan->col_parts = 1;
    }
    plan->variant = TUNED_SMALL_K;
    plan->nontemporal = call->beta == 0 && !call->epilogue && !call->backward && call->n % kernel->nr == 0 &&
                        (uintptr_t)call->c % vector == 0 && call->ldc * kernel->size % vector == 0 &&
                        call->m * call->n * kernel->size > NONTEMPORAL_BYTES;
}

static bool plan_narrow(struct tuned_plan *plan, const struct tuned_kernel *kernel,
                        const struct gemm_call *call, size_t threads) {
    if (kernel->converts) return false; /* these variants read A and B in place */
    if (wants_dot(kernel, call)) {
        plan_dot(plan, kernel, call, threads);
    } else if (wants_transposed_c(kernel, call)) {
        plan_transposed_c(plan, kernel, call, threads);
    } else if (wants_small_k(kernel, call)) {
        plan_small_k(plan, kernel, call, threads);
    } else {
        return false;
    }
    return true;
}

/* --- all products --- */

struct tuned_plan tuned_plan_for(const struct tuned_kernel *kernel, const struct gemm_call *call,
                                 size_t threads) {
    struct tuned_plan plan = {0};
    if (plan_narrow(&plan, kernel, call, threads)) return plan;
    partition(&plan, kernel, call, threads);
    choose_blocks(&plan, kernel, call);
    return plan;
}

struct tuned_plan tuned_plan_split_n(const struct tuned_kernel *kernel, const struct gemm_call *call,
                                     size_t threads) {
    struct tuned_plan plan = {0};
    if (plan_narrow(&plan, kernel, call, threads)) return plan;
    plan.col_parts = smaller(threads, ceil_div(call->n, kernel->nr));
    plan.row_parts = larger(smaller(threads / plan.col_parts, call->m), 1);
    choose_blocks(&plan, kernel, call);
    return plan;
}
