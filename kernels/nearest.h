/* The contract of clustering: the operations of k-means other than GEMM, in a table per dtype and device.

   The nearest centre of a point x is the one with the largest score x.c - |c|^2 / 2: a linear layer whose
   weights are the centres and whose biases are their negative half norms. A GEMM computes the scores, with an
   error; `nearest` certifies the answer. It compares in three levels, each for the rows that the one before
   cannot decide:
     scores          a centre whose score is below the best one by more than twice the error bound is out
     float64         sum (x - c)^2, whose relative error is at most (features + 3) 2^-53
     exact           the sign of |x - a|^2 - |x - b|^2 over the reals (kernels/exact.h)
   So a label does not depend on the GEMM, its order of summation or the number of threads: it is the nearest
   centre of the lowest index.

   Matrices are row-major and dense; `void *` points to elements of the table's dtype (f32 or f64). All memory
   is the device's. Every sum has a fixed order, the same on every device: a sum over the features has
   NEAREST_LANES partial sums, of features l, l + NEAREST_LANES, .., which are then added in pairs 8, 4, 2 and
   1 apart; products and sums are rounded one by one. So centres and inertia have the same bits everywhere. */
#ifndef TESSERA_KERNELS_NEAREST_H
#define TESSERA_KERNELS_NEAREST_H

#include <math.h>
#include <stdint.h>

#include "kernels/gemm.h"

/* Functions of this header that kernels on a GPU call too. */
#ifdef __CUDACC__
#    define NEAREST_INLINE static __host__ __device__ inline
#else
#    define NEAREST_INLINE static inline
#endif

enum {
    NEAREST_BLOCK = 256, /* rows that share one bound of their norms */
    NEAREST_LANES = 16   /* partial sums of a sum over the features */
};
static const uint32_t NEAREST_NONE = UINT32_MAX; /* the label of a point that has none yet */

/* Centres, as `centres` of the table prepares them. */
struct nearest_centres {
    size_t count, features;
    void *values;     /* [count][features] */
    void *transposed; /* [features][count]: operand B of the GEMM */
    void *bias;       /* [count]: -|c|^2 / 2, rounded from float64 */
    double *norm;     /* at least every |c| */
};

struct nearest_call {
    size_t rows;
    bool bytes;         /* x is uint8_t, else of the dtype */
    const void *x;      /* [rows][features] */
    void *widened;      /* scratch for one row of the dtype, with `bytes` */
    const void *scores; /* [rows][score_ld]; NULL for the slot of a backend */
    size_t score_ld;
    const struct nearest_centres *centres;
    const double *norm; /* [rows / NEAREST_BLOCK, rounded up]: at least |x| for every row of the block */
    bool certify;       /* false: the label is that of the first largest score */
    uint32_t *label;    /* [rows]: in, the labels before, or any; out, the new ones */
};

/* Counts of rows. */
struct nearest_counts {
    uint64_t changed;   /* the new label is another one */
    uint64_t ambiguous; /* the scores did not decide */
    uint64_t exact;     /* float64 did not decide */
    /* `certify`, but a product of the exact comparison over- or underflows (f64 alone) */
    uint64_t uncertified;
};

/* The sums of the clusters, and the rows to add to them. */
struct cluster_sums {
    size_t clusters, features;
    double *sums;    /* [clusters][features] */
    uint64_t *count; /* [clusters] */
};
struct cluster_rows {
    size_t count;
    /* A part of more rows: the first one, and how many there are in all. The slices are those of all, and
       keep their sums from part to part; parts come in order, from multiples of cluster_part_rows(). total 0:
       these are all. */
    size_t first, total;
    bool bytes;             /* x is uint8_t, else of the table's dtype */
    const void *x;          /* [count][features] */
    const uint32_t *label;  /* [count]: the cluster to add a row to */
    const uint32_t *before; /* [count]: the one to subtract it from, or NEAREST_NONE; NULL: none */
    uint32_t *moved;        /* scratch, [count] */
    double *slices;         /* scratch, cluster_scratch() elements of all rows */
};

struct cluster_ops {
    /* x[r] = from[index[r]]; index NULL: from[r]. `from` has elements of uint8_t or of the dtype. */
    void (*rows)(void *context, size_t rows, size_t features, bool bytes, const void *from,
                 const uint32_t *index, void *x);

    /* norm[b] = an upper bound of the Euclidean norms of the rows of block b. */
    void (*norms)(void *context, size_t rows, size_t features, const void *x, double *norm);

    /* Computes transposed, bias and norm from values. */
    void (*centres)(void *context, const struct nearest_centres *centres);

    /* Adds to the counts. */
    void (*nearest)(void *context, const struct nearest_call *call, struct nearest_counts *counts);

    /* squared[r] = sum (x[r] - c)^2 in float64, c = values[label[r]], or values[0] if label is NULL. */
    void (*distances)(void *context, size_t rows, size_t features, const void *x, const void *values,
                      const uint32_t *label, double *squared);

    /* Adds each row to its cluster and subtracts it from the one before; a row that stays is not read. Sums
       of bytes are exact integers; those of reals have an order that the sizes alone decide. */
    void (*sum)(void *context, const struct cluster_rows *rows, const struct cluster_sums *sums);

    /* cost[j] = the sum over the members of |x - c|^2 - |x - mean|^2. */
    void (*costs)(void *context, const struct cluster_sums *sums, const double *mean, const void *values,
                  double *cost);

    /* values[j] = sums[j] / count[j], rounded once; where count is 0 the centre stays. shift[j] is the
       squared distance of the move. */
    void (*means)(void *context, const struct cluster_sums *sums, void *values, double *shift);
};

/* Slices of the rows in `sum`, and elements of its scratch. */
static inline size_t cluster_slices(size_t rows, size_t clusters, size_t features) {
    const size_t room = ((size_t)1 << 19) / (clusters * features), most = rows / 4096;
    const size_t slices = room < most ? room : most;
    return slices < 2 ? 1 : slices > 64 ? 64 : slices;
}

/* A part of more rows starts at a multiple of these. A slice may be cut: its sum goes on in the next part. */
static inline size_t cluster_part_rows(size_t rows, size_t clusters, size_t features) {
    (void)rows;
    (void)clusters;
    (void)features;
    return NEAREST_BLOCK;
}

static inline size_t cluster_scratch(size_t rows, size_t clusters, size_t features) {
    const size_t slices = cluster_slices(rows, clusters, features);
    return slices < 2 ? 0 : slices * clusters * features;
}

/* The order of two squared distances that were summed in float64: -1 or 1 if the first one is smaller or
   larger whatever the roundings, 0 if they do not decide. A distance above 2^-900 has normal squares, and so
   a relative error of at most (features + 8) 2^-53. */
NEAREST_INLINE int nearest_order(size_t features, double a, double b) {
    const double slack = ((double)features + 8) * 0x1p-53, safe = 0x1p-900;
    if (a > safe && a * (1 + slack) < b * (1 - slack)) return -1;
    return b > safe && a * (1 - slack) > b * (1 + slack) ? 1 : 0;
}

/* Bounds the error of every score of a row whose norm is at most `norm`: that of the product by the bound
   that every backend is verified against (src/backend/oracle.h), with |x||c| for (|x| |c|), and that of the
   bias: its roundings to the dtype, and the float64 sum of squares before, whose relative error is at most
   features 2^-53. 2 epsilon (product + half) remain for the rounding of a threshold to the dtype. Infinite if
   a partial sum may overflow. */
NEAREST_INLINE double nearest_error(size_t features, double epsilon, double least, double largest,
                                    double norm, double centre_norm) {
    const double product = norm * centre_norm, half = centre_norm * centre_norm / 2;
    const double terms = (double)features + 8;
    if (!(product + half < largest / 4)) return INFINITY;
    return 1.0001 * (epsilon * (terms * product + 4 * half) + 0x1p-53 * terms * half + terms * least);
}

/* Slot `nearest` of struct gemm_backend (engine fused): a pass over the points in one call, in which each
   score is compared while it is in a cache. The labels are those of `nearest` above. */
struct nearest_shape {
    enum gemm_dtype dtype;
    bool bytes; /* the points are uint8_t */
    size_t features, clusters;
    /* Prune by bounds: exactly the same labels, and `ambiguous` counts the rows that had several candidates.
       A slot that cannot must refuse. */
    bool bounds;
    /* With bounds: [count][features], of which later calls may pass parts. They do not change while the state
       is open. */
    const void *points;
    size_t count;
};

struct gemm_nearest {
    /* Returns a state for up to `clusters` centres on the backend's context, or NULL with the reason (a
       phrase) in `why`: no such kernel here, or none that is faster. */
    void *(*open)(void *context, const struct nearest_shape *shape, char *why, size_t size);
    void (*close)(void *state);

    /* The centres of the calls from now on; false: out of their range. */
    bool (*centres)(void *state, const struct nearest_centres *centres);

    /* Adds to the counts. */
    void (*run)(void *state, const struct nearest_call *call, struct nearest_counts *counts);

    /* The kernel, in a phrase. */
    void (*describe)(void *state, char *text, size_t size);

    /* (optional) The first failure of `centres` or `run`; "" if there was none. The caller asks after it has
       synchronised the device. */
    const char *(*error)(void *state);
};

#endif
