/* Step partial: sums of a block, then of all blocks, in a fixed order.

   Idea       a block labels one part of the points after another and keeps partial sums of all clusters, in
              shared memory if they fit. A sum of a cluster and a feature belongs to one thread, which adds
              the rows of its cluster in their order: there are no atomics. The number of rows is a feature of
              value 1. Each block writes its sums to global memory, and a second kernel adds those of all
              blocks.
   Order      is fixed by the number of points, features and clusters and the block size: the sums have the
              same bits in every run and on every GPU. The only atomics count labels that changed.
   Bound by   the labels, as 3_shared.cu. To find its rows a thread reads the labels of the whole block: with
              2 features and large blocks this takes longer than the distances.
   Improves   4_atomics.cu. Next: --step gemm and --step nearest (kernels/cuda/cluster)
   Run        ./train kmeans --step partial --data uniform:1024MB,32 --dtype f64 --clusters 64 --backend
              cublas */
#include "kernels/cuda/kmeans_steps/steps.cuh"

static const size_t MOST_BLOCKS = 2048, MOST_SCRATCH = (size_t)256 << 20, SHARED_SUMS = 24 << 10; /* bytes */
static const int COLUMNS = 32, DEPTH = 8; /* of a block that adds the sums of blocks */

struct partial_plan {
    unsigned blocks;
    size_t sums;             /* elements of a block: [clusters][features + 1] */
    bool in_shared;          /* the sums are */
    unsigned across, groups; /* threads along the features; clusters j, j + groups, .. share a group */
    centre_tile tile;
    size_t shared_bytes;
    double *scratch; /* [blocks][sums] */
};

template <typename T> static partial_plan plan_for(const kmeans_step_call &call) {
    partial_plan plan = {};
    plan.sums = call.clusters * (call.features + 1);
    const size_t bytes = plan.sums * sizeof(double), parts = step_blocks(call),
                 fit = MOST_SCRATCH / bytes ? MOST_SCRATCH / bytes : 1,
                 most = fit < MOST_BLOCKS ? fit : MOST_BLOCKS;
    plan.blocks = (unsigned)(parts < most ? parts : most);
    plan.in_shared = bytes <= SHARED_SUMS;
    plan.across = call.features + 1 < call.block ? (unsigned)call.features + 1 : call.block;
    plan.groups = call.block / plan.across;
    if (plan.groups > call.clusters) plan.groups = (unsigned)call.clusters;
    const size_t used = (plan.in_shared ? bytes : 0) + call.block * 2 * sizeof(uint32_t);
    plan.tile = tile_for(call, (STEP_SHARED - used) / sizeof(T));
    plan.shared_bytes = used + (size_t)plan.tile.count * plan.tile.width * sizeof(T);
    plan.scratch = call.scratch;
    return plan;
}

/* Adds rows first .. first + rows - 1, whose labels and groups are in shared memory. */
template <typename T>
__device__ void add_rows(const step_points<T> &p, const partial_plan &plan, size_t first, unsigned rows,
                         const uint32_t *label, const uint32_t *group, double *sums) {
    const unsigned own = threadIdx.x / plan.across;
    if (own >= plan.groups) return;
    for (size_t f = threadIdx.x % plan.across; f <= p.features; f += plan.across)
        for (unsigned i = 0; i < rows; i++)
            if (group[i] == own)
                sums[label[i] * (p.features + 1) + f] +=
                    f < p.features ? (double)p.x[f * p.rows + first + i] : 1.0;
}

template <typename T>
__global__ void __launch_bounds__(KMEANS_MOST_BLOCK, 1) partial_kernel(step_points<T> p, partial_plan plan) {
    extern __shared__ double memory[]; /* the sums, if they fit; labels and groups of a part; the tile */
    double *result = plan.scratch + blockIdx.x * plan.sums, *sums = plan.in_shared ? memory : result;
    uint32_t *label = (uint32_t *)(memory + (plan.in_shared ? plan.sums : 0)), *group = label + blockDim.x;
    T *tile = (T *)(group + blockDim.x);
    for (size_t i = threadIdx.x; p.sums && i < plan.sums; i += blockDim.x) sums[i] = 0;
    for (size_t first = (size_t)blockIdx.x * blockDim.x; first < p.rows;
         first += (size_t)gridDim.x * blockDim.x) {
        const size_t r = first + threadIdx.x, left = p.rows - first;
        const uint32_t nearest = nearest_in_tiles(p, r, plan.tile, tile).label;
        store_label(p, r, nearest);
        if (!p.sums) continue;
        label[threadIdx.x] = nearest;
        group[threadIdx.x] = nearest % plan.groups;
        __syncthreads();
        add_rows(p, plan, first, left < blockDim.x ? (unsigned)left : blockDim.x, label, group, sums);
    }
    __syncthreads();
    if (p.sums && plan.in_shared)
        for (size_t i = threadIdx.x; i < plan.sums; i += blockDim.x) result[i] = sums[i];
}

/* A thread adds the sums of every DEPTH-th block; then those of DEPTH threads are added. */
__global__ void __launch_bounds__(COLUMNS *DEPTH)
    add_blocks_kernel(partial_plan plan, size_t features, double *sums, unsigned long long *count) {
    __shared__ double part[DEPTH][COLUMNS];
    const size_t i = (size_t)blockIdx.x * COLUMNS + threadIdx.x;
    double mine = 0;
    for (unsigned b = threadIdx.y; b < plan.blocks && i < plan.sums; b += DEPTH)
        mine += plan.scratch[b * plan.sums + i];
    part[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y || i >= plan.sums) return;
    for (int d = 1; d < DEPTH; d++) mine += part[d][threadIdx.x];
    const size_t j = i / (features + 1), f = i % (features + 1);
    if (f < features) {
        sums[j * features + f] += mine;
    } else {
        count[j] += (unsigned long long)mine; /* a whole number below 2^32 */
    }
}

template <typename T> static void launch(cuda_ops_context *context, const kmeans_step_call &call) {
    const partial_plan plan = plan_for<T>(call);
    const step_points<T> points(call);
    const unsigned columns = (unsigned)((plan.sums + COLUMNS - 1) / COLUMNS);
    partial_kernel<T><<<plan.blocks, call.block, plan.shared_bytes, context->stream>>>(points, plan);
    CUDA_LAUNCHED(&context->fault, "partial_kernel");
    if (!call.sums) return;
    add_blocks_kernel<<<columns, dim3(COLUMNS, DEPTH), 0, context->stream>>>(plan, call.features, call.sums,
                                                                             points.count);
    CUDA_LAUNCHED(&context->fault, "add_blocks_kernel");
}

static size_t scratch(const kmeans_step_call *call) {
    const partial_plan plan = call->dtype == GEMM_F32 ? plan_for<float>(*call) : plan_for<double>(*call);
    return plan.blocks * plan.sums;
}

extern "C" const struct kmeans_step kmeans_step_partial = {
    .name = "partial",
    .summary = "all on the GPU: sums of blocks in a fixed order",
    .by_columns = true,
    .updates = true,
    .scratch = scratch,
    .run = step_run<launch<float>, launch<double>>,
};
