/* Lists of weight gradients of 16 bits, with the update of the weights, for the kernels of bf16_gradient.cu
   and bf16_gradient_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_GRADIENT_LIST_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_GRADIENT_LIST_CUH

#include <cuda.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/update_rule.cuh"

static const unsigned MOST_GRADIENTS = 10; /* of a launch */

/* A weight gradient. k 0: C is it. */
struct weight_gradient {
    CUtensorMap a, b; /* [k][m], [k][n]: boxes of 64 columns */
    size_t ldc;
    unsigned m, n, k, columns; /* columns: of tiles */
    float alpha;
    const float *c;  /* with ldc; read if k is 0 */
    float *array[3]; /* with ldc: weights and moments; UPDATE_NONE: C */
    void *rounded;   /* T */
};

/* All that a launch needs: the tiles of one gradient after the other. */
struct weight_gradients {
    weight_gradient list[MOST_GRADIENTS];
    unsigned first[MOST_GRADIENTS]; /* tile of each; ~0u: there are fewer */
    unsigned tiles;
    update_rule<float> rule;
    const struct step_scalars *step;
    const struct tally *guard;

    /* The gradient of a tile. */
    __device__ unsigned number_of(unsigned tile) const {
        unsigned number = 0;
#pragma unroll
        for (unsigned i = 1; i < MOST_GRADIENTS; i++) number += tile >= first[i];
        return number;
    }
};
static_assert(sizeof(weight_gradients) <= 4096); /* kernel parameters */

typedef void weight_gradient_kernel(weight_gradients);

/* Weights and moments that no product reads are the first that leave the caches. */
static __device__ inline pack<float, 4> load_once(const float *memory) {
    const float4 four = __ldcs((const float4 *)memory);
    return {four.x, four.y, four.z, four.w};
}

static __device__ inline void store_once(float *memory, const pack<float, 4> &four) {
    __stcs((float4 *)memory, make_float4(four.value[0], four.value[1], four.value[2], four.value[3]));
}

/* With four sums: updates a pack of weights and moments, and stores it. P: with alpha, array and rounded of
   weight_gradient. */
template <typename T, update_method METHOD, typename P, int ARRAYS>
static __device__ inline void update_pack(const P &p, const update_rule<float> &rule,
                                          const update_rates<float> &rates, const pack<float, 4> &sums,
                                          pack<float, 4> (&was)[ARRAYS], size_t at) {
    uint32_t rounded[4]; /* of T, 16 bits each */
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float m = ARRAYS > 1 ? was[1 % ARRAYS].value[e] : 0, v = ARRAYS > 2 ? was[2 % ARRAYS].value[e] : 0;
        update_parameter<METHOD>(rule, rates, p.alpha * sums.value[e], was[0].value[e], m, v);
        if (ARRAYS > 1) was[1 % ARRAYS].value[e] = m;
        if (ARRAYS > 2) was[2 % ARRAYS].value[e] = v;
        const T weight = was[0].value[e];
        rounded[e] = *(const uint16_t *)&weight;
    }
#pragma unroll
    for (int array = 0; array < ARRAYS; array++) store_once(p.array[array] + at, was[array]);
    *(uint2 *)((T *)p.rounded + at) =
        make_uint2(rounded[0] | rounded[1] << 16, rounded[2] | rounded[3] << 16);
}

/* UPDATE_NONE: the same for C. */
static __device__ inline void store_pack(const weight_gradient &p, pack<float, 4> sums, size_t at) {
#pragma unroll
    for (int e = 0; e < 4; e++) sums.value[e] *= p.alpha;
    pack_at<4>(p.array[0] + at) = sums;
}

/* The kernel for medium batches, of more than SHORT_GRADIENT_K rows: bf16_gradient_wgmma.cu. Its tiles have
   MEDIUM_SIDE rows and columns, and boxes MEDIUM_K rows. */
static const unsigned SHORT_GRADIENT_K = 128, MOST_GRADIENT_K = 2048, MEDIUM_SIDE = 128, MEDIUM_K = 64,
                      MEDIUM_THREADS = 544, MEDIUM_SHARED_BYTES = (224 << 10) + 2048;
bool medium_gradient_open(void);
weight_gradient_kernel *medium_gradient_of(enum gemm_dtype dtype, const struct update &rule);

#endif
