/* The kernels of short_kernel.cuh for bfloat16 and half precision; short_tf32_wgmma.cu is compiled beside. */
#include "kernels/cuda/tensor/short_kernel.cuh"

namespace short_rows {

kernel *kernel_of_16bit(enum gemm_dtype dtype, enum gemm_op op, unsigned groups, unsigned parts) {
    return dtype == GEMM_BF16 ? kernel_of<__nv_bfloat16>(op, groups, parts)
                              : kernel_of<__half>(op, groups, parts);
}

} // namespace short_rows
