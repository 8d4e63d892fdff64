/* Shared by the steps of k-means: arguments, the nearest centre so far, centres in shared memory. */
#ifndef TESSERA_KERNELS_CUDA_KMEANS_STEPS_STEPS_CUH
#define TESSERA_KERNELS_CUDA_KMEANS_STEPS_STEPS_CUH

#include <math.h>

extern "C" {
#include "kernels/kmeans_steps.h"
}
#include "kernels/cuda/ops/ops.cuh"

static const size_t STEP_SHARED = 48 << 10; /* bytes that every GPU gives a block */

template <typename T> struct step_points {
    size_t rows, features, clusters;
    const T *x, *centres;
    uint32_t *label;
    unsigned long long *changed, *count;
    double *sums;

    explicit step_points(const kmeans_step_call &call)
        : rows(call.rows), features(call.features), clusters(call.clusters), x((const T *)call.x),
          centres((const T *)call.centres), label(call.label), changed((unsigned long long *)call.changed),
          count((unsigned long long *)call.count), sums(call.sums) {}
};

static inline unsigned step_blocks(const kmeans_step_call &call) {
    return (unsigned)((call.rows + call.block - 1) / call.block);
}

/* The slot `run` of a step, from its launches. */
template <void LAUNCH32(cuda_ops_context *, const kmeans_step_call &),
          void LAUNCH64(cuda_ops_context *, const kmeans_step_call &)>
void step_run(void *context, const kmeans_step_call *call) {
    if (call->rows) (call->dtype == GEMM_F32 ? LAUNCH32 : LAUNCH64)(open_ops(context), *call);
}

#ifdef __CUDACC__
/* Centres are considered in rising order, so that the first of equal ones stays. */
template <typename T> struct nearest_so_far {
    T squared = INFINITY;
    uint32_t label = 0;

    __device__ void consider(size_t j, T distance) {
        if (!(distance < squared)) return;
        squared = distance;
        label = (uint32_t)j;
    }
};

/* Stores the label of row r, if there is one, and counts it if it changed. All threads of the block. */
template <typename T> __device__ void store_label(const step_points<T> &p, size_t r, uint32_t label) {
    const bool changed = r < p.rows && p.label[r] != label;
    if (changed) p.label[r] = label;
    const int count = __syncthreads_count(changed);
    if (threadIdx.x == 0 && count) atomicAdd(p.changed, (unsigned long long)count);
}
#endif

/* Centres that shared memory holds at a time: `count` of them, and `width` features of each. All features, or
   a part of those of one centre. */
struct centre_tile {
    unsigned count, width;
};

static inline centre_tile tile_for(const kmeans_step_call &call, size_t elements) {
    const size_t width = call.features < elements ? call.features : elements, most = elements / width;
    return {(unsigned)(call.clusters < most ? call.clusters : most), (unsigned)width};
}

#ifdef __CUDACC__
/* The nearest centre of row r; any, if there is no such row. All threads of the block; x and centres are by
   columns. The first synchronisation comes before the first access to `tile`. */
template <typename T>
__device__ nearest_so_far<T> nearest_in_tiles(const step_points<T> &p, size_t r, centre_tile size, T *tile) {
    nearest_so_far<T> nearest;
    for (size_t j0 = 0; j0 < p.clusters; j0 += size.count) {
        const unsigned count = p.clusters - j0 < size.count ? (unsigned)(p.clusters - j0) : size.count;
        T carried = 0; /* from part to part of one centre */
        for (size_t f0 = 0; f0 < p.features; f0 += size.width) {
            const unsigned width = p.features - f0 < size.width ? (unsigned)(p.features - f0) : size.width;
            __syncthreads(); /* the tile before has been read */
            for (unsigned i = threadIdx.x; i < count * width; i += blockDim.x)
                tile[i] = p.centres[(f0 + i / count) * p.clusters + j0 + i % count];
            __syncthreads();
            for (unsigned j = 0; r < p.rows && j < count; j++) {
                T sum = carried;
                for (unsigned f = 0; f < width; f++) {
                    const T difference = p.x[(f0 + f) * p.rows + r] - tile[f * count + j];
                    sum += difference * difference;
                }
                if (f0 + width == p.features) {
                    nearest.consider(j0 + j, sum);
                } else {
                    carried = sum;
                }
            }
        }
    }
    return nearest;
}
#endif

#endif
