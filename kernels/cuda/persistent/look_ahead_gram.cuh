/* One hidden layer, look-ahead: beside the steps, blocks that are neither chain nor workers compute the
   Gram matrix of each step's batch with the one before: 128 x 128 sums of products of bytes, over all pixels
   and the input 1 of the bias, exact in int32. They are stored as two float16 planes, in the order of the
   chain's registers. And what is done before a launch. See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_GRAM_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_GRAM_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/persistent/int8_layer1.cuh"
#include "kernels/cuda/persistent/look_ahead.cuh"

namespace persistent::look_ahead {

static const int GRAM_WARPS = 8, GRAM_THREADS = 32 * GRAM_WARPS;
static const int GRAM_PARTS = 8;       /* of a matrix: 32 rows of a batch by 64 of the one before */
static const int GRAM_ONE = 255 * 255; /* the bias' input, 255 / 255 */
static const float GRAM_SCALE = 2048, GRAM_INVERSE = 1 / 2048.0f; /* sums reach 2^26, float16 2^16 */

__host__ __device__ static size_t gram_shared_bytes(int packs) {
    return (size_t)2 * ROWS * pixel_pitch(packs);
}

/* The pixels of some rows of a step's batch, from `first` on, in shared memory. Rows beyond the batch keep
   what they had: dZ is 0 there. */
template <int COUNT> __device__ inline void gather_rows(const plan &plan, int step, int first, char *to) {
    static const int THREADS_EACH = GRAM_THREADS / COUNT;
    const int row = threadIdx.x / THREADS_EACH;
    if (row >= COUNT || first + row >= plan.rows_of(step, step + 1)) return;
    const uint8_t *image =
        plan.images + (size_t)plan.order[(size_t)step * plan.batch + first + row] * plan.features;
    for (int p = threadIdx.x % THREADS_EACH; p < plan.packs; p += THREADS_EACH)
        __pipeline_memcpy_async(to + row * pixel_pitch(plan.packs) + p * PIXELS, image + p * PIXELS, PIXELS);
}

/* The products of some rows of a batch and of the one before: WARP_ROWS warps by all others. `to` is the
   first of their tiles in a matrix. */
template <int BATCH_ROWS, int BEFORE_ROWS, int WARP_ROWS>
__device__ inline void gram_tiles(const plan &plan, const char *batch, const char *before, uint4 *to) {
    static const int TILES = BATCH_ROWS / TILE / WARP_ROWS,
                     COLUMN_TILES = BEFORE_ROWS / TILE * WARP_ROWS / GRAM_WARPS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = pixel_pitch(plan.packs);
    const int row_tile = warp % WARP_ROWS * TILES, column_tile = warp / WARP_ROWS * COLUMN_TILES;
    int sum[TILES][COLUMN_TILES][2][4] = {};
    const char *a_row = batch + (row_tile * TILE + lane % 16) * pitch;
    const char *b_row = before + (column_tile * TILE + lane / 16 * 8 + lane % 8) * pitch;
    for (int p = 0; p < plan.packs; p += 2) {
        const bool last = p + 1 == plan.packs; /* an odd number of packs: the second half counts as 0 */
        uint32_t a[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            ldmatrix_x4(a[i], a_row + i * TILE * pitch + min(p + lane / 16, plan.packs - 1) * PIXELS);
            if (last) a[i][2] = a[i][3] = 0;
        }
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; c++) {
            uint32_t b[4];
            ldmatrix_x4(b, b_row + c * TILE * pitch + min(p + lane / 8 % 2, plan.packs - 1) * PIXELS);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                mma_int8<false>(sum[i][c][0], a[i], b[0], b[1]);
                mma_int8<false>(sum[i][c][1], a[i], b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int c = 0; c < COLUMN_TILES; c++) {
            plane_pair word[2][2];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    word[n][h] = planes_of((float)(sum[i][c][n][2 * h] + GRAM_ONE) * GRAM_INVERSE,
                                           (float)(sum[i][c][n][2 * h + 1] + GRAM_ONE) * GRAM_INVERSE);
            uint4 *at = to + ((row_tile + i) * ROW_TILES + column_tile + c) * 64 + lane;
            at[0] = make_uint4(word[0][0].high, word[0][1].high, word[1][0].high, word[1][1].high);
            at[32] = make_uint4(word[0][0].low, word[0][1].low, word[1][0].low, word[1][1].low);
        }
}

/* The matrix of step `step`, i of the launch, or one of its GRAM_PARTS. */
template <int BATCH_ROWS, int BEFORE_ROWS, int WARP_ROWS>
__device__ inline void make_part(const plan &plan, void *shared, int step, int i, int part) {
    static const int PARTS = BATCH_ROWS * BEFORE_ROWS / (ROWS * ROWS / GRAM_PARTS);
    const int row = part % (ROWS / BATCH_ROWS) * BATCH_ROWS,
              column = part / (ROWS / BATCH_ROWS) * BEFORE_ROWS;
    char *batch = (char *)shared, *before = batch + BATCH_ROWS * pixel_pitch(plan.packs);
    uint4 *to = plan.gram + (size_t)i * GRAM_STEP + (row / TILE * ROW_TILES + column / TILE) * 64;
    if (step == 0) return;
    gather_rows<BATCH_ROWS>(plan, step, row, batch);
    gather_rows<BEFORE_ROWS>(plan, step - 1, column, before);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    if (threadIdx.x < GRAM_THREADS) gram_tiles<BATCH_ROWS, BEFORE_ROWS, WARP_ROWS>(plan, batch, before, to);
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;"
                     :
                     : "l"(plan.gram_made + i), "n"(PARTS)
                     : "memory");
}

/* The first matrices of a launch, which the chain waits for: several makers share one. */
__device__ inline int shared_matrices(const plan &plan) {
    return (plan.blocks - plan.first_maker) / GRAM_PARTS;
}

/* Block `maker` of `makers`: a part of a shared matrix, and then every `makers`-th of the others. */
__device__ inline void make_grams(const plan &plan, void *shared, int first, int end, int maker, int makers) {
    const int all_shared = shared_matrices(plan), i = maker / GRAM_PARTS;
    if (i < all_shared && first + i < end)
        make_part<ROWS / 4, ROWS / 2, 2>(plan, shared, first + i, i, maker % GRAM_PARTS);
    for (int k = all_shared + maker; first + k < end; k += makers)
        make_part<ROWS, ROWS, 4>(plan, shared, first + k, k, 0);
}

/* Waits until the matrix of step i of the launch is in global memory. */
__device__ inline void wait_for_maker(const plan &plan, int i) {
    uint32_t made;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(made) : "l"(plan.gram_made + i) : "memory");
    while (made < GRAM_PARTS);
}

__global__ void __launch_bounds__(GRAM_THREADS)
    prepare_steps(const __grid_constant__ plan plan, int first, int end, uint32_t) {
    const uint4 empty = {0, 0, 0, 0};
    compare_state(plan, first, LONGEST);
    for_share((size_t)(end - first), [&](size_t i) { plan.gram_made[i] = 0; });
    for_share((size_t)2 * plan.groups * DZ_PACKETS, [&](size_t i) { plan.dz[i] = empty; });
    for_share((size_t)2 * plan.groups * PRODUCT_PACKETS, [&](size_t i) { plan.products[i] = empty; });
}

} // namespace persistent::look_ahead

#endif
