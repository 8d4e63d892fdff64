/* PTX mbarrier as a counter: of the bytes that copy engines or other thread blocks write to shared memory, or
   of arrivals; all threads of the block wait on it. Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_MBARRIER_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_MBARRIER_CUH

#include <stdint.h>

__device__ inline uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* One thread calls it; a barrier of the block (or cluster) separates it from all other uses. A phase ends
   after `arrivals`; mbarrier_expect_tx is one of them. */
__device__ inline void mbarrier_init(uint64_t *barrier, unsigned arrivals = 1) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n fence.mbarrier_init.release.cluster;"
                 :
                 : "r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
#endif
}

__device__ inline void mbarrier_arrive(uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(shared_address(barrier)) : "memory");
#endif
}

/* `bytes` is the total of a phase. One thread calls it once per phase, before or after the bytes arrive. */
__device__ inline void mbarrier_expect_tx(uint64_t *barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
#endif
}

/* Waits for the end of phase 0, 1, ...: one thread. */
__device__ inline void mbarrier_wait_alone(uint64_t *barrier, unsigned phase) {
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
                     " selp.u32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(phase % 2)
                     : "memory");
#endif
}

/* The same: all lanes of a warp. */
__device__ inline void mbarrier_wait(uint64_t *barrier, unsigned phase) {
    mbarrier_wait_alone(barrier, phase);
    __syncwarp(); /* lanes leave the loop one by one */
}

#endif
