/* What the GPU can do at best, measured now: the roof that a GEMM is held against. False: the fault says
   why. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_PEAK_CUH
#define TESSERA_KERNELS_CUDA_GEMM_PEAK_CUH

extern "C" {
#include "kernels/gemm.h"
}
#include "kernels/cuda/fault.cuh"

/* Flops a second of all SMs with independent multiply-adds in registers. GEMM_F32, or GEMM_F64: there with
   the tensor cores, if they are faster, for they round no worse, and libraries use them. */
bool cuda_peak(cudaStream_t stream, cuda_fault *fault, enum gemm_dtype dtype, double *flops_per_second);

/* Bytes read plus bytes written a second by a copy from memory to memory, past the caches. */
bool cuda_copy_rate(cudaStream_t stream, cuda_fault *fault, double *bytes_per_second);

#endif
