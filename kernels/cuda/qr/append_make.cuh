/* Rows that enter a triangle (append.cu): the warps that make reflectors. */
#ifndef TESSERA_KERNELS_CUDA_QR_APPEND_MAKE_CUH
#define TESSERA_KERNELS_CUDA_QR_APPEND_MAKE_CUH

#include "kernels/cuda/qr/append_apply.cuh"

/* A barrier of the warps that make reflectors. */
template <int MAKERS> __device__ __forceinline__ void makers_barrier() {
    if (MAKERS == 1)
        __syncwarp();
    else
        asm volatile("bar.sync 1, %0;" : : "n"(32 * MAKERS) : "memory");
}

/* The triangle of the columns that become reflectors: `from` [width][width] of R. */
template <typename T, int MAKERS>
__device__ __forceinline__ void read_triangle(append_shared<T> &shared, unsigned width, const T *from,
                                              size_t ld) {
    constexpr unsigned SHARE = COLUMNS / MAKERS;
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 * SHARE;
    T part[SHARE];
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++)
        part[k] = lane < width && first + k <= lane ? from[(first + k) * ld + lane] : 0;
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++) shared.r[first + k][lane] = part[k];
}

/* Their rows below. */
template <typename T, int MAKERS>
__device__ __forceinline__ void read_rows(append_shared<T> &shared, unsigned width, unsigned rows, const T *a,
                                          size_t a_ld) {
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 * OF_MAKER;
    T part[OF_MAKER];
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        part[i] = lane < width && first + i < rows ? a[(first + i) * a_ld + lane] : 0;
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++) shared.a[first + i][lane] = part[i];
}

/* MAKERS lanes of the makers share a column, of R and the rows: each has every MAKERS-th row of both. */
template <typename T, int MAKERS> struct shared_column {
    static constexpr unsigned OF_LANE = COLUMNS / MAKERS;
    unsigned j, part;
    T r[OF_LANE]; /* rows part + MAKERS i of R */

    __device__ __forceinline__ shared_column(unsigned width, unsigned columns, const T *from, size_t ld)
        : j(threadIdx.x / MAKERS), part(threadIdx.x % MAKERS) {
#pragma unroll
        for (unsigned i = 0; i < OF_LANE; i++)
            r[i] = part + MAKERS * i < width && j < columns ? from[(part + MAKERS * i) * ld + j] : 0;
    }
};

/* The sum over the MAKERS lanes of a column, in all of them. */
template <int MAKERS, typename T> __device__ __forceinline__ T add_parts(T sum) {
#pragma unroll
    for (int step = MAKERS / 2; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
    return sum;
}

/* As `apply`, on the columns that become reflectors: their rows below go to shared.a. */
template <typename T, int MAKERS>
__device__ __forceinline__ void apply_shared(append_shared<T> &shared, const reflectors<T> &by,
                                             unsigned width, unsigned columns, unsigned rows,
                                             const shared_column<T, MAKERS> &column, T *to, size_t ld,
                                             const T *a, size_t a_ld) {
    const unsigned j = column.j, part = column.part;
    T w[COLUMNS], x[OF_MAKER];
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        x[i] = part + MAKERS * i < rows && j < columns ? a[(part + MAKERS * i) * a_ld + j] : 0;
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++) w[k] = k % MAKERS == part ? column.r[k / MAKERS] : 0;
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        each_element(by.v[part + MAKERS * i], [&](unsigned k, T v) { w[k] += v * x[i]; });
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++) w[k] = add_parts<MAKERS>(w[k]);
    solve(by, w);
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k++)
        if (k % MAKERS == part && k < width && j < columns) to[k * ld + j] = column.r[k / MAKERS] - w[k];
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++)
        shared.a[part + MAKERS * i][j] = x[i] - dot(by.v[part + MAKERS * i], w);
}

/* The makers make reflectors of the columns in shared.r and shared.a; `to` [width][width] becomes the new
   triangle. */
template <typename T, int MAKERS>
__device__ __forceinline__ void make(append_shared<T> &shared, reflectors<T> &by, unsigned width, T *to,
                                     size_t ld) {
    constexpr unsigned SHARE = COLUMNS / MAKERS;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp * OF_MAKER;
    T mine[OF_MAKER], own_factor = 0;
    makers_barrier<MAKERS>(); /* all makers have written shared.r and shared.a */
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++) mine[i] = shared.a[first + i][lane];
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++) by.products[warp * SHARE + k][lane] = 0;
    if (warp == 0) by.tau[lane] = 0;
    T of_row = shared.r[0][lane], head = shared.r[0][0];
    makers_barrier<MAKERS>();
    for (unsigned c = 0; c < width; c++) {
        T *x = (T *)__builtin_assume_aligned(&shared.x[c % 2][first], 16), part[4] = {};
        const T next_row = shared.r[(c + 1) % COLUMNS][lane],
                next_head = shared.r[(c + 1) % COLUMNS][(c + 1) % COLUMNS];
        if (lane == c) {
#pragma unroll
            for (unsigned i = 0; i < OF_MAKER; i++) x[i] = mine[i];
        }
        __syncwarp();
#pragma unroll
        for (unsigned i = 0; i < OF_MAKER; i++) part[i % 4] += x[i] * mine[i];
        T sum = part[0] + part[1] + (part[2] + part[3]);
        if (MAKERS > 1) {
            shared.sums[c % 2][warp][lane] = sum;
            makers_barrier<MAKERS>();
            sum = shared.sums[c % 2][0][lane];
#pragma unroll
            for (int m = 1; m < MAKERS; m++) sum += shared.sums[c % 2][m][lane];
        }
        const reflector<T> one = reflect(head, __shfl_sync(ALL, sum, c));
        const T product = one.factor * sum, w = lane > c ? one.tau * (of_row + product) : 0,
                scaled = w * one.factor;
#pragma unroll
        for (unsigned i = 0; i < OF_MAKER; i++) mine[i] -= scaled * x[i];
        if (warp == 0) {
            if (lane < c) by.products[lane][c] = own_factor * product;
            if (lane >= c) shared.r[c][lane] = lane == c ? one.beta : of_row - w;
            if (lane == c) by.tau[c] = one.tau;
        }
        own_factor = lane == c ? one.factor : own_factor;
        of_row = next_row;
        head = next_head;
    }
#pragma unroll
    for (unsigned i = 0; i < OF_MAKER; i++) by.v[first + i][lane] = mine[i] * own_factor;
    makers_barrier<MAKERS>();
#pragma unroll
    for (unsigned k = 0; k < SHARE; k++) {
        const unsigned i = warp * SHARE + k;
        if (lane < width && i <= lane) to[i * ld + lane] = shared.r[i][lane];
    }
    makers_barrier<MAKERS>(); /* shared.r was read */
}

#endif
