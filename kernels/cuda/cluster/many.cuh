/* What the files of the kernels for reals with many features share (many.cu).

   Scores     x' is (x - m) 2^a of a point, c' is (c - m) 2^b of a centre, m the mean of some centres, and
              2^b |c - m| < 2^TOP for all centres. A score is 2^2b ((x - m).(c - m) - |c - m|^2 / 2), so the
              tensor cores' x'.c' times 2^(b - a), and the bias.
   Error      of x'.c' 2^(b - a): at most G |c'| + E, where G has the measured error of x', the largest
              relative error of a c', and those of the sums; E is what float16 cuts off of small values. One
              centre far from all others must not spoil the bound of the others, so each score has its own:
              G |c'| <= G^2 / 2t + t |c'|^2 / 2 for any t > 0. The second term is in the bias, -(1 - t)
              |c'|^2 / 2; Q = G^2 / 2t + E belongs to the row. Then no true score is above the computed one by
              more than Q, and the true score of the best is below it by at most Q + 2 t |c'|^2 / 2: centres
              whose score is below the best by more than the sum of both are out. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_MANY_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_MANY_CUH

#include "kernels/cuda/cluster/cluster.cuh"
#include "kernels/cuda/tensor/stage_ring.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

namespace many {

static const int CHUNK = 128, UNITS = CHUNK / 16; /* bytes of a row or centre in a stage */
static const int STEPS = CHUNK / 32;              /* wgmma of a chunk */
static const int N = 128, STAGE = N * CHUNK;      /* centres and bytes of a stage */
static const int MOST_CHUNKS = 16;                /* of a row */
static const int ROWS_BYTES = 128 << 10;          /* most bytes of the rows in shared memory */
static const int TOP = 14;                        /* scaled values are below 2^TOP */
static const int MOST_CANDIDATES = 16;            /* of a row; with more, all centres are */
static const size_t PART = (size_t)1 << 20;       /* rows of a pass */

typedef stage_ring<STAGE, 6> ring;

/* In shared memory: the ring's stages, the rows, their factors and errors, the ring's barriers. */
static __host__ __device__ inline size_t factors_at(unsigned rows, unsigned chunks) {
    return ring::STAGES_BYTES + (size_t)rows * chunks * CHUNK;
}
static __host__ __device__ inline size_t barriers_at(unsigned rows, unsigned chunks) {
    return factors_at(rows, chunks) + 2 * rows * sizeof(float);
}

/* What the centres contribute to the error of a score. */
struct centre_facts {
    double relative; /* of c': an error is at most relative |c'| + floor */
    double floor, share /* t */;
};

/* Bounds the error of the sums of `steps` wgmma, relative to the product of the norms: each adds at most 16
   products and a sum in one or two steps, which cut each of these off at 2^-23 of the largest or below, and
   the result as well (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"): 2^-22 is allowed for
   each, as in few_tensor.cuh. */
static __host__ __device__ inline double step_error(unsigned steps) {
    return steps * 20 * 0x1p-22;
}

/* Rows that the first pass does not decide. */
struct undecided {
    unsigned *count;
    uint32_t *row;
    float *limit;        /* centres with a score below it are out */
    uint32_t *found;     /* candidates of the row */
    uint32_t *candidate; /* [..][MOST_CANDIDATES] */
};

struct pass {
    const void *x;
    size_t rows;
    unsigned features, chunks, tiles; /* tiles of the centres */
    uint32_t clusters;
    bool aligned;       /* rows of x start at multiples of 16 bytes */
    const char *packed; /* [tiles][chunks][N][CHUNK], swizzled */
    const float *bias;  /* [tiles][N]; -infinity beyond the last centre */
    const void *mean;   /* of the dtype, 0 beyond the last feature */
    const centre_facts *facts;
    const double *norm, *centre_norm;
    uint32_t *label;
    nearest_counts *counts;
    undecided list;
};

struct kernel_choice {
    enum gemm_dtype dtype;
    wgmma_format format; /* float16: exact */
    unsigned chunks;
};

/* True if the kernels can be used on this GPU. */
bool wgmma_open(const kernel_choice &choice, int shared_bytes);

/* Labels p.rows rows, or collects the candidates of those in the list. */
void wgmma_launch(const kernel_choice &choice, bool collect, const pass &p, unsigned processors,
                  cudaStream_t stream, struct cuda_fault *fault);

} // namespace many

#endif
