/* Products of floats on the tensor cores, as exact as in float32.

   A bfloat16 has 8 bits of significand and a float 24, so a float is the sum of three bfloat16. Products of
   bfloat16 are exact, and the tensor cores add them up in float32. Of nine products six are taken: second
   parts are at most 2^-8 of a float, third parts 2^-17, so those left out are at most 2^-24 of |a b|, of
   either sign: what float32 rounds off one product. The tensor cores do not round sums but cut them off: they
   add up 16 of k, the smallest products first, and float32 adds up those. Six products at sixteen times the
   rate. For numbers below 2^127; infinity becomes NaN. Needs compute capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_BF16X3_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_BF16X3_CUH

#include "kernels/cuda/tensor/ldmatrix.cuh"

static const int PARTS = 3; /* bfloat16 of a float, the largest first */

/* Two floats rounded to bfloat16, in a word, and back. */
__device__ inline uint32_t round_pair(float first, float second) {
    uint32_t pair = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
#endif
    return pair;
}

__device__ inline float first_of(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

__device__ inline float second_of(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

/* A pair of floats as three pairs of bfloat16. */
__device__ inline void split_pair(float first, float second, uint32_t (&parts)[PARTS]) {
#pragma unroll
    for (int s = 0; s < PARTS; s++) {
        parts[s] = round_pair(first, second);
        first -= first_of(parts[s]);
        second -= second_of(parts[s]);
    }
}

/* sum += A B: 16 x 8 over k = 16. Lane 4 g + t has of A rows g and g + 8, of B column g, of the sum rows g,
   g, g + 8, g + 8 and columns 2 t, 2 t + 1, 2 t, 2 t + 1; a word has two neighbours in k: 2 t of row g, of
   row g + 8, then 2 t + 8 of them. */
__device__ inline void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b, uint32_t b2) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(b2));
#endif
}

/* The same of floats: words N and N + 1 of b are an operand. */
template <int N>
__device__ inline void multiply_floats(float (&sum)[4], const uint32_t (&a)[PARTS][4],
                                       const uint32_t (&b)[PARTS][4]) {
    float part[4] = {};
#pragma unroll
    for (int order = PARTS - 1; order >= 0; order--)
#pragma unroll
        for (int i = order; i >= 0; i--) multiply(part, a[i], b[order - i][N], b[order - i][N + 1]);
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] += part[i];
}

/* To this block's shared memory. */
__device__ inline void put(char *at, uint4 words) {
    *reinterpret_cast<uint4 *>(at) = words;
}

__device__ inline void put(char *at, uint32_t word) {
    *reinterpret_cast<uint32_t *>(at) = word;
}

/* A matrix of floats as bfloat16 in shared memory: [PARTS][HEIGHT][CHUNKS] of 8 that are neighbours in a row.
   Chunks change places within a row so that 8 rows of one lie in different banks. */
template <int HEIGHT, int CHUNKS> struct split_matrix {
    static constexpr int PART = HEIGHT * CHUNKS * 16, BYTES = PARTS * PART;
    char *base;

    __device__ char *at(int row, int chunk) const {
        return base + (row * CHUNKS + (chunk ^ row * CHUNKS / 8 % CHUNKS)) * 16;
    }

    /* Calls to(address, words) for each part of a chunk. */
    template <typename P> __device__ void split(int row, int chunk, const float (&values)[8], P to) const {
        uint32_t parts[4][PARTS];
#pragma unroll
        for (int i = 0; i < 4; i++) split_pair(values[2 * i], values[2 * i + 1], parts[i]);
#pragma unroll
        for (int s = 0; s < PARTS; s++)
            to(at(row, chunk) + s * PART, make_uint4(parts[0][s], parts[1][s], parts[2][s], parts[3][s]));
    }

    /* The same of elements 2 t and 2 t + 1 of a chunk. */
    template <typename P>
    __device__ void split_pair_of(int row, int chunk, int t, float first, float second, P to) const {
        uint32_t parts[PARTS];
        split_pair(first, second, parts);
#pragma unroll
        for (int s = 0; s < PARTS; s++) to(at(row, chunk) + s * PART + 4 * t, parts[s]);
    }

    /* Four blocks of 8 rows of a chunk, as load_blocks: this lane's row and chunk. */
    __device__ void load(uint32_t (&words)[PARTS][4], int row, int chunk) const {
#pragma unroll
        for (int s = 0; s < PARTS; s++) load_blocks(words[s], at(row, chunk) + s * PART);
    }

    __device__ void load_transposed(uint32_t (&words)[PARTS][4], int row, int chunk) const {
#pragma unroll
        for (int s = 0; s < PARTS; s++) load_transposed_blocks(words[s], at(row, chunk) + s * PART);
    }
};

#endif
