/* Back substitution on the GPU (kernels/qr.h).

   Idea       one block. A warp has a row of R at a time: the rows of a group from the last one up, each after
              the group below is solved; within a group one warp solves row by row.
   Bound by   bytes of R, which one SM reads once. */
#include "kernels/cuda/qr/qr.cuh"

enum { WARPS = 32, GROUP = 32 /* rows */, RIGHT = 8 /* right-hand sides together */ };

/* x of row i -= R[i][first .. end - 1] x of those rows, for the right-hand sides col .. : one warp. The sums
   are those of lane 0. */
template <typename T>
__device__ void subtract_row(size_t i, size_t first, size_t end, size_t col, size_t right, const T *r,
                             size_t ld, T *x, bool divide) {
    const unsigned lane = threadIdx.x % 32;
    T sum[RIGHT] = {};
    for (size_t j = first + lane; j < end; j += 32) {
        const T factor = r[i * ld + j];
#pragma unroll
        for (int k = 0; k < RIGHT; k++)
            if (col + k < right) sum[k] += factor * x[j * right + col + k];
    }
#pragma unroll
    for (int k = 0; k < RIGHT; k++) {
#pragma unroll
        for (int step = 16; step; step /= 2) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], step);
        if (lane == 0 && col + k < right) {
            const T value = x[i * right + col + k] - sum[k];
            x[i * right + col + k] = divide ? value / r[i * ld + i] : value;
        }
    }
    __syncwarp();
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS) solve(size_t n, size_t right, const T *r, size_t ld, T *x) {
    const unsigned warp = threadIdx.x / 32;
    const size_t groups = (n + GROUP - 1) / GROUP;
    for (size_t k = threadIdx.x; k < n * right; k += 32 * WARPS) x[k] = r[k / right * ld + n + k % right];
    for (size_t g = groups; g-- > 0;) {
        const size_t first = g * GROUP, end = n - first < GROUP ? n : first + GROUP;
        __syncthreads();
        for (size_t col = warp * RIGHT; col < right; col += WARPS * RIGHT)
            for (size_t i = end; i-- > first;) subtract_row(i, i + 1, end, col, right, r, ld, x, true);
        __syncthreads();
        for (size_t i = warp; i < first; i += WARPS)
            for (size_t col = 0; col < right; col += RIGHT)
                subtract_row(i, first, end, col, right, r, ld, x, false);
    }
}

template <typename T>
void cuda_qr_solve(void *opaque, size_t n, size_t cols, const void *r, size_t ld, void *x) {
    struct cuda_ops_context *context = open_ops(opaque);
    if (cols <= n) return;
    solve<T><<<1, 32 * WARPS, 0, context->stream>>>(n, cols - n, (const T *)r, ld, (T *)x);
    CUDA_LAUNCHED(&context->fault, "solve");
}

template void cuda_qr_solve<float>(void *, size_t, size_t, const void *, size_t, void *);
template void cuda_qr_solve<double>(void *, size_t, size_t, const void *, size_t, void *);
