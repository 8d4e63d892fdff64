/* Products of byte pixels and float32 weights on the int8 tensor cores, by error-free slicing (Ozaki scheme).

   A column of floats is quantised with one power of two that takes its largest magnitude to 2^29 .. 2^30; the
   scale is below the last bit of that float. Each integer is four int8 slices (base 256, the highest is
   signed): four products of bytes with exact sums in int32. The error of a result is that of quantisation,
   half of 2^-29 of the column's largest float per pixel of value 1, and one rounding of the combined sums:
   less than float32 summation makes. int8 has twice the rate of bfloat16, and pixels need no conversion.
   Needs compute capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_INT8_SLICES_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_INT8_SLICES_CUH

#include <stdint.h>

#include "kernels/cuda/tensor/ldmatrix.cuh"

namespace persistent {

static const int INT8_SLICES = 4; /* the highest first */
static const int SLICE_BITS = 29; /* of the largest float: its highest slice is -64 .. 64 */

/* 2^k, from -126 to 127. */
__device__ inline float power_of_two(int k) {
    return __int_as_float((k + 127) << 23);
}

/* Quantisation of a column whose largest magnitude has these bits: integer = round(float * inverse), float =
   integer * scale. Both are NaN if the column holds infinity or NaN. */
struct slice_scale {
    float inverse, scale;
    __device__ explicit slice_scale(uint32_t largest) {
        /* the minimum keeps both normal */
        const int exponent = max((int)(largest >> 23) - 127, SLICE_BITS - 126);
        inverse = exponent > 127 ? NAN : power_of_two(SLICE_BITS - exponent);
        scale = exponent > 127 ? NAN : power_of_two(exponent - SLICE_BITS);
    }
};

/* Slice s of four integers, in word s. */
__device__ inline uint4 slices_of(int first, int second, int third, int fourth) {
    const uint32_t low = __byte_perm(first, second, 0x5140), high = __byte_perm(first, second, 0x7362),
                   low2 = __byte_perm(third, fourth, 0x5140), high2 = __byte_perm(third, fourth, 0x7362);
    return make_uint4(__byte_perm(high, high2, 0x7632), __byte_perm(high, high2, 0x5410),
                      __byte_perm(low, low2, 0x7632), __byte_perm(low, low2, 0x5410));
}

/* sum += A B of bytes, m16n8k32. Lane 4 g + t holds rows g and g + 8 of A, column g of B, and of the sum rows
   g, g, g + 8, g + 8 and columns 2 t, 2 t + 1, 2 t, 2 t + 1. A word is four neighbours in k: 4 t of row g, of
   row g + 8, then 4 t + 16 of both. */
template <bool SIGNED>
__device__ inline void mma_int8(int (&sum)[4], const uint32_t (&a)[4], uint32_t b, uint32_t b2) {
#if __CUDA_ARCH__ >= 800
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(b2));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(b2));
#endif
}

} // namespace persistent

#endif
