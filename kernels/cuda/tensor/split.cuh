/* Launches the split of two matrices into planes. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_SPLIT_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_SPLIT_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor/planes.cuh"

/* Splits the matrices that are not split yet: sets the states of their flags, and writes the planes of bf16
   that a product of this op reads. `wide` has room for three planes, `blocks` for two. c: the flags of C, if
   the product writes the planes of C; else NULL. */
void split_launch(const split_source &a, bool a_is_split, const split_source &b, bool b_is_split,
                  enum gemm_op op, plane_flags *c, cuda_launcher &launcher);

#endif
