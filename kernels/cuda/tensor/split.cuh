/* Launches the split of two matrices into planes. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_SPLIT_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_SPLIT_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor/planes.cuh"

/* Both matrices; `*state` is 0 before, and then has the bits that their blocks raised. The planes have room
   for three, and hold bf16 if the state is PLANES_WIDE. */
void split_launch(const split_source &a, const split_source &b, unsigned *state, unsigned processors,
                  cuda_launcher &launcher);

#endif
