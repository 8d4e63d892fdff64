/* GEMM of 16 bits on the tensor cores: which calls, with which tiles, and the tensor maps. */
#include "kernels/cuda/tensor/bf16.cuh"

#include "kernels/cuda/tensor/bf16_gradient_large.cuh"
#include "kernels/cuda/tensor/bf16_gradient_list.cuh"

void bf16_workspace_open(struct bf16_workspace *workspace, int processors,
                         const struct cuda_reduction *reduction, struct later_sums *later) {
    *workspace = {.open = tensor_map_open() && bf16_open() && medium_gradient_open() && large_gradient_open(),
                  .processors = processors,
                  .reduction = *reduction,
                  .later = later};
    workspace->clusters[1] = (unsigned)processors;
    for (unsigned blocks = 2; workspace->open && blocks <= BF16_LARGEST_CLUSTER; blocks *= 2)
        workspace->clusters[blocks] = bf16_clusters(blocks);
}

/* --- which calls --- */

static bool maps_epilogue(const struct gemm_call *call) {
    const struct gemm_epilogue *const forward = call->epilogue;
    const struct gemm_backward *const back = call->backward;
    if (forward)
        return call->op == GEMM_NN && !call->c_f32 && (uintptr_t)forward->bias % 8 == 0 &&
               tensor_map_fits(forward->pre, call->ldc, 2);
    return !back || (call->op == GEMM_NT && !call->c_f32 &&
                     tensor_map_fits(activation_needs_input(back->activation) ? back->pre : back->output,
                                     call->ldc, 2));
}

bool bf16_partials_fit(const struct gemm_call *call, unsigned rows) {
    return !call->backward || rows * call->n * sizeof(float) <= REDUCTION_BYTES;
}

/* Tensor maps write whole units of 16 bytes: n is a multiple of 8. */
bool bf16_supports(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    const size_t most = (size_t)1 << 24;
    return workspace->open && gemm_is_16bit(call->dtype) && call->op != GEMM_TT && call->beta == 0 &&
           call->k && call->m <= most && call->n <= most && call->k <= most && call->n % 8 == 0 &&
           tensor_map_fits(call->a, call->lda, 2) && tensor_map_fits(call->b, call->ldb, 2) &&
           tensor_map_fits(call->c, call->ldc, call->c_f32 ? 4 : 2) && maps_epilogue(call) &&
           bf16_partials_fit(call, blocks_for(call->m, BF16_SUMMED_ROWS));
}

/* --- tiles --- */

static bf16_size size_of(const struct gemm_call *call) {
    return {call->m, call->n, blocks_for(call->k, BF16_K)};
}

static unsigned stage_bytes(unsigned columns) {
    return (BF16_ROWS + columns) * BF16_K * 2;
}

/* Stages of the ring buffer: what the slots of eight warps leave of 224 KB. */
unsigned bf16_ring_stages(unsigned columns) {
    const unsigned most = 8, stages = ((224 << 10) - 8 * BF16_SLOTS * BF16_SLOT_BYTES) / stage_bytes(columns);
    return stages < most ? stages : most;
}

/* The ring buffer receives the sums of the other parts of k: 64 rows of floats each. */
static bool parts_fit(bf16_shape shape) {
    return (shape.parts - 1) * shape.columns * 64 * sizeof(float) <=
           bf16_ring_stages(shape.columns) * stage_bytes(shape.columns);
}

static const double CYCLES_OF_COLUMN = 4; /* of a stage, on the tensor cores */

/* Estimated cycles of the busiest SM. */
static double cycles_of(const struct bf16_workspace *workspace, bf16_size size, bf16_shape shape) {
    const double bytes_a_cycle = 40; /* from the L2 cache */
    const unsigned columns = shape.columns, cluster = shape.pair * shape.parts;
    const size_t clusters =
        (size_t)blocks_for(size.rows, BF16_ROWS * shape.pair) * blocks_for(size.columns, columns);
    const double turns = blocks_for(clusters, workspace->clusters[cluster]),
                 bytes = (BF16_ROWS + columns / shape.pair) * 2.0 * BF16_K / bytes_a_cycle,
                 stage = columns * CYCLES_OF_COLUMN > bytes ? columns * CYCLES_OF_COLUMN : bytes,
                 gather = shape.parts > 1 ? 2000 + (shape.parts - 1) * columns * 8.0 : 0;
    return turns * (stage * blocks_for(size.stages, shape.parts) + 6 * columns + 800 + gather);
}

static const bf16_shape LARGE_GRADIENT = {LARGE_GRADIENT_COLUMNS, 2, 1};

bf16_shape bf16_shape_of(const struct bf16_workspace *workspace, bf16_size size, unsigned step) {
    static const struct {
        unsigned columns, pair;
    } tiles[] = {{256, 2}, {128, 2}, {256, 1}, {192, 1}, {128, 1}, {64, 1}};
    bf16_shape best = {256, 1, 1};
    for (const auto &tile : tiles)
        for (unsigned parts = 1; parts <= 4 && parts <= size.stages && tile.columns % step == 0; parts *= 2) {
            const bf16_shape shape = {tile.columns, tile.pair, parts};
            if (!workspace->clusters[tile.pair * parts] || !parts_fit(shape)) continue;
            if (cycles_of(workspace, size, shape) < cycles_of(workspace, size, best)) best = shape;
        }
    return best;
}

static bf16_shape shape_of(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    return call->as_update && bf16_large_gradient_takes(workspace, call)
               ? LARGE_GRADIENT
               : bf16_shape_of(workspace, size_of(call), 64);
}

bool bf16_fills(const struct bf16_workspace *workspace, bf16_size size, bf16_shape shape, double most) {
    const double least = (double)size.rows * (double)size.columns / BF16_ROWS * size.stages *
                         CYCLES_OF_COLUMN / workspace->processors;
    return cycles_of(workspace, size, shape) <= most * least;
}

/* 2048 x 2048, 64 tiles for 66 pairs of SMs, passes; 784 x 4096, as many tiles, a quarter of them empty, does
   not. */
bool bf16_large_gradient_takes(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    const double most = 1.2;
    return call->op == GEMM_TN && call->c_f32 && call->k > MOST_GRADIENT_K &&
           bf16_supports(workspace, call) && workspace->clusters[2] &&
           bf16_fills(workspace, size_of(call), LARGE_GRADIENT, most);
}

/* The derivative of gelu, with its error function, takes longer in the epilogue, beside which no tensor core
   works, than in a pass: 784-2048-2048-10 in batches of 8192 takes 4.71 ms an epoch and not 4.49 (H100). */
static bool has_quick_backward(const struct gemm_call *call) {
    return call->backward && call->backward->activation != ACTIVATION_GELU;
}

/* Measured on an H100: with many rows the passes of cuBLAS for bias and activation take longer than the
   epilogue, and small products take longer in 6_tuned_small.cu. For others cuBLAS is as fast, or faster. */
bool bf16_pays(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    const double few = 64 << 20; /* multiplications */
    const size_t least = 64, many_rows = 2048;
    return call->k >= least && call->m >= least && call->n >= least &&
           ((call->m >= many_rows &&
             (call->epilogue || (has_quick_backward(call) &&
                                 bf16_fills(workspace, size_of(call), shape_of(workspace, call), 1.3)))) ||
            (double)call->m * (double)call->n * (double)call->k <= few);
}

/* --- a call --- */

void bf16_map_operand(CUtensorMap *map, enum tensor_element element, const void *memory, size_t size,
                      size_t k, bool k_is_rows, size_t ld, unsigned across, cuda_fault *fault) {
    if (k_is_rows)
        tensor_map_matrix(map, memory, element, k, size, ld, element == TENSOR_16BIT ? BF16_K : BF16_K / 2,
                          fault);
    else
        tensor_map_matrix(map, memory, element, size, k, ld, across, fault);
}

static void map_all(bf16_product &p, const gemm_call &call, bf16_shape shape, cuda_fault *fault) {
    const unsigned rows = 16; /* of a warp */
    bf16_map_operand(&p.a, TENSOR_16BIT, call.a, call.m, call.k, gemm_transposes_a(call.op), call.lda,
                     BF16_ROWS, fault);
    bf16_map_operand(&p.b, TENSOR_16BIT, call.b, call.n, call.k, !gemm_transposes_b(call.op), call.ldb,
                     shape.columns / shape.pair, fault);
    tensor_map_matrix(&p.c, call.c, call.c_f32 ? TENSOR_FLOAT32 : TENSOR_16BIT, call.m, call.n, call.ldc,
                      rows, fault);
    if (p.stores_pre)
        tensor_map_matrix(&p.pre, call.epilogue->pre, TENSOR_16BIT, call.m, call.n, call.ldc, rows, fault);
    if (p.epilogue == BF16_BACKWARD)
        tensor_map_matrix(&p.read,
                          activation_needs_input(p.activation) ? call.backward->pre : call.backward->output,
                          TENSOR_16BIT, call.m, call.n, call.ldc, rows, fault);
}

static bf16_product product_of(const struct bf16_workspace *workspace, const gemm_call &call,
                               bf16_shape shape) {
    bf16_product p = {.m = (unsigned)call.m,
                      .n = (unsigned)call.n,
                      .k = (unsigned)call.k,
                      .pair = shape.pair,
                      .parts = shape.parts,
                      .epilogue = call.c_f32 ? BF16_FLOAT32 : BF16_PLAIN,
                      .alpha = (float)call.alpha,
                      .stages = bf16_ring_stages(shape.columns)};
    if (call.epilogue) {
        p.epilogue = BF16_FORWARD;
        p.activation = call.epilogue->activation;
        p.stores_pre = call.epilogue->pre;
        p.bias = (const float *)call.epilogue->bias;
    } else if (call.backward) {
        p.epilogue = BF16_BACKWARD;
        p.activation = call.backward->activation;
        p.partials = (float *)workspace->reduction.scratch;
    }
    return p;
}

/* --- column sums --- */

/* Of a thread block; powers of two. Few blocks, because they may run beside a product. */
static const unsigned SUM_COLUMNS = 128, SUM_ROWS = 32;

/* sums[j] = scale (partials[0][j] + partials[1][j] + ...), in a fixed order: four columns a thread. */
__global__ void __launch_bounds__(SUM_COLUMNS / 4 * SUM_ROWS)
    sum_partials(const float *partials, unsigned rows, unsigned columns, float scale, float *sums) {
    __shared__ pack<float, 4> totals[SUM_ROWS][SUM_COLUMNS / 4];
    const unsigned x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * SUM_COLUMNS + 4 * x;
    pack<float, 4> total = {};
    const auto add = [&](const pack<float, 4> &four) {
#pragma unroll
        for (int i = 0; i < 4; i++) total.value[i] += four.value[i];
    };
    if (column < columns)
#pragma unroll 8
        for (unsigned row = y; row < rows; row += SUM_ROWS)
            add(pack_at<4>(partials + (size_t)row * columns + column));
    for (unsigned half = SUM_ROWS / 2; half; half /= 2) {
        if (y < 2 * half) totals[y][x] = total;
        __syncthreads();
        if (y < half) add(totals[y + half][x]);
    }
    if (y == 0 && column < columns)
        for (int i = 0; i < 4; i++) sums[column + i] = scale * total.value[i];
}

void bf16_sum_columns(const struct bf16_workspace *workspace, const struct gemm_call *call, unsigned rows,
                      cuda_launcher &launcher) {
    const auto sum = [&](cuda_launcher &sums) {
        launch(sums, "sum_partials", sum_partials, blocks_for(call->n, SUM_COLUMNS),
               dim3(SUM_COLUMNS / 4, SUM_ROWS), 0, (const float *)workspace->reduction.scratch, rows,
               (unsigned)call->n, (float)gemm_bias_scale(call), (float *)call->backward->bias_grad);
    };
    if (call->sums_later && !launcher.describe)
        workspace->later->run(launcher, sum);
    else
        sum(launcher);
}

void bf16_large_gradient_update(const struct bf16_workspace *workspace, const struct gemm_call *call,
                                const struct weight_update *update, cuda_launcher &launcher) {
    bf16_product p = product_of(workspace, *call, LARGE_GRADIENT);
    map_all(p, *call, LARGE_GRADIENT, launcher.fault);
    if (launcher.fault->message[0]) return;
    large_gradient_launch(
        call->dtype, p, *update, call->ldc,
        bf16_blocks(LARGE_GRADIENT.columns, p, (unsigned)gemm_multiprocessors(*call, workspace->processors)),
        launcher);
}

void bf16_gemm(const struct bf16_workspace *workspace, const struct gemm_call *call,
               cuda_launcher &launcher) {
    const bf16_shape shape = shape_of(workspace, call);
    bf16_product p = product_of(workspace, *call, shape);
    if (!launcher.describe) map_all(p, *call, shape, launcher.fault);
    if (launcher.fault->message[0]) return;
    bf16_launch(call->dtype, call->op, shape.columns, p,
                (unsigned)gemm_multiprocessors(*call, workspace->processors), launcher);
    if (call->backward) bf16_sum_columns(workspace, call, blocks_for(call->m, BF16_SUMMED_ROWS), launcher);
}
