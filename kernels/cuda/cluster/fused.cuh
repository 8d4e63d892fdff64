/* Slot `nearest` of backend cuda-tuned (kernels/nearest.h), and its variants. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FUSED_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FUSED_CUH

#include "kernels/cuda/cluster/cluster.cuh"

/* First member of the state of each variant. */
struct fused_nearest {
    const struct gemm_nearest *table;
    cudaStream_t stream;
    struct cuda_fault fault;
    int processors, shared_bytes, major; /* SMs; limit of a block; compute capability */
    struct nearest_shape shape;
    struct cuda_loop *loop; /* NULL until it is needed */
    /* (optional) The labels and the sums of an iteration in one pass over the points; sums and counts of the
       clusters are 0 before. False: not for these points, and nothing has changed. */
    bool (*label_and_sum)(void *state, const struct nearest_lloyd *run, struct nearest_counts *counts,
                          struct cuda_ops_context *ops);
};

/* States of the slot: pixels by integer products (pixels.cu), reals with few features (few.cu), and reals
   with many on the tensor cores (many.cu). They take `base` over. NULL, with the reason in `why`, if they
   cannot be used. */
void *cuda_nearest_pixels(const fused_nearest *base, char *why, size_t size);
void *cuda_nearest_few(const fused_nearest *base, char *why, size_t size);
void *cuda_nearest_many(const fused_nearest *base, char *why, size_t size);

/* The most features that cuda_nearest_few takes. */
size_t cuda_nearest_few_features(enum gemm_dtype dtype);

#endif
