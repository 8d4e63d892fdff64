/* Labels and sums of points of float64 with 9 to 32 features in one pass over the points, in the order of
   kernels/nearest.h: few_tensor.cuh and sum_slices.cu in one kernel.

   Idea       a warp has a slice, and a table of its sums in shared memory. It labels 32 rows; those that the
              first level leaves open it resolves at once (few_resolve.cuh). Then it adds the rows from a copy
              in shared memory, in order: four steps at once unless two of them add to the same sum. The next
              32 rows are on their way to registers meanwhile. Warps wait for none but themselves
   Bound by   latency: 1024 slices are 8 warps on each of 132 SMs, whose issue slots are 38 % busy. For 32
              rows with 32 features and 64 centres 1,620 instructions of a warp; 0.65 ms for 1 GiB, whose
              bytes take 0.26
   Improves   two passes over the points, 0.65 ms and a floor of 0.52 ms
   Run        ./train kmeans --data uniform:1024MB,32 --dtype f64 --clusters 64 --backend cuda-tuned */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FEW_SUMS_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FEW_SUMS_CUH

#include "kernels/cuda/cluster/few_resolve.cuh"
#include "kernels/cuda/cluster/few_tensor.cuh"
#include "kernels/cuda/cluster/fused.cuh"

namespace few {

static const int SUMS_WARPS = TENSOR_THREADS / 32;

/* Where the sums of the slices go. */
struct slice_sums {
    size_t slice_rows;
    unsigned lanes;  /* cluster_lanes() */
    double *sums;    /* [slices][clusters][features] */
    uint32_t *count; /* [slices][clusters] */
};

/* Shared memory of a warp: its 32 rows, the table of sums, [clusters + 1][lanes][features], and the members.
   Rows beyond the end go to the last cluster. */
template <int STEPS> struct warp_sums {
    static const int ROW = 16 * STEPS, BATCH = 8; /* doubles; steps whose loads are together */
    double *rows, *table;
    uint32_t *members;
    unsigned lanes, features;
    unsigned row, column; /* of a step, that the lane adds */

    static __host__ __device__ size_t bytes(size_t clusters, size_t width) {
        const size_t sums = (clusters + 1) * width, counts = clusters / 2 + 1;
        return (TENSOR_ROWS * ROW + (sums + counts + 1) / 2 * 2) * sizeof(double); /* packs are aligned */
    }

    __device__ void open(char *memory, size_t clusters, const slice_sums &sums, unsigned width) {
        lanes = sums.lanes;
        features = width;
        row = threadIdx.x % 32 / features;
        column = threadIdx.x % 32 % features;
        rows = (double *)memory;
        table = rows + TENSOR_ROWS * ROW;
        members = (uint32_t *)(table + (clusters + 1) * lanes * features);
        for (size_t i = threadIdx.x % 32; i < (clusters + 1) * lanes * features; i += 32) table[i] = 0;
        for (size_t j = threadIdx.x % 32; j <= clusters; j += 32) members[j] = 0;
    }

    /* The halves of odd rows are swapped: so the lanes of a store use different banks. */
    __device__ __forceinline__ double *at(unsigned row, unsigned column) const {
        return rows + row * ROW + (column ^ (row % 2 * 8));
    }

    __device__ __forceinline__ void copy(const typename tensor_rows<STEPS>::raw_rows &raw) const {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++)
                pack_at<2>(at(8 * r + lane / 4, 8 * i + lane % 4 * 2)) = raw[r][i];
    }

    /* Adds all rows in order; lane r has the label of row r. A step adds `lanes` rows: from 17 features on,
       one. */
    __device__ __forceinline__ void add(uint32_t label) const {
        const unsigned lane = threadIdx.x % 32, width = STEPS == 2 ? features : lanes * features,
                       at_once = STEPS == 2 ? 1 : lanes, first_row = STEPS == 2 ? 0 : row;
        const bool mine = lane < width;
        double *own = table + lane;
        bool same = false; /* as another one of four steps */
#pragma unroll
        for (unsigned i = 1; i < 4; i++) same |= __shfl_xor_sync(0xffffffffu, label, i * at_once) == label;
        const unsigned clashes = __ballot_sync(0xffffffffu, same);
        atomicAdd(&members[label], 1u);
#pragma unroll
        for (unsigned first = 0; first < TENSOR_ROWS; first += BATCH * at_once) {
            double value[BATCH];
            uint32_t to[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const unsigned r = (first + i * at_once + first_row) % TENSOR_ROWS;
                to[i] = __shfl_sync(0xffffffffu, label, r) * width;
                value[i] = *at(r, column);
            }
#pragma unroll
            for (int h = 0; h < BATCH; h += 4) {
                const unsigned four = (0xffffffffu >> (32 - 4 * at_once)) << (first + h * at_once);
                if (!mine) continue;
                if (clashes & four) {
#pragma unroll
                    for (int i = h; i < h + 4; i++) own[to[i]] += value[i];
                } else {
                    double sum[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[i] = own[to[h + i]];
#pragma unroll
                    for (int i = 0; i < 4; i++) own[to[h + i]] = sum[i] + value[h + i];
                }
            }
        }
    }

    /* The sums of the lanes, in pairs half of them apart, then a quarter, .. */
    __device__ void store(const slice_sums &to, size_t slice, size_t clusters) const {
        const unsigned lane = threadIdx.x % 32, width = lanes * features;
        for (size_t j = 0; j < clusters; j++) {
            double sum = lane < width ? table[j * width + lane] : 0;
            for (unsigned half = lanes / 2; half; half /= 2)
                sum += __shfl_down_sync(0xffffffffu, sum, half * features);
            if (lane < features) to.sums[(slice * clusters + j) * features + lane] = sum;
        }
        for (size_t j = lane; j < clusters; j += 32) to.count[slice * clusters + j] = members[j];
    }
};

template <int STEPS>
__global__ void __launch_bounds__(TENSOR_THREADS, 2)
    tensor_sums_kernel(const __grid_constant__ few_pass p, const __grid_constant__ slice_sums sums) {
    extern __shared__ __align__(16) char shared[];
    __shared__ double mean[MOVED_MOST];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, features = (unsigned)p.features,
                   groups = (unsigned)((p.clusters + MOVED_GROUP - 1) / MOVED_GROUP);
    const size_t slice = (size_t)blockIdx.x * SUMS_WARPS + warp, first = slice * sums.slice_rows,
                 end = p.rows < first + sums.slice_rows ? p.rows : first + sums.slice_rows;
    const double centre_norm = *p.moved.norm;
    warp_sums<STEPS> table;
    table.open(shared + groups * tensor_bytes<STEPS> +
                   warp * warp_sums<STEPS>::bytes(p.clusters, sums.lanes * features),
               p.clusters, sums, features);
    load_operand<STEPS>(p, 0, groups * MOVED_GROUP, shared);
    if (threadIdx.x < MOVED_MOST) mean[threadIdx.x] = p.moved.mean[threadIdx.x];
    __syncthreads();
    if (first >= p.rows) return;
    unsigned changed = 0;
    typename tensor_rows<STEPS>::raw_rows raw;
    uint32_t next_before = first + lane < end ? p.label[first + lane] : 0;
    tensor_rows<STEPS>::load(p, first, raw);
    for (size_t base = first; base < end; base += TENSOR_ROWS) {
        const size_t next = base + TENSOR_ROWS;
        const uint32_t before = next_before;
        tensor_rows<STEPS> rows;
        lane_best state[4];
        double error;
        __syncwarp(); /* the rows before were added */
        table.copy(raw);
        rows.convert(p, raw, mean);
        if (next < end) tensor_rows<STEPS>::load(p, next, raw);
        if (next + lane < end) next_before = p.label[next + lane];
#pragma unroll
        for (int r = 0; r < 4; r++) state[r] = {-INFINITY, -INFINITY, 0};
        score_groups<STEPS>(rows, shared, groups, 0, state);
        const lane_best own = best_of_row(rows, state, centre_norm, &error);
        uint32_t label = gap_decides(own.best - own.second, error) ? own.index : NEAREST_NONE;
        label = __shfl_sync(0xffffffffu, label, lane % 8 * 4 + lane / 8); /* of row `lane` */
        if (base + lane >= end) label = (uint32_t)p.clusters;
        label = resolve_rows(p, base, label);
        if (label != p.clusters && label != before) {
            p.label[base + lane] = label;
            changed++;
        }
        __syncwarp();
        table.add(label);
    }
    __syncwarp();
    table.store(sums, slice, p.clusters);
    count_changed(p, changed);
}

/* Shared memory of a thread block. */
template <int STEPS> static size_t tensor_sums_bytes(size_t clusters, size_t width) {
    return padded_clusters(clusters) / MOVED_GROUP * tensor_bytes<STEPS> +
           SUMS_WARPS * warp_sums<STEPS>::bytes(clusters, width);
}

/* Labels and sums of all rows of the points of `run`. False if the two kernels alone are faster: without 8
   warps on each SM, or without slices for half of them. */
template <int STEPS>
static bool launch_tensor_sums(fused_nearest *base, const few_pass &p, const nearest_lloyd *run,
                               cuda_ops_context *ops) {
    const cluster_sums *to = run->sums;
    const size_t clusters = to->clusters, features = to->features,
                 slices = cluster_slices(p.rows, clusters, features);
    slice_sums sums = {.slice_rows = cluster_slice_rows(p.rows, clusters, features),
                       .lanes = (unsigned)cluster_lanes(clusters, features),
                       .sums = run->rows->slices};
    const size_t shared = tensor_sums_bytes<STEPS>(clusters, sums.lanes * features);
    if (slices < 2 * (size_t)base->processors || !cluster_has_table(clusters, features) ||
        2 * (shared + 2048) > (size_t)base->shared_bytes)
        return false;
    sums.count = (uint32_t *)cuda_scratch(ops, slices * clusters * sizeof *sums.count);
    if (!sums.count) return true;
    CUDA_TRY(&base->fault, cudaFuncSetAttribute(tensor_sums_kernel<STEPS>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    CUDA_TRY(&base->fault,
             cudaFuncSetAttribute(tensor_sums_kernel<STEPS>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared));
    tensor_sums_kernel<STEPS>
        <<<(unsigned)((slices + SUMS_WARPS - 1) / SUMS_WARPS), TENSOR_THREADS, shared, base->stream>>>(p,
                                                                                                       sums);
    CUDA_LAUNCHED(&base->fault, "tensor_sums_kernel");
    cuda_cluster_add_slices(ops, slices, sums.sums, sums.count, to);
    return true;
}

} // namespace few

#endif
