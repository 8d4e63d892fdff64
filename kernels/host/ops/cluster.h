/* The clustering ops on the host. */
#ifndef TESSERA_KERNELS_HOST_OPS_CLUSTER_H
#define TESSERA_KERNELS_HOST_OPS_CLUSTER_H

#include "kernels/nearest.h"

/* The table for f32 or f64; NULL for another dtype. Its functions take a struct host_ops_context. */
const struct cluster_ops *host_cluster_ops(enum gemm_dtype dtype);

/* For other kernels of the host that compute scores: labels rows first .. end - 1, whose scores
   have at most this error, and adds to the counts, which belong to the thread. */
void host_nearest_rows(enum gemm_dtype dtype, const struct nearest_call *call, size_t first, size_t end,
                       double error, struct nearest_counts *counts);

/* The nearest of the candidates so far. The first one is zero but for `any`. */
struct host_nearest {
    double squared; /* its distance, in float64 */
    uint32_t label;
    bool any, exact, inexact; /* see struct nearest_counts */
};

/* sum (x - c)^2 in float64. */
double host_nearest_squared(enum gemm_dtype dtype, size_t features, const void *x, const void *centre);

/* Compares centre j, values[j], of this host_nearest_squared with the nearest so far, in float64 and then
   without error. Candidates come in ascending order: the first of equals stays. */
void host_nearest_candidate(enum gemm_dtype dtype, size_t features, const void *x, const void *values,
                            size_t j, double squared, struct host_nearest *nearest);

/* Adds the counts of a thread to those of all. */
void host_nearest_add(struct nearest_counts *counts, const struct nearest_counts *local);

#endif
