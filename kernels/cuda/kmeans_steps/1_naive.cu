/* Step naive: a thread labels a point; the host updates the centres.

   Idea       none yet: the loop over the points becomes threads. Points and centres lie in rows. In each
              iteration the centres go to the GPU, and all labels and the number of changes come back; then
              the host adds each point to its cluster.
   Bound by   the host, which reads every point, and the copy of the labels (4 bytes a point: with 2 features
              a quarter of the points themselves in float64). The kernel is bound by memory transactions:
              neighbouring threads read addresses a row apart, a sector of 32 bytes for each element.
   Improves   nothing: the course starts here. Next: 2_transpose.cu
   Run        ./train kmeans --step naive --data uniform:1024MB,32 --dtype f64 --clusters 64
              --backend cublas */
#include "kernels/cuda/kmeans_steps/steps.cuh"

template <typename T> __global__ void __launch_bounds__(KMEANS_MOST_BLOCK) naive_kernel(step_points<T> p) {
    const size_t r = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    nearest_so_far<T> nearest;
    for (size_t j = 0; r < p.rows && j < p.clusters; j++) {
        T sum = 0;
        for (size_t f = 0; f < p.features; f++) {
            const T difference = p.x[r * p.features + f] - p.centres[j * p.features + f];
            sum += difference * difference;
        }
        nearest.consider(j, sum);
    }
    store_label(p, r, nearest.label);
}

template <typename T> static void launch(cuda_ops_context *context, const kmeans_step_call &call) {
    naive_kernel<T><<<step_blocks(call), call.block, 0, context->stream>>>(step_points<T>(call));
    CUDA_LAUNCHED(&context->fault, "naive_kernel");
}

extern "C" const struct kmeans_step kmeans_step_naive = {
    .name = "naive",
    .summary = "a thread a point, rows; update on the host",
    .run = step_run<launch<float>, launch<double>>,
};
