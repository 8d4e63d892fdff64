/* Distributed shared memory (DSMEM) between the two thread blocks of a cluster: each writes to the shared
   memory of its peer, whose mbarriers count the bytes. It takes half of the latency of an exchange through
   the L2 cache, and no L2 bandwidth. Before a block overwrites data of its peer, it must have received
   something that the peer sent after all of the peer's threads had read the old data. Needs compute
   capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_CLUSTER_DSMEM_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_CLUSTER_DSMEM_CUH

#include "kernels/cuda/tensor/cluster.cuh"

/* The address in the peer's shared memory that corresponds to `at` in this block's. */
__device__ inline uint32_t peer_address(const void *at) {
    return cluster_address(at, (blockIdx.x & 1) ^ 1);
}

/* Writes to the peer's copy of `at`; the peer's copy of `barrier` counts the bytes. */
__device__ inline void st_async(const void *at, uint32_t word, const uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 :
                 : "r"(peer_address(at)), "r"(word), "r"(peer_address(barrier))
                 : "memory");
#endif
}

__device__ inline void st_async(const void *at, uint4 words, const uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];"
        :
        : "r"(peer_address(at)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w),
          "r"(peer_address(barrier))
        : "memory");
#endif
}

#endif
