/* Products of pixels and floats on the tensor cores, in fixed point.

   A pixel is a byte. The floats of a column become integers: times a power of two that takes the largest of
   them to 2^29 .. 2^30, so their quantum is below that largest float's own last bit. Such an integer is four
   bytes, digits of base 256, of which the highest has a sign: four products of bytes, each with its sum in
   int32, where nothing is rounded. So a result is off by what the quanta make, half of 2^-29 of the column's
   largest float for each pixel of 1, and by the rounding of the sums of digits, once: less than what sums in
   float32 round. Bytes need no conversion on their way to the tensor cores, which have twice the rate of
   bfloat16 for them. Needs compute capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_INT8_SLICES_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_INT8_SLICES_CUH

#include <stdint.h>

#include "kernels/cuda/tensor/ldmatrix.cuh"

static const int DIGITS = 4;      /* highest first */
static const int FIXED_BITS = 29; /* of the largest float: the highest digit is -64 .. 64 */

/* 2^k, from -126 to 127. */
__device__ inline float power_of_two(int k) {
    return __int_as_float((k + 127) << 23);
}

/* Of a column with that largest absolute value, as its bits: what makes integers of its floats, and the value
   of such an integer's 1. Both are NaN if it holds infinity or NaN. */
struct fixed_scale {
    float of, quantum;
    __device__ explicit fixed_scale(uint32_t largest) {
        const int exponent =
            max((int)(largest >> 23) - 127,
                FIXED_BITS - 126); /* both stay normal, and nearly always a 255th of the quantum */
        of = exponent > 127 ? NAN : power_of_two(FIXED_BITS - exponent);
        quantum = exponent > 127 ? NAN : power_of_two(exponent - FIXED_BITS);
    }
};

/* Byte D from above of four integers, for each D: four words of digits. */
__device__ inline uint4 digits_of(int first, int second, int third, int fourth) {
    const uint32_t low = __byte_perm(first, second, 0x5140), high = __byte_perm(first, second, 0x7362),
                   low2 = __byte_perm(third, fourth, 0x5140), high2 = __byte_perm(third, fourth, 0x7362);
    return make_uint4(__byte_perm(high, high2, 0x7632), __byte_perm(high, high2, 0x5410),
                      __byte_perm(low, low2, 0x7632), __byte_perm(low, low2, 0x5410));
}

/* sum += A B of bytes: 16 x 8 over k = 32. Lane 4 g + t has of A rows g and g + 8, of B column g, of the sum
   rows g, g, g + 8, g + 8 and columns 2 t, 2 t + 1, 2 t, 2 t + 1; a word has four neighbours in k: 4 t of row
   g, of row g + 8, then 4 t + 16 of them. */
template <bool SIGNED>
__device__ inline void multiply_bytes(int (&sum)[4], const uint32_t (&a)[4], uint32_t b, uint32_t b2) {
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

/* The sums of a tile of 16 x 8, by digit. They start at the bits of a float whose last bit is 1, so a sum is
   a float as it is. */
struct digit_sums {
    static constexpr float ZERO = 12582912.0f; /* 1.5 * 2^23: takes sums of -2^22 .. 2^22 */
    int of[DIGITS][4];

    __device__ digit_sums() {
#pragma unroll
        for (int i = 0; i < 4 * DIGITS; i++) of[i / 4][i % 4] = i < 4 ? __float_as_int(ZERO) : 0;
    }

    /* B: of digits 0 and 1 both words, then of digits 2 and 3, as it stores them. */
    __device__ void add(const uint32_t (&a)[4], uint4 upper, uint4 lower) {
        multiply_bytes<true>(of[0], a, upper.x, upper.y);
        multiply_bytes<false>(of[1], a, upper.z, upper.w);
        multiply_bytes<false>(of[2], a, lower.x, lower.y);
        multiply_bytes<false>(of[3], a, lower.z, lower.w);
    }

    /* Element i of the product, in quanta, over 256 pixels at most: the highest digit adds up to 64 * 255 *
       256 < 2^22, the others to (256 + 1) * 255 * 255 * 256 < 2^32 without the last byte. */
    __device__ float total(int i) const {
        const uint32_t low = (uint32_t)of[1][i] * 256u + (uint32_t)of[2][i] + ((uint32_t)of[3][i] >> 8);
        return (__int_as_float(of[0][i]) - ZERO) * 16777216.0f + (float)low * 256.0f;
    }
};

/* The same, for sums over 64 rows at most, 255 * 255 * 64 < 2^22: no conversion from an integer, which is
   slow. */
struct short_digit_sums : digit_sums {
    __device__ short_digit_sums() {
#pragma unroll
        for (int i = 4; i < 4 * DIGITS; i++) of[i / 4][i % 4] = __float_as_int(ZERO);
    }

    __device__ float total(int i) const {
        float sum = 0;
#pragma unroll
        for (int d = 0; d < DIGITS; d++) sum = sum * 256.0f + (__int_as_float(of[d][i]) - ZERO);
        return sum;
    }
};

#endif
