/* The float32 output layer of a training step with many images: what its two kernels share. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_TUNED_OUTPUT_LARGE_CUH
#define TESSERA_KERNELS_CUDA_GEMM_TUNED_OUTPUT_LARGE_CUH

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/gemm/6_tuned.cuh"
#include "kernels/cuda/tensor/output_layer.cuh"

static const unsigned FEW_CLASSES = 10; /* C of the kernels: 10, or MOST_CLASSES */

/* Floats of a row of the logits' gradients. */
template <unsigned C> constexpr unsigned GRAD_PITCH = (C + 3) / 4 * 4;

/* All that a launch needs. */
struct large_layer {
    output<float> layer;
    planes x_grad;                 /* `blocks` NULL: none */
    float32_transposed transposed; /* of the input gradient, beside it or alone; `values` NULL: none */
    unsigned groups;               /* of 64 units */
    unsigned strips;               /* thread blocks of a group, each with every `strips`-th 64 rows */
    unsigned parts;                /* thread blocks of the first kernel */
    partial_loss *losses;          /* [parts] */
    float *biases;                 /* [parts][MOST_CLASSES] */
    float *grads;                  /* [m, rounded up to 64][GRAD_PITCH]: of the logits, 0 outside */
    float *sums;                   /* [strips][groups][64][C + 1]: weights of a unit, then the bias below */
    unsigned *tickets;             /* [groups] */
};

/* Calls `function<C>()`. */
template <typename F> static auto with_classes(size_t classes, F function) {
    return classes <= FEW_CLASSES ? function.template operator()<FEW_CLASSES>()
                                  : function.template operator()<MOST_CLASSES>();
}

/* 6_tuned_output_gradients.cu: the second kernel. Can this GPU run it? How many thread blocks of it are
   resident on an SM, with so many classes? */
bool float32_gradients_open(void);
unsigned float32_gradients_resident(size_t classes, cuda_fault *fault);
void float32_gradients(const large_layer &all, cuda_launcher &launcher);

#endif
