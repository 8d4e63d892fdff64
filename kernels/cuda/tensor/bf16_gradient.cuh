/* Weight gradients of operands of 16 bits in short and medium batches, with or without the update of the
   weights (gemm_update of kernels/gemm.h): the same sums. Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_GRADIENT_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_GRADIENT_CUH

#include "kernels/cuda/launch.cuh"

/* Is this such a product, of a size for which product and update in one kernel pay? Without the update cuBLAS
   is faster (2504 x 2000 x 128: 10.9 us, here 14.0); as_update of a call asks for these sums. */
bool bf16_gradient_takes(const struct gemm_call *call);

/* Do the arrays of this update fit a kernel that updates weights of 16 bits? */
bool bf16_gradient_fits(const struct gemm_call *call, const struct weight_update *update);

/* Can it do this update? Also one with k == 0. */
bool bf16_gradient_updates(const struct gemm_call *call, const struct weight_update *update);

/* A call that it takes: C is stored. */
void bf16_gradient_gemm(const struct gemm_call *call, unsigned processors, cuda_launcher &launcher);

/* Calls with updates that it can do: those with the same rule in one launch, up to ten. */
void bf16_gradient_update(const struct gemm_call *calls, const struct weight_update *updates, size_t count,
                          unsigned processors, cuda_launcher &launcher);

#endif
