/* 16 rows of an output layer of 16 bits in shared memory: what the kernels for few and many rows share. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16_OUTPUT_TILE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16_OUTPUT_TILE_CUH

#include "kernels/cuda/ops/reduce.cuh"
#include "kernels/cuda/tensor/ldmatrix.cuh"
#include "kernels/cuda/tensor/mma_16bit.cuh"
#include "kernels/cuda/tensor/output_layer.cuh"

static const unsigned OUTPUT_ROWS = 16;

/* The address that this lane passes to ldmatrix_x4 for 16 rows and 16 columns (32 bytes) of a matrix. With
   `columns_first` matrix 1 is to the right of matrix 0, else below it. */
__device__ inline const char *quarter(const char *at, unsigned pitch, bool columns_first) {
    const unsigned lane = threadIdx.x % 32, first = lane / 8 % 2, second = lane / 16;
    const unsigned row = (columns_first ? second : first) * 8 + lane % 8,
                   unit = columns_first ? first : second;
    return at + row * pitch + unit * 16;
}

/* W^T, zeros outside, where W has no gaps between rows: eight neighbours in memory at a time. */
template <typename T>
__device__ inline void load_dense_weights(const output<T> &p, char *to, unsigned pitch, unsigned threads) {
    const unsigned AT_A_TIME = 8, packs = p.units * p.classes / 8;
    for (unsigned i = threadIdx.x; i < p.padded * MOST_CLASSES / 8;
         i += threads) { /* eight units of a class */
        const unsigned c = i / (p.padded / 8), unit = i % (p.padded / 8) * 8;
        if (c >= p.classes || unit >= p.units) *(uint4 *)(to + c * pitch + unit * 2) = uint4();
    }
    for (unsigned i0 = threadIdx.x; i0 < packs; i0 += AT_A_TIME * threads) {
        pack<T, 8> some[AT_A_TIME];
#pragma unroll
        for (unsigned i = 0; i < AT_A_TIME; i++)
            if (i0 + i * threads < packs) some[i] = pack_at<8>(p.w + 8 * (i0 + i * threads));
#pragma unroll
        for (unsigned i = 0; i < AT_A_TIME; i++) {
            const unsigned first = 8 * (i0 + i * threads);
            unsigned unit = first / p.classes, c = first % p.classes;
            if (i0 + i * threads >= packs) continue;
#pragma unroll
            for (unsigned e = 0; e < 8; e++) {
                *(T *)(to + c * pitch + unit * 2) = some[i].value[e];
                if (++c == p.classes) c = 0, unit++;
            }
        }
    }
}

/* W^T, zeros outside: all `threads` of the block. Many requests at a time, before any store: for all that the
   compiler knows, a store to shared memory changes what is loaded after it. */
template <typename T>
__device__ inline void load_weights(const output<T> &p, char *to, unsigned pitch, unsigned threads) {
    const unsigned AT_A_TIME = 16;
    if (p.ldw == p.classes && p.units % 8 == 0 && (uintptr_t)p.w % 16 == 0)
        return load_dense_weights(p, to, pitch, threads);
    for (unsigned e0 = threadIdx.x; e0 < p.padded * MOST_CLASSES; e0 += AT_A_TIME * threads) {
        T some[AT_A_TIME];
#pragma unroll
        for (unsigned i = 0; i < AT_A_TIME; i++) {
            const unsigned unit = (e0 + i * threads) / MOST_CLASSES, c = e0 % MOST_CLASSES;
            some[i] = unit < p.units && c < p.classes ? p.w[unit * p.ldw + c] : T(0.0f);
        }
#pragma unroll
        for (unsigned i = 0; i < AT_A_TIME; i++) {
            const unsigned unit = (e0 + i * threads) / MOST_CLASSES, c = e0 % MOST_CLASSES;
            if (unit < p.padded) *(T *)(to + c * pitch + unit * 2) = some[i];
        }
    }
}

/* sums += X W, of 16 units from `x` and `w` on. */
template <typename T>
__device__ inline void multiply_units(float (&sums)[2][4], const char *x_at, const char *w_at,
                                      unsigned pitch) {
    uint32_t x[4], w[4];
    ldmatrix_x4(x, quarter(x_at, pitch, false));
    ldmatrix_x4(w, quarter(w_at, pitch, true));
    mma_16bit<T>(sums[0], x, w[0], w[1]);
    mma_16bit<T>(sums[1], x, w[2], w[3]);
}

/* The sums of a warp, as its lanes hold them. */
__device__ inline void keep_logits(float (&logits)[OUTPUT_ROWS][MOST_CLASSES], const float (&sums)[2][4]) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++)
        logits[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i / 4][i % 4];
}

/* The gradient of the logits, [16][16], as left operand; as right one, classes 0 .. 7, then 8 .. 15. */
struct logit_gradients {
    uint32_t rows[4], columns[4];

    __device__ explicit logit_gradients(const char *grad) {
        ldmatrix_x4(rows, quarter(grad, MOST_CLASSES * 2, false));
        ldmatrix_x4_trans(columns, quarter(grad, MOST_CLASSES * 2, false));
    }
};

/* Of 16 units: `sums` = dZ W^T, `products` += X^T dZ. */
template <typename T>
__device__ inline void multiply_gradients(float (&sums)[2][4], float (&products)[2][4],
                                          const logit_gradients &grad, const char *x_at, const char *w_at,
                                          unsigned pitch) {
    uint32_t x[4], w[4];
    ldmatrix_x4_trans(w, quarter(w_at, pitch, false));
    ldmatrix_x4_trans(x, quarter(x_at, pitch, true));
    mma_16bit<T>(sums[0], grad.rows, w[0], w[1]);
    mma_16bit<T>(sums[1], grad.rows, w[2], w[3]);
    mma_16bit<T>(products[0], x, grad.columns[0], grad.columns[1]);
    mma_16bit<T>(products[1], x, grad.columns[2], grad.columns[3]);
}

/* 16 units of the input gradient, in place of what the derivative reads. `columns` += what this lane stored:
   of its two columns of units 0 .. 7, then of 8 .. 15. */
template <enum activation A, typename T>
__device__ inline void multiply_slopes(const output<T> &p, const float (&sums)[2][4], char *read,
                                       unsigned pitch, float *columns) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        uint32_t &word =
            *(uint32_t *)(read + (lane / 4 + 8 * (i % 2)) * pitch + (i / 2 * 8 + lane % 4 * 2) * 2);
        const float2 y = floats_of<T>(word);
        const float *const two = sums[i / 2] + i % 2 * 2;
        word = round_gradients_to<T>(p.alpha * two[0] * derivative(A, y.x, y.x),
                                     p.alpha * two[1] * derivative(A, y.y, y.y));
        const float2 stored = floats_of<T>(word);
        columns[i / 2 * 2] += stored.x;
        columns[i / 2 * 2 + 1] += stored.y;
    }
}

/* The sum over all rows of one of 32 columns, those that multiply_slopes added up for two times 16 units. */
__device__ inline float sum_of_column(float (&columns)[8]) {
    const unsigned lane = threadIdx.x % 32;
    halve<8>(columns, lane & 16, 16);
    halve<4>(columns, lane & 8, 8);
    halve<2>(columns, lane & 4, 4);
    return columns[0];
}

/* Which one, if the second 16 units begin so many units after the first. */
__device__ inline unsigned column_of_lane(unsigned second) {
    const unsigned lane = threadIdx.x % 32;
    return (lane >> 4) * second + (lane >> 3 & 1) * 8 + lane % 4 * 2 + (lane >> 2 & 1);
}

/* 16 units of the weight gradient, [units][classes]. */
__device__ inline void keep_products(float *to, unsigned classes, const float (&products)[2][4]) {
    const unsigned lane = threadIdx.x % 32;
    to += lane / 4 * classes + lane % 4 * 2;
#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        const unsigned c = i / 4 * 8 + i % 2;
        if (c + lane % 4 * 2 < classes) to[i / 2 % 2 * 8 * classes + c] = products[i / 4][i % 4];
    }
}

/* The sums of a block: [padded][classes] of W, [padded] of the bias below, [classes] of the bias; a multiple
   of four. */
__host__ __device__ inline unsigned count_of_sums(unsigned padded, unsigned classes) {
    return (padded * (classes + 1) + classes + 3) / 4 * 4;
}

/* Stores four of them from e on. */
template <typename T>
__device__ inline void store_sums(const output<T> &p, unsigned e, const float (&sums)[4]) {
    const unsigned weights = p.padded * p.classes;
    unsigned unit = e / p.classes, c = e % p.classes;
#pragma unroll
    for (unsigned i = 0; i < 4; i++, e++) {
        if (e < weights) {
            if (unit < p.units) p.w_grad[unit * p.ldw_grad + c] = p.grad_scale * sums[i];
            if (++c == p.classes) c = 0, unit++;
        } else if (e < weights + p.padded) {
            if (e - weights < p.units) p.below_grad[e - weights] = p.grad_scale * sums[i];
        } else if (e < weights + p.padded + p.classes) {
            p.bias_grad[e - weights - p.padded] = p.grad_scale * sums[i];
        }
    }
}

#endif
