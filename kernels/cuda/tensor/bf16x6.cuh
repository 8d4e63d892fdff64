/* float32 GEMM by six bf16 products on the tensor cores, for medium batches: docs/tensor-cores.md. It keeps
   nothing between calls: operands are split into three bf16 planes on the way to the tensor cores. For few
   tiles of C it splits k over a cluster (split-K): each thread block of the cluster sums one part of k. With
   --precision tf32 it takes two planes and three products. It needs compute capability 9.0. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16X6_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16X6_CUH

#include <cuda.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops/epilogue.cuh"
#include "kernels/cuda/ops/reduce.cuh"
#include "kernels/cuda/ops/update_rule.cuh"

/* Of a tile of C, and of a stage. Tiles have 64 columns, or 72 if that fits the shape better. */
static const unsigned BF16X6_ROWS = 128, BF16X6_COLUMNS = 64, BF16X6_WIDE = 72, BF16X6_K = 64;
static const unsigned BF16X6_MOST_PARTS = 8;
static const unsigned BF16X6_BOX_ROWS = 16;      /* of weights that a warp updates */
static const unsigned BF16X6_MOST_GRADIENTS = 5; /* of a launch */
static const unsigned BF16X6_MOST_RESTS = 2;

/* All that a launch needs, with sink and slope. */
struct bf16x6_product {
    CUtensorMap a, b;
    unsigned m, n, k;
    unsigned width;         /* of a tile: BF16X6_COLUMNS or BF16X6_WIDE */
    unsigned rows, columns; /* tiles */
    unsigned clusters;      /* of the grid; each has one or more tiles */
    unsigned parts;         /* of k, one for each thread block of a cluster: 1, 2, 3, 4, 5 or 8 */
    bool early;             /* b_complete of the call */
    /* Of each part: its first stage of k, and the first octet (eight columns of a tile) that its block
       finishes. The device would divide slowly. */
    unsigned stage[BF16X6_MOST_PARTS + 1], octet[BF16X6_MOST_PARTS + 1];
    const float *a_values, *b_values; /* op(A)(i,p) = a_values[i * a_row + p * a_column] */
    size_t a_row, a_column, b_row, b_column;
    cuda_reduction reduction; /* for sums of columns over several tiles */
};

/* A weight gradient, and what it updates by sgd: weights and, with momentum, velocities, with ldc. The other
   members are those of bf16x6_product and sink. */
struct bf16x6_gradient {
    CUtensorMap a, b, map[2];
    float *array[2];
    static constexpr float beta = 0;
    bool early;      /* b_complete of the call */
    float alpha, *c; /* c: the weights */
    size_t ldc;
    unsigned m, n, k, rows, columns;
    const float *a_values, *b_values;
    size_t a_row, a_column, b_row, b_column;
};

/* An update whose gradient is complete, such as that of biases. array: as above. */
struct bf16x6_rest {
    float *array[2];
    const float *grad;
    unsigned count;
};

/* All that a launch of weight gradients needs. Its blocks divide the tiles of all, one after the other. */
struct bf16x6_gradients {
    bf16x6_gradient list[BF16X6_MOST_GRADIENTS];
    unsigned count, first[BF16X6_MOST_GRADIENTS]; /* first: tile of each; ~0u: there are fewer */
    bf16x6_rest rest[BF16X6_MOST_RESTS];
    unsigned rests;
    unsigned tiles, clusters;
    /* As of each: all have the same k. With parts of k there is only one. */
    unsigned parts, stage[BF16X6_MOST_PARTS + 1], octet[BF16X6_MOST_PARTS + 1];
    update_rule<float> rule;
    const struct step_scalars *step;
    const struct tally *guard;
};
static_assert(sizeof(bf16x6_gradients) + sizeof(slope<float>) <= 4096); /* parameters of a kernel */

struct bf16x6_workspace {
    bool open;                                /* this GPU can run the kernels */
    unsigned planes;                          /* of an operand: 3, or 2 for TF32 */
    unsigned clusters[BF16X6_MOST_PARTS + 1]; /* [b]: of b blocks that can be resident at the same time */
    struct cuda_reduction reduction;
};

/* bf16x6_wgmma.cu */
bool bf16x6_open(unsigned planes);
unsigned bf16x6_clusters(unsigned planes, unsigned blocks);
void bf16x6_launch(unsigned planes, enum gemm_op op, const bf16x6_product &product, const sink<float> &out,
                   const slope<float> &back, cuda_launcher &launcher);
void bf16x6_launch_update(unsigned planes, const bf16x6_gradients &all, const slope<float> &none,
                          cuda_launcher &launcher);

/* bf16x6.cu */
void bf16x6_workspace_open(struct bf16x6_workspace *workspace, unsigned planes, int processors,
                           const struct cuda_reduction *reduction);

/* Can bf16x6_gemm run this call, with its epilogue? */
bool bf16x6_supports(const struct bf16x6_workspace *workspace, const struct gemm_call *call);

/* Is it faster than cuBLAS and float32_gemm for this call? */
bool bf16x6_pays(const struct bf16x6_workspace *workspace, const struct gemm_call *call);

/* Can it do this update, for a call that it takes, or one with k == 0? */
bool bf16x6_updates(const struct gemm_call *call, const struct weight_update *update);

/* For calls that bf16x6_supports; errors go to launcher.fault. */
void bf16x6_gemm(const struct bf16x6_workspace *workspace, const struct gemm_call *call,
                 cuda_launcher &launcher);

/* .. with updates that it can do, in place of C: the first ones, up to five with the same rule and k, in one
   launch; one alone if it has parts of k; and up to two without product. The sums are those of bf16x6_gemm.
   Returns how many. */
size_t bf16x6_update(const struct bf16x6_workspace *workspace, const struct gemm_call *calls,
                     const struct weight_update *updates, size_t count, cuda_launcher &launcher);

#endif
