/* float32 matrices as sums of 16-bit planes, in blocks that wgmma reads as they are.

   Blocks     64 x 64 elements, 128 bytes a row, whose units of 16 bytes are swizzled (unit u of row r is at
              u ^ r % 8): 8 KB in a row, so that the copy engine needs no tensor map. The last blocks are
              padded with zeros. As the operand of wgmma a block serves with k along its rows or columns.
   Scale      each block is multiplied by a power of two that brings its largest element to [2^14, 2^15).
   fp16       two planes: x 2^e = high + low, with 22 bits of mantissa for elements down to 2^-15 of the
              largest element of their block, and 2^-39 of that element for smaller ones.
   Pixels     if all elements of a block are float(n PIXEL_SCALE) of integers n, |n| < 2048, and its low plane
              would not be 0, then the high plane holds n, and the low one 0: x = n PIXEL_SCALE within the
              rounding of x. The input of a network is of this kind.
   bf16       three planes, 24 bits in a range of 2^170: for blocks where that is not enough. They are scaled
              by 2^36 more, so that products of small elements are no subnormal numbers.
   Guard      the split itself finds such blocks and raises PLANES_WIDE: a row or a column of a block is
              smaller than the block by 2^17, or most of its elements are by 2^15. PLANES_SPECIAL: there is
              an infinity or a NaN, which planes cannot hold. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_PLANES_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_PLANES_CUH

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

static const unsigned PLANE_SIDE = 64, PLANE_BYTES = PLANE_SIDE * PLANE_SIDE * 2; /* of a block */
static const float PIXEL_SCALE = 1.0f / 255; /* input_scale of kernels/ops.h */

/* Bits of the state of a matrix. PLANES_LOW: not all elements of the low plane are 0. PLANES_HIGH: some
   blocks have CODE_HIGH. */
enum { PLANES_WIDE = 1, PLANES_SPECIAL = 2, PLANES_LOW = 4, PLANES_HIGH = 8 };

/* The code of a block: the exponent e of its scale 2^e, plus CODE_ZERO, and bits. CODE_PIXELS: the high plane
   holds pixels, and e is that of the bf16 planes alone. CODE_WIDE: the block raised PLANES_WIDE. CODE_HIGH:
   the low plane is 0, and written only if a product reads it. */
enum { CODE_ZERO = 512, CODE_PIXELS = 1 << 16, CODE_WIDE = 1 << 17, CODE_HIGH = 1 << 18 };

static inline __host__ __device__ int exponent_of(unsigned code) {
    return (int)(code & 0xffff) - CODE_ZERO;
}

/* The exponent of the scale of bf16 planes. */
static inline __host__ __device__ int wide_exponent(unsigned code) {
    const int e = exponent_of(code) + 36;
    return e < 126 ? e : 126;
}

/* What the blocks of a matrix raised. */
struct plane_flags {
    unsigned raised, done; /* while it is split: writers that are done; then 0 */
    unsigned state;
};

struct planes {
    char *blocks;              /* fp16: [plane][row of blocks][column of blocks][PLANE_BYTES] */
    char *wide;                /* the same of bf16 */
    unsigned *codes;           /* [row of blocks][column of blocks] */
    struct plane_flags *flags; /* at first all 0 */
    unsigned row_blocks, column_blocks;

    __host__ __device__ size_t count(void) const {
        return (size_t)row_blocks * column_blocks;
    }
};

/* An operand of a product: blocks across, along the rows of op(A) or the columns of op(B), and along k. */
struct plane_operand {
    const char *blocks, *wide;
    const unsigned *codes;
    const plane_flags *flags;
    size_t count; /* of blocks of a plane */
    unsigned blocks_across, columns;
    bool k_is_rows; /* of the matrix as stored */

    plane_operand(const planes &of, bool k_is_its_rows)
        : blocks(of.blocks), wide(of.wide), codes(of.codes), flags(of.flags), count(of.count()),
          blocks_across(k_is_its_rows ? of.column_blocks : of.row_blocks), columns(of.column_blocks),
          k_is_rows(k_is_its_rows) {}

    /* Beyond the last block: the last one, whose sums are not stored. */
    __host__ __device__ size_t index(unsigned across, unsigned k) const {
        const unsigned inside = across < blocks_across ? across : blocks_across - 1;
        return k_is_rows ? (size_t)k * columns + inside : (size_t)inside * columns + k;
    }
};

/* A matrix and the planes that it is split into. */
struct split_source {
    const float *values; /* [rows][columns], `ld` apart */
    size_t rows, columns, ld;
    struct planes to;
};

#ifdef __CUDACC__
static const unsigned EXPONENT_ONE = 1u << 23, INFINITE = 0x7f800000; /* in the bits of a float */

static __device__ unsigned magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffff;
}

/* The larger magnitude, NaN if one is. */
static __device__ float larger_magnitude(float x, float y) {
#    if __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(fabsf(x)), "f"(fabsf(y)));
    return x;
#    else
    return __uint_as_float(max(magnitude(x), magnitude(y)));
#    endif
}

/* Of all lanes. */
static __device__ unsigned sum_of_warp(unsigned x) {
#    if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, x);
#    else
    for (int mask = 16; mask; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
#    endif
}

static __device__ unsigned larger(unsigned x, int lane_mask) {
    return max(x, __shfl_xor_sync(0xffffffffu, x, lane_mask));
}

static __device__ unsigned largest_of_warp(unsigned x) {
#    if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#    else
    for (int mask = 16; mask; mask /= 2) x = larger(x, mask);
    return x;
#    endif
}

static __device__ float power_of_two(int e) {
    return __uint_as_float((unsigned)(e + 127) << 23);
}

/* e of the scale 2^e of a block with this largest magnitude: at most 126, at which subnormal numbers of
   float32 are still exact. */
static __device__ int scale_exponent(unsigned most) {
    const int e = 127 + 14 - (int)(most >> 23);
    return most == 0 ? 0 : min(e, 126);
}

/* The guard. Is the largest magnitude of a row or column too small beside that of its block? At 2^-r of it
   the last bit of fp16 adds an rms error of 2^(r - 15) 1.6 / sqrt(k) units (docs/tensor-cores.md) to Gaussian
   results: 0.14 for r = 17 and k = 2048, where SGEMM has 0.24. */
static __device__ unsigned lopsided_below(unsigned most) {
    return most > 17 * EXPONENT_ONE ? most - 17 * EXPONENT_ONE : 0;
}
static __device__ bool is_lopsided(unsigned line, unsigned most) {
    return line && line < lopsided_below(most);
}

/* Elements of a thread, counted: nonzero << 16 | small. */
template <int ROWS, int COLUMNS>
static __device__ unsigned count_small(const float (&x)[ROWS][COLUMNS], unsigned most) {
    const float limit = __uint_as_float(most > 15 * EXPONENT_ONE ? most - 15 * EXPONENT_ONE : 0);
    unsigned zero = 0, below = 0;
#    pragma unroll
    for (int i = 0; i < ROWS; i++)
#    pragma unroll
        for (int e = 0; e < COLUMNS; e++) {
            zero += x[i][e] == 0;
            below += fabsf(x[i][e]) < limit;
        }
    return (ROWS * COLUMNS - zero) << 16 | (limit != 0 ? below - zero : 0);
}

/* The bits to raise, from what the block has. */
static __device__ unsigned guard_bits(unsigned most, bool lopsided, unsigned nonzero_and_small) {
    const bool mostly_small = 2 * (nonzero_and_small & 0xffff) > nonzero_and_small >> 16;
    return most >= INFINITE ? PLANES_SPECIAL : lopsided || mostly_small ? PLANES_WIDE : 0;
}

static __device__ unsigned code_of(int exponent, unsigned raised) {
    return (unsigned)(exponent + CODE_ZERO) | (raised & PLANES_WIDE ? CODE_WIDE : 0);
}

/* One thread of each of the `writers` of a matrix: the last one sets its state. */
static __device__ void planes_done(plane_flags *flags, unsigned raised, size_t writers) {
    if (raised) atomicOr(&flags->raised, raised);
    __threadfence();
    if (atomicAdd(&flags->done, 1u) != writers - 1) return;
    flags->done = 0;
    flags->state = atomicExch(&flags->raised, 0u);
}
#endif

#endif
