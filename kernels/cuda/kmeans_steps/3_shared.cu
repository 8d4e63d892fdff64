/* Step shared: centres in shared memory.

   Idea       each block copies the centres to shared memory, where all threads of a warp read the same
              element at once. Centres that do not fit come in tiles: some centres with all features, or a
              part of the features of one centre.
   Bound by   the host and the copies, as 1_naive.cu. The kernel: a load of x from the caches and a broadcast
              from shared memory for each difference. A block copies all centres for blockDim.x points: small
              blocks copy much; and the shared memory of a block limits how many blocks an SM runs.
   Improves   2_transpose.cu. Next: 4_atomics.cu
   Run        ./train kmeans --step shared --block-size 256 --data uniform:1024MB,32 --dtype f64 --clusters 64
              --backend cublas */
#include "kernels/cuda/kmeans_steps/steps.cuh"

template <typename T>
__global__ void __launch_bounds__(KMEANS_MOST_BLOCK) shared_kernel(step_points<T> p, centre_tile size) {
    extern __shared__ double memory[];
    const size_t r = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    store_label(p, r, nearest_in_tiles(p, r, size, (T *)memory).label);
}

template <typename T> static void launch(cuda_ops_context *context, const kmeans_step_call &call) {
    const centre_tile size = tile_for(call, STEP_SHARED / sizeof(T));
    const size_t bytes = (size_t)size.count * size.width * sizeof(T);
    shared_kernel<T><<<step_blocks(call), call.block, bytes, context->stream>>>(step_points<T>(call), size);
    CUDA_LAUNCHED(&context->fault, "shared_kernel");
}

extern "C" const struct kmeans_step kmeans_step_shared = {
    .name = "shared",
    .summary = "centres in shared memory; update on the host",
    .by_columns = true,
    .run = step_run<launch<float>, launch<double>>,
};
