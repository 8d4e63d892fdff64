/* Pixels and the weights of UNITS units, for those forms of engine fused that have the pixels of a batch as
   bytes in shared memory: products in fixed point on the tensor cores (fused_fixed.cuh). Rows of pixels are
   packs of 16 bytes; `slot(row)` is where the pixels of a row of the batch lie. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_PIXELS_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_PIXELS_CUH

#include "kernels/cuda/persistent/int8_slices.cuh"
#include "kernels/cuda/persistent/rows.cuh"

static const int WARPS = 16, THREADS = 32 * WARPS;
static const int UNITS = 8;    /* of a block: the columns of a tensor-core product */
static const int QUARTERS = 4; /* of the pixels, a warp each: so many have the same rows */
static const int TILE = 32;    /* rows of a warp */

/* --- lanes --- */

/* This lane's first unit, of two, in a product. */
__device__ inline int own_units() {
    return threadIdx.x % 4 * 2;
}

__device__ inline uint32_t magnitude(float value) { /* as bits: of NaN it is the largest */
    return __float_as_uint(value) & 0x7fffffffu;
}

/* The largest magnitudes of this thread's two units over the warp, to those of the block. */
__device__ inline void collect_largest(uint32_t first, uint32_t second, uint32_t *largest) {
    uint32_t most[2] = {first, second};
#pragma unroll
    for (int u = 0; u < 2; u++) {
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
            most[u] = max(most[u], __shfl_xor_sync(0xffffffffu, most[u], offset));
        if (threadIdx.x % 32 < 4) atomicMax(largest + own_units() + u, most[u]);
    }
}

/* --- forward --- */

/* Where the digits of a lane are, of 32 for each two packs and two digits: lanes of both those who write and
   those who read are spread over the banks. k of a product: packs of a pair. */
__device__ inline int place_of_digits(int unit, int word) {
    return unit * 4 + (word ^ unit / 2);
}

/* X W1 in quanta, 128 x 8 over `packs`, into sums: [QUARTERS][ROWS][UNITS]. A warp has 32 rows and a quarter
   of the packs. */
template <typename S>
__device__ inline void multiply_pixels(S slot, int packs, const uint4 *all_digits, float *sums_of) {
    static const int TILES = TILE / 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first_row = warp % QUARTERS * TILE,
              quarter = warp / QUARTERS, pairs = (packs + 1) / 2, first = pairs * quarter / QUARTERS,
              end = pairs * (quarter + 1) / QUARTERS;
    const uint4 *digits = all_digits + place_of_digits(lane / 4, lane % 4);
    const char *x[TILES];
    digit_sums sums[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) x[i] = slot(first_row + 16 * i + lane % 16);
    const auto offset = [&](int p) { return min(2 * p + lane / 16, packs - 1) * PIXELS; };
    uint4 upper = digits[2 * first * 32], lower = digits[(2 * first + 1) * 32];
    uint32_t a[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) load_blocks(a[i], x[i] + offset(first));
#pragma unroll 2
    for (int p = first; p < end; p++) {
        const int next = min(p + 1, pairs - 1); /* on its way while this one is multiplied */
        const uint4 next_upper = digits[2 * next * 32], next_lower = digits[(2 * next + 1) * 32];
        uint32_t next_a[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES; i++) load_blocks(next_a[i], x[i] + offset(next));
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            sums[i].add(a[i], upper, lower);
#pragma unroll
            for (int e = 0; e < 4; e++) a[i][e] = next_a[i][e];
        }
        upper = next_upper, lower = next_lower;
    }
    float *to = sums_of + (quarter * ROWS + first_row + lane / 4) * UNITS + own_units();
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int below = 0; below < 2; below++)
            *reinterpret_cast<float2 *>(to + (16 * i + 8 * below) * UNITS) =
                make_float2(sums[i].total(2 * below), sums[i].total(2 * below + 1));
}

/* --- weights --- */

/* As lane 4 g + t of a warp a thread keeps the weights, and velocities, of pixels 2 g and 2 g + 1 of a pack
   and units 2 t and 2 t + 1, in that order, of the packs of each WARPS-th pair: where the tensor cores leave
   their gradients. */
template <int KEPT> struct pixel_weights {
    float weight[KEPT][4], velocity[KEPT][4];

    __device__ static int warp() {
        return threadIdx.x / 32;
    }
    __device__ static int lane() {
        return threadIdx.x % 32;
    }
    __device__ static int pack_of(int n) { /* that this warp keeps */
        return 2 * (n / 2 * WARPS + warp()) + n % 2;
    }

    /* dW1 over the rows of the first half of a batch, or with that what the whole batch gives, and the
       update. `digits` are those of dZ of all rows, `quantum` is that of this lane's units in this half,
       `factor` what is left of the gradient's. */
    template <bool LAST, typename S>
    __device__ void multiply_back(S slot, int packs, const uint4 *all_digits, const float (&quantum)[2],
                                  const float (&factor)[2], const descent &descend, float rate,
                                  float (&gradient)[KEPT][4]) {
        static const int STEPS = ROWS / 32 / 2;
        const uint4 *digits = all_digits + LAST * STEPS * 64 + lane();
        const char *x[STEPS];
#pragma unroll
        for (int k = 0; k < STEPS; k++) x[k] = slot((LAST * STEPS + k) * 32 + lane());
#pragma unroll
        for (int n = 0; n < KEPT; n++) {
            if (pack_of(n) >= packs) break;
            short_digit_sums sums;
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                uint32_t words[4], a[4];
                load_transposed_blocks(words, x[k] + pack_of(n) * PIXELS);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    a[2 * i] = __byte_perm(words[2 * i], words[2 * i + 1], 0x6420);
                    a[2 * i + 1] = __byte_perm(words[2 * i], words[2 * i + 1], 0x7531);
                }
                sums.add(a, digits[2 * k * 32], digits[(2 * k + 1) * 32]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float part = sums.total(i) * quantum[i % 2];
                if (LAST)
                    descend(rate, (gradient[n][i] + part) * factor[i % 2], weight[n][i], velocity[n][i]);
                else
                    gradient[n][i] = part;
            }
        }
    }

    /* The largest |W1| of each unit. */
    __device__ void measure(uint32_t *largest) const {
        uint32_t most[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 4 * KEPT; i++) most[i % 2] = max(most[i % 2], magnitude(weight[i / 4][i % 4]));
        collect_largest(most[0], most[1], largest);
    }

    /* W1 in digits, where forward reads them. After a barrier. */
    __device__ void publish(int packs, const uint32_t *largest, uint4 *all_digits) const {
        const float scale[2] = {fixed_scale(largest[own_units()]).of,
                                fixed_scale(largest[own_units() + 1]).of};
        const int g = lane() / 4, odd = g % 2;
        uint4 *to = all_digits + place_of_digits(own_units() + odd, g / 2);
#pragma unroll
        for (int round = 0; round < KEPT / 2; round++) {
            const int pair = round * WARPS + warp();
            if (2 * pair >= packs) break;
            uint4 digits[2];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                int value[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    value[i] = __float2int_rn(weight[2 * round + n][i] * scale[i % 2]);
                const int theirs = __shfl_xor_sync(0xffffffffu, odd ? value[0] : value[1], 4),
                          theirs2 = __shfl_xor_sync(0xffffffffu, odd ? value[2] : value[3], 4);
                digits[n] = odd ? digits_of(theirs, theirs2, value[1], value[3])
                                : digits_of(value[0], value[2], theirs, theirs2);
            }
            to[2 * pair * 32] = make_uint4(digits[0].x, digits[1].x, digits[0].y, digits[1].y);
            to[(2 * pair + 1) * 32] = make_uint4(digits[0].z, digits[1].z, digits[0].w, digits[1].w);
        }
    }

    /* Calls each(pixel of these packs, unit of the block, index of value and velocity here) for all of the
       first `units`. */
    template <typename E> __device__ void all(int packs, int units, E each) const {
#pragma unroll
        for (int i = 0; i < 4 * KEPT; i++)
            if (pack_of(i / 4) < packs && own_units() + i % 2 < units)
                each(pack_of(i / 4) * PIXELS + lane() / 4 * 2 + i % 4 / 2, own_units() + i % 2, i);
    }
};

#endif
