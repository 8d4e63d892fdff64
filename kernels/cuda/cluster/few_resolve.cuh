/* The nearest centre of a row that the first level leaves open, by a warp: float64, then decided as in
   decide.cuh. The same comparisons as few_kernel and decide_few_kernel (few.cu), for kernels that need the
   label of a row before they go on. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FEW_RESOLVE_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FEW_RESOLVE_CUH

#include "kernels/cuda/cluster/few_pass.cuh"

namespace few {

/* The two best scores in float64; a NaN is ignored, and the index is the first one of the best. */
struct open_best {
    double best, second;
    uint32_t index;

    __device__ __forceinline__ void add(double score, uint32_t j) {
        const bool better = score > best;
        const double lower = better ? best : score;
        if (lower > second) second = lower;
        if (better) best = score;
        if (better) index = j;
    }

    /* With those of another lane. */
    __device__ __forceinline__ void merge(int distance) {
        const double other = __shfl_xor_sync(0xffffffffu, best, distance),
                     below = __shfl_xor_sync(0xffffffffu, second, distance);
        const uint32_t j = __shfl_xor_sync(0xffffffffu, index, distance);
        second = fmax(fmax(second, below), fmin(best, other));
        if (other > best || (other == best && j < index)) index = j;
        best = fmax(best, other);
    }
};

/* Centres whose score is not below the threshold, compared in rising order. */
__device__ inline uint32_t decide_row(const few_pass &p, const double *x, double threshold) {
    const unsigned lane = threadIdx.x % 32;
    const double *values = (const double *)p.values, *transposed = (const double *)p.transposed;
    decide::decision<double, double> nearest = {p.features, x, values, false, false, false, 0, 0};
    for (size_t first = 0; first < p.clusters; first += 32) {
        const size_t j = first + lane;
        double sum = 0;
        for (size_t f = 0; j < p.clusters && f < p.features; f++)
            sum = fma(x[f], transposed[f * p.clusters + j], sum);
        const bool candidate = j < p.clusters && !(sum + ((const double *)p.bias)[j] < threshold);
        for (unsigned mask = __ballot_sync(0xffffffffu, candidate); mask; mask &= mask - 1) {
            const size_t c = first + __ffs((int)mask) - 1;
            const double distance = squared_distance(p.features, x, values + c * p.features);
            if (lane == 0) nearest.consider((uint32_t)c, distance);
        }
    }
    if (lane == 0) {
        add_count(&p.counts->ambiguous, 1);
        add_count(&p.counts->exact, nearest.exact);
        add_count(&p.counts->uncertified, nearest.inexact);
    }
    return __shfl_sync(0xffffffffu, nearest.label, 0);
}

/* All lanes of the warp call it, and get the label. A lane scores every 32nd centre. */
static __device__ __noinline__ uint32_t resolve_row(const few_pass &p, size_t row) {
    const double *x = (const double *)p.x + row * p.features, *transposed = (const double *)p.transposed;
    open_best state = {-INFINITY, -INFINITY, 0};
    for (size_t j = threadIdx.x % 32; j < p.clusters; j += 32) {
        double sum[2] = {0, 0}; /* of even and odd features */
#pragma unroll 4
        for (size_t f = 0; f < p.features; f += 2) {
            sum[0] = fma(x[f], transposed[f * p.clusters + j], sum[0]);
            if (f + 1 < p.features) sum[1] = fma(x[f + 1], transposed[(f + 1) * p.clusters + j], sum[1]);
        }
        state.add(sum[0] + sum[1] + ((const double *)p.bias)[j], (uint32_t)j);
    }
    __syncwarp();
#pragma unroll
    for (int distance = 16; distance; distance /= 2) state.merge(distance);
    const double error = nearest_error(p.features, DBL_EPSILON, DBL_TRUE_MIN, DBL_MAX,
                                       p.norm[row / NEAREST_BLOCK], *p.centre_norm);
    if (!p.certify || state.best - state.second > 2 * error) return state.index;
    return decide_row(p, x, state.best - 2 * error);
}

/* Resolves those of 32 rows whose label is NEAREST_NONE; lane i has that of row first + i. */
__device__ inline uint32_t resolve_rows(const few_pass &p, size_t first, uint32_t label) {
    unsigned open = __ballot_sync(0xffffffffu, label == NEAREST_NONE);
    for (; open; open &= open - 1) {
        const unsigned row = (unsigned)__ffs((int)open) - 1;
        const uint32_t resolved = resolve_row(p, first + row);
        if (threadIdx.x % 32 == row) label = resolved;
    }
    return label;
}

} // namespace few

#endif
