/* One hidden layer, look-ahead: the plan, the packets, and the fragments of mma.sync that all parts share.
   See look_ahead.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_LOOK_AHEAD_CUH

#include "kernels/cuda/persistent/byte_pixels.cuh"
#include "kernels/cuda/persistent/f16x2.cuh"

namespace persistent::look_ahead {

static const int MAIN_WARPS = 8, MAIN_THREADS = 32 * MAIN_WARPS; /* 16 rows of the batch each */
static const int HELPER_WARPS = 4, HELPER_THREADS = 32 * HELPER_WARPS;
static const int BLOCK_THREADS = MAIN_THREADS + HELPER_THREADS;
static const int TILE = 16;                 /* rows or pixels, k of a product */
static const int ROW_TILES = ROWS / TILE;   /* of a batch */
static const int MAX_TILES = 2;             /* packs of a warp */
static const int MAX_CLASSES = 3 * PACKETS; /* a packet has three */
static const int UNIT_TILES = 2;            /* n of a product: a group of units */
static const int GROUP_UNITS = UNIT_TILES * UNITS;
static const int OUT_ROWS = GROUP_UNITS + 1;                 /* of W2 in a block, and b2 */
static const int GRAM_STEP = 2 * 32 * ROW_TILES * ROW_TILES; /* uint4 of a step */
static const int PRODUCT_PACKETS = UNIT_TILES * MAIN_THREADS;
static const int DZ_PACKETS = PRODUCT_PACKETS + 1; /* the last one is the header */
static const int LONGEST = 1024;                   /* steps of a launch: 64 MB of Gram matrices */
static_assert(ROW_TILES == MAIN_WARPS, "a warp has a tile of rows");

/* Where the next launch goes on without another rounding: what the late weights of its first step were. */
struct resume_point {
    int end;     /* the step after the last one of a launch, or -1 */
    int differs; /* not 0 if somebody has changed the network, the order or the rate since */
    float rate;  /* of the last step */
};

struct plan : byte_pixel_plan<2> {
    int blocks, first_maker; /* of all; the first of those that make Gram matrices */
    int cluster;             /* thread blocks of the chain, which own ROWS / cluster rows each */
    int groups, slices;      /* of GROUP_UNITS units; of pixels: workers of a group, in one cluster */
    int packs, tiles;        /* of an image; of a warp of a worker, at most */
    uint4 *gram;             /* [steps of a launch][ROW_TILES][ROW_TILES][2 planes][32 lanes] */
    uint32_t *gram_made;     /* [steps of a launch]: the parts of a matrix that are there */
    uint4 *dz;               /* packets: [2][groups][DZ_PACKETS] */
    uint4 *products;         /* packets: [2][groups][UNIT_TILES][MAIN_THREADS] */

    resume_point *resume;
    float4 *ahead;        /* late weights: [groups][slices][MAIN_WARPS][MAX_TILES][UNIT_TILES][32 lanes] */
    float *bias_ahead;    /* [groups][GROUP_UNITS] */
    uint4 *last_dz;       /* of the last step: [groups][DZ_PACKETS] */
    uint32_t *last_order; /* its images */
    float *after[2][4];   /* the network at `end`: weight, bias and their velocities of each layer */

    __host__ __device__ float *state_of(int layer, int which) const {
        return which == 0   ? weight[layer]
               : which == 1 ? bias[layer]
               : which == 2 ? weight_velocity[layer]
                            : bias_velocity[layer];
    }
    __host__ __device__ size_t state_count(int layer, int which) const {
        const size_t in = layer ? hidden[0] : features, out = layer ? classes : hidden[0];
        if (which >= 2 && !update.has_velocity) return 0;
        return which % 2 ? out : in * out;
    }
    __device__ int first_pack(int slice) const {
        return packs * slice / slices;
    }
    __device__ uint4 *product_of(int i, int group) const {
        return products + (size_t)(i % 2 * groups + group) * PRODUCT_PACKETS;
    }
    __device__ uint4 *dz_of(int i, int group) const {
        return dz + (size_t)(i % 2 * groups + group) * DZ_PACKETS;
    }
    __device__ float rate_of(int step) const {
        return (float)scalars[step].learning_rate;
    }
};

/* The two units of this lane and its column in a tile of 16 x 8 results: lane 4 g + t has rows g and g + 8,
   columns 2 t and 2 t + 1. */
__device__ inline int lane_g() {
    return threadIdx.x % 32 / 4;
}
__device__ inline int lane_t() {
    return threadIdx.x % 4;
}

/* The weight that SGD makes of one without its gradient: that of the next step, but for a correction. */
__device__ inline float ahead_of(const sgd_update &update, float rate, float weight, float velocity) {
    const float kept = (1 - rate * update.weight_decay) * weight;
    return update.has_velocity ? kept - rate * update.momentum * velocity : kept;
}

/* In the network, and in the copy that the next launch compares with. */
__device__ inline void store_weight_twice(const plan &plan, int layer, bool bias, size_t i, float weight,
                                          float velocity) {
    plan.state_of(layer, bias)[i] = plan.after[layer][bias][i] = weight;
    if (plan.update.has_velocity)
        plan.state_of(layer, 2 + bias)[i] = plan.after[layer][2 + bias][i] = velocity;
}

/* --- barriers of some warps of a block --- */

enum { BARRIER_MAIN = 1, BARRIER_ROWS, BARRIER_OUTPUT, BARRIER_DZ, BARRIER_HELPERS, BARRIER_PIXELS };

template <int ID, int COUNT> __device__ inline bool barrier_or(bool mine) {
    unsigned any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, %2, %3, p; "
                 "selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"((unsigned)mine), "n"(ID), "n"(COUNT)
                 : "memory");
    return any;
}

/* --- packets of four words: no word for a tag, so the last bit of the last word is the phase ---

   Step i of a launch uses buffer i % 2. The bit is 1 in the first use of a buffer, which is zeroed before the
   launch, and changes from use to use. Arithmetic takes the bit as 0, wherever an epoch is cut. */
__device__ inline uint32_t phase_of(int i) {
    return i / 2 % 2 ^ 1;
}

__device__ inline uint4 load_packet(const uint4 *from) {
    uint64_t low, high;
    load_16_bytes(from, low, high);
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

__device__ inline void send_packet(uint4 *to, uint4 words, uint32_t phase) {
    store_16_bytes(to, (uint64_t)words.y << 32 | words.x,
                   (uint64_t)((words.w & ~1u) | phase) << 32 | words.z);
}

__device__ inline bool arrived(uint4 packet, uint32_t phase) {
    return (packet.w & 1) == phase;
}

/* Two bytes of a word as float16: `select` as in __byte_perm, with 4 for the upper bytes. */
__device__ inline uint32_t half2_of_bytes(uint32_t word, uint32_t select) {
    const uint32_t offset = 0x64006400u, above = __byte_perm(word, 0x64646464u, select); /* 1024 + byte */
    return bits_of(
        __hsub2(*reinterpret_cast<const __half2 *>(&above), *reinterpret_cast<const __half2 *>(&offset)));
}

/* The order of k over pixels: k = 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 are pixels 4 t .. 4 t + 3 of a pack,
   one word. A packet of dZ is B of a product over rows: lane 4 unit + t has rows 2 t and 2 t + 1 of a tile
   in plane 0, then rows 2 t + 8 and 2 t + 9, and the same of plane 1. */

} // namespace persistent::look_ahead

#endif
