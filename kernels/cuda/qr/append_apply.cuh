/* Rows that enter a triangle (append.cu): what its warps share, and reflectors applied to columns. */
#ifndef TESSERA_KERNELS_CUDA_QR_APPEND_APPLY_CUH
#define TESSERA_KERNELS_CUDA_QR_APPEND_APPLY_CUH

#include "kernels/cuda/qr/qr.cuh"

static constexpr unsigned COLUMNS = 32, PITCH = COLUMNS + 4 /* neighbouring rows start in other banks */,
                          MOST_BLOCKS = 8, ALL = 0xffffffffu,
                          OF_MAKER = 16 /* rows of a warp that makes reflectors */,
                          MOST_MAKERS = QR_APPEND_ROWS / OF_MAKER;

template <typename T> struct append_call {
    T *a;
    size_t r_ld, a_ld, a_stride;
    unsigned n, cols, rows, blocks;
};

/* COLUMNS reflectors: row i of V, and the products of l with those after it. Those that do not exist have
   zeros. */
template <typename T> struct alignas(16) reflectors {
    T v[QR_APPEND_ROWS][PITCH], products[COLUMNS][COLUMNS], tau[COLUMNS];
};

template <typename T> struct append_shared {
    reflectors<T> by[2]; /* for even and odd groups of columns */
    /* Of the columns that become reflectors: */
    T r[COLUMNS][COLUMNS + 1], a[QR_APPEND_ROWS][COLUMNS + 1];
    alignas(16) T x[2][QR_APPEND_ROWS]; /* an even and an odd one of them */
    T sums[2][MOST_MAKERS][COLUMNS];    /* its products with all, of the rows of each warp */
};

/* 16 bytes from shared memory. */
template <typename T> struct alignas(16) some { T value[16 / sizeof(T)]; };

/* The same pointer, from which the compiler computes addresses anew instead of keeping them in registers. */
template <typename T> __device__ __forceinline__ T *renewed(T *pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

/* --- reflectors applied to columns --- */

/* Columns j, j + 32, .. of a lane: those that exist. */
template <int EACH> struct lane_columns {
    unsigned first, end;
    __device__ bool has(int e) const {
        return first + 32 * e < end;
    }
};

/* Calls each(i, x) for the rows i, with x [EACH] = row i of the columns `a`. The next elements are loaded
   while each() works. */
template <typename T, int EACH, typename F>
__device__ __forceinline__ void each_row(unsigned rows, lane_columns<EACH> columns, const T *a, size_t a_ld,
                                         F each) {
    constexpr unsigned AHEAD = 16 / EACH;
    T next[AHEAD][EACH];
    const auto load = [&](unsigned first) {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                next[i][e] = first + i < rows && columns.has(e) ? a[(first + i) * a_ld + 32 * e] : 0;
    };
    load(0);
#pragma unroll 1
    for (unsigned first = 0; first < rows; first += AHEAD) {
        T now[AHEAD][EACH];
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++)
#pragma unroll
            for (int e = 0; e < EACH; e++) now[i][e] = next[i][e];
        load(first + AHEAD);
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) each(first + i, now[i]);
    }
}

/* Calls each(k, v) for the COLUMNS elements from `row` on. */
template <typename T, typename F> __device__ __forceinline__ void each_element(const T *row, F each) {
    constexpr unsigned PART = 16 / sizeof(T);
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k += PART) {
        const some<T> part = *(const some<T> *)(row + k);
#pragma unroll
        for (unsigned p = 0; p < PART; p++) each(k + p, part.value[p]);
    }
}

/* w = T^T w of a column. */
template <typename T> __device__ __forceinline__ void solve(const reflectors<T> &by, T (&w)[COLUMNS]) {
#pragma unroll
    for (unsigned l = 0; l < COLUMNS; l++) {
        w[l] *= by.tau[l];
        each_element(by.products[l], [&](unsigned k, T product) {
            if (k > l) w[k] -= product * w[l];
        });
    }
}

/* v . w */
template <typename T> __device__ __forceinline__ T dot(const T *v, const T (&w)[COLUMNS]) {
    T sum[4] = {};
    each_element(v, [&](unsigned k, T value) { sum[k % 4] += value * w[k]; });
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* Applies the first `width` reflectors to columns: `from` [width] of R becomes `to`; a [rows]. */
template <typename T, int EACH>
__device__ __forceinline__ void apply(const reflectors<T> &by, unsigned width, unsigned rows,
                                      lane_columns<EACH> columns, const T *from, T *to, size_t ld, T *a,
                                      size_t a_ld) {
    T w[EACH][COLUMNS];
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++)
#pragma unroll
        for (int e = 0; e < EACH; e++) w[e][k] = k < width && columns.has(e) ? from[k * ld + 32 * e] : 0;
    each_row<T, EACH>(rows, columns, a, a_ld, [&](unsigned i, const T(&x)[EACH]) {
        each_element(by.v[i], [&](unsigned k, T v) {
#pragma unroll
            for (int e = 0; e < EACH; e++) w[e][k] += v * x[e];
        });
    });
#pragma unroll
    for (int e = 0; e < EACH; e++) solve(by, w[e]);
    const T *const minuend = renewed(from);
    T *const difference = renewed(to), *const left = renewed(a);
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (k < width && columns.has(e)) difference[k * ld + 32 * e] = minuend[k * ld + 32 * e] - w[e][k];
    each_row<T, EACH>(rows, columns, left, a_ld, [&](unsigned i, const T(&x)[EACH]) {
        T sum[EACH][4] = {};
        each_element(by.v[i], [&](unsigned k, T v) {
#pragma unroll
            for (int e = 0; e < EACH; e++) sum[e][k % 4] += v * w[e][k];
        });
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (i < rows && columns.has(e))
                left[i * a_ld + 32 * e] = x[e] - (sum[e][0] + sum[e][1] + (sum[e][2] + sum[e][3]));
    });
}

#endif
