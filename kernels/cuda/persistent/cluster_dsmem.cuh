/* Two blocks on neighbouring SMs, a cluster: each writes to the shared memory of the other, where the bytes
   are counted (arrivals.cuh). About half of the time of a way through the L2 cache, and none of its
   bandwidth. Whoever gives must have heard from the other since all of its threads read what was there
   before. Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_CLUSTER_DSMEM_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_CLUSTER_DSMEM_CUH

#include "kernels/cuda/tensor/mbarrier.cuh"

/* The address in the partner's shared memory of what lies at `at` in this block's. */
__device__ inline uint32_t of_partner(const void *at) {
    uint32_t address = 0;
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(shared_address(at)), "r"((blockIdx.x & 1) ^ 1));
#endif
    return address;
}

/* A barrier of both. */
__device__ inline void meet_partner() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;"
                 :
                 :
                 : "memory");
#endif
}

/* To where `at` lies in the partner's shared memory, counted at its `arrived`. */
__device__ inline void give(const void *at, uint32_t word, const uint64_t *arrived) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 :
                 : "r"(of_partner(at)), "r"(word), "r"(of_partner(arrived))
                 : "memory");
#endif
}

__device__ inline void give(const void *at, uint4 words, const uint64_t *arrived) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];"
        :
        : "r"(of_partner(at)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w),
          "r"(of_partner(arrived))
        : "memory");
#endif
}

#endif
