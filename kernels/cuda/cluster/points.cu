/* Clustering ops on the GPU that read each row once: rows, norms, centres, distances, costs and means, with
   the bits of kernels/host/ops/sums.h and nearest.h.

   Idea       the lanes of half a warp are the partial sums of the contract: they share a row, and read it
              coalesced. A block takes a centre: all its threads compute terms, which half a warp then adds in
              the order of the contract.
   Bound by   bytes
   Run        ./train kmeans --backend cublas */
#include "kernels/cuda/cluster/cluster.cuh"

static const int THREADS = 256, ROWS = THREADS / NEAREST_LANES; /* rows of a block at a time */

/* --- points --- */

template <typename X, typename T>
__global__ void __launch_bounds__(THREADS)
    rows_kernel(size_t rows, size_t features, const X *from, const uint32_t *index, T *x) {
    for (size_t r = (size_t)blockIdx.x * ROWS + threadIdx.x / NEAREST_LANES; r < rows;
         r += (size_t)gridDim.x * ROWS) {
        const X *row = from + (index ? index[r] : r) * features;
        for (size_t f = threadIdx.x % NEAREST_LANES; f < features; f += NEAREST_LANES)
            x[r * features + f] = (T)row[f];
    }
}

template <typename T>
void cuda_cluster_rows(void *opaque, size_t rows, size_t features, bool bytes, const void *from,
                       const uint32_t *index, void *x) {
    cuda_ops_context *context = open_ops(opaque);
    const unsigned grid = cuda_grid_for(rows, ROWS);
    if (!rows) return;
    if (bytes) {
        rows_kernel<uint8_t, T>
            <<<grid, THREADS, 0, context->stream>>>(rows, features, (const uint8_t *)from, index, (T *)x);
    } else {
        rows_kernel<T, T>
            <<<grid, THREADS, 0, context->stream>>>(rows, features, (const T *)from, index, (T *)x);
    }
    CUDA_LAUNCHED(&context->fault, "rows_kernel");
}

/* The sum of squares, and an upper bound of the norm from it: see kernels/host/ops/sums.h. */
template <typename T> __device__ static double sum_of_squares(size_t features, const T *x) {
    double mine = 0;
    for (size_t f = threadIdx.x % NEAREST_LANES; f < features; f += NEAREST_LANES)
        mine += (double)x[f] * (double)x[f];
    return add_lanes(mine);
}

__device__ static double norm_bound(size_t features, double sum) {
    return sqrt(sum) * (1 + ((double)features + 8) * 0x1p-53) + 0x1p-500; /* squares may underflow */
}

/* A block for each NEAREST_BLOCK rows. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    norms_kernel(size_t rows, size_t features, const T *x, double *norm) {
    __shared__ double most[ROWS];
    const int own = threadIdx.x / NEAREST_LANES;
    for (size_t b = blockIdx.x; b * NEAREST_BLOCK < rows; b += gridDim.x) {
        double mine = 0;
        for (int i = own; i < NEAREST_BLOCK; i += ROWS) { /* all lanes: a row beyond the end counts as none */
            const size_t r = b * NEAREST_BLOCK + i;
            const double sum = sum_of_squares(r < rows ? features : 0, x + (r < rows ? r : 0) * features);
            if (r < rows) mine = fmax(mine, norm_bound(features, sum));
        }
        if (threadIdx.x % NEAREST_LANES == 0) most[own] = mine;
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < ROWS; i++) mine = fmax(mine, most[i]);
        if (threadIdx.x == 0) norm[b] = mine;
        __syncthreads();
    }
}

template <typename T>
void cuda_cluster_norms(void *opaque, size_t rows, size_t features, const void *x, double *norm) {
    cuda_ops_context *context = open_ops(opaque);
    if (!rows) return;
    norms_kernel<T><<<cuda_grid_for(rows, NEAREST_BLOCK), THREADS, 0, context->stream>>>(rows, features,
                                                                                         (const T *)x, norm);
    CUDA_LAUNCHED(&context->fault, "norms_kernel");
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    distances_kernel(size_t rows, size_t features, const T *x, const T *values, const uint32_t *label,
                     double *squared) {
    for (size_t first = (size_t)blockIdx.x * ROWS; first < rows; first += (size_t)gridDim.x * ROWS) {
        const size_t r = first + threadIdx.x / NEAREST_LANES, row = r < rows ? r : 0;
        const double distance = squared_distance(r < rows ? features : 0, x + row * features,
                                                 values + (label ? label[row] : 0) * features);
        if (r < rows && threadIdx.x % NEAREST_LANES == 0) squared[r] = distance;
    }
}

template <typename T>
void cuda_cluster_distances(void *opaque, size_t rows, size_t features, const void *x, const void *values,
                            const uint32_t *label, double *squared) {
    cuda_ops_context *context = open_ops(opaque);
    if (!rows) return;
    distances_kernel<T><<<cuda_grid_for(rows, ROWS), THREADS, 0, context->stream>>>(
        rows, features, (const T *)x, (const T *)values, label, squared);
    CUDA_LAUNCHED(&context->fault, "distances_kernel");
}

/* --- centres: a block for each --- */

static const unsigned MOST_CENTRES = 1 << 16; /* blocks */

static unsigned blocks_for(size_t centres) {
    return (unsigned)(centres < MOST_CENTRES ? centres : MOST_CENTRES);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    bias_kernel(size_t count, size_t features, const T *values, T *bias, double *norm) {
    for (size_t j = blockIdx.x; j < count; j += gridDim.x) {
        const T *c = values + j * features;
        const double sum = sum_of_terms<THREADS>(
            features, [=](size_t f) { return (double)c[f]; },
            [](size_t, double value) { return value * value; });
        if (threadIdx.x) continue;
        bias[j] = (T)(-sum / 2);
        atomic_max_positive(norm, norm_bound(features, sum));
    }
}

static const int SIDE = 32, DEPTH = 8; /* a tile of the transpose; threads of a block along its columns */

template <typename T>
__global__ void __launch_bounds__(SIDE *DEPTH)
    transpose_kernel(size_t rows, size_t cols, const T *from, T *to) {
    __shared__ T tile[SIDE][SIDE + 1];
    const size_t c0 = (size_t)blockIdx.x * SIDE;
    for (size_t r0 = (size_t)blockIdx.y * SIDE; r0 < rows; r0 += (size_t)gridDim.y * SIDE) {
        for (int i = threadIdx.y; i < SIDE; i += DEPTH)
            if (r0 + i < rows && c0 + threadIdx.x < cols)
                tile[i][threadIdx.x] = from[(r0 + i) * cols + c0 + threadIdx.x];
        __syncthreads();
        for (int i = threadIdx.y; i < SIDE; i += DEPTH)
            if (c0 + i < cols && r0 + threadIdx.x < rows)
                to[(c0 + i) * rows + r0 + threadIdx.x] = tile[threadIdx.x][i];
        __syncthreads();
    }
}

template <typename T>
void cuda_cluster_transpose(cuda_ops_context *context, size_t rows, size_t cols, const T *from, T *to) {
    const size_t across = (cols + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE;
    const dim3 grid((unsigned)across, (unsigned)(down < 65535 ? down : 65535)), block(SIDE, DEPTH);
    transpose_kernel<T><<<grid, block, 0, context->stream>>>(rows, cols, from, to);
    CUDA_LAUNCHED(&context->fault, "transpose_kernel");
}

template <typename T> void cuda_cluster_centres(void *opaque, const struct nearest_centres *centres) {
    cuda_ops_context *context = open_ops(opaque);
    const size_t count = centres->count, features = centres->features;
    const T *values = (const T *)centres->values;
    CUDA_TRY(&context->fault, cudaMemsetAsync(centres->norm, 0, sizeof *centres->norm, context->stream));
    bias_kernel<T><<<blocks_for(count), THREADS, 0, context->stream>>>(count, features, values,
                                                                       (T *)centres->bias, centres->norm);
    CUDA_LAUNCHED(&context->fault, "bias_kernel");
    cuda_cluster_transpose(context, count, features, values, (T *)centres->transposed);
}

/* A feature of a cluster: the sum of the members, the centre, and the mean of all points. */
struct feature {
    double sum, centre, mean;
};

/* |x - c|^2 - |x - m|^2 = |c - m|^2 - 2 (c - m).(x - m), summed over the members. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    costs_kernel(cluster_sums sums, const double *mean, const T *values, double *cost) {
    for (size_t j = blockIdx.x; j < sums.clusters; j += gridDim.x) {
        const size_t features = sums.features;
        const double members = (double)sums.count[j];
        const auto load = [=](size_t f) {
            return feature{sums.sums[j * features + f], (double)values[j * features + f], mean[f]};
        };
        const double sum = sum_of_terms<THREADS>(features, load, [=](size_t, feature of) {
            return cost_term(of.centre, of.mean, of.sum, members);
        });
        if (threadIdx.x == 0) cost[j] = members != 0 ? sum : 0;
    }
}

template <typename T>
void cuda_cluster_costs(void *opaque, const struct cluster_sums *sums, const double *mean, const void *values,
                        double *cost) {
    cuda_ops_context *context = open_ops(opaque);
    costs_kernel<T>
        <<<blocks_for(sums->clusters), THREADS, 0, context->stream>>>(*sums, mean, (const T *)values, cost);
    CUDA_LAUNCHED(&context->fault, "costs_kernel");
}

template <typename T>
__global__ void __launch_bounds__(THREADS) means_kernel(cluster_sums sums, T *values, double *shift) {
    for (size_t j = blockIdx.x; j < sums.clusters; j += gridDim.x) {
        const size_t features = sums.features;
        const double members = (double)sums.count[j];
        const auto load = [=](size_t f) {
            return feature{sums.sums[j * features + f], (double)values[j * features + f], 0};
        };
        const double sum =
            sum_of_terms<THREADS>(members != 0 ? features : 0, load, [=](size_t f, feature of) {
                const T mean = (T)(of.sum / members);
                values[j * features + f] = mean;
                return ((double)mean - of.centre) * ((double)mean - of.centre);
            });
        if (threadIdx.x == 0) shift[j] = sum;
    }
}

template <typename T>
void cuda_cluster_means(void *opaque, const struct cluster_sums *sums, void *values, double *shift) {
    cuda_ops_context *context = open_ops(opaque);
    means_kernel<T><<<blocks_for(sums->clusters), THREADS, 0, context->stream>>>(*sums, (T *)values, shift);
    CUDA_LAUNCHED(&context->fault, "means_kernel");
}

#define INSTANTIATE(T)                                                                                     \
    template void cuda_cluster_rows<T>(void *, size_t, size_t, bool, const void *, const uint32_t *,       \
                                       void *);                                                            \
    template void cuda_cluster_norms<T>(void *, size_t, size_t, const void *, double *);                   \
    template void cuda_cluster_centres<T>(void *, const struct nearest_centres *);                         \
    template void cuda_cluster_transpose<T>(cuda_ops_context *, size_t, size_t, const T *, T *);           \
    template void cuda_cluster_distances<T>(void *, size_t, size_t, const void *, const void *,            \
                                            const uint32_t *, double *);                                   \
    template void cuda_cluster_costs<T>(void *, const struct cluster_sums *, const double *, const void *, \
                                        double *);                                                         \
    template void cuda_cluster_means<T>(void *, const struct cluster_sums *, void *, double *);
INSTANTIATE(float)
INSTANTIATE(double)
