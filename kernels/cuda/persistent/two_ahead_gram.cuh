/* Two hidden layers, look-ahead: what a kernel with a thread block for each step does before a launch. It
   gathers the images, so that a worker copies its slice of a batch at once, and computes the Gram matrices:
   sums of products of bytes, over all pixels and the input 1 of the bias, exact in int32. They are stored
   as two float16 planes, in the order of the chain's registers. See two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_GRAM_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_GRAM_CUH

#include "kernels/cuda/persistent/two_ahead.cuh"

namespace persistent::two_ahead {

static const int GRAM_THREADS = 512, GRAM_PITCH = PIXELS * (SLICE_PACKS + 2); /* 9 packs: no bank conflicts */

/* A slice of the images of a batch to shared memory; the eighth pack of a row stays 0. */
template <typename E>
__device__ inline void load_slice(const plan &plan, int step, int end, int slice, char *to, E each) {
    const int first = plan.first_pack(slice), count = plan.first_pack(slice + 1) - first;
    for (int i = threadIdx.x; i < ROWS * SLICE_PACKS; i += GRAM_THREADS) {
        const int row = i / SLICE_PACKS, pack = i % SLICE_PACKS;
        uint4 pixels = {0, 0, 0, 0};
        if (row < plan.rows_of(step, end) && pack < count)
            pixels = reinterpret_cast<const uint4 *>(plan.images +
                                                     (size_t)plan.order[(size_t)step * plan.batch + row] *
                                                         plan.features)[first + pack];
        *reinterpret_cast<uint4 *>(to + row * GRAM_PITCH + pack * PIXELS) = pixels;
        each(i, pixels);
    }
}

/* Adds the products of a slice: a warp has 32 rows of the batch and 32 of the one before. */
__device__ inline void add_products(int (&sum)[2][4][4], const char *batch, const char *before) {
    const char *a_row = batch + (warp() / 4 * 32 + lane() % 16) * GRAM_PITCH + lane() / 16 * PIXELS;
    const char *b_row =
        before + (warp() % 4 * 32 + lane() / 16 * 8 + lane() % 8) * GRAM_PITCH + lane() / 8 % 2 * PIXELS;
#pragma unroll
    for (int p = 0; p < SLICE_PACKS + 1; p += 2) {
        uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ldmatrix_x4(a[i], a_row + i * 16 * GRAM_PITCH + p * PIXELS);
            ldmatrix_x4(b[i], b_row + i * 16 * GRAM_PITCH + p * PIXELS);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                mma_int8<false>(sum[i][n], a[i], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

/* Two tiles of 16 x 16 of each of a warp's 16 rows, as A of mma.sync. */
__device__ inline void store_gram(const int (&sum)[2][4][4], uint4 *gram) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            plane_pair word[2][2];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    word[n][h] = planes_of((float)(sum[i][2 * c + n][2 * h] + GRAM_ONE) * GRAM_INVERSE,
                                           (float)(sum[i][2 * c + n][2 * h + 1] + GRAM_ONE) * GRAM_INVERSE);
            uint4 *at = gram + ((warp() / 4 * 2 + i) * ROW_TILES + warp() % 4 * 2 + c) * 64 + lane();
            at[0] = make_uint4(word[0][0].high, word[0][1].high, word[1][0].high, word[1][1].high);
            at[32] = make_uint4(word[0][0].low, word[0][1].low, word[1][0].low, word[1][1].low);
        }
}

__global__ void __launch_bounds__(GRAM_THREADS)
    prepare_steps(const __grid_constant__ plan plan, int first, int end, uint32_t) {
    __shared__ __align__(16) char batch[ROWS * GRAM_PITCH], before[ROWS * GRAM_PITCH];
    const int i = blockIdx.x, step = first + i;
    int sum[2][4][4] = {};
    compare_state(plan, first, LONGEST);
    for (int r = threadIdx.x; r < 2 * ROWS; r += GRAM_THREADS)
        *reinterpret_cast<uint4 *>((r < ROWS ? batch : before) + r % ROWS * GRAM_PITCH +
                                   SLICE_PACKS * PIXELS) = make_uint4(0, 0, 0, 0);
    for (int slice = 0; slice < SLICES; slice++) {
        __syncthreads();
        uint4 *gathered = reinterpret_cast<uint4 *>(plan.slice_of(i, slice));
        load_slice(plan, step, end, slice, batch, [&](int at, uint4 pixels) { gathered[at] = pixels; });
        if (step == 0) continue;
        load_slice(plan, step - 1, end, slice, before, [](int, uint4) {});
        __syncthreads();
        add_products(sum, batch, before);
    }
    if (step > 0) store_gram(sum, plan.gram + (size_t)i * GRAM_STEP);
}

} // namespace persistent::two_ahead

#endif
