/* Two hidden layers, look-ahead: the shared memory of a block of the chain. See two_ahead_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_MEMORY_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_AHEAD_MEMORY_CUH

#include "kernels/cuda/persistent/two_ahead.cuh"

namespace persistent::two_ahead {

static const int W3_PITCH = 13; /* float4 of four rows: no bank conflicts */

struct chain_memory {
    char h1[activation_matrix::BYTES]; /* [planes][TILE / 8][ROWS] of 8 units */
    char dz2[activation_matrix::BYTES], w2[weight_matrix::BYTES];
    uint4 gram[GRAM_STEP];
    /* Mailboxes: products of the cluster's blocks for this block's units, and for its rows. */
    float4 dh1[CLUSTER][MAIN_WARPS][32];
    float4 logits[CLUSTER][OWN][PACKETS];
    uint32_t h1_most[CLUSTER][MAIN_WARPS]; /* largest magnitudes */
    char dz1[2][F16_PLANES][ROWS][16];     /* by step */
    uint32_t dz1_most[2][MAIN_WARPS];
    float4 late[MAIN_THREADS]; /* late product and bias; then H1 on its way */
    float4 h2[OWN][TILE / 4], dz2_rows[OWN][TILE / 4], gradient[OWN][PACKETS]; /* of the owned rows */
    float4 w3[TILE / 4][W3_PITCH];                                             /* 12 classes of each row */
    float b2[TILE], b3[4 * PACKETS], b3_velocity[4 * PACKETS];
    float b1[UNITS], b1_velocity[UNITS], b1_ahead[2][UNITS];
    float4 velocity[TILE / 8][WEIGHT_THREADS];       /* of W2 */
    plane_scale h1_scale[2], dz2_scale[2], w2_scale; /* by step */
    uint32_t w2_most[WEIGHT_WARPS], w3_most[HELPER_WARPS];
    int label[2][OWN];     /* by step */
    float4 record[2][OWN]; /* by step: sum of exp(z - max), z of the label, max, 1 if correct */
    bool bad;              /* the last step */
    int done;              /* steps of this launch */
    uint64_t dh1_full[MAIN_WARPS], h1_full[MAIN_WARPS], logits_full[MAIN_WARPS];
    uint64_t h1_most_full, gram_full, h1_free;
};

/* One thread of a block of the chain: units 64 `group` .. of layer 1, of which 8 are its own, and columns 64
   `rank` .. of W2. */
struct chain_block {
    const two_ahead::plan &plan;
    chain_memory &memory;
    int group, rank, self, warp, lane;
    const int first, steps;
    const bool resumed;

    __device__ chain_block(const two_ahead::plan &plan, void *shared, int first, int end, bool resumed)
        : plan(plan), memory(*(chain_memory *)shared), group(blockIdx.x / CLUSTER),
          rank(blockIdx.x % CLUSTER), self(thread_in_register()), warp(self / 32), lane(self % 32),
          first(first), steps(end - first), resumed(resumed) {}

    /* From here on, addresses are computed again, and not kept in registers. */
    __device__ void forget_addresses() {
        self = opaque(self) & (BLOCK_THREADS - 1); /* not negative: short divisions */
        warp = self / 32;
        lane = self % 32;
        rank = opaque(rank) & (CLUSTER - 1);
        group = opaque(group) & (CLUSTER - 1);
    }

    /* 8 units of a row of H1, in plane 0: not swizzled, so that what a warp sends is contiguous. */
    __device__ char *h1_at(int row, int chunk) const {
        return memory.h1 + (chunk * ROWS + row) * 16;
    }
    __device__ activation_matrix dz2() const {
        return {memory.dz2};
    }
    __device__ weight_matrix w2() const {
        return {memory.w2};
    }
    __device__ char *dz1_row(int i, int plane, int row) const { /* of the block's 8 units */
        return memory.dz1[i % 2][plane][row];
    }
    __device__ static uint32_t packet_phase(int i) { /* of a mailbox with one buffer */
        return i % 2 ^ 1;
    }

    /* A main lane's row, of the owned ones, and its four columns. */
    __device__ int own_row() const {
        return 2 * warp + lane / 16;
    }
    __device__ int quad() const {
        return lane % 16;
    }
    /* Column e of a quad, in the tile: as wgmma leaves them. */
    __device__ static int column_of(int quad, int e) {
        return quad / 4 * 16 + e / 2 * 8 + quad % 4 * 2 + e % 2;
    }
    __device__ static int position_of(int column) { /* 4 quad + e */
        return (column / 16 * 4 + column % 8 / 2) * 4 + column / 8 % 2 * 2 + column % 2;
    }
};

} // namespace persistent::two_ahead

#endif
