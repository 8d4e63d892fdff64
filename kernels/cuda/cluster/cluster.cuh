/* The clustering ops on the GPU (kernels/nearest.h). The Makefile compiles this folder with -fmad=false: a
   product and a sum are rounded one by one, as on the host, unless the code says fma. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_CLUSTER_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_CLUSTER_CUH

#include <float.h>
#include <math.h>
#include <stdint.h>

extern "C" {
#include "kernels/nearest.h"
}
#include "kernels/cuda/ops/ops.cuh"

/* The table for f32 or f64; NULL for another dtype. Its functions take a struct cuda_ops_context. */
const struct cluster_ops *cuda_cluster_ops(enum gemm_dtype dtype);

/* Entries of the table in files of their own: points.cu, nearest.cu, sum_bytes.cu and sum_reals.cu, which
   calls sum_slices.cu. */
template <typename T>
void cuda_cluster_rows(void *context, size_t rows, size_t features, bool bytes, const void *from,
                       const uint32_t *index, void *x);
template <typename T>
void cuda_cluster_norms(void *context, size_t rows, size_t features, const void *x, double *norm);
template <typename T> void cuda_cluster_centres(void *context, const struct nearest_centres *centres);
/* to[cols][rows] = from[rows][cols] transposed. */
template <typename T>
void cuda_cluster_transpose(struct cuda_ops_context *context, size_t rows, size_t cols, const T *from, T *to);
template <typename T>
void cuda_cluster_distances(void *context, size_t rows, size_t features, const void *x, const void *values,
                            const uint32_t *label, double *squared);
template <typename T>
void cuda_cluster_costs(void *context, const struct cluster_sums *sums, const double *mean,
                        const void *values, double *cost);
template <typename T>
void cuda_cluster_means(void *context, const struct cluster_sums *sums, void *values, double *shift);
template <typename T>
void cuda_cluster_nearest(void *context, const struct nearest_call *call, struct nearest_counts *counts);
void cuda_cluster_sum_bytes(struct cuda_ops_context *context, const struct cluster_rows *rows,
                            const struct cluster_sums *sums);
template <typename T>
void cuda_cluster_sum_reals(struct cuda_ops_context *context, const struct cluster_rows *rows,
                            const struct cluster_sums *sums);

/* The sums of clusters with a table (cluster_has_table) and several slices. */
template <typename T>
void cuda_cluster_sum_slices(struct cuda_ops_context *context, const struct cluster_rows *rows,
                             const struct cluster_sums *sums);

/* Adds the sums of the slices, `from` or NULL, to the sums, and the counts, [slices][clusters] or NULL. */
void cuda_cluster_add_slices(struct cuda_ops_context *context, size_t slices, const double *from,
                             const uint32_t *counts, const struct cluster_sums *sums);

template <typename T> struct real_limits;
template <> struct real_limits<float> {
    static constexpr double epsilon = FLT_EPSILON, least = FLT_TRUE_MIN, largest = FLT_MAX;
};
template <> struct real_limits<double> {
    static constexpr double epsilon = DBL_EPSILON, least = DBL_TRUE_MIN, largest = DBL_MAX;
};

#ifdef __CUDACC__
/* The sum of the partial sums of NEAREST_LANES neighbouring lanes, in the order of the contract, in all of
   them. All lanes of the warp call it. */
__device__ inline double add_lanes(double mine) {
#    pragma unroll
    for (int step = NEAREST_LANES / 2; step; step /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, step);
    return mine;
}

/* sum (x - c)^2: NEAREST_LANES neighbouring lanes share a row. All lanes of the warp call it. */
template <typename X, typename T>
__device__ inline double squared_distance(size_t features, const X *x, const T *c) {
    double mine = 0;
#    pragma unroll 16 /* loads in flight: few rows are compared at a time */
    for (size_t f = threadIdx.x % NEAREST_LANES; f < features; f += NEAREST_LANES) {
        const double difference = (double)x[f] - (double)c[f];
        mine += difference * difference;
    }
    return add_lanes(mine);
}

/* The sum of term(f, load(f)) for all features, in the order of the contract, in the first warp. All threads
   of a block of `THREADS` call it; each loads what several terms need, and computes them; half a warp adds
   them. */
template <int THREADS, typename L, typename F>
__device__ double sum_of_terms(size_t features, L load, F term) {
    static const int OF_THREAD = 4, TILE = OF_THREAD * THREADS; /* a multiple of NEAREST_LANES */
    __shared__ double terms[TILE];
    double mine = 0;
    for (size_t first = 0; first < features; first += TILE) {
        const int count = (int)(features - first < TILE ? features - first : TILE);
        decltype(load(0)) loaded[OF_THREAD];
        __syncthreads(); /* the terms before were read */
#    pragma unroll
        for (int i = 0; i < OF_THREAD; i++) {
            const int f = i * THREADS + threadIdx.x;
            if (f < count) loaded[i] = load(first + f);
        }
#    pragma unroll
        for (int i = 0; i < OF_THREAD; i++) {
            const int f = i * THREADS + threadIdx.x;
            if (f < count) terms[f] = term(first + f, loaded[i]);
        }
        __syncthreads();
        if (threadIdx.x >= 32) continue;
#    pragma unroll 8
        for (int f = threadIdx.x % NEAREST_LANES; f < count; f += NEAREST_LANES) mine += terms[f];
    }
    return threadIdx.x < 32 ? add_lanes(mine) : 0;
}

/* A feature's part of the cost of a cluster, whose members sum to `sum`. */
__device__ inline double cost_term(double centre, double mean, double sum, double members) {
    const double offset = centre - mean;
    return offset * (members * offset - 2 * (sum - members * mean));
}

/* *to = max(*to, value), both at least 0: then doubles are in the order of their bits. */
__device__ inline void atomic_max_positive(double *to, double value) {
    atomicMax((unsigned long long *)to, (unsigned long long)__double_as_longlong(value));
}

/* Of a clock that all SMs share. */
__device__ inline double seconds_now() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return 1e-9 * (double)now;
}

__device__ inline void add_count(uint64_t *count, uint64_t more) {
    if (more) atomicAdd((unsigned long long *)count, (unsigned long long)more);
}
#endif

#endif
