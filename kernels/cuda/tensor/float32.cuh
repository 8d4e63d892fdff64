/* float32 GEMM on the tensor cores, as accurate as float32 arithmetic: docs/tensor-cores.md. Compute capability
   9.0 alone. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_CUH

#include "kernels/cuda/gemm/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor/planes.cuh"

static const unsigned FLOAT32_TILE = 128; /* rows and columns of a tile of C: two blocks of planes */

/* An operand: blocks along its rows of op(A) or columns of op(B), and along k. */
struct plane_operand {
    const char *blocks;
    const int *exponents;
    size_t count;                                /* of blocks of a plane */
    unsigned blocks_across, step_across, step_k; /* block indices from one block to the next */

    plane_operand(const planes &of, bool k_is_rows)
        : blocks(of.blocks), exponents(of.exponents), count(of.count()),
          blocks_across(k_is_rows ? of.column_blocks : of.row_blocks),
          step_across(k_is_rows ? 1 : of.column_blocks), step_k(k_is_rows ? of.column_blocks : 1) {}

    /* Beyond the last block: the last one, whose sums are not stored. */
    __device__ size_t index(unsigned across, unsigned k) const {
        const unsigned inside = across < blocks_across ? across : blocks_across - 1;
        return (size_t)inside * step_across + (size_t)k * step_k;
    }
};

/* All that a launch needs. `state` is that of the split; the last thread block resets it to 0. */
struct float32_product {
    size_t m, n, k;
    plane_operand a, b;
    unsigned *state, *ticket;
    float
        *column_partials; /* [m / 64, rounded up][n]: sums of columns of 64 rows, for the backward epilogue */
    const float *a_values, *b_values; /* as they are: op(A)(i,p) = a_values[i * a_row + p * a_column] */
    size_t a_row, a_column, b_row, b_column;
};

/* Is this GPU, and the code that is loaded, of compute capability 9.0 (float32_wgmma.cu)? */
bool float32_open(void);

/* After split_launch (float32_wgmma.cu). */
void float32_launch(enum gemm_op op, const float32_product &product, const sink<float> &out,
                    const slope<float> &back, unsigned processors, cuda_launcher &launcher);

/* Memory of the split operands. It grows, and keeps what it had: captured graphs use that. */
enum { FLOAT32_MOST_GROWTHS = 32 };
struct float32_workspace {
    bool open; /* float32_open returned true */
    unsigned processors;
    unsigned *counters;                 /* state and ticket: 0 between calls */
    void *memory[FLOAT32_MOST_GROWTHS]; /* the last one, of `size` bytes, is in use */
    unsigned growths;
    size_t size;
};

/* `counters` are allocated if the GPU is usable. False on an error. */
bool float32_workspace_open(struct float32_workspace *workspace, unsigned processors, cuda_fault *fault);
void float32_workspace_close(struct float32_workspace *workspace);

/* Is this a float32 call that float32_gemm can run: any shape with k > 0, NN, TN or NT? */
bool float32_supports(const struct float32_workspace *workspace, const struct gemm_call *call);

/* Is it faster than float32 arithmetic for this call? */
bool float32_pays(const struct gemm_call *call);

void float32_gemm(struct float32_workspace *workspace, const struct gemm_call *call, cuda_launcher &launcher);

#endif
