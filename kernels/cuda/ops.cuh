/* The element-wise ops on the GPU. */
#ifndef TESSERA_KERNELS_CUDA_OPS_CUH
#define TESSERA_KERNELS_CUDA_OPS_CUH

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/cuda/fault.cuh"
#include "kernels/cuda/reduce.cuh"

/* First argument of every op. */
struct cuda_ops_context {
    cudaStream_t stream;
    struct cuda_fault fault;
    struct cuda_reduction reduction;
};

static inline struct cuda_ops_context *open_ops(void *context) {
    return (struct cuda_ops_context *)context;
}

/* The table for a dtype. */
const struct ops *cuda_ops(enum gemm_dtype dtype);

/* Its entries that have a file of their own: bias.cu and loss.cu. */
template <typename T>
void cuda_bias_activation(void *context, size_t rows, size_t cols, enum activation activation,
                          const void *bias, void *pre, void *out);
template <typename T>
void cuda_bias_activation_backward(void *context, size_t rows, size_t cols, enum activation activation,
                                   const void *pre, const void *out, void *grad, void *bias_grad);
template <typename T>
void cuda_softmax_cross_entropy(void *context, size_t rows, size_t classes, const void *logits,
                                const uint8_t *labels, void *grad, double *loss, struct tally *tally);

/* For every dtype: augment.cu. */
void cuda_augment(void *context, const struct augment_plan *plan, uint32_t epoch, size_t count,
                  const uint8_t *images, const uint8_t *labels, uint8_t *deformed);

#endif
