/* float32 GEMM by six bf16 products: which calls, with how many parts of k, and the tensor maps. */
#include "kernels/cuda/tensor/bf16x6.cuh"

#include "kernels/cuda/tensor/tensor_map.cuh"

void bf16x6_workspace_open(struct bf16x6_workspace *workspace, int processors,
                           const struct cuda_reduction *reduction) {
    *workspace = {.open = tensor_map_open() && bf16x6_open(), .reduction = *reduction};
    workspace->clusters[1] = (unsigned)processors;
    for (unsigned blocks = 2; workspace->open && blocks <= BF16X6_MOST_PARTS; blocks++)
        workspace->clusters[blocks] = blocks == 6 || blocks == 7 ? 0 : bf16x6_clusters(blocks);
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

/* Measured on an H100, in training steps of batches of 128 to 1024. The smallest dimension is mostly the
   batch. The planes of float32.cu, which take half as many products, are faster for others. */
bool bf16x6_pays(const struct gemm_call *call) {
    const size_t least = 64, batch = 512;
    const double fewest = 3e7, few = 1.2e9, most = 2.7e9; /* multiplications */
    const double all = (double)call->m * (double)call->n * (double)call->k;
    const bool small = call->m <= batch || call->n <= batch || call->k <= batch;
    return call->m >= least && call->n >= least && call->k >= least && all >= fewest &&
           all <= (small ? most : few);
}

/* --- a call --- */

/* The parts of k for which the busiest SM is estimated to take the fewest cycles. The cycles were fitted to
   the measurements of docs/tensor-cores.md. */
static unsigned parts_of(const struct bf16x6_workspace *workspace, const struct gemm_call *call) {
    const unsigned stage = 1600, start = 2500, exchange = 2000, share = 4000; /* cycles */
    const size_t tiles = row_tiles(call) * blocks_for(call->n, BF16X6_COLUMNS);
    const unsigned stages = blocks_for(call->k, BF16X6_K);
    double best = 1e30;
    unsigned parts = 1;
    for (unsigned i = 1; i <= BF16X6_MOST_PARTS && i <= stages; i++) {
        if (!workspace->clusters[i]) continue;
        const double cycles = (double)blocks_for(tiles, workspace->clusters[i]) *
                              (stage * blocks_for(stages, i) + share / i + (i > 1 ? start + exchange : 0));
        if (cycles < best) best = cycles, parts = i;
    }
    return parts;
}

static void map_all(bf16x6_product &p, const gemm_call &call, cuda_fault *fault) {
    if (gemm_transposes_a(call.op))
        tensor_map_matrix(&p.a, call.a, true, call.k, call.m, call.lda, BF16X6_K, fault);
    else
        tensor_map_matrix(&p.a, call.a, true, call.m, call.k, call.lda, BF16X6_ROWS, fault);
    if (gemm_transposes_b(call.op))
        tensor_map_matrix(&p.b, call.b, true, call.n, call.k, call.ldb, BF16X6_COLUMNS, fault);
    else
        tensor_map_matrix(&p.b, call.b, true, call.k, call.n, call.ldb, BF16X6_K, fault);
}

void bf16x6_gemm(const struct bf16x6_workspace *workspace, const struct gemm_call *call,
                 cuda_launcher &launcher) {
    const bool a_t = gemm_transposes_a(call->op), b_t = gemm_transposes_b(call->op);
    bf16x6_product p = {.m = (unsigned)call->m,
                        .n = (unsigned)call->n,
                        .k = (unsigned)call->k,
                        .parts = parts_of(workspace, call),
                        .a_values = (const float *)call->a,
                        .b_values = (const float *)call->b,
                        .a_row = a_t ? 1 : call->lda,
                        .a_column = a_t ? call->lda : 1,
                        .b_row = b_t ? 1 : call->ldb,
                        .b_column = b_t ? call->ldb : 1,
                        .reduction = workspace->reduction};
    if (!launcher.describe) map_all(p, *call, launcher.fault);
    if (launcher.fault->message[0]) return;
    bf16x6_launch(call->op, p, sink<float>(*call), slope<float>(*call),
                  (unsigned)gemm_multiprocessors(*call, (int)workspace->clusters[1]), launcher);
}
