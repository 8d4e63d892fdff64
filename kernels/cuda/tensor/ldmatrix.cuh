/* Blocks of a matrix from shared memory to the registers of the tensor cores (PTX: ldmatrix). Needs compute
   capability 7.5. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_LDMATRIX_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_LDMATRIX_CUH

#include <stdint.h>

/* Four blocks of 8 rows of 16 bytes, each lane with the address of a row, lane by lane: word i of lane 4 g +
   t is word t of row g of block i; transposed, bytes 2 g and 2 g + 1 of row 2 t, then of row 2 t + 1. */
__device__ inline void load_blocks(uint32_t (&words)[4], const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
}

__device__ inline void load_transposed_blocks(uint32_t (&words)[4], const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
}

#endif
