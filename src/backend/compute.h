/* A device and the GEMM backend plugged into it, opened together: what a network computes with. */
#ifndef TESSERA_BACKEND_COMPUTE_H
#define TESSERA_BACKEND_COMPUTE_H

#include "kernels/gemm.h"
#include "src/backend/offload.h"
#include "src/base/status.h"
#include "src/device/device.h"

/* Where tensors live, if the backend runs on a GPU: there, or in host memory with copies for each GEMM. */
enum residency { RESIDENCY_DEVICE, RESIDENCY_HOST };

struct compute_options {
    int threads; /* of the host: a wish; compute->threads is what came of it */
    int ordinal; /* which GPU, from 0 */
    enum residency residency;
    bool pinned; /* page-locked host memory, with RESIDENCY_HOST */
    enum gemm_precision precision;
    int tile;              /* of cuda-shmem and cuda-order; 0: their default */
    bool dynamic_shared;   /* of both */
    enum gemm_order order; /* of cuda-order */
    bool rounded_multiply; /* of cuda-order */
    const char *isa;       /* of tuned; NULL: the best */
};

struct compute {
    struct device device; /* where tensors live */
    const struct gemm_backend *backend;
    void *context;                    /* the backend's; NULL with residency host */
    struct offload offload;           /* with residency host */
    struct device_driver pinned_host; /* with pinned memory */
    enum residency residency;
    bool pinned;
    enum gemm_precision precision;
    int threads;           /* of the host, really in use, by GEMM and element-wise work alike */
    char description[256]; /* the backend in words, for headers */
    char gpu[256];         /* the GPU in words, "" without */
};

/* Opens the backend's device, then the backend on it. STATUS_UNAVAILABLE if it cannot be used so (no GPU of
   that number, a precision that the backend has not). */
enum status compute_open(struct compute *compute, const struct gemm_backend *backend,
                         const struct compute_options *options);
void compute_close(struct compute *compute);

/* One GEMM on tensors of compute->device. STATUS_FAILED names the backend and the shape if it refuses or
 * fails. */
enum status compute_gemm(struct compute *compute, const struct gemm_call *call);

/* Can the backend do the epilogue, or the way back, of this call itself? */
bool compute_fuses(struct compute *compute, const struct gemm_call *call);

/* The GPU kernels that this call launches, up to `size`; returns how many. 0 where the backend does not say:
   on the host, and in libraries. The matrices may be NULL: then they count as aligned. */
size_t compute_kernels(struct compute *compute, const struct gemm_call *call, struct gemm_kernel *list,
                       size_t size);

/* "NN", "TN", "NT", "TT"; "f32", "tf32", "bf16" (true precision has the name of the dtype); "device", "host",
 * "host (pinned)". */
const char *gemm_op_name(enum gemm_op op);
const char *compute_precision(const struct compute *compute, enum gemm_dtype dtype);
const char *compute_residency(const struct compute *compute);

#endif
