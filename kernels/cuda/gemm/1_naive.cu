/* cuda-naive: one thread computes one element of C; threads x run along the rows.

   Idea       none yet: the two outer loops of kernels/host/gemm/serial.c become threads.
   Bound by   memory transactions. Neighbouring threads (x) own neighbouring rows: a warp (16 rows, 2 columns)
              reads 16 rows of A and writes 16 rows of C, and each row costs a sector of 32 bytes for 1 or 2
              elements. A multiply-add loads 2 elements: 4 bytes a flop in float32, where the DRAM of an H100
              supplies 0.05.
   Improves   nothing: the course on the GPU starts here. Next: 2_coalesced.cu
   Run        ./train --backend cuda-naive */
#include "kernels/cuda/gemm/gemm.cuh"

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

static void naive_launches(const cuda_gemm_context *context, const gemm_call &call, cuda_launcher &launcher) {
    (void)context;
    const dim3 grid(blocks_for(call.m, SIDE), grid_y(call.n, SIDE)), block(SIDE, SIDE);
    with_real(call.dtype, [&]<typename T>() {
        launch(launcher, "naive_kernel", naive_kernel<T>, grid, block, 0, strided_gemm<T>(call));
    });
}

extern "C" const struct gemm_backend gemm_cuda_naive = {
    .name = "cuda-naive",
    .summary = "one thread an element, rows along x: uncoalesced",
    .device = GEMM_ON_CUDA,
    .supports = cuda_gemm_supports,
    .gemm = cuda_gemm_run<naive_launches>,
    .create = cuda_gemm_create,
    .destroy = cuda_gemm_destroy,
    .kernels = cuda_gemm_kernels<naive_launches>,
    .error = cuda_gemm_error,
};
