/* GEMM of TF32 on the tensor cores: which calls, with which tiles, and the tensor maps. */
#include "kernels/cuda/tensor/tf32.cuh"

static const unsigned STAGE_K = BF16_K / 2; /* 128 bytes, as of 16 bits */

static bool aligned(const void *memory) {
    return (uintptr_t)memory % 8 == 0;
}

/* The kernel reads and writes two neighbours of a row at a time; in the backward epilogue, it writes four. */
bool tf32_supports(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    const size_t most = (size_t)1 << 24, most_k = (size_t)1 << 20; /* of which transpose_kernel has a grid */
    const struct gemm_epilogue *const forward = call->epilogue;
    const struct gemm_backward *const back = call->backward;
    return workspace->open && call->dtype == GEMM_F32 && call->op != GEMM_TT && call->beta == 0 && call->k &&
           call->m <= most && call->n <= most && call->k <= most_k && call->n % 2 == 0 &&
           call->ldc % 2 == 0 && aligned(call->c) && tensor_map_fits(call->a, call->lda, 4) &&
           tensor_map_fits(call->b, call->ldb, 4) && bf16_partials_fit(call) &&
           (!forward || (call->op == GEMM_NN && aligned(forward->bias) && aligned(forward->pre))) &&
           (!back || (call->op == GEMM_NT && call->n % 4 == 0 && tensor_map_fits(call->c, call->ldc, 4) &&
                      aligned(back->pre) && aligned(back->output)));
}

/* Is C^T computed? */
static bool swaps(const struct gemm_call &call) {
    return call.op == GEMM_NN;
}

static bf16_size size_of(const struct gemm_call &call) {
    return {swaps(call) ? call.n : call.m, swaps(call) ? call.m : call.n, blocks_for(call.k, STAGE_K)};
}

/* Measured on an H200, in trainings: 1024 x 1024 x 1024 (3.3) is slower than with cuBLAS, twice as many rows
   (1.7) faster. */
bool tf32_pays(const struct bf16_workspace *workspace, const struct gemm_call *call) {
    const size_t least = 128;
    const double most = 2.2;
    const bf16_size size = size_of(*call);
    return call->m > least && call->n >= least && call->k >= least &&
           bf16_fills(workspace, size, bf16_shape_of(workspace, size, TF32_COLUMNS), most);
}

/* --- the transpose --- */

static const unsigned SIDE = 32, STEP = 8;

/* to[j][i] = from[i][j] */
__global__ void __launch_bounds__(SIDE *STEP)
    transpose_kernel(const float *from, size_t rows, size_t columns, size_t ld, float *to, size_t ld_to) {
    __shared__ float tile[SIDE][SIDE + 1];
    const size_t row = (size_t)blockIdx.y * SIDE, column = (size_t)blockIdx.x * SIDE;
    const unsigned x = threadIdx.x;
    for (unsigned y = threadIdx.y; y < SIDE; y += STEP)
        if (row + y < rows && column + x < columns) tile[y][x] = from[(row + y) * ld + column + x];
    __syncthreads();
    for (unsigned y = threadIdx.y; y < SIDE; y += STEP)
        if (row + x < rows && column + y < columns) to[(column + y) * ld_to + row + x] = tile[x][y];
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

void tf32_gemm(const struct bf16_workspace *workspace, struct float32_workspace *copies,
               const struct gemm_call *call, cuda_launcher &launcher) {
    const bf16_shape shape = bf16_shape_of(workspace, size_of(*call), TF32_COLUMNS);
    const unsigned across = shape.columns / shape.pair;
    tf32_product p = product_of(workspace, *call, shape);
    if (!launcher.describe) {
        float32_forget(copies, call);
        if (call->op == GEMM_TN) {
            const float32_transposed b = float32_transposed_of_b(copies, call);
            if (!b.valid)
                launch(launcher, "transpose_kernel", transpose_kernel,
                       dim3(blocks_for(call->n, SIDE), blocks_for(call->k, SIDE)), dim3(SIDE, STEP), 0,
                       (const float *)call->b, call->k, call->n, call->ldb, b.values, b.ld);
            bf16_map_operand(&p.a, TENSOR_TF32, call->a, call->m, call->k, true, call->lda, 0,
                             launcher.fault);
            bf16_map_operand(&p.b, TENSOR_TF32, b.values, call->n, call->k, false, b.ld, across,
                             launcher.fault);
        } else if (swaps(*call)) {
            bf16_map_operand(&p.a, TENSOR_TF32, call->b, call->n, call->k, true, call->ldb, 0,
                             launcher.fault);
            bf16_map_operand(&p.b, TENSOR_TF32, call->a, call->m, call->k, false, call->lda, across,
                             launcher.fault);
        } else {
            bf16_map_operand(&p.a, TENSOR_TF32, call->a, call->m, call->k, false, call->lda, BF16_ROWS,
                             launcher.fault);
            bf16_map_operand(&p.b, TENSOR_TF32, call->b, call->n, call->k, false, call->ldb, across,
                             launcher.fault);
            if (call->backward) {
                const float32_transposed c = float32_transposed_of_c(copies, call);
                p.transposed = c.values;
                p.ld_transposed = c.ld;
            }
        }
    }
    if (launcher.fault->message[0]) return;
    tf32_launch(call->op, p, (unsigned)gemm_multiprocessors(*call, workspace->processors), launcher);
    if (call->backward) bf16_sum_columns(workspace, call, launcher);
}
