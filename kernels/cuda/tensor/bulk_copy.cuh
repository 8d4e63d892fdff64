/* Copies to shared memory by the copy engine of the SM: an instruction for any number of bytes, which takes
   no time of the warps. What they overwrite has been read before a barrier of the block: that is enough.
   Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BULK_COPY_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BULK_COPY_CUH

#include "kernels/cuda/tensor/mbarrier.cuh"

/* Both addresses and the number are multiples of 16. */
__device__ inline void copy_in_bulk(void *to, const void *from, uint32_t bytes, uint64_t *arrived) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(arrived))
                 : "memory");
#endif
}

#endif
