/* GEMM of TF32 on the tensor cores: which calls, with which tiles, and the tensor maps. */
#include "kernels/cuda/tensor/tf32.cuh"

#include <initializer_list>
#include <utility>

static const unsigned STAGE_K = BF16_K / 2; /* 128 bytes, as of 16 bits */

static bool aligned(const void *memory) {
    return (uintptr_t)memory % 8 == 0;
}

/* Each 64 rows of C have four, also the last ones, of which there may be fewer. */
static unsigned rows_of_sums(const struct gemm_call *call) {
    return blocks_for(call->m, 64) * (64 / TF32_SUMMED_ROWS);
}

/* The kernel reads and writes two neighbours of a row at a time; sums of columns are added by fours. */
bool tf32_supports(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    const size_t most = (size_t)1 << 24;
    const struct gemm_epilogue *const forward = call->epilogue;
    const struct gemm_backward *const back = call->backward;
    return workspace->open && call->dtype == GEMM_F32 && call->op != GEMM_TT && call->beta == 0 && call->k &&
           call->m <= most && call->n <= most && call->k <= most && call->n % 2 == 0 && call->ldc % 2 == 0 &&
           aligned(call->c) && tensor_map_fits(call->a, call->lda, 4) &&
           tensor_map_fits(call->b, call->ldb, 4) && bf16_partials_fit(call, rows_of_sums(call)) &&
           (!forward || (call->op == GEMM_NN && aligned(forward->bias) && aligned(forward->pre))) &&
           (!back ||
            (call->op == GEMM_NT && call->n % 4 == 0 && aligned(back->pre) && aligned(back->output)));
}

/* Is C^T computed? */
static bool swaps(const struct gemm_call &call) {
    return call.op == GEMM_NN;
}

static bf16_size size_of(const struct gemm_call &call) {
    return {swaps(call) ? call.n : call.m, swaps(call) ? call.m : call.n, blocks_for(call.k, STAGE_K)};
}

/* The factors of bf16_fills were measured on an H200, in trainings (docs/tensor-cores.md): 1024 x 1024 x
   1024, 3.3, is slower than with cuBLAS, twice as many rows, 1.7, faster. For weight gradients cuBLAS takes
   longer: 1000 x 1000 x 2048, 2.6, is faster here. Without a backward epilogue an input gradient is faster
   only if its transpose is there; with one it is no slower if that must be written first. */
bool tf32_pays(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    const size_t least = 128;
    const double most = call->op == GEMM_TN ? 2.8 : 2.2;
    const bf16_size size = size_of(*call);
    return call->m > least && call->n >= least && call->k >= least &&
           (call->op != GEMM_NT || call->backward || call->a_unchanged) &&
           bf16_fills(workspace, size, bf16_shape_of(workspace, size, TF32_COLUMNS), most);
}

/* --- the transpose --- */

static const unsigned SIDE = 32, STEP = 8;

/* to[j][i] = from[i][j] */
__global__ void __launch_bounds__(SIDE *STEP)
    transpose_kernel(const float *from, size_t rows, size_t columns, size_t ld, float *to, size_t ld_to) {
    __shared__ float tile[SIDE][SIDE + 1];
    const size_t across = (columns + SIDE - 1) / SIDE;
    const size_t row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    const unsigned x = threadIdx.x;
    for (unsigned y = threadIdx.y; y < SIDE; y += STEP)
        if (row + y < rows && column + x < columns) tile[y][x] = from[(row + y) * ld + column + x];
    __syncthreads();
    for (unsigned y = threadIdx.y; y < SIDE; y += STEP)
        if (row + x < rows && column + y < columns) to[(column + y) * ld_to + row + x] = tile[x][y];
}

static void transpose(const float *from, size_t rows, size_t columns, size_t ld, float *to, size_t ld_to,
                      cuda_launcher &launcher) {
    launch(launcher, "transpose_kernel", transpose_kernel, blocks_for(rows, SIDE) * blocks_for(columns, SIDE),
           dim3(SIDE, STEP), 0, from, rows, columns, ld, to, ld_to);
}

void tf32_restore(struct float32_workspace *copies, const struct gemm_call *call, bool by_this_kernel,
                  cuda_launcher &launcher) {
    for (float32_operand &one : copies->operand)
        for (const bool b : {false, true}) {
            if (one.source.values != (b ? call->b : call->a)) continue;
            const bool same = float32_is_operand(&one, call, b); /* or another size, as the last batch */
            if (by_this_kernel && same && call->op == (b ? GEMM_TN : GEMM_NT)) continue;
            one.needed = one.needed || same;
            if (one.not_written && (b ? call->b_unchanged : call->a_unchanged))
                transpose((const float *)one.source.to.blocks, one.source.columns, one.source.rows,
                          one.source.to.row_blocks * PLANE_SIDE, (float *)one.source.values, one.source.ld,
                          launcher);
            one.not_written = false;
        }
}

/* --- a call --- */

static tf32_product product_of(const struct bf16_workspace *workspace, const gemm_call &call,
                               bf16_shape shape) {
    const bf16_size size = size_of(call);
    tf32_product p = {};
    p.m = (unsigned)size.rows;
    p.n = (unsigned)size.columns;
    p.k = (unsigned)call.k;
    p.pair = shape.pair;
    p.parts = shape.parts;
    p.epilogue = BF16_FLOAT32;
    p.activation = ACTIVATION_NONE;
    p.alpha = (float)call.alpha;
    p.stages = bf16_ring_stages(shape.columns);
    p.to = (float *)call.c;
    p.ld = call.ldc;
    if (call.epilogue) {
        p.epilogue = BF16_FORWARD;
        p.activation = call.epilogue->activation;
        p.to_pre = (float *)call.epilogue->pre;
        p.bias = (const float *)call.epilogue->bias;
    } else if (call.backward) {
        p.epilogue = BF16_BACKWARD;
        p.activation = call.backward->activation;
        p.derived_from = (const float *)(activation_needs_input(p.activation) ? call.backward->pre
                                                                              : call.backward->output);
        p.partials = (float *)workspace->reduction.scratch;
    }
    return p;
}

/* The transpose of the gradient, B or A, which is written now if it is not there. */
static float32_transposed transposed_gradient(struct float32_workspace *copies, const gemm_call &call,
                                              cuda_launcher &launcher) {
    const float32_transposed to = float32_transposed_of_gradient(copies, &call);
    const bool is_b = call.op == GEMM_TN;
    if (!to.valid)
        transpose((const float *)(is_b ? call.b : call.a), is_b ? call.k : call.m, is_b ? call.n : call.k,
                  is_b ? call.ldb : call.lda, to.values, to.ld, launcher);
    return to;
}

/* And where C^T goes. */
static void map_operands(tf32_product &p, struct float32_workspace *copies, const gemm_call &call,
                         unsigned columns, cuda_launcher &launcher) {
    const void *a = call.a, *b = call.b;
    size_t lda = call.lda, ldb = call.ldb;
    float32_forget(copies, &call);
    if (swaps(call)) {
        std::swap(a, b);
        std::swap(lda, ldb);
    } else {
        const float32_transposed gradient = transposed_gradient(copies, call, launcher);
        (call.op == GEMM_TN ? b : a) = gradient.values;
        (call.op == GEMM_TN ? ldb : lda) = gradient.ld;
    }
    if (call.backward) {
        const float32_transposed c = float32_transposed_of_c(copies, &call);
        p.transposed = c.values;
        p.ld_transposed = c.ld;
        if (c.alone) p.to = NULL;
    }
    bf16_map_operand(&p.a, TENSOR_TF32, a, p.m, p.k, true, lda, 0, launcher.fault);
    bf16_map_operand(&p.b, TENSOR_TF32, b, p.n, p.k, false, ldb, columns, launcher.fault);
}

void tf32_gemm(const struct bf16_workspace *workspace, struct float32_workspace *copies,
               const struct gemm_call *call, cuda_launcher &launcher) {
    const bf16_shape shape = bf16_shape_of(workspace, size_of(*call), TF32_COLUMNS);
    tf32_product p = product_of(workspace, *call, shape);
    if (!launcher.describe) map_operands(p, copies, *call, shape.columns / shape.pair, launcher);
    if (launcher.fault->message[0]) return;
    tf32_launch(call->op, p, (unsigned)gemm_multiprocessors(*call, workspace->processors), launcher);
    if (call->backward) bf16_sum_columns(workspace, call, rows_of_sums(call), launcher);
}
