/* cp.async.bulk.tensor: the copy engine copies a box of a matrix between global and shared memory. A tensor
   map describes the matrix. In shared memory a row of the box has 128 bytes, and its units of 16 bytes are
   swizzled: unit u of row r is at u ^ r % 8. Reads outside the matrix give zeros. Writes leave out what is
   outside it, in whole units of 16 bytes. Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_TENSOR_MAP_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_TENSOR_MAP_CUH

#include <cuda.h>

#include "kernels/cuda/tensor/mbarrier.cuh"

/* Does the driver make tensor maps? */
bool tensor_map_open(void);

/* Can a tensor map describe this matrix? */
bool tensor_map_fits(const void *memory, size_t ld, size_t element_bytes);

/* TENSOR_TF32: float32 in memory, which a copy to shared memory rounds to TF32. */
enum tensor_element { TENSOR_16BIT, TENSOR_FLOAT32, TENSOR_TF32 };

/* The map of a matrix: boxes of `box_rows` rows of 128 bytes. */
void tensor_map_matrix(CUtensorMap *map, const void *memory, enum tensor_element element, size_t rows,
                       size_t columns, size_t ld, unsigned box_rows, struct cuda_fault *fault);

/* Column x and row y of the matrix are the first of the box. `barrier` counts the bytes of the whole box.
   `to` is a multiple of 1024. */
__device__ inline void tensor_load(void *to, const CUtensorMap &map, unsigned x, unsigned y,
                                   uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :
                 : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
                 : "memory");
#endif
}

/* The same to all blocks of the cluster in `blocks`, a bit each; each one's barrier counts. */
__device__ inline void tensor_multicast(void *to, const CUtensorMap &map, unsigned x, unsigned y,
                                        uint64_t *barrier, unsigned blocks) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 :
                 : "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier)),
                   "h"((uint16_t)blocks)
                 : "memory");
#endif
}

/* The same to the L2 cache. */
__device__ inline void tensor_prefetch(const CUtensorMap &map, unsigned x, unsigned y) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 :
                 : "l"(&map), "r"(x), "r"(y)
                 : "memory");
#endif
}

/* Loads the map itself. */
__device__ inline void tensor_map_prefetch(const CUtensorMap &map) {
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
#endif
}

/* All lanes of a warp, which wrote boxes: the copy engine may read them. */
__device__ inline void tensor_stores_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
    __syncwarp();
}

/* After that: lane 0 stores a box, as one group. */
__device__ inline void tensor_store(const CUtensorMap &map, unsigned x, unsigned y, const void *from) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32) return;
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;"
                 :
                 : "l"(&map), "r"(x), "r"(y), "r"(shared_address(from))
                 : "memory");
#endif
}

template <int N> __device__ inline void tensor_stores_wait_for() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(N) : "memory");
#endif
}

/* All lanes of a warp: waits until the copy engine still reads at most the last stored box, or none (0). */
__device__ inline void tensor_stores_wait(unsigned most) {
    if (threadIdx.x % 32 == 0) {
        if (most)
            tensor_stores_wait_for<1>();
        else
            tensor_stores_wait_for<0>();
    }
    __syncwarp();
}

#endif
