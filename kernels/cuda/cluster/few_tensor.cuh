/* Scores on the bfloat16 tensor cores of points of float64 with 9 to 32 features, moved by the mean of the
   centres: the rows that they do not decide are left open for float64 (few.cu).

   Idea       a float32 is nearly the sum of two bfloat16, `high` and `low`; three of the four products are
              computed. A warp keeps 32 rows as operand A in registers. The centres are operand B in shared
              memory, in the order of the registers of mma.sync. Each lane keeps the best score, the second
              best and the index of its columns of 4 rows; 4 lanes share a row.
   Bound by   bytes of the points: 1 GiB in 0.26 ms. For 32 rows, 32 features and 64 centres: 96 mma (600
              clocks of a quarter of an SM) among about 1,000 instructions, of which 480 at half the rate: 4.2
              million rows in 0.15 ms (predicted)
   Improves   float64 on the FMA units: 17 GFLOP, 0.5 ms */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FEW_TENSOR_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FEW_TENSOR_CUH

#include "kernels/cuda/cluster/few_pass.cuh"
#include "kernels/cuda/tensor/ldmatrix.cuh"
#include "kernels/cuda/tensor/mma_bf16.cuh"

namespace few {

static const int TENSOR_THREADS = 128, TENSOR_ROWS = 32; /* of a warp */
static const size_t TENSOR_SHARED = 80 << 10;            /* most bytes of centres */

/* Bytes of 8 centres in shared memory: operand B, [steps][lane] { high, high, low, low }, and the biases. */
template <int STEPS>
constexpr int tensor_bytes = STEPS * 32 * (int)sizeof(uint4) + MOVED_GROUP *(int)sizeof(float);

/* Bounds the error of a score from 3 STEPS mma. Bfloat16 has 8 bits of significand: `high` leaves at most
   2^-8 of a value, `low` 2^-17, so that each product is wrong by at most 2^-16 for the omitted one and 2^-16
   for the rests of both factors. An mma adds 16 products and a sum; tensor cores cut each of these off at
   2^-23 of the largest or below, and the sum as well (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor
   cores"): 2^-22 is allowed for each. The tenth more covers the roundings of points and centres to float32,
   and 2^-120 what underflows. Infinite if a sum may overflow. */
template <int STEPS> __device__ inline double tensor_error(double norm, double centre_norm) {
    const double product = norm * centre_norm, half = centre_norm * centre_norm / 2;
    if (!(product + half < (double)FLT_MAX / 4 && norm + centre_norm < 0x1p126)) return INFINITY;
    return 1.1 * ((0x1p-15 + 3 * STEPS * 18 * 0x1p-22) * (product + half)) +
           0x1p-120 * (1 + norm + centre_norm);
}

/* Two floats as two pairs of bfloat16. */
__device__ inline void split(float first, float second, uint32_t &high, uint32_t &low) {
    high = round_pair(first, second);
    low = round_pair(first - first_of(high), second - second_of(high));
}

/* Centres first .. first + count - 1, a multiple of 8. */
template <int STEPS>
__device__ void load_operand(const few_pass &p, unsigned first, unsigned count, char *shared) {
    for (unsigned i = threadIdx.x; i < count / MOVED_GROUP * STEPS * 32; i += TENSOR_THREADS) {
        const unsigned group = i / (STEPS * 32), step = i / 32 % STEPS, lane = i % 32;
        const float *c = p.moved.values + (size_t)(first + group * MOVED_GROUP + lane / 4) * (STEPS * 16) +
                         step * 16 + lane % 4 * 2;
        uint4 words;
        split(c[0], c[1], words.x, words.z);
        split(c[8], c[9], words.y, words.w);
        *(uint4 *)(shared + group * tensor_bytes<STEPS> + (step * 32 + lane) * sizeof words) = words;
    }
    for (unsigned j = threadIdx.x; j < count; j += TENSOR_THREADS)
        *((float *)(shared + j / MOVED_GROUP * tensor_bytes<STEPS> + STEPS * 32 * sizeof(uint4)) +
          j % MOVED_GROUP) = p.moved.bias[first + j];
}

/* 32 rows of a warp as operand A, twice 16 rows. A lane holds columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of
   each step of rows g, g + 8, g + 16 and g + 24, t = lane % 4, g = lane / 4. */
template <int STEPS> struct tensor_rows {
    uint32_t high[2][STEPS][4], low[2][STEPS][4];
    float squares[4]; /* of the columns of the lane */

    using raw_rows = pack<double, 2>[4][2 * STEPS]; /* columns 2 t + 8 i of rows g + 8 r */

    static __device__ __forceinline__ void load(const few_pass &p, size_t base, raw_rows &raw) {
        const unsigned lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const size_t row = base + 8 * r + lane / 4;
            load_pairs(p, (const double *)p.x + (row < p.rows ? row : 0) * p.features, lane % 4 * 2, raw[r]);
        }
    }

    __device__ __forceinline__ void convert(const few_pass &p, const raw_rows &raw, const double *mean) {
        const unsigned own = threadIdx.x % 4 * 2;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            squares[r] = 0;
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) {
                const unsigned column = 8 * i + own;
                const float a = column < p.features ? (float)(raw[r][i].value[0] - mean[column]) : 0.0f,
                            b = column + 1 < p.features ? (float)(raw[r][i].value[1] - mean[column + 1])
                                                        : 0.0f;
                squares[r] = fmaf(b, b, fmaf(a, a, squares[r]));
                split(a, b, high[r / 2][i / 2][i % 2 * 2 + r % 2], low[r / 2][i / 2][i % 2 * 2 + r % 2]);
            }
        }
    }

    /* Columns own, own + 1, own + 8, own + 9, .. of a row. */
    static __device__ __forceinline__ void load_pairs(const few_pass &p, const double *x, unsigned own,
                                                      pack<double, 2> (&raw)[2 * STEPS]) {
        if (p.aligned) {
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++)
                if (8 * i + own < p.features) raw[i] = pack_at<2>(x + 8 * i + own);
        } else {
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++) {
                if (8 * i + own < p.features) raw[i].value[0] = x[8 * i + own];
                if (8 * i + own + 1 < p.features) raw[i].value[1] = x[8 * i + own + 1];
            }
        }
    }
};

/* The two best scores of the columns that a lane has of a row; a NaN is ignored. */
struct lane_best {
    float best, second;
    uint32_t index;

    __device__ __forceinline__ void add(float score, uint32_t column) {
        const bool above = score > best;
        second = fmaxf(second, fminf(best, score));
        best = fmaxf(best, score);
        if (above) index = column;
    }

    /* With those of another lane. */
    __device__ __forceinline__ void merge(int distance) {
        const float other = __shfl_xor_sync(0xffffffffu, best, distance),
                    below = __shfl_xor_sync(0xffffffffu, second, distance);
        const uint32_t column = __shfl_xor_sync(0xffffffffu, index, distance);
        second = fmaxf(fmaxf(second, below), fminf(best, other));
        if (other > best) index = column;
        best = fmaxf(best, other);
    }
};

/* Scores the rows with `groups` groups of centres. The index counts the columns of the lane. */
template <int STEPS>
__device__ __forceinline__ void score_groups(const tensor_rows<STEPS> &rows, const char *shared,
                                             unsigned groups, uint32_t column, lane_best (&state)[4]) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll 2
    for (unsigned n = 0; n < groups; n++) {
        const char *group = shared + n * tensor_bytes<STEPS>;
        const float2 bias = *(const float2 *)(group + STEPS * 32 * sizeof(uint4) + lane % 4 * sizeof(float2));
        float sum[2][4] = {{bias.x, bias.y, bias.x, bias.y}, {bias.x, bias.y, bias.x, bias.y}};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint4 b = *(const uint4 *)(group + (s * 32 + lane) * sizeof(uint4));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_bf16(sum[m], rows.low[m][s], b.x, b.y);
                mma_bf16(sum[m], rows.high[m][s], b.z, b.w);
                mma_bf16(sum[m], rows.high[m][s], b.x, b.y);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            state[r].add(sum[r / 2][r % 2 * 2], column + 2 * n);
            state[r].add(sum[r / 2][r % 2 * 2 + 1], column + 2 * n + 1);
        }
    }
}

/* The best of all columns of row 8 t + g, and the error of its scores. */
template <int STEPS>
__device__ __forceinline__ lane_best best_of_row(const tensor_rows<STEPS> &rows, const lane_best (&state)[4],
                                                 double centre_norm, double *error) {
    const int lane = threadIdx.x % 32;
    lane_best own = {};
    float squares = 0;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        lane_best all = state[r];
        all.index = all.index / 2 * MOVED_GROUP + lane % 4 * 2 + all.index % 2;
        float sum = rows.squares[r];
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
            all.merge(distance);
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        if (lane % 4 == r) own = all;
        if (lane % 4 == r) squares = sum;
    }
    *error = tensor_error<STEPS>(nearest_few_norm(squares), centre_norm);
    return own;
}

template <int STEPS>
__global__ void __launch_bounds__(TENSOR_THREADS, 3) tensor_kernel(const __grid_constant__ few_pass p) {
    extern __shared__ __align__(16) char shared[];
    __shared__ double mean[MOVED_MOST];
    const unsigned all = (unsigned)((p.clusters + MOVED_GROUP - 1) / MOVED_GROUP * MOVED_GROUP),
                   tile = (unsigned)p.tile, block_rows = TENSOR_THREADS / 32 * TENSOR_ROWS;
    const double centre_norm = *p.moved.norm;
    unsigned changed = 0;
    bool loaded = false;
    if (threadIdx.x < MOVED_MOST) mean[threadIdx.x] = p.moved.mean[threadIdx.x];
    __syncthreads();
    for (size_t first_row = (size_t)blockIdx.x * block_rows; first_row < p.rows;
         first_row += (size_t)gridDim.x * block_rows) {
        const size_t base = first_row + threadIdx.x / 32 * TENSOR_ROWS;
        typename tensor_rows<STEPS>::raw_rows raw; /* all are loaded before the first is used */
        tensor_rows<STEPS> rows;
        lane_best state[4];
        rows.load(p, base, raw);
        rows.convert(p, raw, mean);
#pragma unroll
        for (int r = 0; r < 4; r++) state[r] = {-INFINITY, -INFINITY, 0};
        for (unsigned first = 0; first < all; first += tile) {
            const unsigned count = all - first < tile ? all - first : tile;
            if (!loaded || tile < all) {
                __syncthreads();
                load_operand<STEPS>(p, first, count, shared);
                __syncthreads();
                loaded = true;
            }
            score_groups<STEPS>(rows, shared, count / MOVED_GROUP, first / MOVED_GROUP * 2, state);
        }
        double error;
        const lane_best own = best_of_row(rows, state, centre_norm, &error);
        const size_t row = base + threadIdx.x % 4 * 8 + threadIdx.x % 32 / 4;
        changed += row < p.rows && store_or_open(p, row, own.best - own.second, error, own.index);
    }
    count_changed(p, changed);
}

} // namespace few

#endif
