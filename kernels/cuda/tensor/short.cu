/* GEMM of up to 128 rows: which calls, how k is split, and the tensor maps. */
#include "kernels/cuda/tensor/short.cuh"

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/short_store.cuh"

namespace short_rows {

static unsigned element_bytes(const struct gemm_call *call) {
    return gemm_is_16bit(call->dtype) ? 2 : 4;
}

static kernel *kernel_of(enum gemm_dtype dtype, enum gemm_op op, unsigned groups, unsigned parts) {
    return gemm_is_16bit(dtype) ? kernel_of_16bit(dtype, op, groups, parts)
                                : kernel_of_tf32(op, groups, parts);
}

static unsigned groups_of(const struct gemm_call *call) {
    return call->m > 64 ? 2 : 1;
}

static unsigned bytes_of(unsigned groups, unsigned stages) {
    return stages * (groups == 1 ? layout<1>::STAGE_BYTES : layout<2>::STAGE_BYTES) + BARRIER_BYTES;
}

struct split {
    unsigned parts, pair, stages;
};

/* The parts of k, and the tiles that share copies of A, of up to so many tiles. Measured on H100 and H200,
   TF32 on an H100 (docs/tensor-cores.md): with fewer blocks than SMs clusters are spread evenly. With 4
   stages (6 of 64 rows) two blocks fit on an SM, so that the next kernel starts early; long k is faster with
   more, if all clusters fit nevertheless. 39 and 40 tiles have 4 parts, and some SMs two blocks: an H100 runs
   only 39 clusters of 3 at once that have an SM for each block. */
struct choice {
    unsigned parts, pair, tiles;
};
static const unsigned CHOICES = 5;
static const choice of_64_rows[CHOICES] = {{8, 1, 12}, {4, 1, 25}, {3, 1, 38}, {4, 1, 40}, {2, 1, ~0u}},
                    of_128_rows[CHOICES] = {{8, 1, 12}, {4, 2, 25}, {3, 2, 34}, {2, 2, ~0u}},
                    of_128_rows_tf32[CHOICES] = {{8, 1, 6}, {4, 1, 25}, {3, 1, 38}, {4, 1, 40}, {2, 2, ~0u}};

/* parts 0: too few stages of k. */
static split split_of(const struct short_workspace *workspace, const struct gemm_call *call) {
    const unsigned tiles = blocks_for(call->n, COLUMNS),
                   stages = blocks_for(call->k, LINE / element_bytes(call)), groups = groups_of(call);
    const auto &choices = groups == 1                  ? of_64_rows
                          : gemm_is_16bit(call->dtype) ? of_128_rows
                                                       : of_128_rows_tf32;
    for (const choice &some : choices) {
        const unsigned fit = workspace->clusters[some.parts * some.pair];
        if (!some.parts || some.parts > stages || tiles > some.tiles || !fit) continue;
        const bool deep = stages >= 8 * some.parts && blocks_for(tiles, some.pair) <= fit;
        return {some.parts, some.pair, deep ? MOST_STAGES : groups == 1 ? 6 : 4};
    }
    return {};
}

static product product_of(const struct gemm_call &call, split some) {
    product p = {.c = call.c,
                 .ldc = call.ldc,
                 .m = (unsigned)call.m,
                 .n = (unsigned)call.n,
                 .k = (unsigned)call.k,
                 .pair = some.pair,
                 .stages = some.stages,
                 .activation = ACTIVATION_NONE,
                 .alpha = (float)call.alpha,
                 .b_early = call.b_complete};
    if (call.epilogue) {
        p.pre = call.epilogue->pre;
        p.bias = (const float *)call.epilogue->bias;
        p.activation = call.epilogue->activation;
    } else if (call.backward) {
        p.read =
            (activation_needs_input(call.backward->activation) ? call.backward->pre : call.backward->output);
        p.sums = (float *)call.backward->bias_grad;
        p.sum_scale = (float)gemm_bias_scale(&call);
        p.activation = call.backward->activation;
    }
    return p;
}

/* The kernel reads and writes pairs of C, and of what the epilogues read. */
static bool pairs_are_aligned(const struct gemm_call *call) {
    const auto aligned = [&](const void *memory) {
        return (uintptr_t)memory % (2 * element_bytes(call)) == 0;
    };
    if (!aligned(call->c) || call->ldc % 2) return false;
    if (call->epilogue)
        return call->op == GEMM_NN && (uintptr_t)call->epilogue->bias % 8 == 0 &&
               aligned(call->epilogue->pre);
    return !call->backward ||
           (call->op == GEMM_NT && aligned(call->backward->pre) && aligned(call->backward->output));
}

} // namespace short_rows

using namespace short_rows;

void short_workspace_open(struct short_workspace *workspace, bool tf32) {
    *workspace = {.open = tensor_map_open(), .tf32 = tf32};
    for (const enum gemm_dtype dtype : {GEMM_BF16, GEMM_F16, GEMM_F32}) {
        if (dtype == GEMM_F32 && !tf32) continue;
        for (const enum gemm_op op : {GEMM_NN, GEMM_NT})
            for (const unsigned parts : {2, 3, 4, 8})
                for (unsigned groups = 1; groups <= 2 && workspace->open; groups++)
                    workspace->open = cuda_allows_wgmma((const void *)kernel_of(dtype, op, groups, parts),
                                                        bytes_of(groups, MOST_STAGES));
    }
    /* of all kernels, which shared memory limits alike */
    for (unsigned blocks = 2; blocks <= SHORT_MOST_PARTS && workspace->open; blocks++)
        workspace->clusters[blocks] =
            clusters_that_fit((const void *)kernel_of(GEMM_BF16, GEMM_NN, 2, 2), blocks,
                              layout<2>::THREADS + 32, bytes_of(2, MOST_STAGES));
}

bool short_supports(const struct short_workspace *workspace, const struct gemm_call *call) {
    const unsigned bytes = element_bytes(call);
    return workspace->open && (gemm_is_16bit(call->dtype) || (call->dtype == GEMM_F32 && workspace->tf32)) &&
           (call->op == GEMM_NN || call->op == GEMM_NT) && call->m <= 128 && call->n <= 1 << 24 &&
           call->k <= 1 << 24 && call->n % 8 == 0 && !call->c_f32 && call->beta == 0 &&
           split_of(workspace, call).parts && tensor_map_fits(call->a, call->lda, bytes) &&
           tensor_map_fits(call->b, call->ldb, bytes) && pairs_are_aligned(call);
}

void short_gemm(const struct short_workspace *workspace, const struct gemm_call *call,
                cuda_launcher &launcher) {
    const unsigned groups = groups_of(call), stage_k = LINE / element_bytes(call);
    const tensor_element type = gemm_is_16bit(call->dtype) ? TENSOR_16BIT : TENSOR_TF32;
    const split some = split_of(workspace, call);
    const bool rows_of_k = call->op == GEMM_NN; /* of B in memory */
    product p = product_of(*call, some);
    if (!launcher.describe) {
        tensor_map_matrix(&p.a, call->a, type, call->m, call->k, call->lda, groups * 64 / some.pair,
                          launcher.fault);
        tensor_map_matrix(&p.b, call->b, type, rows_of_k ? call->k : call->n, rows_of_k ? call->n : call->k,
                          call->ldb, rows_of_k ? stage_k : COLUMNS, launcher.fault);
    }
    if (launcher.fault->message[0]) return;
    const unsigned clusters = blocks_for(call->n, COLUMNS * some.pair), blocks = some.parts * some.pair;
    launch_dependent(launcher, "short_kernel", kernel_of(call->dtype, call->op, groups, some.parts),
                     dim3(clusters * blocks), groups * GROUP + 32, bytes_of(groups, p.stages), blocks, p);
}
