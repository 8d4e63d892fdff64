/* cuda-order: 3_shmem.cu with a choice of layouts in shared memory, a study of bank conflicts.

   Idea       the tile of A and the tile of B are each stored row-major (R) or transposed (C): RR, RC, CR,
              CC, the letter of A first. No padding hides the conflicts. Tile, static or dynamic shared
              memory, and the multiply are parameters of the same source.
   Bound by   shared memory as 3_shmem.cu, 2 reads for each multiply-add, times the conflicts.
   Reads      threads x run along n. A: the lanes of a row of C read the same element, and the rows of a warp
              (2 with tiles of 16, 4 below) are in different banks: no conflict in either layout. B
              row-major: lanes read neighbours, no conflict. B transposed (RC, CC): lanes are TILE elements
              apart, and conflict. Along k a row-major A and a transposed B are contiguous, so the compiler
              reads 16 bytes at a time (sm_90): for 4 k in float32, RR needs 1 + 4 reads, RC 1 + 1, CR 4 + 4,
              CC 4 + 1. These reads serve 8 lanes at a time; of a transposed B they conflict, for tiles of 4,
              8, 16, 32, in 1, 2, 4, 8 ways in float32 and 1, 4, 8, 8 in float64.
   Stores     one element for each thread and tile, along global memory. A store conflicts where the tile has
              the other layout: A of NN and NT in CR and CC, A of TN in RR and RC, B of NN and TN in RC and
              CC, B of NT in RR and CR. Ways for tiles of 4, 8, 16, 32: float32 1, 2, 8, 32; float64 (16
              lanes at a time) 1, 4, 16, 16.
   Multiply   plain: x * y + sum is one fused multiply-add. fmul_rn: __fmul_rn (__dmul_rn in float64) rounds
              the product and prevents the fusion: two instructions and one more rounding.
   Improves   3_shmem.cu: RC reads 16 bytes at a time. Next: 5_cublas.cu
   Run        ./train --backend cuda-order:order=RC,tile=32,shared=dynamic,multiply=fmul_rn
              (order RR, RC, CR or CC; multiply plain) */
#include "kernels/cuda/gemm/gemm.cuh"

enum { ORDER, TILE_SIDE, SHARED, MULTIPLY };
static const struct gemm_option order_options[] = {
    {"order", "RR|RC|CR|CC", "RR",
     "layout of the tiles of A and B in shared memory: R row-major, C transposed"},
    {"tile", "4|8|16|32", "32", "side of a tile"},
    {"shared", "static|dynamic", "static",
     "shared memory of a size known to the compiler, or given at launch"},
    {"multiply", "plain|fmul_rn", "plain", "fused multiply-add, or each product rounded before it is added"},
    {}};

/* TILE x TILE elements of a matrix in shared memory, row-major or transposed. */
template <typename T, int TILE, bool TRANSPOSED> struct shared_tile {
    T *memory;

    __device__ T &at(int row, int col) const {
        return memory[TRANSPOSED ? col * TILE + row : row * TILE + col];
    }

    /* at(r, c) = x[(row0 + r) * row_stride + (col0 + c) * col_stride], 0 outside. Threads x run along the
       index that is contiguous in global memory. */
    __device__ void load(const T *x, size_t row0, size_t rows, size_t row_stride, size_t col0, size_t cols,
                         size_t col_stride) const {
        const bool along_columns = col_stride == 1;
        const int r = along_columns ? threadIdx.y : threadIdx.x,
                  c = along_columns ? threadIdx.x : threadIdx.y;
        const size_t i = row0 + r, j = col0 + c;
        at(r, c) = i < rows && j < cols ? x[i * row_stride + j * col_stride] : T(0);
    }
};

static __device__ float rounded_product(float x, float y) {
    return __fmul_rn(x, y);
}

static __device__ double rounded_product(double x, double y) {
    return __dmul_rn(x, y);
}

template <bool ROUNDED, typename T> static __device__ T multiply_add(T x, T y, T sum) {
    return ROUNDED ? sum + rounded_product(x, y) : sum + x * y;
}

template <typename T, int TILE, bool A_TRANSPOSED, bool B_TRANSPOSED, bool ROUNDED>
static __device__ void multiply(const strided_gemm<T> &g, T *memory) {
    const shared_tile<T, TILE, A_TRANSPOSED> a = {memory};
    const shared_tile<T, TILE, B_TRANSPOSED> b = {memory + TILE * TILE};
    const size_t col0 = (size_t)blockIdx.x * TILE, j = col0 + threadIdx.x;
    for (size_t row0 = (size_t)blockIdx.y * TILE; row0 < g.m; row0 += (size_t)gridDim.y * TILE) {
        T sum = 0;
        for (size_t p0 = 0; p0 < g.k; p0 += TILE) {
            a.load(g.a, row0, g.m, g.a_row, p0, g.k, g.a_col);
            b.load(g.b, p0, g.k, g.b_row, col0, g.n, g.b_col);
            __syncthreads();
#pragma unroll
            for (int p = 0; p < TILE; p++)
                sum = multiply_add<ROUNDED>(a.at(threadIdx.y, p), b.at(p, threadIdx.x), sum);
            __syncthreads();
        }
        const size_t i = row0 + threadIdx.y;
        if (i < g.m && j < g.n) g.store(i, j, sum);
    }
}

/* Static and dynamic shared memory are both aligned to 16 bytes, so that the compiler can use 16-byte reads
   in both. */
template <typename T, int TILE, bool DYNAMIC, bool A_TRANSPOSED, bool B_TRANSPOSED, bool ROUNDED>
__global__ void order_kernel(strided_gemm<T> g) {
    if constexpr (DYNAMIC) {
        extern __shared__ double2 dynamic_memory[];
        multiply<T, TILE, A_TRANSPOSED, B_TRANSPOSED, ROUNDED>(g, reinterpret_cast<T *>(dynamic_memory));
    } else {
        __shared__ alignas(16) T static_memory[2 * TILE * TILE];
        multiply<T, TILE, A_TRANSPOSED, B_TRANSPOSED, ROUNDED>(g, static_memory);
    }
}

template <typename T, int TILE>
static void launch_tile(const cuda_gemm_context *context, const gemm_call &call, cuda_launcher &launcher) {
    const dim3 grid(blocks_for(call.n, TILE), grid_y(call.m, TILE)), block(TILE, TILE);
    const auto choose = [&]<bool DYNAMIC, bool A_TRANSPOSED, bool B_TRANSPOSED, bool ROUNDED>() {
        launch(launcher, "order_kernel", order_kernel<T, TILE, DYNAMIC, A_TRANSPOSED, B_TRANSPOSED, ROUNDED>,
               grid, block, DYNAMIC ? 2 * TILE * TILE * sizeof(T) : 0, strided_gemm<T>(call));
    };
    const int order = context->option[ORDER]; /* RR, RC, CR, CC: a bit for A, then one for B */
    with_flags(choose, context->option[SHARED] == 1, (order & 2) != 0, (order & 1) != 0,
               context->option[MULTIPLY] == 1);
}

static void order_launches(const cuda_gemm_context *context, const gemm_call &call, cuda_launcher &launcher) {
    with_real(call.dtype, [&]<typename T>() {
        with_tile(context->option[TILE_SIDE],
                  [&]<int TILE>() { launch_tile<T, TILE>(context, call, launcher); });
    });
}

static void order_describe(void *opaque, char *text, size_t size) {
    static const char *const orders[] = {"RR", "RC", "CR", "CC"};
    const cuda_gemm_context *context = (const cuda_gemm_context *)opaque;
    snprintf(text, size, "order %s, tile %d, %s shared memory, %s", orders[context->option[ORDER]],
             context->option[TILE_SIDE], context->option[SHARED] ? "dynamic" : "static",
             context->option[MULTIPLY] ? "rounded multiply (fmul_rn)" : "plain multiply");
}

extern "C" const struct gemm_backend gemm_cuda_order = {
    .name = "cuda-order",
    .summary = "tiles row-major or transposed in shared memory: a study of bank conflicts",
    .device = GEMM_ON_CUDA,
    .supports = cuda_gemm_supports,
    .gemm = cuda_gemm_run<order_launches>,
    .create = cuda_gemm_create,
    .destroy = cuda_gemm_destroy,
    .options = order_options,
    .describe = order_describe,
    .kernels = cuda_gemm_kernels<order_launches>,
    .error = cuda_gemm_error,
};
