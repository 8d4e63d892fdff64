/* cuda-coalesced: one thread computes one element of C; threads x run along the columns.

   Idea       exchange the two indices of 1_naive.cu. Neighbouring threads (x) own neighbouring columns: a
              warp reads 32 neighbouring elements of B and writes 32 of C in one transaction, and its lanes
              share one element of A. This holds for NN and TN. In NT a row of B runs along k, so its reads
              stay uncoalesced.
   Bound by   loads from L1 and L2: still 2 for each multiply-add, because no element is reused.
   Improves   1_naive.cu. Next: 3_shmem.cu
   Run        ./train --backend cuda-coalesced */
#include "kernels/cuda/gemm/gemm.cuh"

enum { WIDTH = 32, HEIGHT = 8 };

template <typename T> __global__ void coalesced_kernel(strided_gemm<T> g) {
    const size_t j = (size_t)blockIdx.x * WIDTH + threadIdx.x;
    for (size_t i = (size_t)blockIdx.y * HEIGHT + threadIdx.y; i < g.m; i += (size_t)gridDim.y * HEIGHT) {
        if (j >= g.n) return;
        T sum = 0;
        for (size_t p = 0; p < g.k; p++)
            sum += g.a[i * g.a_row + p * g.a_col] * g.b[p * g.b_row + j * g.b_col];
        g.store(i, j, sum);
    }
}

static void coalesced_launches(const cuda_gemm_context *context, const gemm_call &call,
                               cuda_launcher &launcher) {
    (void)context;
    const dim3 grid(blocks_for(call.n, WIDTH), grid_y(call.m, HEIGHT)), block(WIDTH, HEIGHT);
    with_real(call.dtype, [&]<typename T>() {
        launch(launcher, "coalesced_kernel", coalesced_kernel<T>, grid, block, 0, strided_gemm<T>(call));
    });
}

extern "C" const struct gemm_backend gemm_cuda_coalesced = {
    .name = "cuda-coalesced",
    .summary = "one thread an element, columns along x: coalesced",
    .device = GEMM_ON_CUDA,
    .supports = cuda_gemm_supports,
    .gemm = cuda_gemm_run<coalesced_launches>,
    .create = cuda_gemm_create,
    .destroy = cuda_gemm_destroy,
    .kernels = cuda_gemm_kernels<coalesced_launches>,
    .error = cuda_gemm_error,
};
