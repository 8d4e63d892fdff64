/* The nearest centre from the scores of a GEMM, certified, as kernels/host/ops/nearest.h.

   Idea       8 or 32 lanes read the scores of a row twice, the second time from the L1 cache: for the best
              one, and to count those that are too close to it. Rows that the scores do not decide go to a
              list; a second kernel takes a thread block for each (decide.cuh).
   Bound by   bytes of the scores, in the L2 cache if the caller's chunks fit
   Run        ./train kmeans --backend cublas --engine eager */
#include "kernels/cuda/cluster/decide.cuh"

static const int THREADS = 256;
static const unsigned MOST_BLOCKS = 1056; /* eight for each SM of an H100 */

/* Reduces over `GROUP` neighbouring lanes. */
template <int GROUP, typename V, typename F> __device__ static V reduce(V mine, F combine) {
#pragma unroll
    for (int step = GROUP / 2; step; step /= 2)
        mine = combine(mine, __shfl_xor_sync(0xffffffffu, mine, step));
    return mine;
}

template <typename T, int GROUP>
__global__ void __launch_bounds__(THREADS)
    compare_kernel(nearest_call call, nearest_centres centres, decide::row_list list, T *thresholds,
                   nearest_counts *counts) {
    __shared__ unsigned changed;
    const int rows = THREADS / GROUP, lane = threadIdx.x % GROUP;
    const uint32_t count = (uint32_t)centres.count;
    if (threadIdx.x == 0) changed = 0;
    __syncthreads();
    for (size_t first = (size_t)blockIdx.x * rows; first < call.rows; first += (size_t)gridDim.x * rows) {
        const size_t r = first + threadIdx.x / GROUP;
        const bool valid = r < call.rows;
        const T *score = (const T *)call.scores + (valid ? r : 0) * call.score_ld;
        T best = -(T)INFINITY;
        for (uint32_t j = lane; valid && j < count; j += GROUP) best = score[j] > best ? score[j] : best;
        best = reduce<GROUP>(best, [](T a, T b) { return a > b ? a : b; });
        T threshold = best;
        if (call.certify && valid)
            threshold = (T)((double)best - 2 * nearest_error(centres.features, real_limits<T>::epsilon,
                                                             real_limits<T>::least, real_limits<T>::largest,
                                                             call.norm[r / NEAREST_BLOCK], *centres.norm));
        uint32_t near = 0, label = count;
        for (uint32_t j = lane; valid && j < count; j += GROUP) {
            const T here = score[j];
            near += !(here < threshold); /* a NaN is a candidate */
            if (here == best && label == count) label = j;
        }
        near = reduce<GROUP>(near, [](uint32_t a, uint32_t b) { return a + b; });
        label = reduce<GROUP>(label, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
        if (lane || !valid) continue;
        if (!call.certify || (near == 1 && label < count)) {
            if (label == count) label = 0; /* all scores are NaN */
            if (call.label[r] != label) atomicAdd(&changed, 1u);
            call.label[r] = label;
        } else {
            const unsigned at = atomicAdd(list.count, 1u);
            list.row[at] = (uint32_t)r;
            thresholds[at] = threshold;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) add_count(&counts->changed, changed);
}

template <typename X, typename T>
__global__ void __launch_bounds__(decide::THREADS)
    decide_kernel(nearest_call call, nearest_centres centres, decide::row_list list, const T *thresholds,
                  nearest_counts *counts) {
    __shared__ decide::candidates some;
    const unsigned rows = *list.count;
    for (unsigned i = blockIdx.x; i < rows; i += gridDim.x) {
        const size_t r = list.row[i];
        const T *score = (const T *)call.scores + r * call.score_ld, threshold = thresholds[i];
        const auto nearest = decide::nearest_of(
            some, centres.count, centres.features, (const X *)call.x + r * centres.features,
            (const T *)centres.values, [=](size_t j) { return !(score[j] < threshold); });
        decide::store(nearest, &call.label[r], counts);
    }
}

template <typename T>
void cuda_cluster_nearest(void *opaque, const struct nearest_call *call, struct nearest_counts *counts) {
    cuda_ops_context *context = open_ops(opaque);
    const size_t rows = call->rows, header = 256;
    const nearest_centres centres = *call->centres;
    if (!rows) return;
    char *scratch = (char *)cuda_scratch(context, header + rows * (sizeof(T) + sizeof(uint32_t)));
    if (!scratch) return;
    T *thresholds = (T *)(scratch + header);
    const decide::row_list list = {(unsigned *)scratch, (uint32_t *)(thresholds + rows)};
    const bool wide = centres.count > 64;
    unsigned grid = cuda_grid_for(rows, THREADS / (wide ? 32 : 8));
    if (grid > MOST_BLOCKS) grid = MOST_BLOCKS;
    CUDA_TRY(&context->fault, cudaMemsetAsync(list.count, 0, sizeof *list.count, context->stream));
    if (wide) {
        compare_kernel<T, 32>
            <<<grid, THREADS, 0, context->stream>>>(*call, centres, list, thresholds, counts);
    } else {
        compare_kernel<T, 8><<<grid, THREADS, 0, context->stream>>>(*call, centres, list, thresholds, counts);
    }
    CUDA_LAUNCHED(&context->fault, "compare_kernel");
    if (!call->certify) return;
    const unsigned blocks = rows < 4 * MOST_BLOCKS ? (unsigned)rows : 4 * MOST_BLOCKS;
    if (call->bytes) {
        decide_kernel<uint8_t, T>
            <<<blocks, decide::THREADS, 0, context->stream>>>(*call, centres, list, thresholds, counts);
    } else {
        decide_kernel<T, T>
            <<<blocks, decide::THREADS, 0, context->stream>>>(*call, centres, list, thresholds, counts);
    }
    CUDA_LAUNCHED(&context->fault, "decide_kernel");
}

template void cuda_cluster_nearest<float>(void *, const struct nearest_call *, struct nearest_counts *);
template void cuda_cluster_nearest<double>(void *, const struct nearest_call *, struct nearest_counts *);
