/* GEMM of TF32 on the tensor cores, of more than 128 rows: the kernels and their launches. */
#include "kernels/cuda/tensor/bf16_wgmma.cuh"
#include "kernels/cuda/tensor/tf32_store.cuh"

namespace tf32 {

typedef void kernel(tf32_product);

template <enum gemm_op OP>
static constexpr kernel *STORING =
    bf16::bf16_kernel<tile_store<OP, TF32_COLUMNS>, float, true, false, TF32_COLUMNS>;

static kernel *kernel_of(enum gemm_op op) {
    return op == GEMM_NN ? STORING<GEMM_NN> : op == GEMM_TN ? STORING<GEMM_TN> : STORING<GEMM_NT>;
}

} // namespace tf32

bool tf32_open(void) {
    for (const enum gemm_op op : {GEMM_NN, GEMM_TN, GEMM_NT})
        if (!cuda_allows_wgmma((const void *)tf32::kernel_of(op), bf16::SHARED_BYTES)) return false;
    return true;
}

void tf32_launch(enum gemm_op op, const tf32_product &p, unsigned processors, cuda_launcher &launcher) {
    launch_dependent(launcher, "tf32_kernel", tf32::kernel_of(op),
                     dim3(bf16_blocks(TF32_COLUMNS, p, processors)), bf16::THREADS, bf16::SHARED_BYTES,
                     p.pair * p.parts, p);
}
