/* A block's tiles of layer 2: how their operands come to shared memory, and their products. See fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_PAIR_TILE_CUH
#define TESSERA_KERNELS_CUDA_FUSED_PAIR_TILE_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/fused_pair_plan.cuh"

__device__ inline float4 four(const float *at) {
    return *reinterpret_cast<const float4 *>(at);
}

__device__ inline float2 two(const float *at) {
    return *reinterpret_cast<const float2 *>(at);
}

__device__ inline float dot(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + (a.z * b.z + a.w * b.w);
}

__device__ inline void add_product(float *sum, float a, float4 b) {
    sum[0] += a * b.x;
    sum[1] += a * b.y;
    sum[2] += a * b.z;
    sum[3] += a * b.w;
}

/* One thread of a block that has tile (down, across) of H2, of dZ1 and of W2, as far as there are such. */
struct pair_tile {
    const pair_plan &plan;
    float *shared;
    int down, across;
    bool has_h2, has_dz1, has_w2, has_w3;

    __device__ pair_tile(const pair_plan &plan, float *shared)
        : plan(plan), shared(shared), down(blockIdx.x % GROUPS), across(blockIdx.x / GROUPS) {
        has_h2 = across * COLS < plan.padded[1];
        has_dz1 = across * COLS < plan.padded[0];
        has_w2 = has_h2 && down * TALL < plan.padded[0];
        has_w3 = blockIdx.x * OUTPUT < plan.padded[1];
    }

    /* --- copies --- */

    /* Floats on their way to shared memory, four by four. */
    __device__ static void copy(float *to, const float *from, int count) {
#pragma unroll 4
        for (int i = 4 * threadIdx.x; i < count; i += 4 * THREADS)
            __pipeline_memcpy_async(to + i, from + i, 16);
    }

    /* All but the last `more` groups of copies have come. */
    __device__ static void wait_for_copies(int more) {
        if (more) {
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
    }

    __device__ void fetch_columns() const {
        const int slab = plan.padded[0] * COLS;
        if (has_h2) copy(shared + place::WIDE, plan.w2_columns + across * slab, slab);
        __pipeline_commit();
    }

    __device__ void fetch_w3_and_rows() const {
        if (has_dz1) copy(shared + place::OUT_WEIGHT, plan.w3, plan.classes * PITCH);
        __pipeline_commit();
        if (has_dz1) copy(shared + place::WIDE, plan.w2_rows + across * COLS * PITCH, COLS * PITCH);
        __pipeline_commit();
    }

    /* The rows of H1 or H2 of the tile, past the copies that are on their way. */
    __device__ void read_tile(const float *rows) const {
        constexpr int EACH = OWN * PITCH / 4 / THREADS + 1;
        const float4 *from = reinterpret_cast<const float4 *>(rows + down * OWN * PITCH);
        float4 some[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (threadIdx.x + i * THREADS < OWN * PITCH / 4)
                some[i] = __ldcg(from + threadIdx.x + i * THREADS);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (threadIdx.x + i * THREADS < OWN * PITCH / 4)
                reinterpret_cast<float4 *>(shared + place::TILE)[threadIdx.x + i * THREADS] = some[i];
    }

    __device__ void fetch_for_update(size_t step) const {
        if (has_w2)
            copy(shared + place::H1, plan.h1_columns + (step % 2 * plan.padded[0] + down * TALL) * ROWS,
                 TALL * ROWS);
        if (has_h2) copy(shared + place::DZ2, plan.dz2 + across * COLS * ROWS, COLS * ROWS);
        copy(shared + place::DLOG, plan.dlogits, CLASSES * ROWS);
        if (has_w3) copy(shared + place::H2, plan.h2_columns + blockIdx.x * OUTPUT * ROWS, OUTPUT * ROWS);
        __pipeline_commit();
    }

    /* --- products --- */

    /* The tile's element (threadIdx.x / COLS, threadIdx.x % COLS) of TILE times WIDE, over k: WIDE is [k][COLS], or ALONG k: [COLS][PITCH]
       with its rows in their places. A lane has 8 rows and 8 columns (as many multiply-adds as shared memory has numbers for) for its
       share of k: there are 4 in a warp. */
    template <bool ALONG> __device__ float product(int k) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = lane % 4, m = lane / 4 % 2;
        const bool upper = lane & 8, last = lane & 16;
        float sum[8][8] = {};
#pragma unroll 1
        for (int at = 8 * warp + lane / 8 * 2; at < k; at += 8 * WARPS) {
            float2 x[8];
            const float *a = shared + place::TILE + m * PITCH + at;
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = two(a + 2 * i * PITCH);
            if (ALONG) {
                const float *b = shared + place::WIDE + n * PITCH + at;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const float2 y = two(b + 4 * j * PITCH);
#pragma unroll
                    for (int i = 0; i < 8; i++) sum[i][j] += x[i].x * y.x;
#pragma unroll
                    for (int i = 0; i < 8; i++) sum[i][j] += x[i].y * y.y;
                }
            } else {
                const float *b = shared + place::WIDE + at * COLS + 8 * n;
#pragma unroll
                for (int j = 0; j < 8; j += 4) {
                    const float4 y = four(b + j), z = four(b + COLS + j);
#pragma unroll
                    for (int i = 0; i < 8; i++) add_product(sum[i] + j, x[i].x, y);
#pragma unroll
                    for (int i = 0; i < 8; i++) add_product(sum[i] + j, x[i].y, z);
                }
            }
        }
        float *to = shared + place::SUMS + (warp * OWN + m + (upper ? 8 : 0) + (last ? 4 : 0)) * COLS + 8 * n;
#pragma unroll
        for (int j = 0; j < 8; j++) { /* each lane keeps half of its rows, then half of those */
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i][j] = (upper ? sum[i + 4][j] : sum[i][j]) +
                            __shfl_xor_sync(0xffffffffu, upper ? sum[i][j] : sum[i + 4][j], 8);
#pragma unroll
            for (int i = 0; i < 2; i++)
                sum[i][j] = (last ? sum[i + 2][j] : sum[i][j]) +
                            __shfl_xor_sync(0xffffffffu, last ? sum[i][j] : sum[i + 2][j], 16);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                *reinterpret_cast<float4 *>(to + 2 * i * COLS + j) =
                    make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
        __syncthreads();
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total += shared[place::SUMS + w * OWN * COLS + threadIdx.x];
        return total;
    }
};

#endif
