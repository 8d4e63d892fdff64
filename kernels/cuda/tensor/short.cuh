/* Products of 16 bits or TF32 of up to 128 rows, bound by latency: docs/bf16.md. Compute capability 9.0
   alone. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_SHORT_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_SHORT_CUH

#include "kernels/cuda/launch.cuh"

static const unsigned SHORT_MOST_PARTS = 8; /* of k; blocks of a cluster */

struct short_workspace {
    bool open;                               /* this GPU can run the kernel */
    bool tf32;                               /* calls of float32 are computed in TF32, else not at all */
    unsigned clusters[SHORT_MOST_PARTS + 1]; /* [b]: of b blocks that fit at the same time, one on an SM */
};

void short_workspace_open(struct short_workspace *workspace, bool tf32);

/* Can short_gemm run this call, with its epilogue? */
bool short_supports(const struct short_workspace *workspace, const struct gemm_call *call);

/* For calls that it supports; errors go to launcher.fault. */
void short_gemm(const struct short_workspace *workspace, const struct gemm_call *call,
                cuda_launcher &launcher);

#endif
