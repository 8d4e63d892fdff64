/* GEMM of 16 bits on the tensor cores: the kernels of all ops and widths of tiles, and their launches. */
#include "kernels/cuda/tensor/bf16_wgmma.cuh"

namespace bf16 {

typedef void kernel(bf16_product);

template <typename T, bool A_T, bool B_T, int N>
static constexpr kernel *STORING = bf16_kernel<tile_store<T, A_T, B_T, N>, T, A_T, B_T, N>;

template <typename T, int N> static kernel *kernel_of(enum gemm_op op) {
    return op == GEMM_NN   ? STORING<T, false, true, N>
           : op == GEMM_TN ? STORING<T, true, true, N>
                           : STORING<T, false, false, N>;
}

template <typename T> static kernel *kernel_of(enum gemm_op op, unsigned columns) {
    return columns == 256   ? kernel_of<T, 256>(op)
           : columns == 192 ? kernel_of<T, 192>(op)
           : columns == 128 ? kernel_of<T, 128>(op)
                            : kernel_of<T, 64>(op);
}

static kernel *kernel_of(enum gemm_dtype dtype, enum gemm_op op, unsigned columns) {
    return dtype == GEMM_F16 ? kernel_of<__half>(op, columns) : kernel_of<__nv_bfloat16>(op, columns);
}

} // namespace bf16

bool bf16_open(void) {
    using namespace bf16;
    for (const enum gemm_dtype dtype : {GEMM_BF16, GEMM_F16})
        for (int op = GEMM_NN; op <= GEMM_NT; op++)
            for (unsigned columns = 64; columns <= 256; columns += 64)
                if (!cuda_allows_wgmma((const void *)kernel_of(dtype, (enum gemm_op)op, columns),
                                       SHARED_BYTES))
                    return false;
    return true;
}

unsigned bf16_clusters(unsigned blocks) {
    using namespace bf16;
    return clusters_that_fit((const void *)kernel_of(GEMM_BF16, GEMM_NN, 256), blocks, THREADS, SHARED_BYTES);
}

unsigned bf16_blocks(unsigned columns, const bf16_product &p, unsigned processors) {
    const unsigned rows = BF16_ROWS * p.pair, cluster = p.pair * p.parts;
    const size_t tiles = (size_t)((p.m + rows - 1) / rows) * ((p.n + columns - 1) / columns);
    const size_t most = p.parts > 1 ? tiles : processors / cluster; /* with parts of k, a tile each */
    return (unsigned)(tiles < most ? tiles : most) * cluster;
}

void bf16_launch(enum gemm_dtype dtype, enum gemm_op op, unsigned columns, const bf16_product &p,
                 unsigned processors, cuda_launcher &launcher) {
    using namespace bf16;
    launch_dependent(launcher, dtype == GEMM_F16 ? "fp16_kernel" : "bf16_kernel",
                     kernel_of(dtype, op, columns), dim3(bf16_blocks(columns, p, processors)), THREADS,
                     SHARED_BYTES, p.pair * p.parts, p);
}
