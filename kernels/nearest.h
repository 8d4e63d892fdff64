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

/* How a label is computed. With tf32 and bf16, points and centres of float32, less the mean of some centres,
   are rounded to 11 or 8 bits of significand; their scores are float32. */
enum nearest_precision {
    NEAREST_EXACT, /* certified */
    NEAREST_F32,   /* the largest score as computed, in the dtype */
    NEAREST_TF32,
    NEAREST_BF16
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

/* The sum of partial sums, which it overwrites: `lanes`, a power of two, of which the others are 0. */
static inline double nearest_add_some_lanes(double *lane, size_t lanes) {
    for (size_t step = lanes / 2; step; step /= 2)
        for (size_t l = 0; l < step; l++) lane[l] += lane[l + step];
    return lane[0];
}

/* The same of all NEAREST_LANES. */
static inline double nearest_add_lanes(double *lane) {
    return nearest_add_some_lanes(lane, NEAREST_LANES);
}

/* The order of `sum`, without `before`. The rows are cut into slices of cluster_slice_rows() rows; the last
   one may have fewer. If there is one slice, its rows are added to the sums in order. Else row r of a slice
   is added to the partial sum r % cluster_lanes(), in order; the partial sums are added in pairs, half of
   them apart, then a quarter, down to 1; the slices of each group of CLUSTER_GROUP are added in order, and
   then the groups. The lanes are those of a warp that adds several short rows at once, and the sums of its
   lanes, or of 32 columns of wide rows, are a table in shared memory. The sums of the slices take
   up to 16 MiB. */
static const size_t CLUSTER_WARP = 32;
enum { CLUSTER_GROUP = 32, CLUSTER_LANE_SUMS = 4096 /* most partial sums */, CLUSTER_TABLE_SUMS = 8192 };

static inline bool cluster_has_table(size_t clusters, size_t features) {
    return clusters * (features < CLUSTER_WARP ? features : CLUSTER_WARP) <= CLUSTER_TABLE_SUMS;
}

static inline size_t cluster_lanes(size_t clusters, size_t features) {
    size_t lanes = 1;
    while (2 * lanes * features <= CLUSTER_WARP && 2 * lanes * features * clusters <= CLUSTER_LANE_SUMS)
        lanes *= 2;
    return lanes;
}

/* A slice has eight times as many elements as partial sums, and a thousand for each lane. */
static inline size_t cluster_most_slices(size_t rows, size_t clusters, size_t features) {
    const bool table = cluster_has_table(clusters, features);
    const size_t room = ((size_t)1 << 21) / (clusters * features), limit = table ? 1024 : 64,
                 for_lane = clusters < 128 ? 1024 : 8 * clusters,
                 most = rows / (table ? for_lane * cluster_lanes(clusters, features) : 4096);
    const size_t slices = room < most ? room : most;
    return slices < 2 ? 1 : slices > limit ? limit : slices;
}

/* A multiple of NEAREST_BLOCK, at least one. */
static inline size_t cluster_slice_rows(size_t rows, size_t clusters, size_t features) {
    const size_t slices = cluster_most_slices(rows, clusters, features),
                 blocks = (rows + slices * NEAREST_BLOCK - 1) / (slices * NEAREST_BLOCK);
    return (blocks ? blocks : 1) * NEAREST_BLOCK;
}

static inline size_t cluster_slices(size_t rows, size_t clusters, size_t features) {
    const size_t slice_rows = cluster_slice_rows(rows, clusters, features);
    return (rows + slice_rows - 1) / slice_rows;
}

/* A part of more rows starts at a multiple of these. A slice of one lane may be cut: its sum goes on in the
   next part. Slices of several lanes are short: a thousandth of the rows, or a few thousand. */
static inline size_t cluster_part_rows(size_t rows, size_t clusters, size_t features) {
    if (cluster_slices(rows, clusters, features) < 2 || cluster_lanes(clusters, features) < 2)
        return NEAREST_BLOCK;
    return cluster_slice_rows(rows, clusters, features);
}

/* Elements of the scratch of `sum`; as many serve fewer rows. */
static inline size_t cluster_scratch(size_t rows, size_t clusters, size_t features) {
    const size_t slices = cluster_most_slices(rows, clusters, features);
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

/* The same for a score whose sum starts with the bias: each rounding is relative to a partial sum that may
   have |c|^2 / 2 in it. It also bounds a score in float32 of points and centres that were moved and then
   rounded to float32, whose `norm` and `centre_norm` are those of the rounded ones: each coordinate of them
   is wrong by FLT_EPSILON / 2 of itself, or FLT_TRUE_MIN / 2. (The product has a spare term of 4 epsilon
   |x| |c|: its sum needs features / 2 of the features + 8 of nearest_error.) */
NEAREST_INLINE double nearest_few_error(size_t features, double epsilon, double least, double largest,
                                        double norm, double centre_norm) {
    const double terms = (double)features + 8;
    return nearest_error(features, epsilon, least, largest, norm, centre_norm) +
           1.0001 * (terms * epsilon * centre_norm * centre_norm / 2 + terms * least * (norm + centre_norm));
}

/* Bounds the norm of a point in float32 from its squares, added in float32 in any order. */
NEAREST_INLINE double nearest_few_norm(float squares) {
    return (double)sqrtf(squares) * 1.0001 + 1e-17; /* squares below 1e-38 underflow */
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
    /* A slot that has no kernel for tf32 or bf16 must refuse. `certify` of a call is true for exact alone. */
    enum nearest_precision precision;
};

/* Iterations of Lloyd's algorithm in one call. An iteration assigns the points, adds up the clusters, and
   moves each centre to its mean, with the bits of the table above: nearest, sum, costs and means. */
enum { NEAREST_ITERATIONS = 256 }; /* at most, in a call */

struct nearest_lloyd {
    /* label: in, those that the sums belong to, or NEAREST_NONE; out, those of the last iteration */
    const struct nearest_call *points;
    const struct nearest_centres *centres; /* values are in and out; the rest is not computed */
    void *values_before;                   /* out: the centres that the labels belong to */
    const struct cluster_sums *sums;       /* in and out */
    const double *mean;                    /* as for costs */
    double *cost, *shift;                  /* [clusters] each, scratch */
    const struct cluster_rows *rows;       /* the points for `sum`; before, of pixels, is scratch too */
    size_t iterations;                     /* at most NEAREST_ITERATIONS */
    /* An iteration is the last one if at most so many rows changed, or the shift is at most this. */
    double few_changes, least_shift;
    bool stop_at_empty; /* or if a cluster is empty: then the centres do not move */
};

/* What the host learns of an iteration. */
struct nearest_iteration {
    struct nearest_counts counts;
    uint64_t empty;     /* clusters without points */
    double cost, shift; /* sums over the clusters, in the order of sums over the features */
    double label_seconds, centres_seconds; /* a pass that adds the rows too is of the labels */
};

NEAREST_INLINE bool nearest_ends(const struct nearest_lloyd *run, uint64_t changed, double shift) {
    return (double)changed <= run->few_changes || shift <= run->least_shift;
}

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

    /* (optional) Iterations in one call. Returns how many are done, with a record (host memory) of each; 0:
       it is not for these points, and nothing has changed. It returns when the device is done. */
    size_t (*lloyd)(void *state, const struct nearest_lloyd *run, struct nearest_iteration *record);
};

#endif
