/* Lloyd's algorithm as a loop in a CUDA graph: the device decides whether an iteration follows
   (kernels/nearest.h, lloyd). */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_LOOP_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_LOOP_CUH

#include "kernels/cuda/cluster/fused.cuh"

struct cuda_loop;

/* `base` is the state of a variant of the slot, whose functions do the passes. NULL if memory is missing. */
struct cuda_loop *cuda_loop_open(struct fused_nearest *base);
void cuda_loop_close(struct cuda_loop *loop);

/* As the function of struct gemm_nearest. */
size_t cuda_loop_run(struct cuda_loop *loop, const struct nearest_lloyd *run,
                     struct nearest_iteration *record);

#endif
