/* The nearest of a few centres, for the rows that scores do not decide: float64, then the exact sign, as
   kernels/host/ops/nearest.h. A thread block decides a row. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_DECIDE_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_DECIDE_CUH

#include "kernels/cuda/cluster/cluster.cuh"
extern "C" {
#include "kernels/exact.h"
}

namespace decide {

static const int THREADS = 128, WARPS = THREADS / 32, CAPACITY = 512; /* candidates at a time */

/* Rows that scores did not decide. */
struct row_list {
    unsigned *count;
    uint32_t *row;
};

/* Is a nearer than b, over the reals? One thread. */
template <typename X, typename T>
__device__ bool exactly_nearer(size_t features, const X *x, const T *a, const T *b, bool *inexact) {
    exact_sum sum;
    sum.count = 0;
    sum.inexact = false;
    for (size_t f = 0; f < features; f++) exact_add_squares(&sum, (double)x[f], (double)a[f], (double)b[f]);
    *inexact |= sum.inexact;
    return exact_sign(&sum) < 0;
}

/* The nearest of the candidates so far; candidates come in rising order. */
template <typename X, typename T> struct decision {
    size_t features;
    const X *x;
    const T *values;
    bool any, exact, inexact;
    double best;
    uint32_t label;

    __device__ void consider(uint32_t j, double distance) {
        const int order = any ? nearest_order(features, distance, best) : -1;
        bool nearer = order < 0;
        if (order == 0) {
            exact = true;
            nearer = exactly_nearer(features, x, values + j * features, values + label * features, &inexact);
        }
        any = true;
        if (!nearer) return;
        best = distance;
        label = j;
    }
};

/* A list of candidates in shared memory, in rising order. */
struct candidates {
    int count;
    int of_warp[WARPS];
    uint32_t index[CAPACITY];
    double distance[CAPACITY];
};

/* Appends centre j of every thread whose `wanted` is true. All threads of the block call it, with j in the
   order of the threads, and at most CAPACITY - THREADS candidates in the list. */
__device__ inline void append(candidates &list, uint32_t j, bool wanted) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned mask = __ballot_sync(0xffffffffu, wanted);
    if (lane == 0) list.of_warp[warp] = __popc(mask);
    __syncthreads();
    int at = list.count + __popc(mask & ((1u << lane) - 1u)), total = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) at += list.of_warp[w];
        total += list.of_warp[w];
    }
    if (wanted) list.index[at] = j;
    __syncthreads(); /* before the count changes */
    if (threadIdx.x == 0) list.count += total;
    __syncthreads();
}

/* Computes the distances of the candidates; thread 0 compares them. Empties the list. */
template <typename X, typename T> __device__ void compare(candidates &list, decision<X, T> &nearest) {
    const int group = threadIdx.x / NEAREST_LANES, groups = THREADS / NEAREST_LANES, count = list.count;
    for (int first = 0; first < count; first += groups) { /* all lanes of a warp call squared_distance */
        const int i = first + group;
        const double distance =
            squared_distance(i < count ? nearest.features : 0, nearest.x,
                             nearest.values + (i < count ? list.index[i] : 0) * nearest.features);
        if (i < count && threadIdx.x % NEAREST_LANES == 0) list.distance[i] = distance;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; i++) nearest.consider(list.index[i], list.distance[i]);
        list.count = 0;
    }
    __syncthreads();
}

/* The nearest of all centres j for which candidate(j) is true, valid in thread 0. */
template <typename X, typename T, typename F>
__device__ decision<X, T> nearest_of(candidates &list, size_t count, size_t features, const X *x,
                                     const T *values, F candidate) {
    decision<X, T> nearest = {features, x, values, false, false, false, 0, 0};
    if (threadIdx.x == 0) list.count = 0;
    __syncthreads();
    for (size_t first = 0; first < count; first += THREADS) {
        const size_t j = first + threadIdx.x;
        append(list, (uint32_t)j, j < count && candidate(j));
        if (list.count > CAPACITY - THREADS) compare(list, nearest);
    }
    compare(list, nearest);
    return nearest;
}

/* Thread 0 stores the label and the counts of a row. */
template <typename X, typename T>
__device__ void store(const decision<X, T> &nearest, uint32_t *label, nearest_counts *counts) {
    if (threadIdx.x) return;
    add_count(&counts->ambiguous, 1);
    add_count(&counts->exact, nearest.exact);
    add_count(&counts->uncertified, nearest.inexact);
    add_count(&counts->changed, *label != nearest.label);
    *label = nearest.label;
}

/* The nearest of `found` <= CAPACITY centres in any order, valid in thread 0. */
template <typename X, typename T>
__device__ decision<X, T> nearest_of_listed(candidates &list, const uint32_t *candidate, unsigned found,
                                            size_t features, const X *x, const T *values) {
    decision<X, T> nearest = {features, x, values, false, false, false, 0, 0};
    for (unsigned c = threadIdx.x; c < found; c += THREADS) {
        unsigned smaller = 0;
        for (unsigned i = 0; i < found; i++) smaller += candidate[i] < candidate[c];
        list.index[smaller] = candidate[c];
    }
    if (threadIdx.x == 0) list.count = (int)found;
    __syncthreads();
    compare(list, nearest);
    return nearest;
}

} // namespace decide

#endif
