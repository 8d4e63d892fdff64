/* The reference loops of `serial` (the whole matrix) and `openmp` (tiles of it). Both run the same machine
   code for an element, so their results are bit-identical. */
#ifndef TESSERA_KERNELS_HOST_GEMM_SERIAL_H
#define TESSERA_KERNELS_HOST_GEMM_SERIAL_H

#include "kernels/gemm.h"

/* Rows row0 <= i < row1 and columns col0 <= j < col1 of C. NN, TN and NT. */
void gemm_reference_block(const struct gemm_call *call, size_t row0, size_t row1, size_t col0, size_t col1);

bool gemm_reference_supports(enum gemm_dtype dtype, enum gemm_op op);

#endif
