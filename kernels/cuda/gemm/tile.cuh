/* Tiles in shared memory for 6_tuned_small.cu: rows as in global memory, padded by 16 bytes, and the fragment
   that a lane reads for 4 successive k. If k is contiguous, neighbouring lanes own neighbouring rows, which
   the padding puts into different banks. Otherwise each lane owns neighbouring elements. Both reads are wide
   and free of conflicts. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_TILE_CUH
#define TESSERA_KERNELS_CUDA_GEMM_TILE_CUH

#include "kernels/cuda/ops/element.cuh"

static const int GROUP = 4; /* successive k */

/* Elements between rows of a tile. */
template <typename T> __host__ __device__ constexpr int padded(int cols) {
    return cols + WIDEST<T>;
}

/* A lane's COUNT rows (of A) or columns (of B) at 4 successive k. */
template <typename T, int COUNT, int LANES, bool ALONG_K> struct fragment {
    real<T> value[COUNT][GROUP];

    static constexpr int VECTOR = COUNT < 4 ? COUNT : 4;

    /* Which rows or columns of the tile they are. */
    static __device__ int index_of(int lane, int i) {
        return ALONG_K ? lane + i * LANES : lane * VECTOR + i % VECTOR + i / VECTOR * (LANES * VECTOR);
    }

    __device__ void load(const T *tile, int tile_cols, int lane, int k) {
        if (ALONG_K) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const pack<T, GROUP> four =
                    pack_at<GROUP>(tile + index_of(lane, i) * padded<T>(tile_cols) + k);
#pragma unroll
                for (int p = 0; p < GROUP; p++) value[i][p] = real<T>(four.value[p]);
            }
        } else {
#pragma unroll
            for (int p = 0; p < GROUP; p++)
#pragma unroll
                for (int i = 0; i < COUNT; i += VECTOR) {
                    const pack<T, VECTOR> some =
                        pack_at<VECTOR>(tile + (k + p) * padded<T>(tile_cols) + index_of(lane, i));
#pragma unroll
                    for (int e = 0; e < VECTOR; e++) value[i + e][p] = real<T>(some.value[e]);
                }
        }
    }
};

#endif
