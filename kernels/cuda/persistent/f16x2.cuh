/* Products of floats on the float16 tensor cores with the accuracy of float32.

   A float, times a power of two, is the sum of two float16, its planes, up to 2^-23 of it. Their products
   are exact and are summed in float32. Three of the four products are computed: plane 1 is at most 2^-11 of a
   float, so the one left out is at most 2^-22 of |a b|. Tensor cores truncate sums instead of rounding them,
   so they sum up to 64 k, and float32 adds these sums. Half the work of three bfloat16 planes, but all
   numbers of a matrix have one scale: below 2^-18 of the largest one, or of the bound that the scale is made
   of, plane 1 loses bits. Needs compute capability 8.0; wgmma_f16x2 the target sm_90a. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_F16X2_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_F16X2_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/persistent/int8_slices.cuh"
#include "kernels/cuda/tensor/wgmma_registers.cuh"

namespace persistent {

/* The power of two that takes numbers up to `most` (the bits of a magnitude) below 2^15, and its inverse. NaN
   if `most` is not finite. */
struct plane_scale {
    float inverse, scale;
    __device__ explicit plane_scale(uint32_t most) {
        const int exponent = max((int)(most >> 23) - 127, -112);
        inverse = exponent > 127 ? NAN : power_of_two(14 - exponent);
        scale = exponent > 127 ? NAN : power_of_two(exponent - 14);
    }
};

/* Scales the sums of products of two matrices. The product of both scales may overflow, and 0 times infinity
   is NaN: the smaller one is first, so that a result is infinite only if it is too large, and 0 stays 0. */
struct product_scale {
    float smaller, larger;
    __device__ product_scale(plane_scale a, plane_scale b)
        : smaller(fminf(a.scale, b.scale)), larger(fmaxf(a.scale, b.scale)) {}
    __device__ float operator()(float sum) const {
        return sum * smaller * larger;
    }
};

struct plane_pair {
    uint32_t high, low; /* of two floats each */
};

__device__ inline uint32_t bits_of(__half2 pair) {
    return *reinterpret_cast<const uint32_t *>(&pair);
}

__device__ inline plane_pair planes_of(float first, float second) {
    const __half2 high = __floats2half2_rn(first, second);
    const __half2 low = __floats2half2_rn(first - __low2float(high), second - __high2float(high));
    return {bits_of(high), bits_of(low)};
}

/* sum += A B, m16n8k16, of float16: the registers are those of mma_bf16. */
__device__ inline void mma_f16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b, uint32_t b2) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(b2));
#endif
}

__device__ inline void mma_f16(float (&sum)[4], uint4 a, uint32_t b, uint32_t b2) {
    const uint32_t words[4] = {a.x, a.y, a.z, a.w};
    mma_f16(sum, words, b, b2);
}

static const int F16_PLANES = 2;

/* sum += A B of planes, or sum = A B unless `adds`, by wgmma: A in registers, 64 rows of a warpgroup; `b` is
   the operand of plane 0, of which plane 1 is `plane` bytes behind. Of each call the small products come
   first. */
template <bool B_BY_K, int N>
__device__ inline void wgmma_f16x2(float (&sum)[N], const uint32_t (&a)[F16_PLANES][4], uint64_t b, int plane,
                                   bool adds) {
    wgmma_f16_registers<B_BY_K>(sum, a[1], b, adds);
    wgmma_f16_registers<B_BY_K>(sum, a[0], b + (plane >> 4), true);
    wgmma_f16_registers<B_BY_K>(sum, a[0], b, true);
}

/* A matrix of floats as planes in shared memory: [F16_PLANES][HEIGHT][CHUNKS] of 8 neighbours in a row.
   Chunks are swizzled within a row, so that 8 rows of one chunk lie in different banks, in the order of
   wgmma_swizzle64 or 128 (4 or 8 chunks). `base` is a multiple of 1024. */
template <int HEIGHT, int CHUNKS> struct plane_matrix {
    static constexpr int PLANE = HEIGHT * CHUNKS * 16, BYTES = F16_PLANES * PLANE;
    char *base;

    __device__ char *at(int row, int chunk) const {
        return base + (row * CHUNKS + (chunk ^ row * CHUNKS / 8 % CHUNKS)) * 16;
    }

    /* Stores a chunk. `inverse` is that of the matrix's scale. */
    __device__ void split(int row, int chunk, const float (&values)[8], float inverse) const {
        plane_pair pair[4];
#pragma unroll
        for (int i = 0; i < 4; i++) pair[i] = planes_of(values[2 * i] * inverse, values[2 * i + 1] * inverse);
        uint4 *to = reinterpret_cast<uint4 *>(at(row, chunk));
        to[0] = make_uint4(pair[0].high, pair[1].high, pair[2].high, pair[3].high);
        to[PLANE / 16] = make_uint4(pair[0].low, pair[1].low, pair[2].low, pair[3].low);
    }

    /* ldmatrix of every plane; each lane passes its row and chunk. */
    __device__ void load(uint32_t (&words)[F16_PLANES][4], int row, int chunk) const {
#pragma unroll
        for (int s = 0; s < F16_PLANES; s++) ldmatrix_x4(words[s], at(row, chunk) + s * PLANE);
    }

    __device__ void load_transposed(uint32_t (&words)[F16_PLANES][4], int row, int chunk) const {
#pragma unroll
        for (int s = 0; s < F16_PLANES; s++) ldmatrix_x4_trans(words[s], at(row, chunk) + s * PLANE);
    }
};

} // namespace persistent

#endif
