/* A device and the GEMM backend plugged into it, opened together: what a network computes with. */
#ifndef TESSERA_BACKEND_COMPUTE_H
#define TESSERA_BACKEND_COMPUTE_H

#include "kernels/gemm.h"
#include "src/backend/offload.h"
#include "src/base/status.h"
#include "src/device/device.h"

/* Where the tensors of a GPU backend live: on the GPU, or in host memory with copies for each GEMM. */
enum residency { RESIDENCY_DEVICE, RESIDENCY_HOST };

struct compute_options {
    int threads; /* of the host, as requested; compute->threads has the count in use */
    int ordinal; /* which GPU, from 0 */
    enum residency residency;
    bool pinned; /* page-locked host memory, with RESIDENCY_HOST */
    enum gemm_precision precision;
    const char *options; /* of the backend, as in backend_options.h; NULL or "": none */
};

struct audit;
struct comm;

struct compute {
    struct device device; /* where tensors live */
    const struct gemm_backend *backend;
    void *context;                    /* of the backend; NULL with residency host */
    struct offload offload;           /* with residency host */
    struct device_driver pinned_host; /* with pinned memory */
    enum residency residency;
    bool pinned;
    enum gemm_precision precision;
    struct audit *audit;   /* of compute_gemm; NULL: no call is audited */
    struct comm *comm;     /* the other processes of this training; the owner sets it; NULL: none */
    size_t networks;       /* that train on this device at the same time; the owner sets it; 0: one */
    int threads;           /* of the host, in use; 1 if GEMM and tensors are on a GPU */
    char name[768];        /* of the backend, with its options: "cuda-shmem:tile=16" */
    char description[256]; /* the backend in words, for headers */
    char gpu[256];         /* the GPU in words, "" without */
    /* Of compute_gemm_batch, while it runs: */
    const struct gemm_call *batch;
    size_t batch_count;
    const struct gemm_strides *batch_strides;
};

/* Opens the backend's device, then the backend on it. STATUS_UNAVAILABLE if there is no GPU of that number,
   or if the backend does not start or does not support the precision; STATUS_USAGE if an option is
   wrong. */
enum status compute_open(struct compute *compute, const struct gemm_backend *backend,
                         const struct compute_options *options);
void compute_close(struct compute *compute);

/* One GEMM on tensors of compute->device. If the backend refuses or fails, STATUS_FAILED names it and the
   shape; STATUS_VERIFY_FAILED if the call is audited and wrong. */
enum status compute_gemm(struct compute *compute, const struct gemm_call *call);

/* `count` calls without epilogues: those of matrices i times the strides after the ones of `call`. If the
   call is audited, then on one of them. */
enum status compute_gemm_batch(struct compute *compute, const struct gemm_call *call, size_t count,
                               const struct gemm_strides *strides);

/* Can the backend do the epilogue, or the backward epilogue, of this call itself? */
bool compute_fuses(struct compute *compute, const struct gemm_call *call);

/* Can the backend update the weights in this call, a weight gradient? */
bool compute_fuses_update(struct compute *compute, const struct gemm_call *call,
                          const struct weight_update *update);

/* A call for which that is true. *updated: the weights are updated, and C is not written; false: C is the
   gradient, because this call is audited. */
enum status compute_gemm_update(struct compute *compute, const struct gemm_call *call,
                                const struct weight_update *update, bool *updated);

/* Several such calls, at least one, at once, if the backend can and no audit may be due (compute->audit is
   NULL): *done. */
enum status compute_gemm_updates(struct compute *compute, const struct gemm_call *calls,
                                 const struct weight_update *updates, size_t count, bool *done);

/* Computes the output layer if the backend can: *done. Its products are audited as those of compute_gemm. */
enum status compute_output_layer(struct compute *compute, const struct output_layer *layer, bool *done);

/* Lists the GPU kernels that this call would launch, up to `size`, and returns how many: 0 on the host and
   for libraries. The matrices may be NULL: then they count as aligned. */
size_t compute_kernels(struct compute *compute, const struct gemm_call *call, struct gemm_kernel *list,
                       size_t size);

/* "NN", "TN", "NT", "TT"; "f32", "tf32", "bf16", "fp16" (true precision has the name of the dtype); "device",
   "host (pinned)", "host (pageable)". */
const char *gemm_op_name(enum gemm_op op);
const char *compute_precision(const struct compute *compute, enum gemm_dtype dtype);
const char *compute_residency(const struct compute *compute);

#endif
