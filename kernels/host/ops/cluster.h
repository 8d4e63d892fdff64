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

/* Adds the counts of a thread to those of all. */
void host_nearest_add(struct nearest_counts *counts, const struct nearest_counts *local);

#endif
