/* The element-wise ops on the GPU. */
#ifndef TESSERA_KERNELS_CUDA_OPS_CUH
#define TESSERA_KERNELS_CUDA_OPS_CUH

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/cuda/fault.cuh"

/* First argument of every op. */
struct cuda_ops_context {
    cudaStream_t stream;
    struct cuda_fault fault;
    void *scratch;     /* partial sums of reductions; see cuda_ops_scratch */
    unsigned *tickets; /* zeroed counters: which block of a reduction is the last */
};

enum { CUDA_OPS_TICKETS = 4096 };

/* Bytes of scratch that any op may need, whatever the shapes. */
size_t cuda_ops_scratch(void);

/* The table for a dtype. */
const struct ops *cuda_ops(enum gemm_dtype dtype);

#endif
