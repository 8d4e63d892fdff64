/* cuda-naive: one thread an element of C, rows along x: the way a first CUDA program does it.

   Idea       none: the three loops of kernels/host/serial.c with the outer two made threads.
   Bound by   memory transactions. Neighbouring threads (x) hold neighbouring rows, so that a warp reads 32 different rows of A
              and writes 32 different rows of C: each 4-byte access moves a 32-byte sector, 8 times the bytes.
              2 loads per multiply-add: 4 bytes a flop in float32, where the chip has 0.05.
   Series     1. naive  2. coalesced.cu  3. shmem.cu  4. tuned.cu  5. cublas.cu
   Run        ./train --backend cuda-naive */
#include "kernels/cuda/gemm.cuh"

enum { SIDE = 16 };

template <typename T> __global__ void naive_kernel(strided_gemm<T> g) {
    const size_t i = (size_t)blockIdx.x * SIDE + threadIdx.x;
    for (size_t j = (size_t)blockIdx.y * SIDE + threadIdx.y; j < g.n; j += (size_t)gridDim.y * SIDE) {
        if (i >= g.m) return;
        T sum = 0;
        for (size_t p = 0; p < g.k; p++)
            sum += g.a[i * g.a_row + p * g.a_col] * g.b[p * g.b_row + j * g.b_col];
        g.store(i, j, sum);
    }
}

template <typename T> static void launch(cudaStream_t stream, const gemm_call &call) {
    const dim3 grid(blocks_for(call.m, SIDE), grid_y(call.n, SIDE));
    naive_kernel<T><<<grid, dim3(SIDE, SIDE), 0, stream>>>(strided_gemm<T>(call));
}

static enum gemm_status naive_gemm(void *opaque, const struct gemm_call *call) {
    cuda_gemm_context *context = (cuda_gemm_context *)opaque;
    if (call->m == 0 || call->n == 0) return GEMM_OK;
    if (call->dtype == GEMM_F32) {
        launch<float>(context->stream, *call);
    } else {
        launch<double>(context->stream, *call);
    }
    return CUDA_LAUNCHED(&context->fault, "naive_kernel") ? GEMM_OK : GEMM_FAILED;
}

extern "C" const struct gemm_backend gemm_cuda_naive = {
    .name = "cuda-naive",
    .summary = "one thread an element, rows along x: uncoalesced",
    .device = GEMM_ON_CUDA,
    .probe = cuda_gemm_probe,
    .create = cuda_gemm_create,
    .destroy = cuda_gemm_destroy,
    .supports = cuda_gemm_supports,
    .gemm = naive_gemm,
    .error = cuda_gemm_error,
};
