/* How a network of two hidden layers is split over blocks, and where everything lies: see fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_PAIR_PLAN_CUH
#define TESSERA_KERNELS_CUDA_FUSED_PAIR_PLAN_CUH

#include "kernels/cuda/fused_rows.cuh"
#include "kernels/cuda/grid.cuh"

static const int WARPS = 16, THREADS = 32 * WARPS;
static const int MOST_UNITS = 512; /* of a hidden layer: a thread each */
static const int SLICES = 2;       /* of the pixels */
static const int UNITS = 8;        /* of layer 1 in a block: the columns of a tensor-core product */
static const int OWN = 16,
                 GROUPS = ROWS / OWN; /* rows of a tile of layer 2; so many tiles lie one below the other */
static const int COLS = 32;           /* columns of such a tile */
static const int TALL = 64;           /* rows of a block's tile of W2; COLS wide */
static const int OUTPUT = 4;          /* rows of W3 that a block updates */
static const int PARTS = 3;           /* bfloat16 of a float */
static const int PITCH = MOST_UNITS + 4; /* of tiles with units as columns: for the banks */
static const int MOST_CLASSES = 12;      /* for which W3 has its place */
static const int DL_PITCH = CLASSES + 4;

/* A counter of its own cache line. */
struct pair_counter {
    unsigned arrived, unused[31];
};

struct pair_control {
    pair_counter weights, first, gradients, second[GROUPS]; /* what is there: see fused_pair.cu */
    int bad;                                                /* a loss of this launch was not finite */
};

struct pair_plan : network_plan<3> {
    int hidden[2], padded[2]; /* units; to multiples of 64 */
    int packs;                /* of the longest slice */
    enum activation activation[2];
    pair_control *control;
    packet *box; /* [block][THREADS]: sums over half of the pixels */
    /* What blocks exchange, laid out as its readers copy it: in one piece. */
    float *h1_rows, *h1_columns; /* [2, by step][GROUPS][OWN][PITCH], [2][padded 0 / TALL][ROWS][TALL] */
    float *h2_rows, *h2_columns; /* [GROUPS][OWN][PITCH], [padded 1 / OUTPUT][ROWS][OUTPUT] */
    float *dz1, *dz2;            /* [padded 0 / UNITS][ROWS][UNITS], [padded 1 / COLS][ROWS][COLS] */
    float *dlogits;              /* [ROWS][CLASSES] */
    float *w2_columns,
        *w2_rows; /* [padded 1 / COLS][padded 0][COLS], [padded 0 / COLS][COLS, see place_of_row][PITCH] */
    float *w3;    /* [MOST_CLASSES][PITCH] */
};

/* Where row i of COLS lies: a product's lanes read every fourth, and have neighbours. */
__host__ __device__ inline int place_of_row(int i) {
    return i % 8 * 4 + i / 8;
}

/* Shared memory, in floats from its start. W1 as bfloat16 and the pixels, as bytes, lie behind the rest: they have no fixed size. */
struct place {
    static constexpr int WIDE = 0,  /* the operand of a tile: [MOST_UNITS][COLS] or [COLS][PITCH] */
        TILE = WIDE + COLS * PITCH, /* its other operand [OWN][PITCH] */
        SUMS = TILE + OWN * PITCH,  /* of warps: [WARPS][OWN][COLS], [4][TALL][COLS], ... */
        OUT_WEIGHT = SUMS + WARPS * OWN * CLASSES, /* W3 [MOST_CLASSES][PITCH], beside the sums of logits */
        BACK = OUT_WEIGHT + MOST_CLASSES * PITCH, /* dZ1 as bfloat16: [ROWS / 16][PARTS][32 lanes][2 words] */
        DLOGITS = BACK + ROWS / 16 * PARTS * 64,  /* [OWN][DL_PITCH] */
        BIAS1 = DLOGITS + OWN * DL_PITCH,         /* biases, then their velocities */
        BIAS2 = BIAS1 + 2 * UNITS, BIAS3 = BIAS2 + 2 * COLS,
                         SUMS1 = BIAS3 + 2 * CLASSES, /* of their gradients: [WARPS][UNITS] */
        SUMS2 = SUMS1 + WARPS * UNITS,                /* [WARPS][COLS] */
        SUMS3 = SUMS2 + WARPS * COLS,                 /* of dW3 and db3: [8][(OUTPUT + 1) * CLASSES] */
        IMAGES = SUMS3 + 8 * (OUTPUT + 1) * CLASSES,  /* which image a row is: [2, by step][ROWS] */
        WEIGHT1 = IMAGES + 2 * ROWS;                  /* [packs][PARTS][32 lanes][2 words] */
    /* Of an update, in WIDE. */
    static constexpr int H1 = WIDE, DZ2 = H1 + ROWS * TALL, DLOG = DZ2 + ROWS * COLS,
                         H2 = DLOG + ROWS * CLASSES;
    static_assert(H2 + ROWS * OUTPUT <= TILE && SUMS + WARPS * OWN * COLS <= BACK, "they have their places");

    __host__ __device__ static int pitch(int packs) { /* bytes of a row of pixels: for the banks */
        return PIXELS * (packs | 1);
    }

    __host__ __device__ static size_t bytes(int packs) { /* the last tile of pixels reads beyond its row */
        return sizeof(float) * (WEIGHT1 + packs * PARTS * 64) + (size_t)ROWS * pitch(packs) + PIXELS;
    }
};

#endif
