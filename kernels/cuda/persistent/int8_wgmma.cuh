/* Layer 1 in int8 by wgmma, for a form that keeps the pixels of a batch as bytes in shared memory: products
   of pixels and of UNITS columns of floats in int8 slices (int8_slices.cuh). A row of pixels is a sequence of
   packs of 16 bytes.

   Slices     signed bytes: wgmma multiplies all four at once, as 32 columns. An operand is a sequence of 16
              k, 512 bytes: [INT8_SLICES][UNITS][16].
   Pixels     in registers, by ldmatrix: the rows of a batch have no order that wgmma could read.
   Needs compute capability 9.0 and the target sm_90a. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_INT8_WGMMA_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_INT8_WGMMA_CUH

#include "kernels/cuda/persistent/int8_layer1.cuh"
#include "kernels/cuda/tensor/mbarrier.cuh"
#include "kernels/cuda/tensor/wgmma.cuh"

namespace persistent::by_wgmma {

static const int SLICE_BYTES = UNITS * 16, K16_BYTES = INT8_SLICES * SLICE_BYTES;
static const int AHEAD = 5;      /* pairs of packs in registers */
static const int TILES = 4;      /* packs of a warp, at most */
static const int MAX_PACKS = 60; /* of an image; a multiple of 2 AHEAD, less than TILES * WARPS */

/* Bytes behind the last image that forward reads, at most: packs with weights 0, and three pairs ahead. */
static const int BEYOND = (2 * AHEAD - 1 + 6) * PIXELS;

/* Packs that forward multiplies: the last ones have weights 0. */
__host__ __device__ inline int padded_packs(int packs) {
    return (packs + 2 * AHEAD - 1) / (2 * AHEAD) * (2 * AHEAD);
}

/* The slices of two columns, whose k 2 g and 2 g + 1 lane 4 g + t has: even g writes four k of column 0, of
   its own and of g + 1; odd g of column 1. All slices are signed: the lower ones in -128 .. 127. */
__device__ inline void write_slices(int (&column)[2][2], char *to) {
    int odd = lane() / 4 % 2;
    asm volatile("" : "+r"(odd)); /* computed here, not kept in registers from call to call */
    const int before = odd ? 0x3276 : 0x7632, after = odd ? 0x1054 : 0x5410;
    const auto lower = [](int a, int b) { return __byte_perm(a, b, 0x5140); };
    const auto upper = [](int a, int b) { return __byte_perm(a, b, 0x7362); };
    int own[2], theirs[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        column[0][i] += 0x808080, column[1][i] += 0x808080;
        own[i] = odd ? column[1][i] : column[0][i];
        theirs[i] = __shfl_xor_sync(0xffffffffu, odd ? column[0][i] : column[1][i], 4);
    }
    const uint32_t low = lower(own[0], own[1]), low2 = lower(theirs[0], theirs[1]),
                   high = upper(own[0], own[1]), high2 = upper(theirs[0], theirs[1]);
    uint32_t *words = reinterpret_cast<uint32_t *>(to + (lane_unit() + odd) * 16 + lane() / 8 * 4);
    words[0] = __byte_perm(high, high2, before);
    words[SLICE_BYTES / 4] = __byte_perm(high, high2, after) ^ 0x80808080;
    words[2 * SLICE_BYTES / 4] = __byte_perm(low, low2, before) ^ 0x80808080;
    words[3 * SLICE_BYTES / 4] = __byte_perm(low, low2, after) ^ 0x80808080;
}

/* Scales of units, in shared memory. Each thread computes those of its two units from their largest
   magnitudes, as bits; four threads store what sums are multiplied by, for use after the next barrier. */
struct unit_scales {
    float *of_bytes; /* [UNITS]: of integers times bytes, which are 255 for an input of 1 */

    __device__ void start(float (&inverse)[2], const uint32_t (&most)[2]) const {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const slice_scale scale(most[e]);
            inverse[e] = scale.inverse;
            if (threadIdx.x < UNITS / 2) of_bytes[lane_unit() + e] = scale.scale * float(1.0 / 255.0);
        }
    }
};

/* B of wgmma: two sequences of 16 k. The next pair is at + K32. */
static const uint64_t K32 = 2 * K16_BYTES >> 4;
__device__ inline uint64_t slices_operand(const char *at) {
    return (uint64_t)(shared_address(at) >> 4 & 0x3fff) | (uint64_t)(K16_BYTES >> 4) << 16 |
           (uint64_t)(SLICE_BYTES >> 4) << 32;
}

/* D += A B, or D = A B unless `ADDS`: 64 rows of unsigned bytes from registers, as in mma_int8, 32 columns of
   signed ones. d[4 s + 2 h + e]: row lane / 4 + 8 h of the warp, slice s of unit lane_unit() + e. */
template <bool ADDS> __device__ inline void multiply(int (&d)[16], const uint32_t (&a)[4], uint64_t b) {
#ifdef HAVE_WGMMA
    asm volatile("{ .reg .pred adds; setp.ne.u32 adds, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, adds; }"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
                   "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
                   "+r"(d[14]), "+r"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDS));
#endif
}

/* --- forward --- */

/* X W1 in units of the scale, 64 rows of a warpgroup. `row` is that of this lane for ldmatrix. */
struct forward_product {
    int sum[16];

    /* Pairs 0 to 2 of AHEAD are multiplied while 3 and 4 are loaded, and these while the next 0 to 2 are.
       Beyond the packs of an image it reads those of the next one: the weights are 0. */
    __device__ void run(const char *row, int packs, const char *slices) {
        static const int HALF = (AHEAD + 1) / 2;
        const int pairs = padded_packs(packs) / 2;
        const uint64_t operand = slices_operand(slices);
        uint32_t pixels[AHEAD][4];
        row += lane() / 16 * PIXELS;
        const auto load = [&](int i, int pair) { ldmatrix_x4(pixels[i], row + 2 * (pair + i) * PIXELS); };
        const auto add = [&](int i, int pair) { multiply<true>(sum, pixels[i], operand + (pair + i) * K32); };
#pragma unroll
        for (int i = 0; i < 16; i++) sum[i] = 0;
#pragma unroll
        for (int i = 0; i < HALF; i++) load(i, 0);
        for (int pair = 0; pair < pairs; pair += AHEAD) {
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < HALF; i++) add(i, pair);
            wgmma_commit();
#pragma unroll
            for (int i = HALF; i < AHEAD; i++) load(i, pair);
            wgmma_fence();
#pragma unroll
            for (int i = HALF; i < AHEAD; i++) add(i, pair);
            wgmma_commit();
            wgmma_wait<1>();
#pragma unroll
            for (int i = 0; i < HALF; i++) load(i, pair + AHEAD);
            wgmma_wait<0>();
        }
        wgmma_done(sum);
    }

    /* Row lane / 4 + 8 h, unit lane_unit() + e. The sums of up to 960 k are below 2^24 in the highest slice,
       and 2^25 in the others, of which bits below 2^10 of the scale are dropped. */
    __device__ float total(int h, int e) const {
        const int i = 2 * h + e;
        return (float)sum[i] * 16777216.0f +
               (float)(sum[4 + i] * 64 + (sum[8 + i] >> 2) + (sum[12 + i] >> 10)) * 1024.0f;
    }
};

/* --- weights --- */

/* The pixels of a pack in all rows of the batch, transposed: A of dW1. The k of a word are rows 2 t, 2 t + 1,
   2 t + 8 and 2 t + 9 of 16. */
struct pixel_columns {
    uint32_t words[ROWS / 32][4];

    /* `row` is the pack in row lane(), of rows `pitch` bytes apart. */
    __device__ void load(const char *row, int pitch) {
#pragma unroll
        for (int k = 0; k < ROWS / 32; k++) {
            uint32_t loaded[4];
            ldmatrix_x4_trans(loaded, row + 32 * k * pitch);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                words[k][2 * i] = __byte_perm(loaded[2 * i], loaded[2 * i + 1], 0x6420);
                words[k][2 * i + 1] = __byte_perm(loaded[2 * i], loaded[2 * i + 1], 0x7531);
            }
        }
    }
};

/* Element i of a product, of an accumulator d, in units of the scale: a sum of up to 128 k of each slice is
   below 2^22. */
__device__ inline float total(const int (&sum)[16], int i) {
    return (float)(sum[i] * 256 + sum[4 + i]) * 65536.0f + (float)(sum[8 + i] * 256 + sum[12 + i]);
}

/* W1 and its velocities in registers, where wgmma leaves the gradients: lane 4 g + t of a warp holds pixels
   2 g and 2 g + 1 and units 2 t and 2 t + 1, in that order, of every WARPS-th pack. */
struct unit_weights {
    float weight[TILES][4], velocity[TILES][4];

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++) weight[i / 4][i % 4] = velocity[i / 4][i % 4] = 0;
    }

    __device__ static int pack_of(int n) { /* pack n of this warp */
        return n * WARPS + warp();
    }

    __device__ static bool has(int packs, int n) { /* the bias included */
        return pack_of(n) <= packs;
    }

    /* The pixels of a pack in all rows of the batch, transposed: A of dW1. The k of a word are rows 2 t,
       2 t + 8, 2 t + 1 and 2 t + 9 of 16. */
    struct columns {
        uint32_t words[ROWS / 32][4];

        /* `row[k]` is row 32 k + lane; `one` is the pack of the bias, of all rows. */
        __device__ void load(const char *const (&row)[ROWS / 32], const char *one, int packs, int pack) {
#pragma unroll
            for (int k = 0; k < ROWS / 32; k++) {
                uint32_t loaded[4];
                ldmatrix_x4_trans(loaded, pack < packs ? row[k] + pack * PIXELS : one);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    words[k][2 * i] = __byte_perm(loaded[2 * i], loaded[2 * i + 1], 0x6240);
                    words[k][2 * i + 1] = __byte_perm(loaded[2 * i], loaded[2 * i + 1], 0x7351);
                }
            }
        }
    };

    /* Starts a product with dZ. */
    __device__ static void start(int (&sum)[16], columns &pixels, const char *dz_slices) {
        const uint64_t operand = slices_operand(dz_slices);
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) /* they are there, not computed between the products */
            asm volatile("" : "+r"(pixels.words[i / 4][i % 4]));
        wgmma_fence();
        multiply<false>(sum, pixels.words[0], operand);
#pragma unroll
        for (int k = 1; k < ROWS / 32; k++) multiply<true>(sum, pixels.words[k], operand + k * K32);
        wgmma_commit();
    }

    /* Pack n of this warp in slices, for forward, or the bias. */
    __device__ void write_pack(int n, int packs, const float (&inverse)[2], char *slices, float *bias) const {
        const int pack = pack_of(n);
        if (pack == packs && lane() < 4)
            reinterpret_cast<float2 *>(bias)[lane()] = make_float2(weight[n][0], weight[n][1]);
        if (n == TILES - 1 && pack >= padded_packs(packs)) return; /* few warps have that tile */
        int column[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            column[i % 2][i / 2] = __float2int_rn(weight[n][i] * (pack < packs ? inverse[i % 2] : 0));
        by_wgmma::write_slices(column, slices + pack * K16_BYTES);
    }

    /* dW1 and the update. `first` holds the packs of the first two tiles; meanwhile() runs while they are
       multiplied, and updated(n) after the update of tiles 0 and 1. Few warps have a pack in the last tile,
       so it is not multiplied by wgmma, which takes a whole warpgroup. */
    template <typename M, typename U>
    __device__ void descend(columns (&first)[2], const char *const (&row)[ROWS / 32], const char *one,
                            int packs, const char *dz_slices, const float *of_bytes, const sgd_update &update,
                            float rate, M meanwhile, U updated) {
        int sum[2][16];
        const auto update_tile = [&](int n, const int(&sum)[16]) {
            if (!has(packs, n)) return;
            const float2 factor = *reinterpret_cast<const float2 *>(of_bytes);
#pragma unroll
            for (int i = 0; i < 4; i++)
                update(rate, total(sum, i) * (i % 2 ? factor.y : factor.x), weight[n][i], velocity[n][i]);
        };
        start(sum[0], first[0], dz_slices);
        start(sum[1], first[1], dz_slices);
        meanwhile();
        wgmma_wait<1>();
        wgmma_done(sum[0]);
        first[0].load(row, one, packs, pack_of(2));
        update_tile(0, sum[0]);
        start(sum[0], first[0], dz_slices);
        updated(0);
        wgmma_wait<1>();
        wgmma_done(sum[1]);
        update_tile(1, sum[1]);
        updated(1);
        wgmma_wait<0>();
        wgmma_done(sum[0]);
        update_tile(2, sum[0]);
        if (has(packs, 3)) {
            columns few;
            int of_few[16];
            few.load(row, one, packs, pack_of(3));
            multiply_alone(of_few, few, dz_slices);
            update_tile(3, of_few);
        }
    }

    /* The same product as `start`, by one warp. */
    __device__ static void multiply_alone(int (&sum)[16], const columns &pixels, const char *dz_slices) {
        const uint32_t *slices = reinterpret_cast<const uint32_t *>(dz_slices) + lane();
#pragma unroll
        for (int s = 0; s < INT8_SLICES; s++) {
            int of_slice[4] = {};
#pragma unroll
            for (int k = 0; k < ROWS / 32; k++)
                mma_int8<true>(of_slice, pixels.words[k], slices[(2 * k * K16_BYTES + s * SLICE_BYTES) / 4],
                               slices[((2 * k + 1) * K16_BYTES + s * SLICE_BYTES) / 4]);
#pragma unroll
            for (int i = 0; i < 4; i++) sum[4 * s + i] = of_slice[i];
        }
    }

    /* The largest of `values`, weights or velocities, of each unit; not of the bias, which forward adds as a
       float. */
    __device__ static void find_max(const float (&values)[TILES][4], int packs, uint32_t *most) {
        uint32_t own[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++)
            if (pack_of(i / 4) != packs) own[i % 2] = max(own[i % 2], magnitude(values[i / 4][i % 4]));
        atomic_column_max(own[0], own[1], most);
    }

    /* Calls of_pixel(pixel, unit of the block, weight, velocity) for all weights of the first `units` units,
       and of_bias(unit of the block, bias, velocity). */
    template <typename E, typename F> __device__ void all(int packs, int units, E of_pixel, F of_bias) {
#pragma unroll
        for (int i = 0; i < 4 * TILES; i++) {
            const int pack = pack_of(i / 4), pixel = lane() / 4 * 2 + i % 4 / 2, unit = lane_unit() + i % 2;
            if (unit >= units) continue;
            if (pack < packs)
                of_pixel(pack * PIXELS + pixel, unit, weight[i / 4][i % 4], velocity[i / 4][i % 4]);
            if (pack == packs && pixel == 0) of_bias(unit, weight[i / 4][i % 4], velocity[i / 4][i % 4]);
        }
    }
};

} // namespace persistent::by_wgmma

#endif
