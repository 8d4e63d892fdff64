/* Weight gradients of 16 bits in large batches that update the weights themselves (gemm_update of
   kernels/gemm.h). Which calls, and their tensor maps: bf16.cu. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_GRADIENT_LARGE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_GRADIENT_LARGE_CUH

#include "kernels/cuda/tensor/bf16.cuh"
extern "C" {
#include "kernels/ops.h"
}

static const unsigned LARGE_GRADIENT_COLUMNS = 256; /* of a tile */

bool large_gradient_open(void);

/* ld: of weights, moments and their copy. */
void large_gradient_launch(enum gemm_dtype dtype, const struct bf16_product &product,
                           const struct weight_update &update, size_t ld, unsigned blocks,
                           cuda_launcher &launcher);

#endif
