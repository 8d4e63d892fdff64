/* How a network of one hidden layer is split over blocks, and where everything lies: see fused_whole.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_PLAN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_PLAN_CUH

#include "kernels/cuda/persistent/pixels.cuh"
#include "kernels/cuda/persistent/grid.cuh"

static const int KEPT = 4,
                 MOST_PACKS = KEPT * WARPS; /* packs of pixels whose weights a warp keeps; of an image */
static const int PACKETS = 4, MOST_CLASSES = 3 * PACKETS; /* a packet has three of a row: see packed_class */
static const int OUT = 4 * PACKETS;                       /* the pitch of what has classes as its columns */
static const int WEIGHTS =
    (UNITS + 1) * OUT;      /* of the output layer in a block: its rows of W2, and the bias */
static const int AHEAD = 3; /* steps of which images and rates are kept */

static const size_t STATIC_SHARED = 1024; /* bytes: what the sums over a block take, the barrier, and more */

struct whole_plan : network_plan<2> {
    int hidden, count; /* images of an epoch */
    int groups;        /* of units: blocks */
    int packs;         /* of an image */
    int slots;         /* of the ring of pixels: see whole_place */
    int own;           /* rows of the batch whose loss a block works out, but for the last that has some */
    enum activation activation;
    packet_of_3 *logits;    /* parts of them: [ROWS][groups][PACKETS] */
    packet_of_3 *gradients; /* dL/dlogits: [ROWS][PACKETS] */
};

/* Columns of OUT are four by four: three classes, and a 0. The class of column e, or MOST_CLASSES. */
__device__ inline int packed_class(int e) {
    return e % 4 < 3 ? e / 4 * 3 + e % 4 : MOST_CLASSES;
}

/* Shared memory, in bytes from its start: the digits of W1 and the ring of pixels lie behind the rest, for
   they have no fixed size.

   A slot of the ring has an image. A step takes as many as the batch has rows, ROWS at most, and the next
   step those that follow, as far as they are free before this one ends. */
struct whole_place {
    static constexpr int SUMS = 0,                   /* of Z: [QUARTERS][ROWS][UNITS] */
        HIDDEN = SUMS + 4 * QUARTERS * ROWS * UNITS, /* [ROWS][UNITS] */
        GRADIENT = HIDDEN + 4 * ROWS * UNITS,        /* [ROWS][OUT] */
        BACK = GRADIENT + 4 * ROWS * OUT,            /* dZ in digits: [ROWS / 32][2][32 lanes] of 16 bytes */
        OUT_WEIGHT = BACK + ROWS / 32 * 2 * 32 * 16, /* [WEIGHTS] */
        OUT_VELOCITY = OUT_WEIGHT + 4 * WEIGHTS,
                         OUT_SUMS = OUT_VELOCITY + 4 * WEIGHTS, /* of dW2 and db2: [WARPS][WEIGHTS] */
        BIAS = OUT_SUMS + 4 * WARPS * WEIGHTS,                  /* [UNITS], and their velocities */
        BIAS_SUMS = BIAS + 4 * 2 * UNITS,                       /* [WARPS][UNITS] */
        LARGEST = BIAS_SUMS + 4 * WARPS * UNITS, /* |W1| of each unit, as bits: see fixed_scale */
        BACK_LARGEST = LARGEST + 4 * UNITS,      /* |dZ| */
        RATES = BACK_LARGEST + 4 * UNITS,        /* [AHEAD], float */
        IMAGES = RATES + 16,                     /* [AHEAD][ROWS]: which image a row is */
        DIGITS_AT = IMAGES + 4 * AHEAD * ROWS;   /* W1 in digits: [pairs of packs][2][32 lanes] of 16 bytes */
    static_assert(BIAS % 16 == 0 && DIGITS_AT % 16 == 0, "aligned");

    __host__ __device__ static int pitch(int packs) { /* of the ring, in bytes: for the banks */
        return PIXELS * (packs | 1);
    }
    __host__ __device__ static int ring_at(int packs) {
        return DIGITS_AT + (packs + 1) / 2 * 2 * 32 * 16;
    }
    __host__ __device__ static size_t bytes(int packs, int slots) {
        return (size_t)ring_at(packs) + (size_t)slots * pitch(packs);
    }
};

#endif
