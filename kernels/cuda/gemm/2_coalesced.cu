/* cuda-coalesced: one thread an element of C, columns along x.

   Idea       swap the two indices of naive.cu: neighbouring threads (x) now hold neighbouring columns, so
              that a warp reads 32 neighbouring elements of B and writes 32 of C in one transaction, and all
              share one element of A. That holds for NN and TN; in NT a row of B runs along k, and reading it
              stays uncoalesced.
   Bound by   L1 and L2: still 2 loads per multiply-add, nothing is kept for a neighbour.
   Series     1. naive.cu  2. coalesced  3. shmem.cu  4. tuned.cu  5. cublas.cu
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
    .probe = cuda_gemm_probe,
    .create = cuda_gemm_create,
    .destroy = cuda_gemm_destroy,
    .supports = cuda_gemm_supports,
    .gemm = cuda_gemm_run<coalesced_launches>,
    .kernels = cuda_gemm_kernels<coalesced_launches>,
    .error = cuda_gemm_error,
};
