/* The table of the clustering ops on the GPU. */
#include "kernels/cuda/cluster/cluster.cuh"

template <typename T>
static void sum(void *opaque, const struct cluster_rows *rows, const struct cluster_sums *sums) {
    struct cuda_ops_context *context = open_ops(opaque);
    if (!rows->count) return;
    if (rows->bytes) {
        cuda_cluster_sum_bytes(context, rows, sums);
    } else {
        cuda_cluster_sum_reals<T>(context, rows, sums);
    }
}

template <typename T> static const struct cluster_ops *table(void) {
    static const struct cluster_ops ops = {
        .rows = cuda_cluster_rows<T>,
        .norms = cuda_cluster_norms<T>,
        .centres = cuda_cluster_centres<T>,
        .nearest = cuda_cluster_nearest<T>,
        .distances = cuda_cluster_distances<T>,
        .sum = sum<T>,
        .costs = cuda_cluster_costs<T>,
        .means = cuda_cluster_means<T>,
    };
    return &ops;
}

const struct cluster_ops *cuda_cluster_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? table<float>() : dtype == GEMM_F64 ? table<double>() : NULL;
}
