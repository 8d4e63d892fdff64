/* cuda-tuned, narrow products of 16 bits (T: __nv_bfloat16 or __half): those of 6_tuned_narrow.cu, on tensor
   cores.

   Idea       each lane loads 16 bytes of the large matrix, straight into the registers of mma.sync: the sum
              over k, and the rows or columns of a tile, may have any order that both operands share. The
              narrow matrix is in shared memory, or in registers, with zeros up to 16 classes.
                NN  Y = X W      a warp has 16 rows of X and a quarter of k
                TN  dW = X^T dY  as dW^T = dY^T X: a warp has 64 columns of X and a part of its rows
                NT  dX = dY W^T  a warp has 64 columns of dX, and holds their rows of W in registers
              Partial sums are added in a fixed order.
   Layout     lane 4 g + t, as in mma_bf16.cuh
   Bound by   bytes of the large matrix: 8192 x 2048 is 34 MB, 12 us at 2.8 TB/s
   Improves   5_cublas.cu for output layers
   Run        ./train --backend cuda-tuned --precision bf16 --layers 784-2048-10 --batch-size 8192 */
#include "kernels/cuda/gemm/6_tuned.cuh"
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/tensor/mma_16bit.cuh"

static const size_t WIDEST_NARROW = 16, SHORTEST_LONG = 512;
static const unsigned WARPS = 8, THREADS = 32 * WARPS;

/* --- which calls --- */

static const unsigned TN_COLUMNS = 64, TN_MOST_ROWS = 1024; /* of a block of the weight gradient */
static const unsigned NT_COLUMNS = 64 * WARPS;              /* of a block of the input gradient */

static bool whole_packs(const void *memory, size_t cols, size_t ld) {
    return packs_fit(memory, cols, ld, 8, 2);
}

/* Has the scratch memory room for the partial sums? */
static bool sums_fit(const struct gemm_call *call) {
    const size_t bytes = TN_COLUMNS * WIDEST_NARROW * sizeof(float);
    if (call->op == GEMM_NT) return blocks_for(call->n, NT_COLUMNS) <= REDUCTION_GROUPS;
    return (size_t)blocks_for(call->m, TN_COLUMNS) * blocks_for(call->k, TN_MOST_ROWS) <=
           REDUCTION_BYTES / bytes;
}

bool narrow_bf16_takes(const struct gemm_call *call) {
    const bool nn = call->op == GEMM_NN, tn = call->op == GEMM_TN;
    if (call->k == 0 || call->c_f32 != tn || (!nn && !sums_fit(call))) return false;
    if (!nn && !tn)
        return call->k <= WIDEST_NARROW && call->m >= SHORTEST_LONG && call->beta == 0 &&
               whole_packs(call->c, call->n, call->ldc);
    return call->n <= WIDEST_NARROW && (nn ? call->m : call->k) >= SHORTEST_LONG &&
           whole_packs(call->a, nn ? call->k : call->m, call->lda);
}

/* What the derivative reads. */
static const void *source_of(const gemm_backward &backward) {
    return activation_needs_input(backward.activation) ? backward.pre : backward.output;
}

bool narrow_bf16_fuses_backward(const struct gemm_call *call) {
    return call->op == GEMM_NT && whole_packs(source_of(*call->backward), call->n, call->ldc);
}

/* --- parts --- */

template <typename T> __device__ static uint32_t bits(const T *from, bool inside) {
    return inside ? __ldg((const unsigned short *)from) : 0;
}

template <typename T> __device__ static uint4 eight(const T *from, bool inside) {
    return inside ? __ldg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
}

/* to[n * pitch + p] = rows first + 2 p and first + 2 p + 1 of column n, for 16 columns; 0 outside. */
template <typename T>
__device__ static void stage_pairs(uint32_t *to, unsigned pitch, unsigned pairs, const T *from, size_t ld,
                                   size_t first, size_t rows, size_t cols) {
    for (unsigned p = threadIdx.x; p < pairs; p += THREADS) {
        const size_t row = first + 2 * p;
        const T *const at = from + row * ld;
        uint32_t words[16];
#pragma unroll
        for (unsigned n = 0; n < 16; n++)
            words[n] = bits(at + n, row < rows && n < cols) | bits(at + ld + n, row + 1 < rows && n < cols)
                                                                  << 16;
#pragma unroll
        for (unsigned n = 0; n < 16; n++) to[n * pitch + p] = words[n];
    }
}

/* --- NN --- */

static const unsigned NN_ROWS = 32, NN_PARTS = 4, NN_PANEL = 2048; /* of a block; of k; k in shared memory */
static const unsigned NN_PITCH = NN_PANEL / 2 + 16;                /* words: 16 more than a multiple of 32 */
static const size_t NN_SHARED = 16 * NN_PITCH * sizeof(uint32_t);

template <typename T>
__global__ void __launch_bounds__(THREADS)
    narrow_bf16_nn(const T *a, size_t lda, const T *b, size_t ldb, size_t k, sink<T> out) {
    extern __shared__ uint4 memory[];
    uint32_t *const weights = (uint32_t *)memory; /* [16][NN_PITCH]: W^T */
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, part = warp / 2;
    const size_t row0 = (size_t)blockIdx.x * NN_ROWS, row = row0 + warp % 2 * 16 + g;
    const T *const upper = a + min(row, out.m - 1) * lda + 8 * t, *const lower =
                                                                      a + min(row + 8, out.m - 1) * lda +
                                                                      8 * t;
    float sum[2][4] = {};
    for (size_t k0 = 0; k0 < k; k0 += NN_PANEL) {
        const unsigned left = (unsigned)min(k - k0, (size_t)NN_PANEL), chunks = (left + 31) / 32;
        if (k0) __syncthreads();
        stage_pairs(weights, NN_PITCH, chunks * 16, b, ldb, k0, k, out.n);
        __syncthreads();
#pragma unroll 4
        for (unsigned c = part; c < chunks; c += NN_PARTS) {
            const bool inside = c * 32 + 8 * t < left;
            const uint4 x = eight(upper + k0 + c * 32, inside), y = eight(lower + k0 + c * 32, inside);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 w = *(const uint4 *)(weights + (g + 8 * h) * NN_PITCH + c * 16 + 4 * t);
                mma_16bit<T>(sum[h], x.x, y.x, x.y, y.y, w.x, w.y);
                mma_16bit<T>(sum[h], x.z, y.z, x.w, y.w, w.z, w.w);
            }
        }
    }
    __syncthreads();
    float *const sums = (float *)memory; /* [part][row][16] */
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[(part * NN_ROWS + warp % 2 * 16 + g + i / 2 * 8) * 16 + 8 * h + 2 * t + i % 2] = sum[h][i];
    __syncthreads();
    for (unsigned e = threadIdx.x; e < NN_ROWS * 16; e += THREADS) {
        if (row0 + e / 16 >= out.m || e % 16 >= out.n) continue;
        float total = sums[e];
        for (unsigned other = 1; other < NN_PARTS; other++) total += sums[other * NN_ROWS * 16 + e];
        out.store(row0 + e / 16, e % 16, total);
    }
}

/* --- TN --- */

static const unsigned TN_PITCH = TN_MOST_ROWS / 2 + 4; /* words: 4 more than a multiple of 32 */
static const size_t TN_SHARED = 16 * TN_PITCH * sizeof(uint32_t);
static_assert(TN_SHARED >= WARPS * 16 * TN_COLUMNS * sizeof(float));

template <typename T>
__global__ void __launch_bounds__(THREADS, 2)
    narrow_bf16_tn(const T *a, size_t lda, const T *b, size_t ldb, size_t k, unsigned per_block,
                   sink<float> out, cuda_reduction reduction) {
    extern __shared__ uint4 memory[];
    uint32_t *const narrow = (uint32_t *)memory; /* [16][TN_PITCH]: dY^T */
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const size_t column = (size_t)blockIdx.x * TN_COLUMNS + 8 * g, first = (size_t)blockIdx.y * per_block;
    const size_t end = min(first + per_block, k);
    float sum[8][4] = {};
    stage_pairs(narrow, TN_PITCH, per_block / 2, b, ldb, first, end, out.n);
    __syncthreads();
#pragma unroll 2
    for (unsigned step = warp; step < per_block / 16; step += WARPS) {
        const size_t row = first + step * 16 + 2 * t;
        const uint32_t *const y = narrow + g * TN_PITCH + step * 8 + t;
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const size_t own = row + i % 2 + i / 2 * 8;
            x[i] = eight(a + own * lda + column, own < end && column < out.m);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) { /* columns j, 8 + j, 16 + j, .. */
            const unsigned halves = j % 2 ? 0x7632 : 0x5410;
            const auto word = [&](int i) { return (&x[i].x)[j / 2]; };
            mma_16bit<T>(sum[j], y[0], y[8 * TN_PITCH], y[4], y[8 * TN_PITCH + 4],
                         __byte_perm(word(0), word(1), halves), __byte_perm(word(2), word(3), halves));
        }
    }
    __syncthreads();
    float *const sums = (float *)memory; /* [warp][16][TN_COLUMNS] */
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[(warp * 16 + g + i / 2 * 8) * TN_COLUMNS + (2 * t + i % 2) * 8 + j] = sum[j][i];
    __syncthreads();
    const size_t all = (size_t)gridDim.x * TN_COLUMNS * 16;
    float *const partial = (float *)reduction.scratch + (size_t)blockIdx.x * TN_COLUMNS * 16;
    for (unsigned e = threadIdx.x; e < 16 * TN_COLUMNS; e += THREADS) {
        float total = sums[e];
        for (unsigned w = 1; w < WARPS; w++) total += sums[w * 16 * TN_COLUMNS + e];
        partial[blockIdx.y * all + e] = total;
    }
    if (!last_block(&reduction.tickets[blockIdx.x], gridDim.y)) return;
    for (unsigned e = threadIdx.x; e < 16 * TN_COLUMNS; e += THREADS) {
        const size_t i = (size_t)blockIdx.x * TN_COLUMNS + e % TN_COLUMNS, j = e / TN_COLUMNS;
        if (i < out.m && j < out.n) out.store(i, j, sum_of_chunks(partial + e, gridDim.y, all));
    }
}

/* --- NT --- */

static const unsigned NT_SLAB = 128, NT_PITCH = 12; /* rows; words of a row */

/* Of eight columns of two rows: sums -> what is stored. */
template <typename T, enum activation A>
__device__ static uint4 finish(const float (&sum)[8][4], int half, int row, uint4 read, bool on,
                               float alpha) {
    uint4 words;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const uint32_t word = (&read.x)[q];
        const float2 y = floats_of<T>(word);
        const float *const two = sum[half * 4 + q] + row * 2;
        (&words.x)[q] = on ? round_gradients_to<T>(alpha * two[0] * derivative(A, y.x, y.x),
                                                   alpha * two[1] * derivative(A, y.y, y.y))
                           : round_pair_to<T>(alpha * two[0], alpha * two[1]);
    }
    return words;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 2)
    narrow_bf16_nt(const T *a, size_t lda, const T *b, size_t ldb, size_t k, unsigned per_block, sink<T> out,
                   slope<T> back, cuda_reduction reduction) {
    __shared__ uint32_t rows[NT_SLAB * NT_PITCH];
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const size_t column0 = (size_t)blockIdx.x * NT_COLUMNS + warp * 64, column = column0 + 8 * t;
    const size_t first = (size_t)blockIdx.y * per_block, end = min(first + per_block, out.m);
    const T *const source = back.pre ? back.pre : back.output;
    uint32_t weight[8][2];
    float totals[16] = {};
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t own = column0 + j / 4 * 32 + g / 2 * 8 + j % 4 * 2 + g % 2, p = 2 * t + 8 * h;
            const T *const at = b + own * ldb + p;
            weight[j][h] = bits(at, own < out.n && p < k) | bits(at + 1, own < out.n && p + 1 < k) << 16;
        }
    for (size_t i0 = first; i0 < end; i0 += NT_SLAB) {
        __syncthreads();
        for (unsigned e = threadIdx.x; e < NT_SLAB * 8; e += THREADS) {
            const size_t i = i0 + e / 8, p = e % 8 * 2;
            rows[e / 8 * NT_PITCH + e % 8] = bits(a + i * lda + p, i < end && p < k) |
                                             bits(a + i * lda + p + 1, i < end && p + 1 < k) << 16;
        }
        __syncthreads();
        with_activation(
            back.activation, [&]<enum activation A>() {
                const unsigned left = (unsigned)min(end - i0, (size_t)NT_SLAB);
#pragma unroll 2
                for (unsigned r = 0; r < left; r += 16) {
                    const uint32_t *const x = rows + (r + g) * NT_PITCH + t;
                    uint4 read[4];
                    float sum[8][4] = {};
#pragma unroll
                    for (int i = 0; i < 4; i++) /* row i / 2, columns 32 (i % 2) .. */
                        read[i] = eight(source + (i0 + r + g + i / 2 * 8) * out.ldc + column + i % 2 * 32,
                                        back.on && r + g + i / 2 * 8 < left && column + i % 2 * 32 < out.n);
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        mma_16bit<T>(sum[j], x[0], x[8 * NT_PITCH], x[4], x[8 * NT_PITCH + 4], weight[j][0],
                                     weight[j][1]);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        if (r + g + i / 2 * 8 >= left || column + i % 2 * 32 >= out.n) continue;
                        const uint4 words = finish<T, A>(sum, i % 2, i / 2, read[i], back.on, out.alpha);
                        *(uint4 *)(out.c + (i0 + r + g + i / 2 * 8) * out.ldc + column + i % 2 * 32) = words;
#pragma unroll
                        for (int q = 0; q < 4; q++) {
                            const float2 two = floats_of<T>((&words.x)[q]);
                            totals[i % 2 * 8 + 2 * q] += two.x;
                            totals[i % 2 * 8 + 2 * q + 1] += two.y;
                        }
                    }
                }
            });
    }
    if (!back.on) return;

    /* column sums: the rows of this block; then the last block to finish adds the blocks in order */
    const unsigned lane = threadIdx.x % 32;
    float *const partial = (float *)reduction.scratch;
    halve<16>(totals, lane & 16, 16);
    halve<8>(totals, lane & 8, 8);
    halve<4>(totals, lane & 4, 4);
    const size_t own = column + lane / 16 * 32 + lane / 8 % 2 * 4 + lane / 4 % 2 * 2;
    if (own < out.n) *(float2 *)(partial + blockIdx.y * out.n + own) = make_float2(totals[0], totals[1]);
    if (!last_block(&reduction.tickets[blockIdx.x], gridDim.y)) return;
    for (unsigned e = threadIdx.x; e < NT_COLUMNS; e += THREADS) {
        const size_t j = (size_t)blockIdx.x * NT_COLUMNS + e;
        if (j < out.n) back.column_sums[j] = back.bias_scale * sum_of_chunks(partial + j, gridDim.y, out.n);
    }
}

/* --- launches --- */

/* A multiple of `step` of `length` for each of up to `most` blocks. */
static unsigned share(size_t length, unsigned step, unsigned most) {
    return blocks_for(blocks_for(length, step), most > 1 ? most : 1) * step;
}

template <typename T>
static void launch_narrow(struct tuned_context *context, const struct gemm_call *call,
                          cuda_launcher &launcher) {
    const T *const a = (const T *)call->a, *const b = (const T *)call->b;
    const unsigned resident = 2 * (unsigned)context->processors;
    if (call->op == GEMM_NN) {
        if (CUDA_TRY(&context->fault,
                     cudaFuncSetAttribute(narrow_bf16_nn<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)NN_SHARED)))
            launch(launcher, IS_HALF<T> ? "narrow_fp16_nn" : "narrow_bf16_nn", narrow_bf16_nn<T>,
                   blocks_for(call->m, NN_ROWS), THREADS, NN_SHARED, a, call->lda, b, call->ldb, call->k,
                   sink<T>(*call));
    } else if (call->op == GEMM_TN) {
        const unsigned groups = blocks_for(call->m, TN_COLUMNS);
        unsigned rows = share(call->k, 16 * WARPS, resident / groups);
        if (rows > TN_MOST_ROWS) rows = TN_MOST_ROWS;
        launch(launcher, IS_HALF<T> ? "narrow_fp16_tn" : "narrow_bf16_tn", narrow_bf16_tn<T>,
               dim3(groups, blocks_for(call->k, rows)), THREADS, TN_SHARED, a, call->lda, b, call->ldb,
               call->k, rows, sink<float>(*call), context->reduction);
    } else {
        const unsigned groups = blocks_for(call->n, NT_COLUMNS), rows = share(call->m, 16, resident / groups);
        launch(launcher, IS_HALF<T> ? "narrow_fp16_nt" : "narrow_bf16_nt", narrow_bf16_nt<T>,
               dim3(groups, blocks_for(call->m, rows)), THREADS, 0, a, call->lda, b, call->ldb, call->k, rows,
               sink<T>(*call), slope<T>(*call), context->reduction);
    }
}

void narrow_bf16_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    if (call->dtype == GEMM_F16)
        launch_narrow<__half>(context, call, launcher);
    else
        launch_narrow<__nv_bfloat16>(context, call, launcher);
}
