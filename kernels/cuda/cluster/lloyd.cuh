/* Lloyd's algorithm on pixels with few clusters, all iterations in one launch (kernels/nearest.h, lloyd). */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_LLOYD_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_LLOYD_CUH

#include "kernels/cuda/cluster/fused.cuh"

struct cuda_lloyd;

/* NULL if the kernel is not for this shape or this GPU. */
struct cuda_lloyd *cuda_lloyd_open(const struct fused_nearest *base);
void cuda_lloyd_close(struct cuda_lloyd *state);

/* As the function of struct gemm_nearest. */
size_t cuda_lloyd_run(struct cuda_lloyd *state, const struct nearest_lloyd *run,
                      struct nearest_iteration *record, struct cuda_fault *fault);

#endif
