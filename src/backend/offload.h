/* Residency host: tensors stay in host memory, and each GEMM call copies A and B (and C, unless beta is 0) to
   the GPU and C back. It measures the cost of transfers; the training code does not know of it. */
#ifndef TESSERA_BACKEND_OFFLOAD_H
#define TESSERA_BACKEND_OFFLOAD_H

#include "kernels/gemm.h"
#include "src/device/device.h"

/* The copy of A, B or C on the GPU. It grows to the largest matrix so far. */
struct offload_buffer {
    void *memory;
    size_t bytes;
};

struct offload {
    struct device gpu;
    const struct gemm_backend *backend; /* a CUDA backend */
    void *context;                      /* of the backend */
    struct offload_buffer a, b, c;
};

/* The GEMM of `offload->backend` for operands in host memory. Transfers in the open lap of `profile`
   (may be NULL) count as PART_H2D and PART_D2H; the rest of the lap is kernel time. Operands may be dense or
   padded; the padding of C is unchanged. */
enum status offload_gemm(struct offload *offload, const struct gemm_call *call, struct profile *profile);

/* The kernels that the same call would launch. The backend must have the slot `kernels`. */
size_t offload_kernels(struct offload *offload, const struct gemm_call *call, struct gemm_kernel *list,
                       size_t size);

void offload_close(struct offload *offload);

/* device_host with page-locked memory of `gpu_driver`, so that copies need no staging. */
struct device_driver offload_pinned_host(const struct device_driver *gpu_driver);

#endif
