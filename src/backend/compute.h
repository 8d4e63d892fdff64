/* A device and the GEMM backend plugged into it, opened together: what a network computes with. */
#ifndef TESSERA_BACKEND_COMPUTE_H
#define TESSERA_BACKEND_COMPUTE_H

#include "kernels/gemm.h"
#include "src/base/status.h"
#include "src/device/device.h"

struct compute {
    struct device device;
    const struct gemm_backend *backend;
    void *context;
    int threads;           /* really in use, by GEMM and element-wise work alike */
    char description[256]; /* the backend in words, for headers */
};

/* Opens the backend's device, then the backend on it. `threads` is a wish; compute->threads what came of it.
 */
enum status compute_open(struct compute *compute, const struct gemm_backend *backend, int threads);
void compute_close(struct compute *compute);

/* One GEMM. STATUS_FAILED names the backend and the shape if it refuses or fails. */
enum status compute_gemm(struct compute *compute, const struct gemm_call *call);

/* Can the backend do this epilogue itself? */
bool compute_fuses(struct compute *compute, enum gemm_dtype dtype, const struct gemm_epilogue *epilogue);

/* "NN", "TN", "NT", "TT". */
const char *gemm_op_name(enum gemm_op op);

#endif
