/* The sums of clusters of reals, for clusters whose sums fit into shared memory (cluster_has_table), in the
   order of kernels/nearest.h.

   Idea       a thread block is one warp and adds the rows of a slice to a table in shared memory. A step is
              cluster_lanes() consecutive rows, or 32 columns of one row. Each lane reads an element and adds
              it to a sum that no other lane touches: the order is that of the rows, without a sort. A second
              kernel adds the slices.
   Bound by   bytes: rows and labels are read once, 0.3 ms for 1 GiB. The chain of a step (load, addition and
              store in shared memory) takes about 50 clocks; 1 GiB of f64 in 1024 slices has 4096 steps each:
              205,000 clocks, 0.12 ms. The loads of the next STEPS steps are in flight: 4 KB a warp
   Improves   the sort of sum_reals.cu
   Run        ./train kmeans --data uniform:1024MB,2 --dtype f64 --clusters 64 --backend cuda-tuned */
#include "kernels/cuda/cluster/cluster.cuh"

static const int STEPS = 16; /* loads in flight of a lane */

/* A warp of lanes * columns threads adds so many columns of a slice. */
struct slices_pass {
    cluster_rows rows;
    size_t clusters, features, slice_rows;
    unsigned lanes, columns; /* lanes 1, or columns the features */
    uint32_t *count;         /* [slices][clusters] */
};

/* What the lane reads of STEPS steps. */
template <typename T> struct steps {
    T value[STEPS];
    uint32_t label[STEPS];

    __device__ void load(const T *x, const uint32_t *labels, size_t x_stride, unsigned lanes) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            value[i] = x[i * x_stride];
            label[i] = labels[i * lanes];
        }
    }
};

template <typename T> __global__ void __launch_bounds__(32) sum_slice_kernel(slices_pass pass) {
    extern __shared__ __align__(16) double table[]; /* [clusters][lanes][columns] */
    const size_t first_column = (size_t)blockIdx.y * pass.columns, left = pass.features - first_column,
                 first = blockIdx.x * pass.slice_rows, rows = pass.rows.count - first,
                 count = rows < pass.slice_rows ? rows : pass.slice_rows;
    const unsigned width = blockDim.x, all = 0xffffffffu >> (32 - width), lanes = pass.lanes,
                   row = threadIdx.x / pass.columns, column = threadIdx.x % pass.columns;
    const bool mine = column < left, counts = blockIdx.y == 0 && column == 0;
    const size_t x_stride = lanes * pass.features; /* of a step */
    const uint32_t *labels = pass.rows.label + first;
    const T *x = (const T *)pass.rows.x + (first + row) * pass.features + first_column + (mine ? column : 0);
    uint32_t *members = (uint32_t *)(table + pass.clusters * width);
    double *own = table + threadIdx.x;

    for (size_t j = 0; j < pass.clusters; j++) own[j * width] = 0;
    for (size_t j = threadIdx.x; j < pass.clusters; j += width) members[j] = 0;
    __syncwarp(all);
    const size_t batch = (size_t)STEPS * lanes, batches = count / batch;
    steps<T> next;
    if (batches) next.load(x, labels + row, x_stride, lanes);
    for (size_t b = 0; b < batches; b++) {
        const steps<T> now = next;
        x += STEPS * x_stride;
        if (b + 1 < batches) next.load(x, labels + batch + row, x_stride, lanes);
        __syncwarp(all); /* the compiler must not move these loads behind the additions */
#pragma unroll
        for (int i = 0; i < STEPS; i++) own[now.label[i] * width] += (double)now.value[i];
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (counts) atomicAdd(&members[now.label[i]], 1u);
        labels += batch;
    }
    for (size_t r = batches * batch + row; r < count; r += lanes, x += x_stride, labels += lanes) {
        const uint32_t label = labels[row];
        own[label * width] += (double)*x;
        if (counts) atomicAdd(&members[label], 1u);
    }
    __syncwarp(all);
    double *to = pass.rows.slices + blockIdx.x * pass.clusters * pass.features + first_column;
    for (size_t j = 0; j < pass.clusters; j++) {
        double sum = own[j * width];
        for (unsigned half = lanes / 2; half; half /= 2)
            sum += __shfl_down_sync(all, sum, half * pass.columns);
        if (mine && row == 0) to[j * pass.features + column] = sum;
    }
    for (size_t j = threadIdx.x; blockIdx.y == 0 && j < pass.clusters; j += width)
        pass.count[blockIdx.x * pass.clusters + j] = members[j];
}

/* --- the slices --- */

static const int LOADS = 16; /* in flight */

/* *to += the slices of a column, by groups. A thread for each column and group. */
template <typename V, typename S>
__device__ static void add_column(V *part, const V *from, size_t slices, size_t stride, S *to, bool valid) {
    V sum = 0;
    for (unsigned first = 0; first < CLUSTER_GROUP; first += LOADS) {
        V value[LOADS];
#pragma unroll
        for (unsigned i = 0; i < LOADS; i++) {
            const size_t slice = (size_t)threadIdx.y * CLUSTER_GROUP + first + i;
            value[i] = valid && slice < slices ? from[slice * stride] : V(0);
        }
#pragma unroll
        for (unsigned i = 0; i < LOADS; i++)
            sum += value[i]; /* a sum of slices is not -0: 0 changes nothing */
    }
    part[threadIdx.y * 32 + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || !valid) return;
    S total = *to;
    for (size_t group = 0; group * CLUSTER_GROUP < slices; group++) total += part[group * 32 + threadIdx.x];
    *to = total;
}

/* The last blocks add the counts, if there are any. */
__global__ void __launch_bounds__(1024)
    add_slices_kernel(size_t size, size_t clusters, size_t slices, const double *from, const uint32_t *counts,
                      double *sums, uint64_t *count) {
    __shared__ double parts[1024];
    const size_t blocks = (size + 31) / 32, column = (size_t)blockIdx.x * 32 + threadIdx.x;
    if (blockIdx.x < blocks) {
        const size_t i = column < size ? column : 0;
        add_column(parts, from + i, slices, size, sums + i, column < size);
    } else {
        const size_t j = column - blocks * 32, i = j < clusters ? j : 0;
        add_column((uint32_t *)parts, counts + i, slices, clusters, count + i, j < clusters);
    }
}

void cuda_cluster_add_slices(struct cuda_ops_context *context, size_t slices, const double *from,
                             const uint32_t *counts, const struct cluster_sums *sums) {
    const size_t size = from ? sums->clusters * sums->features : 0,
                 blocks = (size + 31) / 32 + (counts ? (sums->clusters + 31) / 32 : 0);
    const unsigned groups = (unsigned)((slices + CLUSTER_GROUP - 1) / CLUSTER_GROUP);
    add_slices_kernel<<<(unsigned)blocks, dim3(32, groups), 0, context->stream>>>(
        size, sums->clusters, slices, from, counts, sums->sums, sums->count);
    CUDA_LAUNCHED(&context->fault, "add_slices_kernel");
}

template <typename T>
void cuda_cluster_sum_slices(struct cuda_ops_context *context, const struct cluster_rows *rows,
                             const struct cluster_sums *sums) {
    const size_t clusters = sums->clusters, features = sums->features,
                 all = rows->total ? rows->total : rows->count,
                 slice_rows = cluster_slice_rows(all, clusters, features),
                 slices = (rows->count + slice_rows - 1) / slice_rows; /* of this part */
    const bool last = rows->first + rows->count == all;
    slices_pass pass = {.rows = *rows,
                        .clusters = clusters,
                        .features = features,
                        .slice_rows = slice_rows,
                        .lanes = (unsigned)cluster_lanes(clusters, features),
                        .columns = features < 32 ? (unsigned)features : 32};
    pass.rows.slices += rows->first / slice_rows * clusters * features;
    const auto shared = [&] {
        return clusters * (pass.lanes * pass.columns * sizeof(double) + sizeof(uint32_t));
    };
    int device = 0, most = 0;
    CUDA_TRY(&context->fault, cudaGetDevice(&device));
    CUDA_TRY(&context->fault, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    while (pass.lanes == 1 && pass.columns > 1 && shared() > (size_t)most)
        pass.columns = (pass.columns + 1) / 2;
    pass.count = (uint32_t *)cuda_scratch(context, slices * clusters * sizeof *pass.count);
    if (!pass.count) return;
    CUDA_TRY(&context->fault,
             cudaFuncSetAttribute(sum_slice_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared()));
    CUDA_TRY(&context->fault,
             cudaFuncSetAttribute(sum_slice_kernel<T>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared));
    const dim3 grid((unsigned)slices, (unsigned)((features + pass.columns - 1) / pass.columns));
    sum_slice_kernel<T><<<grid, pass.lanes * pass.columns, shared(), context->stream>>>(pass);
    CUDA_LAUNCHED(&context->fault, "sum_slice_kernel");
    cuda_cluster_add_slices(context, slices, rows->count == all ? rows->slices : NULL, pass.count, sums);
    if (last && rows->count < all)
        cuda_cluster_add_slices(context, cluster_slices(all, clusters, features), rows->slices, NULL, sums);
}

template void cuda_cluster_sum_slices<float>(cuda_ops_context *, const cluster_rows *, const cluster_sums *);
template void cuda_cluster_sum_slices<double>(cuda_ops_context *, const cluster_rows *, const cluster_sums *);
