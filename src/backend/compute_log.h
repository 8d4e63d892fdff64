/* What a run computes with, for the header line of its log. */
#ifndef TESSERA_BACKEND_COMPUTE_LOG_H
#define TESSERA_BACKEND_COMPUTE_LOG_H

#include "src/backend/compute.h"
#include "src/base/jsonl.h"

/* Adds threads, backend, backend_description, device, dtype, precision, residency and, if there is one, gpu.
   `residency`: that of the data, as compute_residency of tensors. */
void compute_log(cJSON *header, const struct compute *compute, enum gemm_dtype dtype, const char *residency);

#endif
