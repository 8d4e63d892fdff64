/* cuda-shmem: tiles of A and B in shared memory.

   Idea       a block of TILE x TILE threads computes a TILE x TILE tile of C. It steps along k by TILE: the
              threads load one tile of A and one of B, each element once, and read each element TILE times.
   Bound by   bytes from L2: 2 m n k / TILE elements instead of 2 m n k. Within the block, shared memory: 2
              reads for each multiply-add limit it to 1/8 of the float32 peak (measured: 10 to 11 %).
   Edges      elements outside the matrices are loaded as 0, so any shape works.
   Banks      for every op, neighbouring threads load neighbouring addresses. Where this needs a transposed
              store, the store runs down a column of the tile. One element of padding per row puts the 32
              rows into 32 different banks.
   Improves   2_coalesced.cu. Next: 4_order.cu
   Run        ./train --backend cuda-shmem:tile=32,shared=dynamic (tile 4, 8, 16 or 32; shared static) */
#include "kernels/cuda/gemm/gemm.cuh"

enum { TILE_SIDE, SHARED };
static const struct gemm_option shmem_options[] = {
    {"tile", "4|8|16|32", "32", "side of a tile"},
    {"shared", "static|dynamic", "static",
     "shared memory of a size known to the compiler, or given at launch"},
    {}};

/* Element (row, col) of a tile in shared memory. */
template <int TILE> __device__ int at(int row, int col) {
    return row * (TILE + 1) + col;
}

template <int TILE> __host__ __device__ constexpr size_t tile_elements() {
    return (size_t)TILE * (TILE + 1);
}

/* tile(r, c) = x[(row0 + r) * row_stride + (col0 + c) * col_stride], 0 outside. Threads x run along the index
   that is contiguous in memory. */
template <typename T, int TILE>
__device__ void load_tile(T *tile, const T *x, size_t row0, size_t rows, size_t row_stride, size_t col0,
                          size_t cols, size_t col_stride) {
    const bool along_columns = col_stride == 1;
    const int r = along_columns ? threadIdx.y : threadIdx.x, c = along_columns ? threadIdx.x : threadIdx.y;
    const size_t i = row0 + r, j = col0 + c;
    tile[at<TILE>(r, c)] = i < rows && j < cols ? x[i * row_stride + j * col_stride] : T(0);
}

template <typename T, int TILE> __device__ void multiply(const strided_gemm<T> &g, T *tile_a, T *tile_b) {
    const size_t j = (size_t)blockIdx.x * TILE + threadIdx.x;
    for (size_t row0 = (size_t)blockIdx.y * TILE; row0 < g.m; row0 += (size_t)gridDim.y * TILE) {
        T sum = 0;
        for (size_t p0 = 0; p0 < g.k; p0 += TILE) {
            load_tile<T, TILE>(tile_a, g.a, row0, g.m, g.a_row, p0, g.k, g.a_col);
            load_tile<T, TILE>(tile_b, g.b, p0, g.k, g.b_row, (size_t)blockIdx.x * TILE, g.n, g.b_col);
            __syncthreads();
#pragma unroll
            for (int p = 0; p < TILE; p++)
                sum += tile_a[at<TILE>(threadIdx.y, p)] * tile_b[at<TILE>(p, threadIdx.x)];
            __syncthreads();
        }
        const size_t i = row0 + threadIdx.y;
        if (i < g.m && j < g.n) g.store(i, j, sum);
    }
}

template <typename T, int TILE> __global__ void static_kernel(strided_gemm<T> g) {
    __shared__ T tile_a[tile_elements<TILE>()], tile_b[tile_elements<TILE>()];
    multiply<T, TILE>(g, tile_a, tile_b);
}

template <typename T, int TILE> __global__ void dynamic_kernel(strided_gemm<T> g) {
    extern __shared__ double2 memory[]; /* aligned for both dtypes */
    T *tile_a = reinterpret_cast<T *>(memory);
    multiply<T, TILE>(g, tile_a, tile_a + tile_elements<TILE>());
}

template <typename T, int TILE>
static void launch_tile(const cuda_gemm_context *context, const gemm_call &call, cuda_launcher &launcher) {
    const dim3 grid(blocks_for(call.n, TILE), grid_y(call.m, TILE)), block(TILE, TILE);
    const strided_gemm<T> g(call);
    if (context->option[SHARED]) {
        const size_t bytes = 2 * tile_elements<TILE>() * sizeof(T);
        launch(launcher, "dynamic_kernel", dynamic_kernel<T, TILE>, grid, block, bytes, g);
    } else {
        launch(launcher, "static_kernel", static_kernel<T, TILE>, grid, block, 0, g);
    }
}

static void shmem_launches(const cuda_gemm_context *context, const gemm_call &call, cuda_launcher &launcher) {
    with_real(call.dtype, [&]<typename T>() {
        with_tile(context->option[TILE_SIDE],
                  [&]<int TILE>() { launch_tile<T, TILE>(context, call, launcher); });
    });
}

static void shmem_describe(void *opaque, char *text, size_t size) {
    const cuda_gemm_context *context = (const cuda_gemm_context *)opaque;
    snprintf(text, size, "tile %d, %s shared memory", context->option[TILE_SIDE],
             context->option[SHARED] ? "dynamic" : "static");
}

extern "C" const struct gemm_backend gemm_cuda_shmem = {
    .name = "cuda-shmem",
    .summary = "tiles of A and B in shared memory",
    .device = GEMM_ON_CUDA,
    .supports = cuda_gemm_supports,
    .gemm = cuda_gemm_run<shmem_launches>,
    .create = cuda_gemm_create,
    .destroy = cuda_gemm_destroy,
    .options = shmem_options,
    .describe = shmem_describe,
    .kernels = cuda_gemm_kernels<shmem_launches>,
    .error = cuda_gemm_error,
};
