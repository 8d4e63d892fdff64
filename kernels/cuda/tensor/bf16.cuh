/* GEMM of 16 bits on the tensor cores, bfloat16 or half precision: docs/bf16.md, docs/fp16.md. Compute
   capability 9.0 alone. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_CUH

#include <cuda.h>

#include "kernels/cuda/ops/epilogue.cuh"
#include "kernels/cuda/later_sums.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops/reduce.cuh"
#include "kernels/cuda/tensor/tensor_map.cuh"
extern "C" {
#include "kernels/ops.h"
}

static const unsigned BF16_ROWS = 128, BF16_K = 64;           /* of a tile of C, and of a stage */
static const unsigned BF16_SLOTS = 2, BF16_SLOT_BYTES = 2048; /* of each warp, for the epilogue */
static const unsigned BF16_SUMMED_ROWS = 16, BF16_LARGEST_CLUSTER = 8;

/* What a block does with C. */
enum bf16_epilogue { BF16_PLAIN, BF16_FLOAT32, BF16_FORWARD, BF16_BACKWARD };

/* All that a launch needs. */
struct bf16_product {
    CUtensorMap a, b, c, pre; /* pre: what the forward epilogue stores before the activation */
    CUtensorMap read;         /* what the backward epilogue reads: Y, or Z */
    unsigned m, n, k;
    unsigned pair;  /* 2: two blocks of a cluster, one tile above the other, share B; else 1 */
    unsigned parts; /* of k, in as many pairs of a cluster, for one tile: 1, 2 or 4 */
    enum bf16_epilogue epilogue;
    enum activation activation;
    bool stores_pre;
    float alpha;
    const float *bias;
    float *partials; /* [m / BF16_SUMMED_ROWS, rounded up][n]: sums of the columns of C as stored */
    unsigned stages; /* of the ring buffer */
};

/* The width of a tile, 64, 128, 192 or 256, and the members of the same name of bf16_product. */
struct bf16_shape {
    unsigned columns, pair, parts;
};

/* What is divided into tiles, and the stages of k of each. */
struct bf16_size {
    size_t rows, columns;
    unsigned stages;
};

struct bf16_workspace {
    bool open; /* this GPU can run the kernels */
    int processors;
    unsigned clusters[BF16_LARGEST_CLUSTER + 1]; /* [b]: bf16_clusters(b), for b = 1, 2, 4, 8 */
    struct cuda_reduction reduction;
    struct later_sums *later;
};

/* bf16_wgmma.cu */
bool bf16_open(void);
unsigned bf16_clusters(unsigned blocks); /* of so many blocks that can be resident at the same time, or 0 */
unsigned bf16_blocks(unsigned columns, const bf16_product &product, unsigned processors); /* of a launch */
void bf16_launch(enum gemm_dtype dtype, enum gemm_op op, unsigned columns, const bf16_product &product,
                 unsigned processors, cuda_launcher &launcher);

/* bf16.cu */
void bf16_workspace_open(struct bf16_workspace *workspace, int processors,
                         const struct cuda_reduction *reduction, struct later_sums *later);

/* The tiles with the fewest estimated cycles, of those whose widths are multiples of `step`; and how many
   stages of the ring buffer fit beside them. */
bf16_shape bf16_shape_of(const struct bf16_workspace *workspace, bf16_size size, unsigned step);
unsigned bf16_ring_stages(unsigned columns);

/* Do these tiles keep the tensor cores of all SMs busy, but for a factor `most`? */
bool bf16_fills(const struct bf16_workspace *workspace, bf16_size size, bf16_shape shape, double most);

/* Has the scratch memory room for so many rows of sums of columns, if the call needs them? */
bool bf16_partials_fit(const struct gemm_call *call, unsigned rows);

/* The bias gradient of a call: the sum of the rows in the scratch memory. */
void bf16_sum_columns(const struct bf16_workspace *workspace, const struct gemm_call *call, unsigned rows,
                      cuda_launcher &launcher);

/* The tensor map of an operand with `size` rows or columns along those of C, `across` of them in a box. */
void bf16_map_operand(CUtensorMap *map, enum tensor_element element, const void *memory, size_t size,
                      size_t k, bool k_is_rows, size_t ld, unsigned across, cuda_fault *fault);

/* Can bf16_gemm run this call, with its epilogue? */
bool bf16_supports(const struct bf16_workspace *workspace, const struct gemm_call *call);

/* Is it faster than cuBLAS for this call? */
bool bf16_pays(const struct bf16_workspace *workspace, const struct gemm_call *call);

/* A weight gradient of so many rows, and of so many weights, that it pays to update them in the same kernel:
   bf16_gradient_large_wgmma.cu. */
bool bf16_large_gradient_takes(const struct bf16_workspace *workspace, const struct gemm_call *call);

/* For calls that it takes, with updates that bf16_gradient_fits. */
void bf16_large_gradient_update(const struct bf16_workspace *workspace, const struct gemm_call *call,
                                const struct weight_update *update, cuda_launcher &launcher);

/* For calls that bf16_supports; errors go to launcher.fault. Products of one workspace run on one stream: the
   sums of columns are in its scratch memory. */
void bf16_gemm(const struct bf16_workspace *workspace, const struct gemm_call *call, cuda_launcher &launcher);

#endif
