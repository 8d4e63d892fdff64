/* How a network of two hidden layers is split over blocks, and where everything lies: see fused_pair.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_PLAN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TWO_HIDDEN_PLAN_CUH

#include "kernels/cuda/tensor/mbarrier.cuh"
#include "kernels/cuda/persistent/bf16x3.cuh"
#include "kernels/cuda/persistent/pixels.cuh"
#include "kernels/cuda/persistent/grid.cuh"

static const int MOST_UNITS = 512; /* of a hidden layer */
static const int SLICES = 2;       /* of the pixels */
static const int KEPT = 2,
                 MOST_PACKS = KEPT * WARPS;      /* packs of pixels whose weights a warp keeps; of a slice */
static const int TALL = 32, WIDE = 64;           /* a block's tile of W2 */
static const int CHUNKS = WIDE / UNITS;          /* eights of its columns */
static const int ACROSS = TALL / UNITS * SLICES; /* blocks that have the weights which lead to TALL units */
static const int GROUP = 8;                      /* rows of the batch whose sums travel together */
/* Of eight numbers: what a tile has of a group, and of dH1 of UNITS units and half of the rows. */
static const int POSITIONS = THREADS / GROUP;
static const int MOST_OWN = 2 * GROUP; /* rows whose loss a block works out */
static const int PACKETS = 4,
                 MOST_CLASSES = 11; /* a packet has three of a row; the last of twelve is a unit's bias */
static const int OUT = 4 * PACKETS; /* the pitch of what has classes as its columns */
static const int FLAG = OUT - 1;    /* the column that says of dL/dlogits whether a loss was bad */
static const int DZ1_BYTES = ROWS * UNITS * DIGITS;
static const size_t STATIC_SHARED = 1024; /* bytes: what the tally takes, and more */
static_assert(MOST_UNITS <= ACROSS * WIDE && ROWS * UNITS == SLICES * THREADS && SLICES == 2,
              "blocks and threads for all");

struct pair_plan : network_plan<3> {
    int hidden[2];
    int tall, wide; /* tiles of W2, one below the other and side by side */
    int downs;      /* thread blocks along the batch: each owns ROWS / downs rows. ACROSS of them along n. */
    int packs;      /* of the longest slice */
    int count;      /* images of an epoch */
    enum activation activation[2];
    /* What blocks send each other. Eight numbers are three packets, which lie `apart`: see grid.cuh. */
    packet_of_3 *h1;         /* [tall TALL / UNITS][3][ROWS] */
    packet_of_3 *sums;       /* of Z2, over 2 TALL of H1: [wide][ROWS / GROUP][tall / 2][3][POSITIONS] */
    packet_of_3 *logits;     /* parts of them, over WIDE of H2: [ROWS][ACROSS][PACKETS] */
    packet_of_3 *dz2;        /* [wide][CHUNKS][3][ROWS] */
    packet_of_3 *back;       /* of dH1, over WIDE of dZ2: [tall TALL / UNITS][wide][3][SLICES][POSITIONS] */
    packet_of_3 *out_sums;   /* of dW3 and db2, over a block's rows: [wide][WIDE][downs][PACKETS] */
    packet_of_3 *out_bias;   /* of db3: [wide][downs][PACKETS] */
    packet_of_3 *out_weight; /* W3 and b2: [wide][WIDE][PACKETS] */
};

typedef split_matrix<ROWS, TALL / UNITS> h1_matrix;
typedef split_matrix<ROWS, CHUNKS> dz2_matrix;
typedef split_matrix<TALL, CHUNKS> w2_matrix;

/* What a block's partner gives it in each step, and the pixels: bytes that arrive, a phase for each step. */
enum pair_arrival { PIXELS_COME, HALVES_COME, SUMS_COME, DZ2_COMES, DZ1_COMES, ARRIVALS };

/* Shared memory, in bytes from its start. W1 in digits and the pixels of two steps lie behind the rest: they
   have no fixed size. */
struct place {
    static constexpr int H1 = 0,      /* TALL columns of it, in parts; as are dZ2 and W2 */
        DZ2 = H1 + h1_matrix::BYTES,  /* WIDE columns */
        W2 = DZ2 + dz2_matrix::BYTES, /* the block's tile */
        WEIGHT2 =
            W2 + w2_matrix::BYTES, /* the same, in floats: [THREADS] of 16 bytes, as threads update them */
        DZ1 = WEIGHT2 + 4 * TALL * WIDE, /* UNITS columns, in digits: [ROWS / 32][2][32 lanes] of 16 bytes */
        HALVES = DZ1 + DZ1_BYTES,        /* of Z1, from the partner, then H1: [THREADS] */
        H2 = HALVES + 4 * THREADS,       /* of the block's rows and columns: [MOST_OWN][WIDE] */
        BACK = H2 + 4 * MOST_OWN * WIDE, /* dZ2 of them */
        OUT_WEIGHT = BACK + 4 * MOST_OWN * WIDE,    /* W3 and b2 of its columns, see place_of: [WIDE][OUT] */
        DLOGITS = OUT_WEIGHT + 4 * WIDE * OUT,      /* [MOST_OWN][OUT] */
        BIAS1 = DLOGITS + 4 * MOST_OWN * OUT,       /* [UNITS], and their velocities */
        BIAS3 = BIAS1 + 4 * 2 * UNITS,              /* [OUT], and their velocities */
        LARGEST = BIAS3 + 4 * 2 * OUT,              /* |W1| of each unit, as bits: see fixed_scale */
        BACK_LARGEST = LARGEST + 4 * UNITS,         /* |dZ1|, of each half of the rows: [SLICES][UNITS] */
        IMAGES = BACK_LARGEST + 4 * SLICES * UNITS, /* which image a row is: [2, by step][ROWS] */
        ARRIVED = IMAGES + 4 * 2 * ROWS,            /* [ARRIVALS] */
        W1 = ARRIVED +
             (8 * ARRIVALS + 15) / 16 * 16; /* in digits: [pairs of packs][2][32 lanes] of 16 bytes */
    /* While there is no dZ2: sums of layer 1, [QUARTERS][ROWS][UNITS], in its part 0, and of layer 2, from
       the partner (pair_second::partner_sums). While there is neither H2 nor BACK: of dW2, [THREADS] of 16
       bytes. */
    static constexpr int SUMS = DZ2, GRADIENT_SUMS = H2;
    static_assert(4 * QUARTERS * ROWS * UNITS <= dz2_matrix::PART &&
                      GRADIENT_SUMS + THREADS * 16 <= OUT_WEIGHT && W1 % 16 == 0,
                  "they have their places");

    __host__ __device__ static int pitch(int packs) { /* of pixels, in bytes: for the banks */
        return PIXELS * (packs | 1);
    }
    __host__ __device__ static int pixels_at(int packs) {
        return W1 + (packs + 1) / 2 * 2 * 32 * 16;
    }
    __host__ __device__ static size_t bytes(int packs) {
        return (size_t)pixels_at(packs) + 2 * (size_t)ROWS * pitch(packs);
    }
};

/* A step, as all threads know it. */
struct pair_step {
    int number, rows;
    unsigned phase;    /* of what arrives */
    uint32_t tag;      /* of packets */
    float rate, scale; /* of learning; of the gradients of a mean over the rows */
};

/* One thread of a block. Partners have the same units of layer 1, columns of W2 and rows of the batch that
   follow each other. */
struct pair_block {
    const pair_plan &plan;
    char *shared;
    int rank, down, across;
    bool has_units, has_tile, has_rows; /* of layer 1; of W2; of the batch: partners alike */

    __device__ pair_block(const pair_plan &plan, char *shared)
        : plan(plan), shared(shared), rank(blockIdx.x % 2), down(blockIdx.x / (2 * ACROSS) * 2 + rank),
          across(blockIdx.x / 2 % ACROSS) {
        has_units = (int)blockIdx.x / 2 * UNITS < plan.tall * TALL;
        has_rows = across < plan.wide;
        has_tile = has_rows && down < plan.tall;
    }

    __device__ static int lane() {
        return threadIdx.x % 32;
    }
    __device__ static int warp() {
        return threadIdx.x / 32;
    }
    template <typename T> __device__ T *at(int offset) const {
        return reinterpret_cast<T *>(shared + offset);
    }
    __device__ uint64_t *arrived(pair_arrival what) const {
        return at<uint64_t>(place::ARRIVED) + what;
    }
    __device__ h1_matrix h1() const {
        return {shared + place::H1};
    }
    __device__ dz2_matrix dz2() const {
        return {shared + place::DZ2};
    }

    /* What the partner will give in a step. */
    __device__ void expect_partner() const {
        if (has_units) expect_bytes(arrived(HALVES_COME), 4 * THREADS);
        if (has_tile) expect_bytes(arrived(SUMS_COME), 32 * THREADS);
        if (has_rows) expect_bytes(arrived(DZ2_COMES), dz2_matrix::BYTES / 2);
        if (has_units) expect_bytes(arrived(DZ1_COMES), DZ1_BYTES / 2 + 4 * UNITS);
    }
};

#endif
