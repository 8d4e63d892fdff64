/* Products of floats on the bfloat16 tensor cores with the accuracy of float32 (as CUTLASS's 3xTF32).

   A float has 24 bits of significand, a bfloat16 has 8: a float is the sum of three bfloat16, its planes.
   Products of bfloat16 are exact and are summed in float32. Six of the nine products are computed: plane 1 is
   at most 2^-8 of a float and plane 2 at most 2^-17, so the three products left out are at most 2^-24 of
   |a b|, which is what float32 rounds off one product. Tensor cores truncate sums instead of rounding them,
   so they sum only 16 k, the smallest products first, and float32 adds these sums. The six products run at
   sixteen times the rate of float32. Magnitudes are below 2^127; infinity becomes NaN. Needs compute
   capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_BF16X3_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_BF16X3_CUH

#include "kernels/cuda/tensor/ldmatrix.cuh"
#include "kernels/cuda/tensor/mma_bf16.cuh"

namespace persistent {

static const int PLANES = 3; /* of a float, the largest first */

/* Two floats as three pairs of bfloat16. */
__device__ inline void split_into_planes(float first, float second, uint32_t (&planes)[PLANES]) {
#pragma unroll
    for (int s = 0; s < PLANES; s++) {
        planes[s] = round_pair(first, second);
        first -= first_of(planes[s]);
        second -= second_of(planes[s]);
    }
}

/* mma_bf16 for floats as planes; words N and N + 1 of b are the operand. */
template <int N>
__device__ inline void mma_bf16x3(float (&sum)[4], const uint32_t (&a)[PLANES][4],
                                  const uint32_t (&b)[PLANES][4]) {
    float sum16[4] = {};
#pragma unroll
    for (int order = PLANES - 1; order >= 0; order--)
#pragma unroll
        for (int i = order; i >= 0; i--) mma_bf16(sum16, a[i], b[order - i][N], b[order - i][N + 1]);
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] += sum16[i];
}

/* Stores to the shared memory of this block. */
__device__ inline void put(char *at, uint4 words) {
    *reinterpret_cast<uint4 *>(at) = words;
}

__device__ inline void put(char *at, uint32_t word) {
    *reinterpret_cast<uint32_t *>(at) = word;
}

/* A matrix of floats as planes in shared memory: [PLANES][HEIGHT][CHUNKS] of 8 neighbours in a row. Chunks
   are swizzled within a row, so that 8 rows of one chunk lie in different banks. */
template <int HEIGHT, int CHUNKS> struct plane_matrix {
    static constexpr int PLANE = HEIGHT * CHUNKS * 16, BYTES = PLANES * PLANE;
    char *base;

    __device__ char *at(int row, int chunk) const {
        return base + (row * CHUNKS + (chunk ^ row * CHUNKS / 8 % CHUNKS)) * 16;
    }

    /* Calls to(address, words) for each plane of a chunk. */
    template <typename P> __device__ void split(int row, int chunk, const float (&values)[8], P to) const {
        uint32_t planes[4][PLANES];
#pragma unroll
        for (int i = 0; i < 4; i++) split_into_planes(values[2 * i], values[2 * i + 1], planes[i]);
#pragma unroll
        for (int s = 0; s < PLANES; s++)
            to(at(row, chunk) + s * PLANE,
               make_uint4(planes[0][s], planes[1][s], planes[2][s], planes[3][s]));
    }

    /* The same for elements 2 t and 2 t + 1 of a chunk. */
    template <typename P>
    __device__ void split_pair(int row, int chunk, int t, float first, float second, P to) const {
        uint32_t planes[PLANES];
        split_into_planes(first, second, planes);
#pragma unroll
        for (int s = 0; s < PLANES; s++) to(at(row, chunk) + s * PLANE + 4 * t, planes[s]);
    }

    /* ldmatrix of every plane; each lane passes its row and chunk. */
    __device__ void load(uint32_t (&words)[PLANES][4], int row, int chunk) const {
#pragma unroll
        for (int s = 0; s < PLANES; s++) ldmatrix_x4(words[s], at(row, chunk) + s * PLANE);
    }

    __device__ void load_transposed(uint32_t (&words)[PLANES][4], int row, int chunk) const {
#pragma unroll
        for (int s = 0; s < PLANES; s++) ldmatrix_x4_trans(words[s], at(row, chunk) + s * PLANE);
    }
};

} // namespace persistent

#endif
