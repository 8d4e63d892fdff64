/* The sums of clusters of reals, in the order of kernels/nearest.h: where they have no table in shared memory
   (sum_slices.cu), and for rows that moved.

   Idea       a stable sort of the row numbers by slice and cluster gives each sum its rows in order. A warp
              then adds the rows of one sum: its lanes are the columns, so that the additions are sequential
              and the loads coalesced. With few columns a load takes several rows, and shuffles bring them in
              order.
   Bound by   bytes of the rows, read once; for few columns by the sort
   Run        ./train kmeans --data uniform:64MB,32 --dtype f64 --backend cublas */
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/cluster/cluster.cuh"

static const int THREADS = 256, WARPS = THREADS / 32;
static const int AHEAD = 8;                 /* loads in flight */
static const size_t PART = (size_t)1 << 26; /* rows that are sorted together */

/* Rows first .. end - 1, slices slice .. slice + slices - 1 of `of`. With `before` each row is two items: to
   add to one cluster, and to subtract from another. */
struct part {
    cluster_rows rows;
    size_t clusters, features, first, end, slice_rows;
    unsigned slice, slices;
    bool listed;
    size_t items, segments; /* a segment is a cluster of a slice */
};

__global__ void __launch_bounds__(THREADS) keys_kernel(part part, uint32_t *key, uint32_t *item) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < part.items;
         i += (size_t)gridDim.x * THREADS) {
        const size_t r = part.first + (part.listed ? i / 2 : i);
        const uint32_t label = part.rows.label[r];
        item[i] = (uint32_t)i;
        if (part.listed) {
            const uint32_t before = part.rows.before[r], none = (uint32_t)part.segments;
            key[i] = label == before ? none : i % 2 == 0 ? label : before == NEAREST_NONE ? none : before;
        } else {
            const size_t slice = (part.rows.first + r) / part.slice_rows;
            key[i] = (uint32_t)((slice - part.slice) * part.clusters + label);
        }
    }
}

/* start[s] = the number of keys below s. */
__global__ void __launch_bounds__(THREADS) starts_kernel(part part, const uint32_t *key, uint32_t *start) {
    for (size_t s = (size_t)blockIdx.x * THREADS + threadIdx.x; s <= part.segments;
         s += (size_t)gridDim.x * THREADS) {
        size_t low = 0, high = part.items;
        while (low < high) {
            const size_t middle = (low + high) / 2;
            if (key[middle] < s) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        start[s] = (uint32_t)low;
    }
}

__global__ void __launch_bounds__(THREADS)
    counts_kernel(part part, const uint32_t *item, const uint32_t *start, uint64_t *count) {
    for (size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x; j < part.clusters;
         j += (size_t)gridDim.x * THREADS) {
        uint64_t members = count[j];
        for (size_t s = j; s < part.segments; s += part.clusters) {
            members += start[s + 1] - start[s];
            for (uint32_t i = start[s]; part.listed && i < start[s + 1]; i++) members -= item[i] % 2 ? 2 : 0;
        }
        count[j] = members;
    }
}

/* A warp adds up to 32 columns of a segment. `to` has the sums of the slices, or, if there is one, sums that
   the rows are added to. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    add_kernel(part part, const uint32_t *item, const uint32_t *start, bool adds, double *to) {
    const unsigned lane = threadIdx.x % 32;
    const size_t features = part.features, groups = (features + 31) / 32;
    const unsigned width = features < 32 ? (unsigned)features : 32, at_once = 32 / width;
    const unsigned row_of_lane = lane / width, sources = at_once * AHEAD < 32 ? at_once * AHEAD : 32;
    const T *x = (const T *)part.rows.x;
    for (size_t task = (size_t)blockIdx.x * WARPS + threadIdx.x / 32; task < part.segments * groups;
         task += (size_t)gridDim.x * WARPS) {
        const size_t segment = task / groups, column = task % groups * 32 + lane % width;
        const bool mine = column < features, loads = mine && row_of_lane < at_once;
        const uint32_t end = start[segment + 1];
        double sum = adds && mine ? to[segment * features + column] : 0;
        for (uint32_t base = start[segment]; base < end; base += 32) {
            const unsigned left = end - base < 32 ? end - base : 32;
            const uint32_t own = lane < left ? item[base + lane] : 0;
            for (unsigned first = 0; first < left; first += sources) {
                T value[AHEAD];
#pragma unroll
                for (int a = 0; a < AHEAD; a++) {
                    const unsigned i = first + a * at_once + row_of_lane;
                    const uint32_t number = __shfl_sync(0xffffffffu, own, i % 32);
                    value[a] = 0;
                    if (loads && a * at_once < sources && i < left)
                        value[a] = x[(part.first + (part.listed ? number / 2 : number)) * features + column];
                }
#pragma unroll
                for (int a = 0; a < AHEAD; a++)
                    for (unsigned s = 0; s < at_once; s++) { /* in the order of the rows */
                        const unsigned i = first + a * at_once + s;
                        if (a * at_once >= sources || i >= left) break; /* the same in the whole warp */
                        const double next = (double)(at_once == 1 ? value[a]
                                                                  : __shfl_sync(0xffffffffu, value[a],
                                                                                s * width + lane % width));
                        const bool negative = part.listed && __shfl_sync(0xffffffffu, own, i) % 2;
                        sum = negative ? sum - next : sum + next;
                    }
            }
        }
        if (mine && lane < width) to[segment * features + column] = sum;
    }
}

/* The same for rows that are not listed and have at least 32 columns: a load takes one row. */
template <typename T>
__global__ void __launch_bounds__(THREADS) add_wide_kernel(part part, const uint32_t *__restrict__ item,
                                                           const uint32_t *start, bool adds, double *to) {
    const size_t features = part.features, groups = (features + 31) / 32;
    for (size_t task = (size_t)blockIdx.x * WARPS + threadIdx.x / 32; task < part.segments * groups;
         task += (size_t)gridDim.x * WARPS) {
        const size_t segment = task / groups, column = task % groups * 32 + threadIdx.x % 32;
        const char *x = (const char *)((const T *)part.rows.x + part.first * features + column);
        const uint32_t end = start[segment + 1], stride = (uint32_t)(features * sizeof(T));
        if (column >= features) continue;
        double sum = adds ? to[segment * features + column] : 0;
        const auto add_rows = [&]<bool WHOLE>(uint32_t i) {
            T value[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                value[a] = *(const T *)(x + (uint64_t)item[WHOLE ? i + a : min(i + a, end - 1)] * stride);
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                if (WHOLE || i + a < end) sum += (double)value[a];
        };
        uint32_t i = start[segment];
        for (; i + AHEAD <= end; i += AHEAD) add_rows.template operator()<true>(i);
        if (i < end) add_rows.template operator()<false>(i);
        to[segment * features + column] = sum;
    }
}

/* The arrays of a part in the scratch memory. */
struct workspace {
    cub::DoubleBuffer<uint32_t> key, item;
    uint32_t *start;
    void *sort;
    size_t sort_bytes;
};

static bool sort_by_key(struct cuda_ops_context *context, const part &part, workspace &work, void *memory) {
    int bits = 1;
    while (bits < 32 && part.segments >> bits) bits++;
    return CUDA_TRY(&context->fault,
                    cub::DeviceRadixSort::SortPairs(memory, work.sort_bytes, work.key, work.item,
                                                    (int64_t)part.items, 0, bits, context->stream));
}

static bool open_workspace(struct cuda_ops_context *context, const part &part, workspace &work) {
    const size_t lines = (part.items * sizeof(uint32_t) + 255) / 256 * 256,
                 starts = ((part.segments + 1) * sizeof(uint32_t) + 255) / 256 * 256;
    work.sort_bytes = 0;
    if (!sort_by_key(context, part, work, NULL)) return false;
    char *at = (char *)cuda_scratch(context, 4 * lines + starts + work.sort_bytes);
    if (!at) return false;
    work.key = cub::DoubleBuffer<uint32_t>((uint32_t *)at, (uint32_t *)(at + lines));
    work.item = cub::DoubleBuffer<uint32_t>((uint32_t *)(at + 2 * lines), (uint32_t *)(at + 3 * lines));
    work.start = (uint32_t *)(at + 4 * lines);
    work.sort = at + 4 * lines + starts;
    return true;
}

template <typename T>
static void add_part(struct cuda_ops_context *context, const part &part, const struct cluster_sums *sums,
                     bool adds, double *to) {
    workspace work = {};
    if (!open_workspace(context, part, work)) return;
    const size_t tasks = part.segments * ((part.features + 31) / 32);
    const cudaStream_t stream = context->stream;
    keys_kernel<<<cuda_grid_for(part.items, THREADS), THREADS, 0, stream>>>(part, work.key.Current(),
                                                                            work.item.Current());
    CUDA_LAUNCHED(&context->fault, "keys_kernel");
    if (!sort_by_key(context, part, work, work.sort)) return;
    starts_kernel<<<cuda_grid_for(part.segments + 1, THREADS), THREADS, 0, stream>>>(part, work.key.Current(),
                                                                                     work.start);
    CUDA_LAUNCHED(&context->fault, "starts_kernel");
    counts_kernel<<<cuda_grid_for(part.clusters, THREADS), THREADS, 0, stream>>>(part, work.item.Current(),
                                                                                 work.start, sums->count);
    CUDA_LAUNCHED(&context->fault, "counts_kernel");
    const bool wide = part.features >= 32 && !part.listed;
    (wide ? add_wide_kernel<T> : add_kernel<T>)<<<cuda_grid_for(tasks, WARPS), THREADS, 0, stream>>>(
        part, work.item.Current(), work.start, adds, to);
    CUDA_LAUNCHED(&context->fault, "add_kernel");
}

template <typename T>
void cuda_cluster_sum_reals(struct cuda_ops_context *context, const struct cluster_rows *rows,
                            const struct cluster_sums *sums) {
    const size_t features = sums->features, size = sums->clusters * features;
    const size_t all = rows->total ? rows->total : rows->count, end = rows->first + rows->count;
    const bool listed = rows->before != NULL, some = rows->count < all;
    const unsigned slices = listed ? 1 : (unsigned)cluster_slices(all, sums->clusters, features);
    /* a part may cut slices of one lane, which this kernel can go on with */
    if (slices > 1 && cluster_has_table(sums->clusters, features) &&
        (!some || cluster_lanes(sums->clusters, features) > 1)) {
        cuda_cluster_sum_slices<T>(context, rows, sums);
        return;
    }
    part part = {.rows = *rows,
                 .clusters = sums->clusters,
                 .features = features,
                 .slice_rows = cluster_slice_rows(all, sums->clusters, features),
                 .listed = listed};
    if (slices == 1) {
        part.slice_rows = all;
        part.segments = sums->clusters;
        part.slices = 1;
        for (part.first = 0; part.first < rows->count; part.first = part.end) {
            part.end = rows->count - part.first < PART ? rows->count : part.first + PART;
            part.items = (part.end - part.first) * (listed ? 2 : 1);
            add_part<T>(context, part, sums, true, sums->sums);
        }
        return;
    }
    if (some && rows->first == 0)
        CUDA_TRY(&context->fault,
                 cudaMemsetAsync(rows->slices, 0, slices * size * sizeof(double), context->stream));
    const unsigned together = part.slice_rows < PART ? (unsigned)(PART / part.slice_rows) : 1,
                   until = (unsigned)((end + part.slice_rows - 1) / part.slice_rows);
    for (part.slice = (unsigned)(rows->first / part.slice_rows); part.slice < until;
         part.slice += part.slices) {
        part.slices = until - part.slice < together ? until - part.slice : together;
        const size_t begin = part.slice_rows * part.slice, stop = begin + part.slice_rows * part.slices;
        part.first = begin < rows->first ? 0 : begin - rows->first;
        part.end = (stop < end ? stop : end) - rows->first;
        part.items = part.end - part.first;
        part.segments = part.slices * sums->clusters;
        add_part<T>(context, part, sums, some, rows->slices + part.slice * size);
    }
    if (end == all) cuda_cluster_add_slices(context, slices, rows->slices, NULL, sums);
}

template void cuda_cluster_sum_reals<float>(cuda_ops_context *, const cluster_rows *, const cluster_sums *);
template void cuda_cluster_sum_reals<double>(cuda_ops_context *, const cluster_rows *, const cluster_sums *);
