/* GEMM of TF32 on the tensor cores, chosen for more than 128 rows (fewer: short.cuh): docs/tensor-cores.md.
   Compute capability 9.0 alone. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_TF32_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_TF32_CUH

#include "kernels/cuda/tensor/bf16.cuh"
#include "kernels/cuda/tensor/float32.cuh"

/* Of a tile, whose other side is BF16_ROWS. Narrower ones read more of shared memory for each product, and
   take nearly twice as long. */
static const unsigned TF32_COLUMNS = 256;

/* The kernel has k along the rows of its first operand and along the columns of the second: NN is computed as
   C^T = B^T A^T; of TN and NT the gradient is needed as its transpose. */

static const unsigned TF32_SUMMED_ROWS = 16; /* of a warp, which are not neighbours */

/* All that a launch needs beside the members of the same meaning. m and n of NN are those of C^T; `partials`
   is [m / 64, rounded up][4][n]. */
struct tf32_product : bf16_product {
    float *to, *to_pre;        /* C, or NULL; the values before the activation, or NULL */
    const float *derived_from; /* what the backward epilogue reads */
    float *transposed;         /* receives C^T, or NULL */
    size_t ld, ld_transposed;  /* ld: of all others */
};

/* tf32_wgmma.cu */
bool tf32_open(void);
void tf32_launch(enum gemm_op op, const tf32_product &product, unsigned processors, cuda_launcher &launcher);

/* tf32.cu. Can tf32_gemm run this call, with its epilogue? */
bool tf32_supports(const struct bf16_workspace *workspace, const struct gemm_call *call);

/* Is it faster than cuBLAS for this call? */
bool tf32_pays(const struct bf16_workspace *workspace, const struct gemm_call *call);

/* Before a call that this kernel or another runs: restores operands of it that were written as their
   transpose alone, if it reads them as they are. */
void tf32_restore(struct float32_workspace *copies, const struct gemm_call *call, bool by_this_kernel,
                  cuda_launcher &launcher);

/* For calls that tf32_supports; of gradients after float32_reserve_transposed. */
void tf32_gemm(const struct bf16_workspace *workspace, struct float32_workspace *copies,
               const struct gemm_call *call, cuda_launcher &launcher);

#endif
