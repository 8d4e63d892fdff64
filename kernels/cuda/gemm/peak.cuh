/* The peak rates of the GPU, measured: the roof of a GEMM. Functions return false on failure; the fault has
   the reason. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_PEAK_CUH
#define TESSERA_KERNELS_CUDA_GEMM_PEAK_CUH

extern "C" {
#include "kernels/gemm.h"
}
#include "kernels/cuda/fault.cuh"

/* Flops a second of all SMs with independent multiply-adds in registers. GEMM_F64: with tensor cores if they
   are faster; they round as well, and cuBLAS uses them. */
bool cuda_peak(cudaStream_t stream, cuda_fault *fault, enum gemm_dtype dtype, double *flops_per_second);

/* Bytes read plus written a second by a copy in device memory that is larger than the caches. */
bool cuda_copy_rate(cudaStream_t stream, cuda_fault *fault, double *bytes_per_second);

#endif
