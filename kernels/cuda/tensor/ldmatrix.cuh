/* PTX ldmatrix: 8 x 8 matrices from shared memory to the operand registers of mma.sync, with compute
   capability 7.5; and stmatrix, from such registers, with 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_LDMATRIX_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_LDMATRIX_CUH

#include <stdint.h>

/* Four matrices of 8 rows of 16 bytes: lane 8 i + r passes the address of row r of matrix i. Word i of lane
   4 g + t is word t of row g of matrix i. */
__device__ inline void ldmatrix_x4(uint32_t (&words)[4], const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
}

/* The same, transposed: word i holds bytes 2 g and 2 g + 1 of row 2 t, then of row 2 t + 1. */
__device__ inline void ldmatrix_x4_trans(uint32_t (&words)[4], const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
}

/* Four matrices to shared memory: addresses and words as those of ldmatrix_x4. */
__device__ inline void stmatrix_x4(const void *row, const uint32_t (&words)[4]) {
#if __CUDA_ARCH__ >= 900
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#endif
}

/* The same, transposed: word i of lane 4 g + t goes to rows 2 t and 2 t + 1 of matrix i, element g. */
__device__ inline void stmatrix_x4_trans(const void *row, const uint32_t (&words)[4]) {
#if __CUDA_ARCH__ >= 900
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#endif
}

#endif
