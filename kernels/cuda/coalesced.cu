/* cuda-coalesced: one thread an element of C, columns along x.

   Idea       swap the two indices of naive.cu: neighbouring threads (x) now hold neighbouring columns, so that a warp reads 32
              neighbouring elements of B and writes 32 of C in one transaction, and all share one element of A.
              That holds for NN and TN; in NT a row of B runs along k, and reading it stays uncoalesced.
   Bound by   L1 and L2: still 2 loads per multiply-add, nothing is kept for a neighbour.
   Series     1. naive.cu  2. coalesced  3. shmem.cu  4. tuned.cu  5. cublas.cu
   Run        ./train --backend cuda-coalesced */
#include "kernels/cuda/gemm.cuh"

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

template <typename T> static void launch(cudaStream_t stream, const gemm_call &call) {
    const dim3 grid(blocks_for(call.n, WIDTH), grid_y(call.m, HEIGHT));
    coalesced_kernel<T><<<grid, dim3(WIDTH, HEIGHT), 0, stream>>>(strided_gemm<T>(call));
}

static enum gemm_status coalesced_gemm(void *opaque, const struct gemm_call *call) {
    cuda_gemm_context *context = (cuda_gemm_context *)opaque;
    if (call->m == 0 || call->n == 0) return GEMM_OK;
    if (call->dtype == GEMM_F32) {
        launch<float>(context->stream, *call);
    } else {
        launch<double>(context->stream, *call);
    }
    return CUDA_LAUNCHED(&context->fault, "coalesced_kernel") ? GEMM_OK : GEMM_FAILED;
}

extern "C" const struct gemm_backend gemm_cuda_coalesced = {
    .name = "cuda-coalesced",
    .summary = "one thread an element, columns along x: coalesced",
    .device = GEMM_ON_CUDA,
    .probe = cuda_gemm_probe,
    .create = cuda_gemm_create,
    .destroy = cuda_gemm_destroy,
    .supports = cuda_gemm_supports,
    .gemm = coalesced_gemm,
    .error = cuda_gemm_error,
};
