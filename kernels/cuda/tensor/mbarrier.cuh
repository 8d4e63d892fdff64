/* Bytes that come to shared memory from elsewhere, by copy engines or from another block: they are counted at
   a barrier, on which all threads of a block wait (PTX: mbarrier). Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_MBARRIER_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_MBARRIER_CUH

#include <stdint.h>

__device__ inline uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* By one thread, before a barrier of the block and anything else. */
__device__ inline void open_arrivals(uint64_t *arrived) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;"
                 :
                 : "r"(shared_address(arrived))
                 : "memory");
#endif
}

/* By one thread, once for each phase, in any order with what comes: how much it is in all. */
__device__ inline void expect_bytes(uint64_t *arrived, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(arrived)), "r"(bytes)
                 : "memory");
#endif
}

/* Until all bytes of phase 0, 1, ... are there. */
__device__ inline void await_bytes(uint64_t *arrived, unsigned phase) {
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
                     " selp.u32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(shared_address(arrived)), "r"(phase % 2)
                     : "memory");
    __syncwarp(); /* lanes leave one by one */
#endif
}

#endif
