/* float32 matrices as sums of 16-bit planes, in blocks that wgmma reads as they are.

   Blocks     64 x 64 elements, 128 bytes a row, whose units of 16 bytes are swizzled (unit u of row r is at
              u ^ r % 8): 8 KB in a row, so that the copy engine needs no tensor map. The last blocks are
              padded with zeros. As the operand of wgmma a block serves with k along its rows or columns.
   Scale      each block is multiplied by a power of two that brings its largest element to [2^14, 2^15).
   fp16       two planes: x 2^e = high + low, with 22 bits of mantissa for elements down to 2^-15 of the
              largest element of their block, and 2^-39 of that element for smaller ones.
   bf16       three planes, 24 bits in a range of 2^170: for blocks where that is not enough. They are scaled
              by 2^36 more, so that products of small elements are no subnormal numbers.
   Guard      the split itself finds such blocks and raises PLANES_WIDE: a row or a column of a block is
              smaller than the block by 2^14, or most of its elements are by 2^15. PLANES_SPECIAL: there is
              an infinity or a NaN, which planes cannot hold. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_PLANES_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_PLANES_CUH

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

static const unsigned PLANE_SIDE = 64, PLANE_BYTES = PLANE_SIDE * PLANE_SIDE * 2; /* of a block */
enum { PLANES_WIDE = 1, PLANES_SPECIAL = 2 };                                     /* bits of the state */

/* The exponent of the scale of bf16 planes, from that of fp16 planes. */
static inline __host__ __device__ int wide_exponent(int e) {
    return e + 36 < 126 ? e + 36 : 126;
}

/* What the blocks of a matrix raised. */
struct plane_flags {
    unsigned raised, blocks_done; /* while it is split; then 0 */
    unsigned state;
};

struct planes {
    char *blocks;              /* fp16: [plane][row of blocks][column of blocks][PLANE_BYTES] */
    char *wide;                /* the same of bf16 */
    int *exponents;            /* [row of blocks][column of blocks] */
    struct plane_flags *flags; /* at first all 0 */
    unsigned row_blocks, column_blocks;

    __host__ __device__ size_t count(void) const {
        return (size_t)row_blocks * column_blocks;
    }
};

/* A matrix and the planes that it is split into. */
struct split_source {
    const float *values; /* [rows][columns], `ld` apart */
    size_t rows, columns, ld;
    struct planes to;
};

#endif
