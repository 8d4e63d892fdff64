/* What the kernels for reals with few features share: a pass over the rows (few.cu). */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FEW_PASS_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FEW_PASS_CUH

#include "kernels/cuda/cluster/decide.cuh"
#include "kernels/cuda/ops/element.cuh"

namespace few {

/* Rows that the scores do not decide. */
struct undecided {
    unsigned *count;
    double *threshold; /* centres with a score below it are out */
    uint32_t *row;
};

/* The centres less their mean, rounded to float32, for points of float64. Features beyond the last are 0,
   and so are centres up to a multiple of MOVED_GROUP, whose bias is -infinity. */
static const int MOVED_GROUP = 8, MOVED_MOST = 32; /* features */
struct moved_centres {
    double *mean;  /* [MOVED_MOST] */
    double *norm;  /* at least that of every moved centre */
    float *bias;   /* [clusters, rounded up]: -|c|^2 / 2 */
    float *values; /* [clusters, rounded up][width] */
    int width;
};

NEAREST_INLINE size_t padded_clusters(size_t clusters) {
    return (clusters + MOVED_GROUP - 1) / MOVED_GROUP * MOVED_GROUP;
}

struct few_pass {
    const void *x;
    size_t rows, features, clusters, tile; /* centres that fit into shared memory */
    const void *values, *transposed, *bias;
    const double *norm, *centre_norm;
    bool certify, aligned; /* rows of x start at multiples of 16 bytes */
    uint32_t *label;
    nearest_counts *counts;
    undecided list;
    moved_centres moved;
    decide::row_list open; /* rows that float32 did not decide */
};

/* Adds the labels that changed, of all lanes of a warp. */
__device__ inline void count_changed(const few_pass &p, unsigned changed) {
    for (int offset = 16; offset; offset /= 2) changed += __shfl_xor_sync(0xffffffffu, changed, offset);
    if (threadIdx.x % 32 == 0) add_count(&p.counts->changed, changed);
}

/* True if the label changed. */
__device__ inline bool store_label(const few_pass &p, size_t row, uint32_t label) {
    const bool changed = p.label[row] != label;
    if (changed) p.label[row] = label; /* most do not: no bytes are written */
    return changed;
}

/* Is a score of float32 that is above all others by `gap` the best? The thousandth more covers the roundings
   of both to float32. */
__device__ inline bool gap_decides(float gap, double error) {
    return gap > (float)(2.001 * error);
}

/* Stores a label whose score is above all others by `gap`, or leaves the row open. */
__device__ inline bool store_or_open(const few_pass &p, size_t row, float gap, double error, uint32_t label) {
    if (gap_decides(gap, error)) return store_label(p, row, label);
    p.open.row[atomicAdd(p.open.count, 1u)] = (uint32_t)row;
    return false;
}

} // namespace few

#endif
