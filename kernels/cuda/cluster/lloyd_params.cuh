/* The parameters of lloyd_kernel.cuh, and its shared memory. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_LLOYD_PARAMS_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_LLOYD_PARAMS_CUH

#include "kernels/cuda/cluster/pixels_kernel.cuh"

namespace lloyd {

using pixels::STEP;

static const int ROWS = 16;       /* of a warp at a time */
static const int MOST_WARPS = 12; /* of a block */
static const unsigned AHEAD = 7;  /* loads of a lane of a row that moved: 896 pixels of a warp */
static const int SLACK = STEP;    /* mma reads up to so many bytes beyond the last row */

/* What a launch tells the host. */
struct outcome {
    unsigned iterations;
    nearest_iteration record[NEAREST_ITERATIONS];
};

struct params {
    nearest_lloyd run; /* its pointers are copied below */
    const uint8_t *x;
    size_t rows;
    unsigned features, row_pitch, centre_pitch, warps;
    uint32_t clusters;
    bool certify;
    const double *norm, *mean;
    uint32_t *label;
    float *values, *values_before;
    double *sums;
    uint64_t *count;
    /* scratch, shared by all blocks; table, moved, arrived and to are 0 at the start */
    int8_t *packed;    /* [2 slices][8 NT centres][centre_pitch] */
    int *bias;         /* [clusters] */
    double *rounding;  /* [clusters] */
    double *cost;      /* [clusters] */
    double *shift;     /* [clusters] */
    int *table;        /* [COPIES][clusters][features]: differences of the sums */
    int *moved;        /* [2][clusters]: of the counts, in turn */
    unsigned *arrived; /* of the grid barrier */
    outcome *to;
};

/* Shared memory of a block for 8 NT centres. */
template <int NT> struct layout {
    static constexpr int CENTRES = 8 * NT;
    static constexpr bool OWN_TABLE = CENTRES <= 16;
    static constexpr unsigned COPIES =
        OWN_TABLE ? 1 : 8; /* tables in the L2 cache: fewer atomics of an address */
    unsigned rows, table, bias, count, moved, barriers, bytes; /* offsets; the centres start at 0 */

    __host__ __device__ layout(const params &p) {
        rows = (2 * CENTRES * p.centre_pitch + 127) / 128 * 128;
        table = rows + p.warps * row_bytes(p);
        bias = table + (OWN_TABLE ? (p.clusters * p.features + 4 * 32 * AHEAD) * (unsigned)sizeof(int) : 0);
        count = bias + CENTRES * (unsigned)sizeof(int);
        moved = count + CENTRES * (unsigned)sizeof(uint64_t);
        barriers = moved + CENTRES * (unsigned)sizeof(int);
        bytes = barriers + MOST_WARPS * (unsigned)sizeof(uint64_t);
    }
    static __host__ __device__ unsigned row_bytes(const params &p) {
        return ROWS * p.row_pitch + SLACK;
    }
};

} // namespace lloyd

#endif
