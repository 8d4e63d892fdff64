/* The sums of clusters of pixels: integers, so that any order gives the same bits.

   Idea       a warp adds a row that moved to a table of int32 differences, with integer atomics; most
              pixels of images are 0 and are skipped. One pass then adds the table to the float64 sums. Rows
              that stay are not read.
   Bound by   the atomics of the L2 cache in the first iteration; later, when few points move, by the table
   Run        ./train kmeans --backend cublas */
#include "kernels/cuda/cluster/cluster.cuh"

static const int THREADS = 256, WARPS = THREADS / 32;
static const unsigned MOST_BLOCKS = 2112;
static const int AHEAD = 25;                /* loads in flight: a row of 784 pixels */
static const size_t ROWS = (size_t)1 << 22; /* of a pass: 255 times as much fits int32 */

/* Adds `sign` to the count of each lane's label, for the lanes of `mask`: one atomic for equal labels. */
__device__ static void count_label(uint64_t *count, uint32_t label, bool wanted, int sign) {
    const unsigned mask = __ballot_sync(0xffffffffu, wanted);
    if (!wanted) return;
    const unsigned same = __match_any_sync(mask, label);
    if (__ffs(same) - 1 == threadIdx.x % 32)
        atomicAdd((unsigned long long *)&count[label], (unsigned long long)(sign * (long long)__popc(same)));
}

/* Counts rows first .. end - 1 where they are now, and lists those that moved. */
__global__ void __launch_bounds__(THREADS)
    list_moved_kernel(cluster_rows rows, size_t first, size_t end, uint64_t *count, unsigned *moved) {
    const int lane = threadIdx.x % 32;
    for (size_t base = first + (size_t)blockIdx.x * THREADS; base < end;
         base += (size_t)gridDim.x * THREADS) {
        const size_t r = base + threadIdx.x;
        const bool valid = r < end;
        const uint32_t label = valid ? rows.label[r] : 0;
        const uint32_t before = valid && rows.before ? rows.before[r] : NEAREST_NONE;
        const bool wanted = valid && label != before;
        count_label(count, label, wanted, 1);
        count_label(count, before, wanted && before != NEAREST_NONE, -1);
        const unsigned mask = __ballot_sync(0xffffffffu, wanted);
        unsigned at = 0;
        if (lane == 0 && mask) at = atomicAdd(moved, (unsigned)__popc(mask));
        at = __shfl_sync(0xffffffffu, at, 0) + __popc(mask & ((1u << lane) - 1u));
        if (wanted) rows.moved[first + at] = (uint32_t)r;
    }
}

__global__ void __launch_bounds__(THREADS)
    add_moved_kernel(cluster_rows rows, size_t first, size_t features, const unsigned *moved, int *table) {
    const int lane = threadIdx.x % 32;
    const unsigned count = *moved;
    for (unsigned i = blockIdx.x * WARPS + threadIdx.x / 32; i < count; i += gridDim.x * WARPS) {
        const size_t r = rows.moved[first + i];
        const uint8_t *x = (const uint8_t *)rows.x + r * features;
        const uint32_t before = rows.before ? rows.before[r] : NEAREST_NONE;
        int *to = table + rows.label[r] * features,
            *from = table + (before == NEAREST_NONE ? 0 : before) * features;
        for (size_t first = 0; first < features; first += 32 * AHEAD) {
            int pixel[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const size_t f = first + 32 * a + lane;
                pixel[a] = f < features ? x[f] : 0;
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const size_t f = first + 32 * a + lane;
                if (!pixel[a]) continue;
                atomicAdd(to + f, pixel[a]);
                if (before != NEAREST_NONE) atomicAdd(from + f, -pixel[a]);
            }
        }
    }
}

__global__ void __launch_bounds__(THREADS) add_table_kernel(size_t size, const int *table, double *sums) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < size; i += (size_t)gridDim.x * THREADS) {
        const int difference = table[i];
        if (difference) sums[i] += (double)difference;
    }
}

void cuda_cluster_sum_bytes(struct cuda_ops_context *context, const struct cluster_rows *rows,
                            const struct cluster_sums *sums) {
    const size_t size = sums->clusters * sums->features, header = 256;
    char *scratch = (char *)cuda_scratch(context, header + size * sizeof(int));
    if (!scratch) return;
    unsigned *moved = (unsigned *)scratch;
    int *table = (int *)(scratch + header);
    for (size_t first = 0; first < rows->count; first += ROWS) {
        const size_t end = rows->count - first < ROWS ? rows->count : first + ROWS;
        const unsigned warps = cuda_grid_for(end - first, WARPS),
                       blocks = warps < MOST_BLOCKS ? warps : MOST_BLOCKS;
        CUDA_TRY(&context->fault, cudaMemsetAsync(scratch, 0, header + size * sizeof(int), context->stream));
        list_moved_kernel<<<cuda_grid_for(end - first, THREADS), THREADS, 0, context->stream>>>(
            *rows, first, end, sums->count, moved);
        CUDA_LAUNCHED(&context->fault, "list_moved_kernel");
        add_moved_kernel<<<blocks, THREADS, 0, context->stream>>>(*rows, first, sums->features, moved, table);
        CUDA_LAUNCHED(&context->fault, "add_moved_kernel");
        add_table_kernel<<<cuda_grid_for(size, THREADS), THREADS, 0, context->stream>>>(size, table,
                                                                                        sums->sums);
        CUDA_LAUNCHED(&context->fault, "add_table_kernel");
    }
}
