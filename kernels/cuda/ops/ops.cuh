/* The element-wise ops on the GPU. */
#ifndef TESSERA_KERNELS_CUDA_OPS_OPS_CUH
#define TESSERA_KERNELS_CUDA_OPS_OPS_CUH

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/cuda/fault.cuh"
#include "kernels/cuda/ops/reduce.cuh"

/* First argument of every op. */
struct cuda_ops_context {
    cudaStream_t stream;
    struct cuda_fault fault;
    struct cuda_reduction reduction;
    void *scratch; /* of an op (cuda_scratch); grows */
    size_t scratch_bytes;
    bool low;                /* gather and update have the lowest priority */
    unsigned cluster_blocks; /* of QR: the most of a cluster; 0: not yet asked for */
};

static inline struct cuda_ops_context *open_ops(void *context) {
    return (struct cuda_ops_context *)context;
}

/* kernel<<<grid, block>>>(arguments...), at the priority of the context. Priority 0, the default, is the
   lowest. */
template <typename... P, typename... A>
void launch_op(struct cuda_ops_context *context, const char *name, void (*kernel)(P...), unsigned grid,
               dim3 block, const A &...arguments) {
    cudaLaunchAttribute lowest = {.id = cudaLaunchAttributePriority, .val = {.priority = 0}};
    const cudaLaunchConfig_t config = {.gridDim = grid,
                                       .blockDim = block,
                                       .stream = context->stream,
                                       .attrs = &lowest,
                                       .numAttrs = context->low};
    cudaLaunchKernelEx(&config, kernel, arguments...);
    cuda_launched(&context->fault, name, __FILE__, __LINE__);
}

/* The table for a dtype. */
const struct ops *cuda_ops(enum gemm_dtype dtype);

/* Scratch memory of at least so many bytes, which belongs to the context, or NULL with a fault. Its content
   does not outlive the op. */
void *cuda_scratch(struct cuda_ops_context *context, size_t bytes);

/* Makes *memory, *bytes long, at least `wanted` bytes long, after the stream has finished. Its content is
   lost. Returns *memory, or NULL with a fault. */
void *cuda_grow(void **memory, size_t *bytes, size_t wanted, cudaStream_t stream, struct cuda_fault *fault);

/* Blocks for `elements`, `per_block` each: at least one, and at most 4096, which fill every chip. */
static inline unsigned cuda_grid_for(size_t elements, size_t per_block) {
    const size_t most = 4096, blocks = (elements + per_block - 1) / per_block;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* Entries of the table in files of their own: bias.cu, dropout.cu, loss.cu, norms.cu, parts.cu and
   update.cu. */
template <typename T>
void cuda_bias_activation(void *context, size_t rows, size_t cols, enum activation activation,
                          const void *bias, void *pre, void *out);
template <typename T>
void cuda_bias_activation_backward(void *context, size_t rows, size_t cols, enum activation activation,
                                   const void *pre, const void *out, void *grad, double alpha, double beta,
                                   void *bias_grad);
template <typename T>
void cuda_dropout(void *context, size_t count, const struct dropout *dropout, const void *in, void *out);
template <typename T>
void cuda_softmax_cross_entropy(void *context, size_t rows, double divisor, size_t classes, double smoothing,
                                const void *logits, const uint8_t *labels, void *grad, double *loss,
                                struct tally *tally, bool counted);
template <typename R> void cuda_add(void *context, size_t count, const void *from, void *into);
template <typename T>
void cuda_update(void *context, size_t count, const struct update *update, const struct step_scalars *step,
                 const struct tally *guard);
template <typename R>
void cuda_clip_norm(void *context, size_t count, const void *grad, double limit, double *factor);
template <typename R>
void cuda_max_norm(void *context, size_t rows, size_t cols, double limit, const struct tally *guard,
                   void *weights);

/* The same for every dtype: parts.cu and augment.cu. */
void cuda_part_values(void *context, const struct tally *part, const double *stop,
                      struct batch_values *values);
void cuda_count_batch(void *context, const struct batch_values *values, double *loss, struct tally *tally);
void cuda_augment(void *context, const struct augment_plan *plan, uint32_t epoch, size_t count,
                  const uint8_t *images, const uint8_t *labels, uint8_t *deformed);

#endif
