/* The steps of k-means in the order of the course. */
#include "kernels/cuda/kmeans_steps/steps.cuh"

#include "kernels/cuda/cluster/cluster.cuh"

extern "C" const struct kmeans_step kmeans_step_naive, kmeans_step_transpose, kmeans_step_shared,
    kmeans_step_atomics, kmeans_step_partial;

static const struct kmeans_step *const list[] = {&kmeans_step_naive,   &kmeans_step_transpose,
                                                 &kmeans_step_shared,  &kmeans_step_atomics,
                                                 &kmeans_step_partial, NULL};

static void transpose(void *context, enum gemm_dtype dtype, size_t rows, size_t features, const void *from,
                      void *to) {
    if (dtype == GEMM_F32) {
        cuda_cluster_transpose(open_ops(context), rows, features, (const float *)from, (float *)to);
    } else {
        cuda_cluster_transpose(open_ops(context), rows, features, (const double *)from, (double *)to);
    }
}

extern "C" const struct kmeans_steps kmeans_steps_cuda = {.list = list, .transpose = transpose};
