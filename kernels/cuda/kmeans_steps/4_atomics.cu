/* Step atomics: the GPU updates the centres too.

   Idea       after a thread has labelled its point it adds each coordinate to the sum of the cluster, with an
              atomic addition in global memory. The caller has zeroed the sums before every iteration, the
              first one included; another kernel divides them (kernels/cuda/cluster/points.cu). No label
              leaves the GPU, and no centre enters it: the number of changes comes back, and three numbers
              for each cluster.
   Bound by   contention: features + 1 atomic additions for each point, to clusters x (features + 1)
              addresses. With few clusters and features many threads wait for the same address.
   Order      of the additions is that of the scheduler: the last bits of the centres differ between runs.
   Improves   3_shared.cu. Next: 5_partial.cu
   Run        ./train kmeans --step atomics --data uniform:1024MB,32 --dtype f64 --clusters 64 --backend
              cublas */
#include "kernels/cuda/kmeans_steps/steps.cuh"

template <typename T>
__global__ void __launch_bounds__(KMEANS_MOST_BLOCK) atomics_kernel(step_points<T> p, centre_tile size) {
    extern __shared__ double memory[];
    const size_t r = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t label = nearest_in_tiles(p, r, size, (T *)memory).label;
    store_label(p, r, label);
    if (!p.sums || r >= p.rows) return;
    for (size_t f = 0; f < p.features; f++)
        atomicAdd(&p.sums[label * p.features + f], (double)p.x[f * p.rows + r]);
    atomicAdd(&p.count[label], 1ull);
}

template <typename T> static void launch(cuda_ops_context *context, const kmeans_step_call &call) {
    const centre_tile size = tile_for(call, STEP_SHARED / sizeof(T));
    const size_t bytes = (size_t)size.count * size.width * sizeof(T);
    atomics_kernel<T><<<step_blocks(call), call.block, bytes, context->stream>>>(step_points<T>(call), size);
    CUDA_LAUNCHED(&context->fault, "atomics_kernel");
}

extern "C" const struct kmeans_step kmeans_step_atomics = {
    .name = "atomics",
    .summary = "all on the GPU: an atomic addition a coordinate",
    .by_columns = true,
    .updates = true,
    .run = step_run<launch<float>, launch<double>>,
};
