/* One hidden layer, split over hidden units: the plan, shared memory, and what all warps use. See
   one_hidden_split_units_wgmma.cu. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_PLAN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_ONE_HIDDEN_SPLIT_UNITS_PLAN_CUH

#include "kernels/cuda/persistent/int8_wgmma.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace persistent::split_units {

static const int MAIN_WARPS = 8, OUTPUT_WARPS = WARPS - MAIN_WARPS; /* 16 rows of the batch each */
static const int MAIN_THREADS = 32 * MAIN_WARPS;
static const int MAX_CLASSES = 3 * PACKETS;
static const int WEIGHTS = (UNITS + 1) * PACKED_PITCH; /* of W2 in a block, and b2 */
static const int INPUT_SLOTS = 3;
static const int LONGEST = 1024;          /* steps of a launch */
static const int EARLY_TILES = 2;         /* of W1: in slices before all products of dW1 are there */
static const size_t STATIC_SHARED = 1024; /* bytes: sums over a block, the mbarrier, and a reserve */

/* What the scales of W1 were made of when a launch ended before step `end`: the next launch within an epoch
   takes the same, so that bits do not depend on where an epoch is cut. */
struct kept_bounds {
    int end;
    uint32_t w1[UNITS];
};

struct plan : byte_pixel_plan<2> {
    int groups;            /* of units: thread blocks */
    int cluster;           /* thread blocks that share copies of the images: 1 or 2 */
    int packs;             /* of an image */
    int pitch;             /* bytes from image to image */
    int buffer_bytes;      /* of the images of a step, and what forward reads behind them */
    ll_packet3 *logits;    /* partial sums: [ROWS][groups][PACKETS] */
    ll_packet3 *gradients; /* dL/dlogits: [ROWS][PACKETS] */
    kept_bounds *kept;     /* of each block, from launch to launch */
};

/* Shared memory, in bytes. What a step needs between its two products lies where the slices of W1 were. The
   images of two steps come last, each with the bytes that forward reads behind them: the other block of a
   cluster may copy to one buffer while slow warps still read the other. */
struct smem_layout {
    static constexpr int OUT_WEIGHT = 0,         /* [WEIGHTS] */
        OUT_VELOCITY = OUT_WEIGHT + 4 * WEIGHTS, /* [WEIGHTS] */
        W1_MAX = OUT_VELOCITY + 4 * WEIGHTS,     /* largest |W1| of each unit, as bits: [UNITS] */
        V1_MAX = W1_MAX + 4 * UNITS,             /* of its velocities */
        DZ_MAX = V1_MAX + 4 * UNITS,             /* of dZ */
        W1_BOUND = DZ_MAX + 4 * UNITS,           /* of |W1| after the update: what its scale is made of */
        W1_SCALE = W1_BOUND + 4 * UNITS,         /* [UNITS], and of dZ: unit_scales */
        DZ_SCALE = W1_SCALE + 4 * UNITS, BIAS = DZ_SCALE + 4 * UNITS, /* b1: [UNITS] */
        ONE = BIAS + 4 * UNITS,                              /* the pack of the bias: 255, 0, 0, .. */
        INPUTS = ONE + PIXELS,                               /* input_ring */
        W1_SLICES = INPUTS + input_ring<INPUT_SLOTS>::BYTES, /* [padded packs] of 16 k */
        HIDDEN = W1_SLICES,                                  /* [ROWS][UNITS] */
        GRADIENTS = HIDDEN + 4 * ROWS * UNITS,               /* dL/dlogits: [ROWS][PACKED_PITCH] */
        DZ_SLICES = W1_SLICES + EARLY_TILES * WARPS * by_wgmma::K16_BYTES, /* over all rows */
        OUT_SUMS = DZ_SLICES + ROWS / 16 * by_wgmma::K16_BYTES, /* of dW2 and db2: [OUTPUT_WARPS][WEIGHTS] */
        END = OUT_SUMS + 4 * OUTPUT_WARPS * WEIGHTS;
    static_assert(W1_SLICES % 16 == 0 && GRADIENTS + 4 * ROWS * PACKED_PITCH <= DZ_SLICES);

    __host__ __device__ static int images(int packs) {
        const int end = W1_SLICES + by_wgmma::padded_packs(packs) * by_wgmma::K16_BYTES;
        return end > END ? end : END;
    }
    static size_t bytes(const plan &plan) {
        return (size_t)images(plan.packs) + (size_t)2 * plan.buffer_bytes;
    }
};

/* Barriers of some warps of a block; 0 is that of the block. */
enum { BARRIER_MAIN = 1, BARRIER_FORWARD, BARRIER_OUTPUT, BARRIER_GRADIENTS };

/* One thread of the block whose hidden units start at UNITS * blockIdx.x. */
struct block_base {
    const split_units::plan &plan;
    char *shared;
    sgd_update update;

    __device__ block_base(const split_units::plan &plan, void *shared, bool has_velocity)
        : plan(plan),
          shared((char *)shared), update{plan.update.momentum, plan.update.weight_decay, has_velocity} {}

    __device__ static int quad() { /* this thread among the four of its row */
        return threadIdx.x % 4;
    }
    __device__ int first_unit() const {
        return UNITS * blockIdx.x;
    }
    template <typename T> __device__ T *at(int offset) const {
        return reinterpret_cast<T *>(shared + offset);
    }
    __device__ uint32_t *w1_max() const {
        return at<uint32_t>(smem_layout::W1_MAX);
    }
    __device__ uint32_t *v1_max() const {
        return at<uint32_t>(smem_layout::V1_MAX);
    }
    __device__ uint32_t *dz_max() const {
        return at<uint32_t>(smem_layout::DZ_MAX);
    }
    __device__ by_wgmma::unit_scales w1_scales() const {
        return {at<float>(smem_layout::W1_SCALE)};
    }
    __device__ by_wgmma::unit_scales dz_scales() const {
        return {at<float>(smem_layout::DZ_SCALE)};
    }
    __device__ input_ring<INPUT_SLOTS> inputs() const {
        return {shared + smem_layout::INPUTS};
    }

    /* --- pixels --- */

    /* Row `row` of the step whose images are in buffer 0 or 1; beyond the batch, its last row. */
    __device__ char *image(int buffer, int row) const {
        return shared + smem_layout::images(plan.packs) + buffer * plan.buffer_bytes +
               min(row, plan.batch - 1) * plan.pitch;
    }

    /* Copies the images of a step: in a cluster, a block copies every second image to both blocks. The
       instruction is slow: output warps issue it. */
    __device__ void copy_images(uint64_t *barrier, int input_slot, int buffer, int rows) const {
        const int share = ROWS / plan.cluster / OUTPUT_WARPS, rank = plan.cluster == 2 ? blockIdx.x % 2 : 0,
                  row = ((warp() - MAIN_WARPS) * share + lane()) * plan.cluster + rank;
        if (warp() < MAIN_WARPS) return;
        if (lane() >= share || row >= rows) return;
        const uint8_t *from = plan.images + (size_t)inputs().images(input_slot)[row] * plan.features;
        if (plan.cluster == 2)
            bulk_copy_to_cluster(image(buffer, row), from, plan.features, barrier, 3);
        else
            bulk_copy(image(buffer, row), from, plan.features, barrier);
    }

    /* The label of a row that this block owns. */
    __device__ int label_of(int input_slot, int rows, int own_row) const {
        const int r = blockIdx.x * plan.own + own_row;
        return own_row < plan.own && r < rows ? plan.labels[inputs().images(input_slot)[r]] : 0;
    }

    /* --- gradients --- */

    /* Three dL/dlogits of two rows, 8 rows apart; 0 beyond the batch. */
    __device__ void receive_gradients(float (&g)[2][3], int first_row, int rows, uint32_t tag) const {
#pragma unroll
        for (int i = 0; i < 6; i++) g[i / 3][i % 3] = 0;
        if (3 * quad() < plan.classes)
            ll_receive(g, tag, [&](int h) {
                return plan.gradients + min(first_row + 8 * h, rows - 1) * PACKETS + quad();
            });
        __syncwarp(); /* lanes leave the loop one by one */
#pragma unroll
        for (int i = 0; i < 6; i++)
            if (first_row + 8 * (i / 3) >= rows) g[i / 3][i % 3] = 0;
    }
};

} // namespace persistent::split_units

#endif
