/* Tiled: a block's tile of a product of padded matrices.

   Tile       a warp computes 32 x 16. The warps of a block lie along m and n, or share the k of one tile
              (then their sums are added in a fixed order). The type P defines how a warp multiplies:
                real         type of the sums, and of everything that is not multiplied
                matrix       an operand: a padded_matrix<real>, with a low-precision copy if P needs one
                tile         the sums of a warp's tile. ALONG: k are the columns of the operand, else its rows
                SLAB         elements of k per iteration
                WARPS        of a block, at most
                SHARED       bytes of shared memory per warp
                DESCRIPTION  ends the phrase of `describe`
                cycles       of an SM for rows x cols over k, about
              fma_product is here, mma_product in mma.cuh.
   fma        each warp copies slabs of 64 bytes of k to shared memory, two ahead, without block barriers. A
              lane has 8 x 4 outputs for every other pack of k; lanes add at the end.
   Registers  32 sums, 32 + 16 operands of a pack of k.
   Bound by   the L2 cache: 3 KB for 8,192 multiply-adds of a warp, unless L1 holds them. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TILE_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TILE_CUH

#include <cuda_pipeline.h>

#include "kernels/cuda/ops/element.cuh"

namespace persistent::tiled {

static const int R_M = 8, R_N = 4;         /* register tile: outputs of a lane */
static const int LANES_M = 4, LANES_N = 4; /* lanes along m and n */
static const int WARP_M = LANES_M * R_M, WARP_N = LANES_N * R_N;
static const int LANES_K = 32 / LANES_M / LANES_N; /* lanes that share the k */
static const int UNIT = 16;                        /* bytes of one access */
static const int SLAB_UNITS = 4;                   /* of k */
static const int UNITS_A = 192, UNITS_B = 80;      /* of a slab of A and of B, at most: see slab_layout */
static const int STAGES = 3;                       /* slabs of a warp: one is multiplied, two are loaded */

/* Elements of k in a slab. */
template <typename T> constexpr int SLAB = SLAB_UNITS *UNIT / (int)sizeof(T);

/* [rows][ld], padded with zeros to multiples of WARP_M, columns of the last layer to multiples of WARP_N. */
template <typename T> struct padded_matrix {
    T *at;
    int ld;

    __device__ void skip(size_t elements) {
        at += elements;
    }

    /* Stores N neighbours of row i from column j, a multiple of N. */
    template <int N> __device__ void put(int i, int j, const pack<T, N> &values) const {
        pack_at<N>(at + (size_t)i * ld + j) = values;
    }
};

/* log2 of the numbers of warps along m, n and k of a tile. */
struct warp_shape {
    int m, n, k;
};

/* Layout of a slab, in units of 16 bytes: OTHER rows with k as columns if ALONG, else k rows of OTHER. The
   pitch avoids bank conflicts. */
template <typename T, bool ALONG, int OTHER, int PITCH_> struct slab_layout {
    static constexpr int W = WIDEST<T>, ROWS = ALONG ? OTHER : SLAB<T>,
                         UNITS = ALONG ? SLAB_UNITS : OTHER / W, PITCH = PITCH_;
};

/* Copies 16 bytes to shared memory asynchronously through the L1 cache: neighbouring warps read the same rows
   or columns, four times the data of the block. (__pipeline_memcpy_async bypasses L1.) */
__device__ inline void copy_cached(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    __pipeline_memcpy_async(to, from, UNIT);
#endif
}

/* Copies the slabs of an operand to shared memory, one after the other. */
template <typename L, bool ALONG, typename T> struct slab_source {
    static constexpr int W = L::W, STEP = 32 / L::UNITS; /* rows of one copy */
    const T *at;
    int ld, to;

    __device__ slab_source(padded_matrix<T> from, int other, int k) : ld(from.ld) {
        const int lane = threadIdx.x % 32, row = lane / L::UNITS, unit = lane % L::UNITS;
        at = from.at + (size_t)(row + (ALONG ? other : k)) * ld + (ALONG ? k : other) + unit * W;
        to = (row * L::PITCH + unit) * W;
    }

    __device__ void copy(T *slab) {
        const T *row = at;
#pragma unroll
        for (int i = 0; i < L::ROWS / STEP; i++, row += STEP * ld)
            copy_cached(slab + to + i * STEP * L::PITCH * W, row);
        at += ALONG ? SLAB<T> : SLAB<T> * ld;
    }
};

/* Row i of a lane's outputs in its warp's tile. ALONG: neighbours belong to other lanes, against bank
   conflicts. */
template <bool ALONG> __device__ inline int row_of_lane(int i) {
    const int m = threadIdx.x % LANES_M;
    return ALONG ? m + LANES_M * i : R_M * m + i;
}

__device__ inline int col_of_lane() {
    return R_N * (threadIdx.x / LANES_M % LANES_N);
}

__device__ inline int part_of_lane() {
    return threadIdx.x / (LANES_M * LANES_N) % LANES_K;
}

/* N values, of rows or columns where(i), for each k of the lane in a share of a slab. BLOCKED: the k of a
   lane are neighbours. */
template <typename L, bool ALONG, bool BLOCKED, int N, typename T, typename I>
__device__ inline void read_slab(T (&to)[N][L::W], const T *slab, int share, I where) {
    constexpr int W = L::W;
    const int unit = part_of_lane() + LANES_K * share;
    if (ALONG) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const pack<T, W> some = pack_at<W>(slab + (where(i) * L::PITCH + unit) * W);
#pragma unroll
            for (int e = 0; e < W; e++) to[i][e] = some.value[e];
        }
    } else {
#pragma unroll
        for (int e = 0; e < W; e++) {
            const int k = BLOCKED ? W * unit + e : part_of_lane() + LANES_K * (W * share + e);
#pragma unroll
            for (int i = 0; i < N; i += W) {
                const pack<T, W> some = pack_at<W>(slab + k * L::PITCH * W + where(i));
#pragma unroll
                for (int q = 0; q < W; q++) to[i + q][e] = some.value[q];
            }
        }
    }
}

/* Adds the sums of lanes that share outputs. Each lane keeps half of its rows, from row R_M / 2 * part. */
template <typename T> __device__ inline void add_lanes(T (&sum)[R_M][R_N]) {
    static_assert(LANES_K == 2, "two shares");
    const bool upper = part_of_lane();
#pragma unroll
    for (int i = 0; i < R_M / 2; i++)
#pragma unroll
        for (int j = 0; j < R_N; j++) {
            const T other =
                __shfl_xor_sync(0xffffffffu, upper ? sum[i][j] : sum[i + R_M / 2][j], LANES_M * LANES_N);
            sum[i][j] = (upper ? sum[i + R_M / 2][j] : sum[i][j]) + other;
        }
}

/* A warp's tile at (m0, n0) over slabs s0 .. s1 - 1 of k: the sums over this lane's k. */
template <bool A_ALONG, bool B_ALONG, typename T>
__device__ inline void warp_product(T (&sum)[R_M][R_N], padded_matrix<T> a, padded_matrix<T> b, int m0,
                                    int n0, int s0, int s1, T *slabs) {
    constexpr int W = WIDEST<T>, STAGE = (UNITS_A + UNITS_B) * W;
    typedef slab_layout<T, A_ALONG, WARP_M, A_ALONG ? 6 : WARP_M / W + 1> LA;
    typedef slab_layout<T, B_ALONG, WARP_N, B_ALONG ? 5 : WARP_N / W + A_ALONG> LB;
    static_assert(LA::ROWS * LA::PITCH <= UNITS_A && LB::ROWS * LB::PITCH <= UNITS_B, "a slab fits");
    slab_source<LA, A_ALONG, T> from_a(a, m0, s0 * SLAB<T>);
    slab_source<LB, B_ALONG, T> from_b(b, n0, s0 * SLAB<T>);
    int next = s0, ahead = 0, stage = 0;
    const auto copy = [&] {
        if (next < s1) {
            from_a.copy(slabs + ahead);
            from_b.copy(slabs + ahead + UNITS_A * W);
        }
        __pipeline_commit();
        next++;
        ahead = ahead == (STAGES - 1) * STAGE ? 0 : ahead + STAGE;
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) copy();
#pragma unroll 1
    for (int s = s0; s < s1; s++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncwarp(); /* the copies of all lanes are complete, and the previous slab has been read */
        copy();
        const T *slab = slabs + stage;
#pragma unroll
        for (int share = 0; share < SLAB_UNITS / LANES_K; share++) {
            T of_a[R_M][W], of_b[R_N][W];
            read_slab<LA, A_ALONG, B_ALONG>(of_a, slab, share, row_of_lane<A_ALONG>);
            read_slab<LB, B_ALONG, A_ALONG>(of_b, slab + UNITS_A * W, share,
                                            [](int j) { return col_of_lane() + j; });
#pragma unroll
            for (int e = 0; e < W; e++)
#pragma unroll
                for (int i = 0; i < R_M; i++)
#pragma unroll
                    for (int j = 0; j < R_N; j++) sum[i][j] += of_a[i][e] * of_b[j][e];
        }
        stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }
    __pipeline_wait_prior(0);
}

/* Multiply-adds of float or double. */
template <typename T> struct fma_product {
    typedef T real;
    typedef padded_matrix<T> matrix;
    static constexpr int SLAB = tiled::SLAB<T>, SHARED = STAGES * (UNITS_A + UNITS_B) * UNIT;
    static constexpr int WARPS = sizeof(T) == sizeof(float) ? 16 : 8; /* bound by registers */
    static constexpr const char *DESCRIPTION = "";

    /* At two thirds of the peak rate. */
    static double cycles(double rows, double cols, double k) {
        return 1.5 * rows * cols * k / 128;
    }

    template <bool A_ALONG, bool B_ALONG> struct tile {
        T sum[R_M][R_N];

        /* The tile at (m0, n0) over slabs s0 .. s1 - 1 of k. `shared` belongs to the warp. */
        __device__ void multiply(matrix a, matrix b, int m0, int n0, int s0, int s1, T *shared) {
            warp_product<A_ALONG, B_ALONG>(sum, a, b, m0, n0, s0, s1, shared);
        }

        /* After all products, in all warps: the complete sums. */
        __device__ void reduce_across_lanes() {
            add_lanes(sum);
        }

        /* Stores the sums in `part`, whose rows start `ld` apart. */
        __device__ void store(T *part, int ld) const {
            constexpr int W = WIDEST<T>;
#pragma unroll
            for (int x = 0; x < R_M / 2; x++)
#pragma unroll
                for (int j = 0; j < R_N; j += W) {
                    pack<T, W> some;
#pragma unroll
                    for (int q = 0; q < W; q++) some.value[q] = sum[x][j + q];
                    const int i = row_of_lane<A_ALONG>(R_M / 2 * part_of_lane() + x);
                    pack_at<W>(part + i * ld + col_of_lane() + j) = some;
                }
        }
    };
};

/* A block's tile of the m x n product over k. The epilogue finish(i, j, sums) receives WIDEST sums of row i
   from column j. */
template <typename P, bool A_ALONG, bool B_ALONG, typename F>
__device__ inline void block_tile(typename P::matrix a, typename P::matrix b, int m, int n, int k, int m0,
                                  int n0, warp_shape shape, typename P::real *shared, F finish) {
    typedef typename P::real T;
    constexpr int W = WIDEST<T>;
    const int warp = threadIdx.x / 32, wk = warp & ((1 << shape.k) - 1),
              wn = warp >> shape.k & ((1 << shape.n) - 1), wm = warp >> (shape.k + shape.n),
              rows = WARP_M << shape.m, cols = WARP_N << shape.n, slabs = k / P::SLAB;
    const int i0 = m0 + WARP_M * wm, j0 = n0 + WARP_N * wn;
    typename P::template tile<A_ALONG, B_ALONG> mine = {};
    if (i0 < m && j0 < n)
        mine.multiply(a, b, i0, j0, slabs * wk >> shape.k, slabs * (wk + 1) >> shape.k,
                      shared + warp * (P::SHARED / (int)sizeof(T)));
    mine.reduce_across_lanes();
    __syncthreads(); /* the slabs have been read: the sums overwrite them */
    mine.store(shared + (wk * rows + WARP_M * wm) * cols + WARP_N * wn, cols);
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x * W; e < rows * cols; e += blockDim.x * W) {
        const int i = m0 + (e >> (4 + shape.n)), j = n0 + (e & (cols - 1));
        static_assert(WARP_N == 16, "a power of 2, as above");
        if (i >= m || j >= n) continue;
        pack<T, W> total = pack_at<W>(shared + e);
#pragma unroll 2
        for (int p = 1; p < 1 << shape.k; p++) {
            const pack<T, W> more = pack_at<W>(shared + p * rows * cols + e);
#pragma unroll
            for (int q = 0; q < W; q++) total.value[q] += more.value[q];
        }
        finish(i, j, total);
    }
    __syncthreads(); /* before the next tile */
}

__host__ __device__ inline int tiles_along(int length, int side) {
    return (length + side - 1) / side;
}

/* The tiles of a product that belong to this block: tiles are numbered from `first` and dealt to the blocks
   round-robin. Returns the number after that of the last tile. */
template <typename P, bool A_ALONG, bool B_ALONG, typename F>
__device__ inline int block_tiles(int first, typename P::matrix a, typename P::matrix b, int m, int n, int k,
                                  warp_shape shape, typename P::real *shared, F finish) {
    const int rows = WARP_M << shape.m, cols = WARP_N << shape.n, down = tiles_along(m, rows);
    const int count = down * tiles_along(n, cols), blocks = gridDim.x;
    const int mine = (int)blockIdx.x - first % blocks;
#pragma unroll 1
    for (int t = mine < 0 ? mine + blocks : mine; t < count; t += blocks)
        block_tile<P, A_ALONG, B_ALONG>(a, b, m, n, k, t % down * rows, t / down * cols, shape, shared,
                                        finish);
    return first + count;
}

} // namespace persistent::tiled

#endif
