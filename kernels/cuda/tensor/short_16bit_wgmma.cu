/* The kernels of short_kernel.cuh for bfloat16 and half precision; a file of its own, so that make compiles
   it beside short_tf32_wgmma.cu. */
#include "kernels/cuda/tensor/short_kernel.cuh"

namespace short_rows {

kernel *kernel_of_16bit(enum gemm_dtype dtype, enum gemm_op op, unsigned groups, unsigned parts) {
    return dtype == GEMM_BF16 ? instance_of<__nv_bfloat16>(op, groups, parts)
                              : instance_of<__half>(op, groups, parts);
}

} // namespace short_rows
