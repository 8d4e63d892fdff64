/* The kernels of short_kernel.cuh for TF32. */
#include "kernels/cuda/tensor/short_kernel.cuh"

namespace short_rows {

kernel *kernel_of_tf32(enum gemm_op op, unsigned groups, unsigned parts) {
    return instance_of<float>(op, groups, parts);
}

} // namespace short_rows
