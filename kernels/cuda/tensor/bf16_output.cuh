/* The output layer of a training step on few rows: docs/bf16.md. Needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_OUTPUT_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_OUTPUT_CUH

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/cuda/launch.cuh"

/* Can this GPU run the kernel? */
bool bf16_output_open(void);

/* Can the kernel compute this layer? Requires bf16_output_open. */
bool bf16_output_takes(const struct output_layer *layer);

/* For layers that it takes; errors go to launcher.fault. */
void bf16_output(const struct output_layer *layer, cuda_launcher &launcher);

#endif
