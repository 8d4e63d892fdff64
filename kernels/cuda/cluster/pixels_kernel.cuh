/* The nearest centres of pixels on the int8 tensor cores: the kernel.

   Scores     a centre is rounded to q / 127, q a 16-bit integer in two slices of signed bytes: q = 256 high
              + low. Then the score, in units of 256 / 127, is x.high + (x.low + 128 >> 8) + bias, with known
              errors: half a unit each for the shift and the bias, and |x| |127 c - q| / 256 for the rounding
              of c. All of it is int32: the epilogue compares integers.
   Tile       `M` rows of pixels stay in shared memory, as they are, for all centres. The centres stream
              through a ring buffer: one bulk copy brings 64 features of both slices of `N` centres, which
              pack_kernel has laid out so that ldmatrix has no bank conflicts.
   Epilogue   each thread keeps the best score, the second best and the index of its rows in registers; no
              score is stored. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_PIXELS_KERNEL_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_PIXELS_KERNEL_CUH

#include <limits.h>

#include "kernels/cuda/cluster/cluster.cuh"
#include "kernels/cuda/persistent/int8_slices.cuh"
#include "kernels/cuda/tensor/bulk_copy.cuh"

namespace pixels {

static const int CHUNK = 64;                /* features of a stage */
static const int STEP = 32;                 /* features of an mma */
static const int STAGES = 4;                /* of the ring buffer */
static const int LIMIT = 127 * 256;         /* of |q| */
static const int LOWEST = -(1 << 30);       /* below every score */
static const int MOST_CANDIDATES = 16;      /* of a row; with more, all centres are */
static const size_t PART = (size_t)1 << 20; /* rows of a pass */

/* A thread block of WARPS_M x WARPS_N warps; a warp has 16 MT rows and 8 NT centres. */
template <int WARPS_M_, int WARPS_N_, int MT_, int NT_, int BLOCKS_> struct tile_shape {
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, MT = MT_, NT = NT_;
    static constexpr int BLOCKS = BLOCKS_; /* of an SM */
    static constexpr int M = WARPS_M * MT * 16, N = WARPS_N * NT * 8, THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int STAGE = 2 * N * CHUNK; /* bytes */
    static_assert(THREADS >= M, "a thread loads and finishes a row");

    /* Bytes of the rows, which are `pitch` bytes apart; mma reads up to a STEP beyond the last one. */
    static __host__ __device__ size_t rows_bytes(unsigned pitch) {
        return ((size_t)M * pitch + STEP + 127) / 128 * 128;
    }
    static size_t shared_bytes(unsigned pitch) {
        return rows_bytes(pitch) + (size_t)STAGES * STAGE + WARPS_N * M * 3 * sizeof(int) +
               (STAGES + 1) * sizeof(uint64_t);
    }
};

/* Rows are 16-byte units apart, an odd number of them: 8 rows of a column of units have different banks. */
static inline unsigned pitch_for(size_t features) {
    return (unsigned)(((features + 15) / 16 | 1) * 16);
}

/* The byte of feature f, of slice s, of a centre, in the packed centres. */
template <typename S>
__device__ size_t packed_offset(size_t centre, unsigned f, unsigned slice, unsigned chunks) {
    const unsigned column = centre % S::N, unit = f % CHUNK / 16 ^ (column >> 1 & 3);
    return (((centre / S::N * chunks + f / CHUNK) * 2 + slice) * S::N + column) * CHUNK + unit * 16 + f % 16;
}

/* A value of a centre in two slices: 127 value is 256 high + low, and an error. */
struct slices {
    int high, low;
    double square_of_error; /* infinite if the value does not fit */
};

__device__ inline slices slices_of(double value) {
    const double scaled = 127 * value;
    const bool fits = fabs(scaled) <= LIMIT;
    const int q = fits ? (int)rint(scaled) : 0, high = (q + 128) >> 8;
    return {high, q - 256 * high, fits ? (scaled - q) * (scaled - q) : (double)INFINITY};
}

/* -|c|^2 / 2 in units of 256 / 127; *error becomes infinite if it does not fit. */
__device__ inline int bias_of(double square, double *error) {
    const double half = square * (127.0 / 512);
    if (half < (double)(1 << 29)) return -(int)rint(half);
    *error = (double)INFINITY;
    return -(1 << 29);
}

/* At least |127 c - q| / 256, from the sum of the squares of the errors. */
__device__ inline double rounding_of(double sum) {
    return sqrt(sum) * ((1 + 0x1p-40) / 256);
}

/* Rows that the first pass does not decide. */
struct undecided {
    unsigned *count;
    uint32_t *row;
    int *limit;          /* centres with a score below it are out */
    uint32_t *found;     /* candidates of the row */
    uint32_t *candidate; /* [..][MOST_CANDIDATES] */
};

struct pass {
    const uint8_t *x;
    size_t rows;
    unsigned features, pitch, chunks, tiles; /* tiles of the centres */
    uint32_t clusters;
    bool aligned; /* rows of x start at multiples of 16 bytes */
    const int8_t *packed;
    const int *bias;
    const double *rounding; /* at least |127 c - q| / 256 for every centre */
    const double *norm;
    bool certify;
    uint32_t *label;
    nearest_counts *counts;
    undecided list;
};

struct best_two {
    int best, second;
    uint32_t index;

    __device__ void add(int score, uint32_t j) {
        second = max(second, min(score, best));
        if (score > best) index = j;
        best = max(best, score);
    }

    __device__ void merge(best_two other) {
        second = max(max(second, other.second), min(best, other.best));
        if (other.best > best || (other.best == best && other.index < index)) index = other.index;
        best = max(best, other.best);
    }

    /* Over four neighbouring lanes, which have a row of an mma's sums: the same in all of them. */
    __device__ void merge_lanes() {
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2)
            merge({__shfl_xor_sync(0xffffffffu, best, offset), __shfl_xor_sync(0xffffffffu, second, offset),
                   __shfl_xor_sync(0xffffffffu, index, offset)});
    }
};

/* Scores that differ by more than this have the order of the true ones. */
__device__ inline int error_of_difference(double norm, double rounding) {
    const double error = 2 * (1.0001 * (norm * rounding + 1));
    return error < (double)(1 << 30) ? (int)error : 1 << 30;
}

/* Stores the label of row r, or appends the row to the list. True if the label changed. */
__device__ inline bool finish_row(const pass &p, size_t r, best_two all) {
    const int error = error_of_difference(p.norm[r / NEAREST_BLOCK], *p.rounding);
    if (!p.certify || all.best - all.second > error) {
        const bool changed = p.label[r] != all.index;
        p.label[r] = all.index;
        return changed;
    }
    const unsigned at = atomicAdd(p.list.count, 1u);
    p.list.row[at] = (uint32_t)r;
    p.list.limit[at] = error == 1 << 30 ? INT_MIN : all.best - error;
    p.list.found[at] = 0;
    return false;
}

template <typename S, bool COLLECT> struct kernel_body {
    static constexpr int MT = S::MT, NT = S::NT, SLOTS = 2 * MT; /* rows of a thread */
    const pass &p;
    char *a, *b;
    int *parts; /* [WARPS_N][M][3] */
    uint64_t *full, *rows_full;
    unsigned use; /* of the ring buffer, counted over all tiles */
    int lane, warp_m, warp_n;

    __device__ explicit kernel_body(const pass &all, char *shared) : p(all), use(0) {
        a = shared;
        b = a + S::rows_bytes(p.pitch);
        full = (uint64_t *)(b + STAGES * S::STAGE);
        rows_full = full + STAGES;
        parts = (int *)(rows_full + 1);
        lane = threadIdx.x % 32;
        warp_m = threadIdx.x / 32 / S::WARPS_N;
        warp_n = threadIdx.x / 32 % S::WARPS_N;
        if (threadIdx.x == 0)
            for (int i = 0; i <= STAGES; i++) mbarrier_init(full + i);
        __syncthreads();
    }

    __device__ size_t row_number(size_t i) const {
        return COLLECT ? p.list.row[i] : i;
    }

    /* The row of this tile in the slot of a thread. */
    __device__ int row_of_slot(int slot) const {
        return warp_m * MT * 16 + slot * 8 + lane / 4;
    }

    __device__ void load_rows(size_t first, unsigned count) const {
        if (p.aligned) {
            if (threadIdx.x == 0) mbarrier_expect_tx(rows_full, count * p.features);
            if (threadIdx.x < count)
                bulk_copy(a + threadIdx.x * p.pitch, p.x + row_number(first + threadIdx.x) * p.features,
                          p.features, rows_full);
            return;
        }
        for (unsigned r = threadIdx.x / 32; r < count; r += S::THREADS / 32) {
            const uint8_t *from = p.x + row_number(first + r) * p.features;
            for (unsigned f = lane; f < p.features; f += 32) a[r * p.pitch + f] = (char)from[f];
        }
    }

    /* Thread 0: stage `stage` of the centres goes to the place of use `to`. */
    __device__ void load_stage(size_t stage, unsigned to) const {
        uint64_t *barrier = full + to % STAGES;
        mbarrier_expect_tx(barrier, S::STAGE);
        bulk_copy(b + to % STAGES * S::STAGE, p.packed + stage * S::STAGE, S::STAGE, barrier);
    }

    /* sums += x of this warp's rows times a stage of its centres. */
    __device__ void multiply(int (&high)[MT][NT][4], int (&low)[MT][NT][4], unsigned chunk) const {
        const char *of_a = a + (warp_m * MT * 16 + lane % 16) * p.pitch + chunk * CHUNK + lane / 16 * 16;
        const int column = warp_n * NT * 8 + lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
        const char *of_b = b + use % STAGES * S::STAGE + column * CHUNK;
        const unsigned steps = min((p.features - chunk * CHUNK + STEP - 1) / STEP, (unsigned)(CHUNK / STEP));
#pragma unroll
        for (int step = 0; step < CHUNK / STEP; step++) {
            if (step >= (int)steps) break; /* the same in the whole block */
            const int unit = (2 * step + half) ^ (column >> 1 & 3);
            uint32_t words[MT][4], of_high[NT / 2][4], of_low[NT / 2][4];
#pragma unroll
            for (int m = 0; m < MT; m++) ldmatrix_x4(words[m], of_a + m * 16 * p.pitch + step * STEP);
#pragma unroll
            for (int n = 0; n < NT / 2; n++) { /* 16 columns further, the same swizzle */
                ldmatrix_x4(of_high[n], of_b + n * 16 * CHUNK + unit * 16);
                ldmatrix_x4(of_low[n], of_b + (S::N + n * 16) * CHUNK + unit * 16);
            }
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const int w = n % 2 * 2;
                    persistent::mma_int8<true>(high[m][n], words[m], of_high[n / 2][w],
                                               of_high[n / 2][w + 1]);
                    persistent::mma_int8<true>(low[m][n], words[m], of_low[n / 2][w], of_low[n / 2][w + 1]);
                }
        }
    }

    /* The scores of a tile of centres: visit(slot, score, centre). */
    template <typename F>
    __device__ void score_tile(unsigned tile, unsigned first_tile, unsigned stages, F visit) {
        int high[MT][NT][4], low[MT][NT][4];
        const uint32_t j0 = tile * S::N + warp_n * NT * 8 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int2 bias = *(const int2 *)(p.bias + j0 + n * 8);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    high[m][n][e] = e % 2 ? bias.y : bias.x;
                    low[m][n][e] = 128;
                }
        }
        for (unsigned chunk = 0; chunk < p.chunks; chunk++, use++) {
            const unsigned ahead = (tile - first_tile) * p.chunks + chunk + STAGES - 1;
            mbarrier_wait(full + use % STAGES, use / STAGES);
            __syncthreads(); /* no warp reads the stage before, which is loaded anew */
            if (threadIdx.x == 0 && ahead < stages)
                load_stage((size_t)first_tile * p.chunks + ahead, use + STAGES - 1);
            multiply(high, low, chunk);
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    visit(2 * m + e / 2, high[m][n][e] + (low[m][n][e] >> 8), j0 + n * 8 + e % 2);
    }

    /* Thread r stores the label of row r, or appends the row to the list. */
    __device__ void finish(best_two (&own)[SLOTS], size_t first, unsigned count) const {
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            own[s].merge_lanes();
            int *to = parts + (warp_n * S::M + row_of_slot(s)) * 3;
            if (lane % 4) continue;
            to[0] = own[s].best;
            to[1] = own[s].second;
            to[2] = (int)own[s].index;
        }
        __syncthreads();
        bool changed = false;
        if (threadIdx.x < count) {
            best_two all = {LOWEST - 1, LOWEST - 1, UINT32_MAX};
            for (int w = 0; w < S::WARPS_N; w++) {
                const int *from = parts + (w * S::M + threadIdx.x) * 3;
                all.merge({from[0], from[1], (uint32_t)from[2]});
            }
            changed = finish_row(p, first + threadIdx.x, all);
        }
        const int total = __syncthreads_count(changed);
        if (threadIdx.x == 0) add_count(&p.counts->changed, (uint64_t)total);
    }

    __device__ void keep_candidate(size_t at, uint32_t j) const {
        const uint32_t place = atomicAdd(&p.list.found[at], 1u);
        if (place < MOST_CANDIDATES) p.list.candidate[at * MOST_CANDIDATES + place] = j;
    }

    /* Rows first .. first + count - 1, or those of the list, and centre tiles first_tile .. end_tile - 1.
       `number` counts the calls of a block. */
    __device__ void run(size_t first, unsigned count, unsigned first_tile, unsigned end_tile,
                        unsigned number) {
        const unsigned stages = (end_tile - first_tile) * p.chunks;
        __syncthreads(); /* no warp reads the rows before */
        load_rows(first, count);
        if (threadIdx.x == 0)
            for (unsigned s = 0; s < STAGES - 1 && s < stages; s++)
                load_stage((size_t)first_tile * p.chunks + s, use + s);
        best_two own[SLOTS];
        int limit[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            own[s] = {LOWEST - 1, LOWEST - 1, UINT32_MAX};
            if (COLLECT)
                limit[s] = row_of_slot(s) < (int)count ? p.list.limit[first + row_of_slot(s)] : INT_MAX;
        }
        if (p.aligned) {
            mbarrier_wait(rows_full, number);
        } else {
            __syncthreads();
        }
        for (unsigned tile = first_tile; tile < end_tile; tile++)
            score_tile(tile, first_tile, stages, [&](int slot, int score, uint32_t j) {
                if (!COLLECT) {
                    own[slot].add(score, j);
                } else if (score >= limit[slot] && j < p.clusters) {
                    keep_candidate(first + row_of_slot(slot), j);
                }
            });
        if (!COLLECT) finish(own, first, count);
    }
};

/* With COLLECT: the candidates of the rows of the list; few rows are spread over the SMs by centres. */
template <typename S, bool COLLECT>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) score_kernel(const __grid_constant__ pass p) {
    extern __shared__ __align__(128) char shared[];
    kernel_body<S, COLLECT> body(p, shared);
    const size_t rows = COLLECT ? *p.list.count : p.rows, row_tiles = (rows + S::M - 1) / S::M;
    size_t groups = 1;
    if (COLLECT && row_tiles) groups = min((size_t)p.tiles, (2 * gridDim.x + row_tiles - 1) / row_tiles);
    unsigned number = 0;
    for (size_t i = blockIdx.x; i < row_tiles * groups; i += gridDim.x, number++) {
        const size_t first = i / groups * S::M, group = i % groups, left = rows - first;
        body.run(first, (unsigned)(left < S::M ? left : S::M), (unsigned)(p.tiles * group / groups),
                 (unsigned)(p.tiles * (group + 1) / groups), number);
    }
}

} // namespace pixels

#endif
