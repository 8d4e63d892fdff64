/* How a network of one hidden layer is split over blocks, and where everything lies: see
   fused_resident.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_PIXELS_PLAN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_PIXELS_PLAN_CUH

#include "kernels/cuda/persistent/rows.cuh"
#include "kernels/cuda/persistent/grid.cuh"

static const int WARPS = 16, THREADS = 32 * WARPS;
static const int UNITS = 8;          /* of a block */
static const int HALF = UNITS / 2;   /* of a warp */
static const int GROUPS = WARPS / 2; /* of warps, which share a sum */
static const int PITCH = ROWS + 4;   /* of what has the batch as its columns: for the banks */
static const int TALL = 20;          /* the pitch of what has classes as its columns */
static const int WEIGHTS =
    (UNITS + 1) * CLASSES; /* of the output layer in a block: its rows of W2, and the bias */
static const int TAIL =
    WEIGHTS + CLASSES; /* of a message of exchange 3, after dZ: dW2, db2, is all finite? */

static const size_t STATIC_SHARED = 512; /* bytes: what the sums over a block take, and more */

/* F slices of up to 32 N pixels; OWN rows of the batch for each. */
template <int F_, int N_> struct split {
    static constexpr int F = F_, N = N_, OWN = ROWS / F, LONGEST = 32 * N;
};

struct resident_plan : network_plan<2> {
    int hidden, groups; /* groups of units: H */
    int slice;          /* pixels of the longest slice */
    int buffers;        /* of float pixels: 2, or 1 where 2 do not fit */
    enum activation activation;
    packet *box; /* the three exchanges, twice: see box_layout */
};

/* The messages of one step, in packets: `parts` of Z [h][owner][source f][OWN][UNITS], parts of the `logits`
   [f][source h][OWN][CLASSES], the `ways` back [h][source f][OWN * UNITS + TAIL]. */
struct box_layout {
    int logits, ways, total;
};

template <typename S> __host__ __device__ static box_layout lay_out_box(int groups) {
    const int blocks = S::F * groups;
    return {blocks * ROWS * UNITS, blocks * (ROWS * UNITS + S::OWN * CLASSES),
            blocks * (ROWS * UNITS + S::OWN * CLASSES + S::OWN * UNITS + TAIL)};
}

/* Shared memory, in floats from its start: known when this is compiled, but for how long the pixels are. */
template <typename S> struct place {
    static constexpr int up(int floats) {
        return (floats + 3) / 4 * 4;
    }
    static constexpr int STAGE_PITCH = S::LONGEST / PIXELS | 1; /* of packs */
    static constexpr int BACK = 0, HIDDEN = BACK + UNITS * PITCH, PRE = HIDDEN + S::OWN * UNITS,
                         GRADIENT = PRE + S::OWN * UNITS, OUT_WEIGHT = GRADIENT + S::OWN * TALL,
                         OUT_VELOCITY = OUT_WEIGHT + (UNITS + 1) * TALL,
                         BIAS = OUT_VELOCITY + (UNITS + 1) * TALL, RATES = BIAS + 2 * UNITS,
                         IMAGES = RATES + 4, LABELS = IMAGES + 2 * ROWS, WEIGHT = up(LABELS + 2 * S::OWN),
                         VELOCITY = WEIGHT + S::LONGEST * UNITS, PART = VELOCITY + S::LONGEST * UNITS,
                         STAGE = PART + GROUPS * UNITS * (S::LONGEST > PITCH ? S::LONGEST : PITCH),
                         PIXELS_AT = STAGE + ROWS * STAGE_PITCH * 4;

    __host__ __device__ static constexpr size_t floats(int slice, int buffers) {
        return (size_t)PIXELS_AT + (size_t)buffers * slice * PITCH;
    }
};

#endif
