/* The reference loops, shared by `serial` (whole matrix, one thread) and `openmp` (tiles, many threads): the
   same machine code computes an element in both, so their results are equal bit for bit. */
#ifndef TESSERA_KERNELS_HOST_GEMM_SERIAL_H
#define TESSERA_KERNELS_HOST_GEMM_SERIAL_H

#include "kernels/gemm.h"

/* Rows row0 <= i < row1 and columns col0 <= j < col1 of C. NN, TN and NT. */
void gemm_reference_block(const struct gemm_call *call, size_t row0, size_t row1, size_t col0, size_t col1);

bool gemm_reference_supports(enum gemm_dtype dtype, enum gemm_op op);

#endif
