/* Back substitution on the GPU (kernels/qr.h).

   Idea       one block, GROUP rows of R at a time from the last ones up. A warp solves the triangle of the
              group for a right-hand side, a lane has a row; then x of the group is subtracted from the rows
              above: LANES lanes share a row, and a warp has several.
   Bound by   latency: three barriers and GROUP dependent divisions for each group. */
#include "kernels/cuda/qr/qr.cuh"

static constexpr int WARPS = 32, THREADS = 32 * WARPS, GROUP = 32 /* rows */, LANES = 8 /* of a row */,
                     EACH = GROUP / LANES, ROWS = 32 / LANES /* of a warp */,
                     RIGHT = 8 /* right-hand sides together */;
static constexpr unsigned ALL = 0xffffffffu;

/* x [size][right] = the solution of `triangle` [size][size], with 1 on its diagonal from `size` on. */
template <typename T>
__device__ void solve_group(const T (&triangle)[GROUP][GROUP + 1], size_t size, size_t right, T *x) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (size_t k = warp; k < right; k += WARPS) {
        T value = lane < size ? x[lane * right + k] : 0;
#pragma unroll 4
        for (int i = GROUP - 1; i >= 0; i--) {
            const T solved = __shfl_sync(ALL, value, i) / triangle[i][i];
            if (lane == i) value = solved;
            if (lane < i) value -= triangle[lane][i] * solved;
        }
        if (lane < size) x[lane * right + k] = value;
    }
}

/* x [rows][right] -= a [rows][size] solved [size][right], for RIGHT right-hand sides from `col` on. */
template <typename T>
__device__ void subtract(size_t rows, size_t size, size_t right, size_t col, const T *a, size_t ld,
                         const T *solved, T *x) {
    const unsigned warp = threadIdx.x / 32, part = threadIdx.x % LANES, row = threadIdx.x % 32 / LANES;
    T of[EACH][RIGHT];
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int k = 0; k < RIGHT; k++) {
            const size_t j = part + LANES * e;
            of[e][k] = j < size && col + k < right ? solved[j * right + col + k] : 0;
        }
    for (size_t first = warp * ROWS; first < rows; first += WARPS * ROWS) {
        const size_t i = first + row;
        T factor[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            factor[e] = i < rows && part + LANES * e < size ? a[i * ld + part + LANES * e] : 0;
#pragma unroll
        for (int k = 0; k < RIGHT; k++) {
            if (col + k >= right) break;
            T sum = 0;
#pragma unroll
            for (int e = 0; e < EACH; e++) sum += factor[e] * of[e][k];
#pragma unroll
            for (int step = LANES / 2; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
            if (part == 0 && i < rows) x[i * right + col + k] -= sum;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) solve(size_t n, size_t right, const T *r, size_t ld, T *x) {
    __shared__ T triangle[GROUP][GROUP + 1];
    for (size_t k = threadIdx.x; k < n * right; k += THREADS) x[k] = r[k / right * ld + n + k % right];
    for (size_t g = (n + GROUP - 1) / GROUP; g-- > 0;) {
        const size_t first = g * GROUP, size = n - first < GROUP ? n - first : GROUP;
        const unsigned i = threadIdx.x / GROUP, j = threadIdx.x % GROUP;
        static_assert(THREADS == GROUP * GROUP);
        triangle[i][j] = i <= j && j < size ? r[(first + i) * ld + first + j] : i == j;
        __syncthreads();
        solve_group(triangle, size, right, x + first * right);
        __syncthreads();
        for (size_t col = 0; col < right; col += RIGHT)
            subtract(first, size, right, col, r + first, ld, x + first * right, x);
        __syncthreads();
    }
}

template <typename T>
void cuda_qr_solve(void *opaque, size_t n, size_t cols, const void *r, size_t ld, void *x) {
    struct cuda_ops_context *context = open_ops(opaque);
    if (cols <= n) return;
    solve<T><<<1, THREADS, 0, context->stream>>>(n, cols - n, (const T *)r, ld, (T *)x);
    CUDA_LAUNCHED(&context->fault, "solve");
}

template void cuda_qr_solve<float>(void *, size_t, size_t, const void *, size_t, void *);
template void cuda_qr_solve<double>(void *, size_t, size_t, const void *, size_t, void *);
