/* Residency host: tensors stay in host memory, and each GEMM call copies A and B (and C, unless beta is 0) to
   the GPU and C back. A way to measure what transfers cost; the training code does not know of it. */
#ifndef TESSERA_BACKEND_OFFLOAD_H
#define TESSERA_BACKEND_OFFLOAD_H

#include "kernels/gemm.h"
#include "src/device/device.h"

/* One of the three matrices on the GPU: grows to the largest that came by. */
struct offload_buffer {
    void *memory;
    size_t bytes;
};

struct offload {
    struct device gpu;
    const struct gemm_backend *backend; /* a CUDA backend */
    void *context;                      /* its */
    struct offload_buffer a, b, c;
};

/* The GEMM of `offload->backend` for operands in host memory. Transfers are taken from the open lap of
   `profile` (may be NULL) as PART_H2D and PART_D2H, so that the rest of it is kernel time. Dense or padded
   operands; what lies between the columns of C stays as it is. */
enum status offload_gemm(struct offload *offload, const struct gemm_call *call, struct profile *profile);

/* The kernels that the same call would launch, as the slot `kernels` of struct gemm_backend (which the
   backend has). */
size_t offload_kernels(struct offload *offload, const struct gemm_call *call, struct gemm_kernel *list,
                       size_t size);

void offload_close(struct offload *offload);

/* device_host, but its memory comes from `gpu_driver` page-locked, so that copies need no staging. */
struct device_driver offload_pinned_host(const struct device_driver *gpu_driver);

#endif
