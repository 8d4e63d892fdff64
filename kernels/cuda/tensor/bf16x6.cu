/* float32 GEMM by six bf16 products: which calls, with how many parts of k, and the tensor maps. */
#include "kernels/cuda/tensor/bf16x6.cuh"

#include <string.h>

#include "kernels/cuda/ops/same_rule.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"

void bf16x6_workspace_open(struct bf16x6_workspace *workspace, unsigned planes, int processors,
                           const struct cuda_reduction *reduction) {
    *workspace = {
        .open = tensor_map_open() && bf16x6_open(planes), .planes = planes, .reduction = *reduction};
    workspace->clusters[1] = (unsigned)processors;
    for (unsigned blocks = 2; workspace->open && blocks <= BF16X6_MOST_PARTS; blocks++)
        workspace->clusters[blocks] = blocks == 6 || blocks == 7 ? 0 : bf16x6_clusters(planes, blocks);
}

/* --- which calls --- */

/* Pairs of elements are read and written at once. */
static bool has_pairs(const struct gemm_call *call) {
    const struct gemm_epilogue *const forward = call->epilogue;
    const struct gemm_backward *const back = call->backward;
    uintptr_t all = (uintptr_t)call->c | call->ldc * sizeof(float);
    if (forward) all |= (uintptr_t)forward->bias | (uintptr_t)forward->pre;
    if (back) all |= (uintptr_t)back->output | (uintptr_t)back->pre;
    return all % (2 * sizeof(float)) == 0;
}

static size_t row_tiles(const struct gemm_call *call) {
    return blocks_for(call->m, BF16X6_ROWS);
}

static bool sums_fit(const struct gemm_call *call) {
    return row_tiles(call) * call->n * sizeof(float) <= REDUCTION_BYTES &&
           blocks_for(call->n, BF16X6_COLUMNS) * BF16X6_MOST_PARTS <= REDUCTION_GROUPS;
}

bool bf16x6_supports(const struct bf16x6_workspace *workspace, const struct gemm_call *call) {
    const size_t most = (size_t)1 << 24, most_tiles = (size_t)1 << 27;
    return workspace->open && call->dtype == GEMM_F32 && call->op != GEMM_TT && call->k && call->m <= most &&
           call->n <= most && call->k <= most &&
           row_tiles(call) * blocks_for(call->n, BF16X6_COLUMNS) <= most_tiles &&
           tensor_map_fits(call->a, call->lda, sizeof(float)) &&
           tensor_map_fits(call->b, call->ldb, sizeof(float)) && has_pairs(call) &&
           (!call->backward || sums_fit(call)) &&
           !(call->op == GEMM_TN && (call->epilogue || call->backward));
}

bool bf16x6_updates(const struct gemm_call *call, const struct weight_update *update) {
    const struct update &rule = update->rule;
    const auto fits = [&](const void *array) {
        return !array || call->k == 0 || tensor_map_fits(array, call->ldc, sizeof(float));
    };
    const bool alone = call->dtype == GEMM_F32 && call->ldc == call->n && is_small_update(call);
    return ((call->k && call->op == GEMM_TN && call->beta == 0) || alone) && rule.method == UPDATE_SGD &&
           !rule.clip && !rule.average && !rule.rounded && fits(rule.weights) && fits(rule.moment1);
}

/* Measured on an H100, in training steps of batches of 128 to 1024. The smallest dimension is mostly the
   batch. For others the planes of float32.cu, which take half as many products, are faster, and for TF32
   cuBLAS. */
bool bf16x6_pays(const struct bf16x6_workspace *workspace, const struct gemm_call *call) {
    const bool six = workspace->planes == 3;
    const size_t least = 64, batch = six ? 512 : 256;
    const double fewest = 3e7, few = six ? 1.2e9 : 4e8, most = six ? 2.7e9 : 1.3e9; /* multiplications */
    const double all = (double)call->m * (double)call->n * (double)call->k;
    const bool small = call->m <= batch || call->n <= batch || call->k <= batch;
    return call->m >= least && call->n >= least && call->k >= least && all >= fewest &&
           all <= (small ? most : few);
}

/* --- a call --- */

/* The columns of a tile and the parts of k for which the busiest SM is estimated to take the fewest cycles.
   The cycles were fitted to the measurements of docs/tensor-cores.md. code: of most products wide tiles are
   fewer; one with narrow ones waits for its instructions, and so does the product after it. */
static void plan(bf16x6_product &p, const struct bf16x6_workspace &workspace, const gemm_call &call) {
    const unsigned start = 2500, exchange = 2000, share = 4000; /* cycles */
    const unsigned widths[] = {BF16X6_COLUMNS, BF16X6_WIDE}, code[] = {3000, 0}, six[] = {1600, 1900},
                   three[] = {1200, 1400}, *const stage = workspace.planes == 3 ? six : three;
    const unsigned stages = blocks_for(call.k, BF16X6_K);
    const bool fewer = blocks_for(call.n, BF16X6_WIDE) < blocks_for(call.n, BF16X6_COLUMNS);
    double best = 1e30;
    for (int w = 0; w < (call.op == GEMM_TN || !fewer ? 1 : 2); w++) {
        const size_t tiles = row_tiles(&call) * blocks_for(call.n, widths[w]);
        for (unsigned i = 1; i <= BF16X6_MOST_PARTS && i <= stages; i++) {
            if (!workspace.clusters[i]) continue;
            const double cycles =
                code[w] + (double)blocks_for(tiles, workspace.clusters[i]) *
                              (stage[w] * blocks_for(stages, i) + share / i + (i > 1 ? start + exchange : 0));
            if (cycles >= best) continue;
            best = cycles;
            p.width = widths[w];
            p.parts = i;
        }
    }
}

static void map_all(bf16x6_product &p, const gemm_call &call, cuda_fault *fault) {
    if (gemm_transposes_a(call.op))
        tensor_map_matrix(&p.a, call.a, TENSOR_FLOAT32, call.k, call.m, call.lda, BF16X6_K, fault);
    else
        tensor_map_matrix(&p.a, call.a, TENSOR_FLOAT32, call.m, call.k, call.lda, BF16X6_ROWS, fault);
    if (gemm_transposes_b(call.op))
        tensor_map_matrix(&p.b, call.b, TENSOR_FLOAT32, call.n, call.k, call.ldb, p.width, fault);
    else
        tensor_map_matrix(&p.b, call.b, TENSOR_FLOAT32, call.k, call.n, call.ldb, BF16X6_K, fault);
}

/* The call, without tensor maps. */
static bf16x6_product product_of(const bf16x6_workspace &workspace, const gemm_call &call) {
    const bool a_t = gemm_transposes_a(call.op), b_t = gemm_transposes_b(call.op);
    const unsigned processors = (unsigned)gemm_multiprocessors(call, (int)workspace.clusters[1]);
    bf16x6_product p = {.m = (unsigned)call.m,
                        .n = (unsigned)call.n,
                        .k = (unsigned)call.k,
                        .rows = (unsigned)row_tiles(&call),
                        .early = call.b_complete,
                        .a_values = (const float *)call.a,
                        .b_values = (const float *)call.b,
                        .a_row = a_t ? 1 : call.lda,
                        .a_column = a_t ? call.lda : 1,
                        .b_row = b_t ? 1 : call.ldb,
                        .b_column = b_t ? call.ldb : 1,
                        .reduction = workspace.reduction};
    plan(p, workspace, call);
    p.columns = blocks_for(call.n, p.width);
    const unsigned tiles = p.rows * p.columns, stages = blocks_for(call.k, BF16X6_K);
    p.clusters = p.parts > 1 || tiles < processors ? tiles : processors; /* with parts of k, a tile each */
    for (unsigned i = 0; i <= p.parts; i++) {
        p.stage[i] = stages * i / p.parts;
        p.octet[i] = blocks_for(p.width / 8 * i, p.parts);
    }
    return p;
}

void bf16x6_gemm(const struct bf16x6_workspace *workspace, const struct gemm_call *call,
                 cuda_launcher &launcher) {
    bf16x6_product p = product_of(*workspace, *call);
    if (call->op == GEMM_TN) p.early = false; /* the kernel reads A as early as B */
    if (!launcher.describe) map_all(p, *call, launcher.fault);
    if (!launcher.fault->message[0])
        bf16x6_launch(workspace->planes, call->op, p, sink<float>(*call), slope<float>(*call), launcher);
}

/* --- weight gradients that update their weights --- */

static bf16x6_gradient gradient_of(bf16x6_product &p, const gemm_call &call, const struct update &rule,
                                   cuda_fault *fault) {
    map_all(p, call, fault);
    bf16x6_gradient one = {.a = p.a,
                           .b = p.b,
                           .array = {(float *)rule.weights, (float *)rule.moment1},
                           .early = p.early,
                           .alpha = (float)call.alpha,
                           .c = (float *)rule.weights,
                           .ldc = call.ldc,
                           .m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .rows = p.rows,
                           .columns = p.columns,
                           .a_values = p.a_values,
                           .b_values = p.b_values,
                           .a_row = p.a_row,
                           .a_column = p.a_column,
                           .b_row = p.b_row,
                           .b_column = p.b_column};
    for (int i = 0; i < 2; i++)
        if (one.array[i])
            tensor_map_matrix(&one.map[i], one.array[i], TENSOR_FLOAT32, call.m, call.n, call.ldc,
                              BF16X6_BOX_ROWS, fault);
    return one;
}

/* Adds an update to a launch, unless it needs another one. */
static bool add_update(bf16x6_gradients &all, const bf16x6_workspace &workspace, const gemm_call &call,
                       const struct update &rule, cuda_fault *fault) {
    if (call.k == 0) {
        if (all.rests == BF16X6_MOST_RESTS) return false;
        all.rest[all.rests++] = {.array = {(float *)rule.weights, (float *)rule.moment1},
                                 .grad = (const float *)call.c,
                                 .count = (unsigned)(call.m * call.n)};
        return true;
    }
    bf16x6_product p = product_of(workspace, call);
    if (all.count == 0) {
        all.parts = p.parts;
        memcpy(all.stage, p.stage, sizeof all.stage);
        memcpy(all.octet, p.octet, sizeof all.octet);
    } else if (all.count == BF16X6_MOST_GRADIENTS || all.parts > 1 || p.parts > 1 || p.k != all.list[0].k) {
        return false;
    }
    all.list[all.count] = gradient_of(p, call, rule, fault);
    all.first[all.count++] = all.tiles;
    all.tiles += p.rows * p.columns;
    return true;
}

size_t bf16x6_update(const struct bf16x6_workspace *workspace, const struct gemm_call *calls,
                     const struct weight_update *updates, size_t count, cuda_launcher &launcher) {
    const unsigned processors = (unsigned)gemm_multiprocessors(*calls, (int)workspace->clusters[1]);
    bf16x6_gradients all = {.parts = 1,
                            .rule = update_rule<float>(updates->rule),
                            .step = updates->step,
                            .guard = updates->guard};
    for (unsigned &tile : all.first) tile = ~0u;
    size_t i = 0;
    while (i < count && same_rule(*updates, updates[i]) &&
           add_update(all, *workspace, calls[i], updates[i].rule, launcher.fault))
        i++;
    all.clusters = all.tiles && (all.parts > 1 || all.tiles < processors) ? all.tiles : processors;
    if (!launcher.fault->message[0])
        bf16x6_launch_update(workspace->planes, all, slope<float>(*calls), launcher);
    return i;
}
