/* Tiled: the product of a warp's tile on the tensor cores, operands tf32 or bfloat16, sums float32. Needs
   compute capability 8.0.

   Operands   each matrix has a low-precision copy, rounded once when an element is written: bfloat16 to
              nearest even, tf32 to nearest. It consists of squares of 16 x 16: 512 bytes of bfloat16, 1 KB of
              tf32.
   Loads      from L1 to the registers of mma.sync, without shared memory. The sum over k may have any order
              that both operands share, and so may rows and columns of the result: lane 4 g + t takes k = 4 t
              .. 4 t + 3 of outputs 2 g and 2 g + 1, 4 neighbours in 2 rows along k, 2 neighbours in 4 rows
              across k. The rows of a square are stored in the order 0, 4, 8, 12, 1, 5, .., so that the 4 rows
              of a load are neighbours: whole sectors, and each cache line belongs to one load.
                           along k               across k
                bfloat16   2 loads of 8 bytes    4 of 4, and 4 byte permutations
                tf32       2 loads of 16         4 of 8
   Counts     per 32 x 16 outputs and 16 k, 8,192 multiply-adds: 3 squares, 6 to 12 loads, 4 mma of bfloat16
              or 8 of tf32; float32 takes 256 multiply-adds and 24 loads per lane.
   Registers  16 sums, 48 of squares in flight: 4 steps of 16 k, or 2 of tf32; 16 warps have 96 KB in flight.
   Shared     2 KB per warp, for the sums: the rest of 256 KB is L1 cache, where neighbouring warps share
              squares.
   Bound by   the L2 cache: 1.5 KB per 8,192 multiply-adds, half of float32; 3 KB with tf32. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_MMA_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_MMA_CUH

#include "kernels/cuda/persistent/tile.cuh"
#include "kernels/cuda/tensor/mma_bf16.cuh"

namespace persistent::tiled {

/* The bits of an operand. */
struct tf32 {
    uint32_t bits;
};
struct bf16 {
    uint16_t bits;
};

__device__ inline void round_to(tf32 &to, float value) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(to.bits) : "f"(value));
#endif
}

__device__ inline void round_to(bf16 &to, float value) {
    to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

static const int SQUARE = 16;

/* The offset of element (i, j) of a matrix with `ld` columns, stored in squares. */
__device__ inline size_t square_offset(unsigned i, unsigned j, unsigned ld) {
    const unsigned row = 4 * (i % 4) + i % SQUARE / 4;
    return (size_t)(i / SQUARE) * SQUARE * ld + (j / SQUARE * SQUARE + row) * SQUARE + j % SQUARE;
}

template <typename O> struct mixed_matrix : padded_matrix<float> {
    O *rounded;

    __device__ void skip(size_t elements) {
        at += elements;
        rounded += elements;
    }

    template <int N> __device__ void put(int i, int j, const pack<float, N> &values) const {
        pack<O, N> some;
#pragma unroll
        for (int q = 0; q < N; q++) round_to(some.value[q], values.value[q]);
        padded_matrix<float>::put(i, j, values);
        pack_at<N>(rounded + square_offset(i, j, ld)) = some;
    }
};

/* A lane's part of a square: 4 consecutive k of two outputs. */
template <typename O> struct square_fragment { uint32_t value[2][sizeof(O)]; };

/* Loads the squares of 16 outputs of an operand, one after the other along k. */
template <typename O, bool ALONG> struct square_source {
    const O *at; /* of this lane */
    int step;    /* to the next square */

    __device__ square_source(mixed_matrix<O> from, int output, int square) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        step = ALONG ? SQUARE * SQUARE : SQUARE * from.ld;
        at = from.rounded + (size_t)output * (ALONG ? from.ld : SQUARE) + (size_t)square * step +
             (ALONG ? (8 * (g % 2) + g / 2) * SQUARE + 4 * t : t * SQUARE + 2 * g);
    }

    __device__ square_fragment<O> load(int ahead) const {
        const O *from = at + ahead * step;
        square_fragment<O> to;
        if (ALONG) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const pack<uint32_t, sizeof(O)> some =
                    pack_at<sizeof(O)>(reinterpret_cast<const uint32_t *>(from + 4 * SQUARE * h));
#pragma unroll
                for (int q = 0; q < (int)sizeof(O); q++) to.value[h][q] = some.value[q];
            }
        } else {
            uint32_t row[4][sizeof(O) / 2];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const pack<uint32_t, sizeof(O) / 2> some =
                    pack_at<sizeof(O) / 2>(reinterpret_cast<const uint32_t *>(from + 4 * SQUARE * c));
#pragma unroll
                for (int q = 0; q < (int)sizeof(O) / 2; q++) row[c][q] = some.value[q];
            }
            transpose(to, row);
        }
        return to;
    }

    /* From 4 rows of k with two outputs each. */
    static __device__ void transpose(square_fragment<tf32> &to, const uint32_t (&row)[4][2]) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int c = 0; c < 4; c++) to.value[h][c] = row[c][h];
    }

    static __device__ void transpose(square_fragment<bf16> &to, const uint32_t (&row)[4][1]) {
#pragma unroll
        for (int q = 0; q < 2; q++) {
            to.value[0][q] = __byte_perm(row[2 * q][0], row[2 * q + 1][0], 0x5410); /* lower halves */
            to.value[1][q] = __byte_perm(row[2 * q][0], row[2 * q + 1][0], 0x7632);
        }
    }
};

/* sum += a b of 16 x 8 outputs. mma.m16n8k8 of tf32 and m16n8k16 of bfloat16 have their registers in the same
   order (PTX ISA, "matrix fragments"): rows g and g + 8 of A for the lower half of k, then for the upper
   half; column g of B, in the same order. */
__device__ inline void multiply_add(tf32, float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

__device__ inline void multiply_add(bf16, float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
    mma_bf16(sum, a0, a1, a2, a3, b0, b1);
}

/* The product of operands O for block_tiles. */
template <typename O> struct mma_product {
    typedef float real;
    typedef mixed_matrix<O> matrix;
    static constexpr int SLAB = SQUARE, WARPS = 16, SHARED = WARP_M * WARP_N * (int)sizeof(float);
    static constexpr int AHEAD = 8 / (int)sizeof(O); /* squares of k */
    static constexpr const char *DESCRIPTION =
        sizeof(O) == 4 ? ", tf32 on tensor cores" : ", bf16 on tensor cores";

    /* Bytes of operands and of updated elements, at 25 a cycle. */
    static double cycles(double rows, double cols, double k) {
        return ((rows + cols) * k * (double)sizeof(O) + rows * cols * 2 * sizeof(float)) / 25;
    }

    template <bool A_ALONG, bool B_ALONG> struct tile {
        static_assert(WARP_M == 2 * SQUARE && WARP_N == SQUARE, "as below");
        float sum[2][2][4]; /* [x][h][2 r + c]: row 16 x + 2 g + r, column 4 t + 2 c + h */

        __device__ void multiply(matrix a, matrix b, int m0, int n0, int s0, int s1, float *) {
            square_source<O, A_ALONG> from_a[2] = {{a, m0, s0}, {a, m0 + SQUARE, s0}};
            square_source<O, B_ALONG> from_b(b, n0, s0);
#pragma unroll 1
            for (int s = s0; s < s1; s += AHEAD) {
                square_fragment<O> of_a[AHEAD][2] = {}, of_b[AHEAD] = {};
#pragma unroll
                for (int d = 0; d < AHEAD; d++)
                    if (s + d < s1) { /* the same in the whole warp */
                        of_b[d] = from_b.load(d);
#pragma unroll
                        for (int x = 0; x < 2; x++) of_a[d][x] = from_a[x].load(d);
                    }
#pragma unroll
                for (int d = 0; d < AHEAD; d++)
#pragma unroll
                    for (int q = 0; q < (int)sizeof(O); q += 2)
#pragma unroll
                        for (int x = 0; x < 2; x++)
#pragma unroll
                            for (int h = 0; h < 2; h++) {
                                const uint32_t(&u)[2][sizeof(O)] = of_a[d][x].value;
                                const uint32_t(&v)[sizeof(O)] = of_b[d].value[h];
                                multiply_add(O(), sum[x][h], u[0][q], u[1][q], u[0][q + 1], u[1][q + 1], v[q],
                                             v[q + 1]);
                            }
                from_b.at += AHEAD * from_b.step;
#pragma unroll
                for (int x = 0; x < 2; x++) from_a[x].at += AHEAD * from_a[x].step;
            }
        }

        __device__ void reduce_across_lanes() {}

        __device__ void store(float *part, int ld) const {
            const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
            for (int x = 0; x < 2; x++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    pack_at<4>(part + (SQUARE * x + 2 * g + r) * ld + 4 * t) = {
                        sum[x][0][2 * r], sum[x][1][2 * r], sum[x][0][2 * r + 1], sum[x][1][2 * r + 1]};
        }
    };
};

} // namespace persistent::tiled

#endif
