/* Products of pixels and floats on the tensor cores, in true float32.

   A bfloat16 has 8 bits of significand, and so has a pixel, 0 to 255; a float has 24, so it is the sum of three bfloat16. The products
   of a pixel and those three are exact, and the sums are float32: nothing is rounded but the sum, as in a * b + c on the other cores.
   Three products at sixteen times the rate. Needs compute capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_EXACT_CUH
#define TESSERA_KERNELS_CUDA_FUSED_EXACT_CUH

#include <stdint.h>

/* Two bfloat16 in a word, the first in its lower half, from the upper halves of two floats. */
__device__ inline uint32_t upper_halves(float first, float second) {
    return __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632);
}

/* Byte E of a word as a float. */
template <int E> __device__ inline float pixel_of(uint32_t word) {
    return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 + E)) - 8388608.0f;
}

/* What of a float fits in a bfloat16, rounded to zero; the rest is exact. */
__device__ inline float upper_part(float value) {
    return __uint_as_float(__float_as_uint(value) & 0xffff0000u);
}

/* A pair of floats as three pairs of bfloat16. */
__device__ inline void split_pair(float first, float second, uint32_t (&parts)[3]) {
#pragma unroll
    for (int s = 0; s < 3; s++) {
        parts[s] = upper_halves(first, second);
        first -= upper_part(first);
        second -= upper_part(second);
    }
}

/* sum += A B: 16 x 8 over k = 16. Lane 4 g + t has of A rows g and g + 8, of B column g, of the sum rows g, g, g + 8, g + 8 and columns
   2 t, 2 t + 1, 2 t, 2 t + 1; a word has two neighbours in k: 2 t of row g, of row g + 8, then 2 t + 8 of them. */
__device__ inline void multiply(float (&sum)[4], const uint32_t (&a)[4], uint2 b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
#endif
}

#endif
