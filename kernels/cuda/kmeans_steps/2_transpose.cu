/* Step transpose: points and centres lie by columns.

   Idea       x[features][rows]: the threads of a warp read the same feature of neighbouring points, which is
              one coalesced access. The points are transposed once, when the run starts.
   Bound by   the host and the copies, as 1_naive.cu. The kernel: loads from the caches, two for each
              difference, because each point is read again for every centre.
   Improves   1_naive.cu. Next: 3_shared.cu
   Run        ./train kmeans --step transpose --data uniform:1024MB,32 --dtype f64 --clusters 64 --backend
              cublas */
#include "kernels/cuda/kmeans_steps/steps.cuh"

template <typename T>
__global__ void __launch_bounds__(KMEANS_MOST_BLOCK) transpose_kernel(step_points<T> p) {
    const size_t r = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    nearest_so_far<T> nearest;
    for (size_t j = 0; r < p.rows && j < p.clusters; j++) {
        T sum = 0;
        for (size_t f = 0; f < p.features; f++) {
            const T difference = p.x[f * p.rows + r] - p.centres[f * p.clusters + j];
            sum += difference * difference;
        }
        nearest.consider(j, sum);
    }
    store_label(p, r, nearest.label);
}

template <typename T> static void launch(cuda_ops_context *context, const kmeans_step_call &call) {
    transpose_kernel<T><<<step_blocks(call), call.block, 0, context->stream>>>(step_points<T>(call));
    CUDA_LAUNCHED(&context->fault, "transpose_kernel");
}

extern "C" const struct kmeans_step kmeans_step_transpose = {
    .name = "transpose",
    .summary = "a thread a point, columns: coalesced; update on the host",
    .by_columns = true,
    .run = step_run<launch<float>, launch<double>>,
};
