/* Layer 1 in int8 by mma.sync, for a form that keeps the pixels of a batch as bytes in shared memory:
   products in int8 slices (int8_slices.cuh) for UNITS hidden units. A row of pixels is a sequence of packs of
   16 bytes; `slot(row)` is the address of the pixels of a row of the batch. int8_wgmma.cuh, the same by
   wgmma, uses only the pitch and what lanes hold. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_INT8_LAYER1_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_INT8_LAYER1_CUH

#include "kernels/cuda/persistent/int8_slices.cuh"
#include "kernels/cuda/persistent/byte_pixels.cuh"

namespace persistent {

static const int QUARTERS = 4;   /* of the pixels: warps that share the same rows */
static const int WARP_ROWS = 32; /* of the batch, in a product of forward */

/* Bytes between rows of pixels in shared memory: an odd number of packs, against bank conflicts. */
__host__ __device__ inline int pixel_pitch(int packs) {
    return PIXELS * (packs | 1);
}

/* --- lanes --- */

/* The first of the two units that this lane holds of a product. */
__device__ inline int lane_unit() {
    return threadIdx.x % 4 * 2;
}

__device__ inline uint32_t magnitude(float value) { /* as bits: NaN is the largest */
    return __float_as_uint(value) & 0x7fffffffu;
}

/* Maximum over the warp of the magnitudes of each lane's two units, combined into those of the block. */
__device__ inline void atomic_column_max(uint32_t first, uint32_t second, uint32_t *column_max) {
    uint32_t most[2] = {first, second};
#pragma unroll
    for (int u = 0; u < 2; u++) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
            most[u] = max(most[u], __shfl_xor_sync(0xffffffffu, most[u], offset));
        if (threadIdx.x % 32 < 4) atomicMax(column_max + lane_unit() + u, most[u]);
    }
}

/* --- forward --- */

/* Position of a lane's 16 bytes among the 32 of a pair of packs and two slices: free of bank conflicts. */
__device__ inline int slice_offset(int unit, int word) {
    return unit * 4 + (word ^ unit / 2);
}

/* X W1 in units of the scale, 128 x 8 over `packs`, into `partial`, [QUARTERS][ROWS][UNITS]. A warp computes
   32 rows over a quarter of the packs. */
template <typename S>
__device__ inline void forward_pixels(S slot, int packs, const uint4 *all_slices, float *partial) {
    static const int TILES = WARP_ROWS / 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_row = warp % QUARTERS * WARP_ROWS,
              quarter = warp / QUARTERS, pairs = (packs + 1) / 2, first = pairs * quarter / QUARTERS,
              end = pairs * (quarter + 1) / QUARTERS;
    const uint4 *slices = all_slices + slice_offset(lane / 4, lane % 4);
    const char *x[TILES];
    slice_sums sums[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) x[i] = slot(first_row + 16 * i + lane % 16);
    const auto offset = [&](int p) { return min(2 * p + lane / 16, packs - 1) * PIXELS; };
    uint4 upper = slices[2 * first * 32], lower = slices[(2 * first + 1) * 32];
    uint32_t a[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) ldmatrix_x4(a[i], x[i] + offset(first));
#pragma unroll 2
    for (int p = first; p < end; p++) {
        const int next = min(p + 1, pairs - 1); /* loaded while this pair is multiplied */
        const uint4 next_upper = slices[2 * next * 32], next_lower = slices[(2 * next + 1) * 32];
        uint32_t next_a[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) ldmatrix_x4(next_a[i], x[i] + offset(next));
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            sums[i].add(a[i], upper, lower);
#pragma unroll
            for (int e = 0; e < 4; e++) a[i][e] = next_a[i][e];
        }
        upper = next_upper, lower = next_lower;
    }
    float *to = partial + (quarter * ROWS + first_row + lane / 4) * UNITS + lane_unit();
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int lower_row = 0; lower_row < 2; lower_row++)
            *reinterpret_cast<float2 *>(to + (16 * i + 8 * lower_row) * UNITS) =
                make_float2(sums[i].total(2 * lower_row), sums[i].total(2 * lower_row + 1));
}

/* --- weights --- */

/* W1 and its velocities in registers, where the tensor cores leave the gradients: lane 4 g + t of a warp
   holds pixels 2 g and 2 g + 1 of a pack and units 2 t and 2 t + 1, in that order, of every WARPS-th pair
   of packs. */
template <int PACKS_PER_WARP> struct pixel_weights {
    float weight[PACKS_PER_WARP][4], velocity[PACKS_PER_WARP][4];

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < 4 * PACKS_PER_WARP; i++) weight[i / 4][i % 4] = velocity[i / 4][i % 4] = 0;
    }

    __device__ static int pack_of(int n) { /* pack n of this warp */
        return 2 * (n / 2 * WARPS + warp()) + n % 2;
    }

    /* dW1 over the rows of the first half of a batch; with LAST, the rest of dW1 and the update. `all_slices`
       are those of dZ for all rows. The gradient is `factor` times both halves' sums, each times `scale`. */
    template <bool LAST, typename S>
    __device__ void weight_gradient(S slot, int packs, const uint4 *all_slices, const float (&scale)[2],
                                    const float (&factor)[2], const sgd_update &update, float rate,
                                    float (&gradient)[PACKS_PER_WARP][4]) {
        static const int STEPS = ROWS / 32 / 2;
        const uint4 *slices = all_slices + LAST * STEPS * 64 + lane();
        const char *x[STEPS];
#pragma unroll
        for (int k = 0; k < STEPS; k++) x[k] = slot((LAST * STEPS + k) * 32 + lane());
#pragma unroll
        for (int n = 0; n < PACKS_PER_WARP; n++) {
            if (pack_of(n) >= packs) break;
            slice_sums sums;
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                uint32_t words[4], a[4];
                ldmatrix_x4_trans(words, x[k] + pack_of(n) * PIXELS);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    a[2 * i] = __byte_perm(words[2 * i], words[2 * i + 1], 0x6420);
                    a[2 * i + 1] = __byte_perm(words[2 * i], words[2 * i + 1], 0x7531);
                }
                sums.add(a, slices[2 * k * 32], slices[(2 * k + 1) * 32]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float part = sums.total(i) * scale[i % 2];
                if (LAST)
                    update(rate, (gradient[n][i] + part) * factor[i % 2], weight[n][i], velocity[n][i]);
                else
                    gradient[n][i] = part;
            }
        }
    }

    /* The largest |W1| of each unit. */
    __device__ void find_max(uint32_t *w1_max) const {
        uint32_t most[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 4 * PACKS_PER_WARP; i++)
            most[i % 2] = max(most[i % 2], magnitude(weight[i / 4][i % 4]));
        atomic_column_max(most[0], most[1], w1_max);
    }

    /* W1 in slices, for forward. After a barrier. */
    __device__ void write_slices(int packs, const uint32_t *w1_max, uint4 *all_slices) const {
        const float inverse[2] = {slice_scale(w1_max[lane_unit()]).inverse,
                                  slice_scale(w1_max[lane_unit() + 1]).inverse};
        const int g = lane() / 4, odd = g % 2;
        uint4 *to = all_slices + slice_offset(lane_unit() + odd, g / 2);
#pragma unroll
        for (int round = 0; round < PACKS_PER_WARP / 2; round++) {
            const int pair = round * WARPS + warp();
            if (2 * pair >= packs) break;
            uint4 slices[2];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                int value[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    value[i] = __float2int_rn(weight[2 * round + n][i] * inverse[i % 2]);
                const int theirs = __shfl_xor_sync(0xffffffffu, odd ? value[0] : value[1], 4),
                          theirs2 = __shfl_xor_sync(0xffffffffu, odd ? value[2] : value[3], 4);
                slices[n] = odd ? slices_of(theirs, theirs2, value[1], value[3])
                                : slices_of(value[0], value[2], theirs, theirs2);
            }
            to[2 * pair * 32] = make_uint4(slices[0].x, slices[1].x, slices[0].y, slices[1].y);
            to[(2 * pair + 1) * 32] = make_uint4(slices[0].z, slices[1].z, slices[0].w, slices[1].w);
        }
    }

    /* Calls each(pixel of these packs, unit of the block, weight, velocity) for all weights of the first
       `units` units. */
    template <typename E> __device__ void all(int packs, int units, E each) {
#pragma unroll
        for (int i = 0; i < 4 * PACKS_PER_WARP; i++)
            if (pack_of(i / 4) < packs && lane_unit() + i % 2 < units)
                each(pack_of(i / 4) * PIXELS + lane() / 4 * 2 + i % 4 / 2, lane_unit() + i % 2,
                     weight[i / 4][i % 4], velocity[i / 4][i % 4]);
    }
};

} // namespace persistent

#endif
