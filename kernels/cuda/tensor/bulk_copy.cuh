/* cp.async.bulk: the copy engine of an SM copies global memory to shared memory, one instruction per copy,
   without occupying a warp. Before a copy overwrites shared memory, a barrier of the thread block after the
   last read is enough. Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BULK_COPY_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BULK_COPY_CUH

#include "kernels/cuda/tensor/mbarrier.cuh"

/* Both addresses and `bytes` are multiples of 16. `barrier` counts the bytes. */
__device__ inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
#endif
}

/* The same to the thread blocks of a cluster in the mask `blocks`, whose `barrier`s count the bytes. */
__device__ inline void bulk_copy_to_cluster(void *to, const void *from, uint32_t bytes, uint64_t *barrier,
                                            uint16_t blocks) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1], %2, [%3], %4;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
                 : "memory");
#endif
}

/* To the L2 cache. The address and `bytes` are multiples of 16. */
__device__ inline void bulk_prefetch(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(from), "r"(bytes));
#endif
}

#endif
