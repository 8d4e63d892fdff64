/* The output layer of a training step on many rows, of both types of 16 bits: docs/bf16.md. Needs compute
   capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_OUTPUT_LARGE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_OUTPUT_LARGE_CUH

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/cuda/later_sums.cuh"
#include "kernels/cuda/ops/reduce.cuh"

/* Of how many clusters, of 2 and of 4 blocks, all are resident at the same time. */
struct large_output_clusters {
    unsigned most[2];
};

/* Can this GPU run the kernel? */
bool large_output_open(struct large_output_clusters *clusters);

/* Can the kernel compute this layer? Requires large_output_open. */
bool large_output_takes(const struct output_layer *layer);

/* For layers that it takes; errors go to launcher.fault. */
void large_output(const struct output_layer *layer, const struct large_output_clusters *clusters,
                  const struct cuda_reduction *reduction, struct later_sums &later, cuda_launcher &launcher);

#endif
