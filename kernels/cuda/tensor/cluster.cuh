/* Thread blocks of a cluster: their ranks, barrier and distributed shared memory (DSMEM). Below compute
   capability 9.0 a cluster is one block, and these functions are those of a block. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_CLUSTER_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_CLUSTER_CUH

#include "kernels/cuda/tensor/mbarrier.cuh"

__device__ inline unsigned cluster_rank() {
    unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

/* Of this cluster in the grid. */
__device__ inline unsigned cluster_index() {
    unsigned index = blockIdx.x;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
#endif
    return index;
}

/* A barrier in two halves: what a block wrote before it arrives, to its own memory, that of its peers, or
   global memory, the others may read after they waited. All threads of all blocks call both. */
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
#endif
}

__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#else
    __syncthreads();
#endif
}

__device__ inline void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}

/* The same without a fence, which takes a microsecond: it says only that all have read, so that what they
   read may be overwritten. */
__device__ inline void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
#endif
}

__device__ inline void cluster_barrier_of_reads() {
    cluster_arrive_relaxed();
    cluster_wait();
}

/* The address in the shared memory of block `rank` that corresponds to `at` in this block's. */
__device__ inline uint32_t cluster_address(const void *at, unsigned rank) {
    uint32_t address = shared_address(at);
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
    return address;
}

/* Writes to `at` of block `rank`, whose mbarrier at `barrier` counts the bytes. */
__device__ inline void cluster_send(const uint4 *at, unsigned rank, uint4 words, const uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];"
        :
        : "r"(cluster_address(at, rank)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w),
          "r"(cluster_address(barrier, rank))
        : "memory");
#endif
}

__device__ inline void cluster_send(const uint32_t *at, unsigned rank, uint32_t word,
                                    const uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 :
                 : "r"(cluster_address(at, rank)), "r"(word), "r"(cluster_address(barrier, rank))
                 : "memory");
#endif
}

/* Arrives at the mbarrier of block `rank` that corresponds to `barrier`: this block has read what others may
   overwrite. */
__device__ inline void cluster_arrive_at(const uint64_t *barrier, unsigned rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];"
                 :
                 : "r"(cluster_address(barrier, rank))
                 : "memory");
#endif
}

/* Writes to `at` of block `rank`, for after a barrier of the cluster. */
__device__ inline void cluster_store(uint4 *at, unsigned rank, uint4 words) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(cluster_address(at, rank)), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
#else
    *at = words;
#endif
}

/* 16 bytes of block `rank`. */
__device__ inline uint4 cluster_load(const uint4 *at, unsigned rank) {
    uint4 words = *at;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(cluster_address(at, rank))
                 : "memory");
#endif
    return words;
}

#endif
