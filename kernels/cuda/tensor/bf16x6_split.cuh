/* float32 as the sum of three bfloat16, high + middle + low, each rounded to nearest: fragments of A for
   wgmma from float32 tiles in shared memory, and planes of B from tiles to shared memory. A tile was
   copied by a tensor map: rows of 128 bytes, swizzled. PLANES: three, or for TF32 the first two.

   Order of k    Where A has k along its rows, a lane loads four neighbours of k, which wgmma takes as two
                 pairs eight apart: element 4 t + j of 16 counts as 2 t + j % 2 + j / 2 * 8. The planes of B
                 have this order as well.
   Banks         all accesses are free of bank conflicts: lanes of a quarter (16 bytes) or half (8 bytes) of
                 a warp access the eight units of 16 bytes of a line, each once. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16X6_SPLIT_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16X6_SPLIT_CUH

#include "kernels/cuda/tensor/bf16x6.cuh"
#include "kernels/cuda/tensor/mma_bf16.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

namespace bf16x6 {

static const unsigned K = BF16X6_K, STEPS = K / 16, GROUP = 128; /* GROUP: threads of a warpgroup */
static const unsigned LINE = 128;                                /* bytes of a row of a tile or plane */
template <unsigned W> constexpr unsigned PLANE_BYTES = K *W * 2; /* W: columns of a tile */

/* Two floats as pairs of bfloat16, the highest first. What is left for the lowest of three has at most 8
   bits: they are exact. Infinities and NaN become NaN. */
template <unsigned PLANES> static __device__ void split(float x, float y, uint32_t (&of)[PLANES]) {
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        of[i] = round_pair(x, y);
        x -= first_of(of[i]);
        y -= second_of(of[i]);
    }
    if constexpr (PLANES == 3) of[2] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
}

/* Unit `unit` of 16 bytes of a row. */
static __device__ unsigned at_unit(unsigned row, unsigned unit) {
    return row * LINE + ((unit ^ row % 8) << 4);
}

/* What a thread has of 64 rows of A, of one stage: [plane][step of 16 of k]. */
template <unsigned PLANES> struct fragments {
    uint32_t of[PLANES][STEPS][4];

    __device__ void put(unsigned step, unsigned i, float x, float y) {
        uint32_t pairs[PLANES];
        split<PLANES>(x, y, pairs);
#pragma unroll
        for (unsigned plane = 0; plane < PLANES; plane++) of[plane][step][i] = pairs[plane];
    }
};

/* The first of the two rows that a thread has, of those of its warpgroup; rows_apart: the other one. */
template <bool A_T> static __device__ unsigned first_row(unsigned warp, unsigned lane) {
    const unsigned row = lane / 4;
    return warp * 16 + (A_T ? 2 * row : row % 2 * 4 + row / 2);
}
template <bool A_T> constexpr unsigned ROWS_APART = A_T ? 1 : 8;

/* A tile with k along its rows: two boxes of 128 rows and 32 of k. */
template <unsigned PLANES>
static __device__ void load_a(fragments<PLANES> &a, const char *tile, unsigned row, unsigned lane) {
    const unsigned box_bytes = BF16X6_ROWS * LINE;
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++)
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
            const float4 x = *(const float4 *)(tile + step / 2 * box_bytes +
                                               at_unit(row + h * 8, step % 2 * 4 + lane % 4));
            a.put(step, h, x.x, x.y);
            a.put(step, h + 2, x.z, x.w);
        }
}

/* A tile with k along its columns: four boxes of 64 of k and 32 rows. */
template <unsigned PLANES>
static __device__ void load_a_transposed(fragments<PLANES> &a, const char *tile, unsigned row,
                                         unsigned lane) {
    const char *const box = tile + row / 32 * (K * LINE) + row % 4 * 4;
    const unsigned unit = row % 32 / 4;
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++)
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const unsigned k = step * 16 + half * 8 + lane % 4 * 2;
            const float2 x = *(const float2 *)(box + at_unit(k, unit)),
                         y = *(const float2 *)(box + at_unit(k + 1, unit));
            a.put(step, 2 * half, x.x, y.x);
            a.put(step, 2 * half + 1, x.y, y.y);
        }
}

/* Eight floats as 16 bytes of each plane. */
template <unsigned PLANES, unsigned W> static __device__ void put_planes(char *at, const float (&x)[8]) {
    uint32_t of[4][PLANES];
#pragma unroll
    for (unsigned i = 0; i < 4; i++) split<PLANES>(x[2 * i], x[2 * i + 1], of[i]);
#pragma unroll
    for (unsigned i = 0; i < PLANES; i++)
        *(uint4 *)(at + i * PLANE_BYTES<W>) = make_uint4(of[0][i], of[1][i], of[2][i], of[3][i]);
}

/* The planes of a tile with k along its columns, two boxes of 64 of k and 32 columns: a line for each k, in
   the order of k of A. A warpgroup. */
template <unsigned PLANES, bool A_T>
static __device__ void split_b_by_k(char *planes, const char *tile, unsigned warp, unsigned lane) {
    const unsigned quarter = lane / 8, second = lane / 4 % 2, eight = lane % 4;
#pragma unroll 2
    for (unsigned i = 0; i < 4; i++) {
        const unsigned box = i % 2, part = i / 2,
                       row = A_T ? part * 8 + (quarter ^ second * 5) : (quarter + part * 4) ^ second * 9,
                       to = A_T ? row : row % 2 + row / 4 * 2 + row / 2 % 2 * 8, k = warp * 16 + row;
        const char *const from = tile + box * (K * LINE);
        const float4 x = *(const float4 *)(from + at_unit(k, eight * 2)),
                     y = *(const float4 *)(from + at_unit(k, eight * 2 + 1));
        put_planes<PLANES, BF16X6_COLUMNS>(planes + at_unit(warp * 16 + to, box * 4 + eight),
                                           {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w});
    }
}

/* The same of 72 columns, three boxes; the planes have 1 KB for eight columns, 16 bytes of each k. One of
   `warps` warps. */
template <unsigned PLANES>
static __device__ void split_b_by_k_wide(char *planes, const char *tile, unsigned warp, unsigned warps,
                                         unsigned lane) {
    const unsigned eighth = lane % 8;
#pragma unroll 1
    for (unsigned i = warp * 4 + lane / 8; i < BF16X6_WIDE; i += warps * 4) {
        const unsigned octet = i / 8, step = i % 8 / 2,
                       row = (eighth % 2 + eighth / 2 % 2 * 4 + eighth / 4 * 10) ^ (i % 2 * 2),
                       to = row % 2 + row / 4 * 2 + row / 2 % 2 * 8, k = step * 16 + row;
        const char *const from = tile + octet / 4 * (K * LINE);
        const float4 x = *(const float4 *)(from + at_unit(k, octet % 4 * 2)),
                     y = *(const float4 *)(from + at_unit(k, octet % 4 * 2 + 1));
        put_planes<PLANES, BF16X6_WIDE>(planes + octet * (K * 16) + (step * 16 + to) * 16,
                                        {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w});
    }
}

/* The same with k along its rows, two boxes of W rows and 32 of k: a line for each column of op(B). */
template <unsigned PLANES, unsigned W>
static __device__ void split_b_by_columns(char *planes, const char *tile, unsigned warp, unsigned warps,
                                          unsigned lane) {
    const unsigned step = lane / 8;
#pragma unroll 1 /* less code: the first time, instructions come from the L2 cache */
    for (unsigned i = warp; i < W / 8; i += warps) {
        const unsigned row = i * 8 + lane % 8;
        const char *const from = tile + step / 2 * (W * LINE);
        float4 x[4];
#pragma unroll
        for (unsigned u = 0; u < 4; u++) x[u] = *(const float4 *)(from + at_unit(row, step % 2 * 4 + u));
        put_planes<PLANES, W>(planes + at_unit(row, step * 2),
                              {x[0].x, x[0].y, x[1].x, x[1].y, x[2].x, x[2].y, x[3].x, x[3].y});
        put_planes<PLANES, W>(planes + at_unit(row, step * 2 + 1),
                              {x[0].z, x[0].w, x[1].z, x[1].w, x[2].z, x[2].w, x[3].z, x[3].w});
    }
}

} // namespace bf16x6

#endif
