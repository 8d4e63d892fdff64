/* Clustering ops on the host.

   Bound by   bytes: `nearest` reads each score once, from the L2 cache if the caller's chunks fit, in three
              vector passes over a row in the L1 cache; `sum` reads each point that moved once.
   Run        ./train kmeans --clusters 64 */
#include "kernels/host/ops/cluster.h"

#include <float.h>
#include <math.h>

#include "kernels/exact.h"
#include "kernels/host/ops/template.h"

/* Columns that threads add separately in `sum` are multiples of this: threads share no cache line. Rows that
   moved are prefetched, since hardware prefetch cannot predict which they are. */
enum { SUM_COLUMNS = 64, PREFETCH_ROWS = 8, COUNTED_BY_THREADS = 1024 };

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

void host_nearest_add(struct nearest_counts *counts, const struct nearest_counts *local) {
#pragma omp atomic
    counts->changed += local->changed;
#pragma omp atomic
    counts->ambiguous += local->ambiguous;
#pragma omp atomic
    counts->exact += local->exact;
#pragma omp atomic
    counts->uncertified += local->uncertified;
}

/* Lists the rows whose label changed, and counts them where they are now. Returns how many. */
static size_t list_moved(const struct cluster_rows *rows, uint64_t *count) {
    size_t moved = 0;
    for (size_t r = 0; r < rows->count; r++) {
        rows->moved[moved] = (uint32_t)r;
        if (rows->before[r] == rows->label[r]) continue;
        moved++;
        count[rows->label[r]]++;
        if (rows->before[r] != NEAREST_NONE) count[rows->before[r]]--;
    }
    return moved;
}

/* Each thread counts its rows by itself. */
static void count_labels(const struct cluster_rows *rows, size_t clusters, int threads, uint64_t *count) {
    if (clusters > COUNTED_BY_THREADS) {
        for (size_t r = 0; r < rows->count; r++) count[rows->label[r]]++;
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        uint64_t own[COUNTED_BY_THREADS] = {0};
#pragma omp for schedule(static)
        for (size_t r = 0; r < rows->count; r++) own[rows->label[r]]++;
#pragma omp critical(count_labels)
        for (size_t j = 0; j < clusters; j++) count[j] += own[j];
    }
}

#define ELEMENT_BITS 32
#define LEAST FLT_TRUE_MIN
#define LARGEST FLT_MAX
#define EPSILON FLT_EPSILON
#include "kernels/host/element.h"
#include "kernels/host/ops/nearest.h"
#include "kernels/host/ops/sums.h"
#undef LEAST
#undef LARGEST
#undef EPSILON
#define ELEMENT_BITS 64
#define LEAST DBL_TRUE_MIN
#define LARGEST DBL_MAX
#define EPSILON DBL_EPSILON
#include "kernels/host/element.h"
#include "kernels/host/ops/nearest.h"
#include "kernels/host/ops/sums.h"

void host_nearest_rows(enum gemm_dtype dtype, const struct nearest_call *call, size_t first, size_t end,
                       double error, struct nearest_counts *counts) {
    (dtype == GEMM_F32 ? nearest_rows_f32 : nearest_rows_f64)(call, first, end, error, counts);
}

double host_nearest_squared(enum gemm_dtype dtype, size_t features, const void *x, const void *centre) {
    return dtype == GEMM_F32 ? squared_distance_f32(features, x, centre)
                             : squared_distance_f64(features, x, centre);
}

void host_nearest_candidate(enum gemm_dtype dtype, size_t features, const void *x, const void *values,
                            size_t j, double squared, struct host_nearest *nearest) {
    if (dtype == GEMM_F32) {
        candidate_f32(features, x, values, j, squared, nearest);
    } else {
        candidate_f64(features, x, values, j, squared, nearest);
    }
}

const struct cluster_ops *host_cluster_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? &cluster_ops_f32 : dtype == GEMM_F64 ? &cluster_ops_f64 : NULL;
}
