/* Labels and sums of points of float64 with 1 or 2 features in one pass over the points, in the order of
   kernels/nearest.h.

   Idea       a grid of cells covers the centres and their surroundings. Before each pass, every cell gets the
              list of the centres that may be the nearest one of a point in it; most cells have one. A point
              in such a cell needs no score, and the others are scored in float32 with their candidates alone.
              Points without a list are scored with all centres, and rows that float32 does not decide are
              resolved at once (few_resolve.cuh). As in few_sums.cuh, a warp has a slice, and a table of its
              sums in shared memory; each lane labels and adds every 32nd row
   Bound by   latency: 1024 slices are 8 warps on each of 132 SMs, whose issue slots are 45 % busy. For 256
              rows 1,560 instructions of a warp; 0.8 ms for 1 GiB with 2 features, whose bytes take 0.3
   Improves   scores with all centres (few_screen.cuh), 350 instructions for 32 rows, and a second pass
   Run        ./train kmeans --data uniform:1024MB,2 --dtype f64 --clusters 64 --backend cuda-tuned */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FEW_CELLS_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FEW_CELLS_CUH

#include "kernels/cuda/cluster/few_screen.cuh"
#include "kernels/cuda/cluster/few_sums.cuh"

namespace few {

static const int CELLS = 128; /* along each of two axes */
static const int CELL_THREADS = 256, CELL_WARPS = CELL_THREADS / 32, CELL_ROWS = 8; /* rows of a lane */
/* Candidates of a cell, a byte each, the unused bytes NO_CENTRE. ALL_CENTRES: there are more than 4. */
static const uint32_t NO_CENTRE = 0xff, ALL_CENTRES = 0xffffffff, ONE_CENTRE = 0xffffff00;
static const size_t CELL_CENTRES = 254;

/* A moved point is in cell (x - origin) * scale, rounded down, of each axis. The first and the last cell of
   an axis have also the points up to CELLS cells outside. */
struct cell_axes {
    float origin[2], scale[2];
    float gap; /* of the two best scores of a point in a cell, if they decide */
};
struct cell_grid {
    cell_axes axes;
    uint32_t candidates[CELLS * CELLS];
};

/* Ends of cell i of an axis, with a 64th of a cell more: the roundings of its computation are far below. */
__device__ inline double cell_end(const cell_axes &axes, int axis, int cell, bool upper) {
    const int outside = cell == 0 && !upper ? -CELLS : cell == CELLS - 1 && upper ? CELLS : 0;
    return axes.origin[axis] + (cell + outside + (upper ? 1 + 0x1p-6 : -0x1p-6)) / axes.scale[axis];
}

/* The grid is wider than the centres by 1 / sqrt(K) of their extent at each side. Returns the error of the
   scores of all points in cells; infinite if there can be no cells. */
__device__ inline double lay_cells(const few_pass &p, const float4 *centre, cell_axes &axes) {
    double squares = 0;
    bool valid = true;
    for (int axis = 0; axis < 2; axis++) {
        float least = INFINITY, most = -INFINITY;
        for (unsigned j = 0; j < p.clusters; j++) {
            least = fminf(least, axis ? centre[j].y : centre[j].x);
            most = fmaxf(most, axis ? centre[j].y : centre[j].x);
        }
        const float more =
            (most - least) / sqrtf((float)p.clusters) + 0x1p-20f * fmaxf(-least, most) + 0x1p-60f;
        axes.origin[axis] = least - more;
        axes.scale[axis] = CELLS / (most - least + 2 * more);
        valid = valid && axes.scale[axis] > 0x1p-60f; /* at most 2^66 */
        const double low = cell_end(axes, axis, 0, false), high = cell_end(axes, axis, CELLS - 1, true);
        squares += fmax(low * low, high * high);
    }
    const double error = valid ? nearest_few_error(p.features, FLT_EPSILON, FLT_TRUE_MIN, FLT_MAX,
                                                   sqrt(squares) * 1.0001, *p.moved.norm)
                               : (double)INFINITY;
    axes.gap = (float)(2.001 * error);
    return error;
}

/* All centres that may be the nearest in a box: not those whose score is below that of centre `near` by more
   than twice the error everywhere. The difference of two scores is linear: its least value is at a corner. */
__device__ inline uint32_t candidates_of(const few_pass &p, const float4 *centre, const double (&low)[2],
                                         const double (&high)[2], double error) {
    const double middle[2] = {(low[0] + high[0]) / 2, (low[1] + high[1]) / 2};
    const auto half_squares = [](float4 c) { return ((double)c.x * c.x + (double)c.y * c.y) / 2; };
    double best = -INFINITY;
    unsigned near = 0, count = 0;
    for (unsigned j = 0; j < p.clusters; j++) {
        const double score = middle[0] * centre[j].x + middle[1] * centre[j].y - half_squares(centre[j]);
        if (score > best) near = j;
        best = fmax(best, score);
    }
    uint32_t list = ALL_CENTRES;
    for (unsigned j = 0; j < p.clusters; j++) {
        const double a = (double)centre[near].x - centre[j].x, b = (double)centre[near].y - centre[j].y,
                     least = fmin(low[0] * a, high[0] * a) + fmin(low[1] * b, high[1] * b) -
                             (half_squares(centre[near]) - half_squares(centre[j]));
        if (j != near && least > 2.01 * error) continue;
        if (count == 4) return ALL_CENTRES;
        list ^= (NO_CENTRE ^ j) << (8 * count++);
    }
    return list;
}

/* NO_CENTRE + 1 of them. */
__device__ inline void load_cell_centres(const few_pass &p, float4 *centre) {
    for (unsigned j = threadIdx.x; j <= NO_CENTRE; j += CELL_THREADS) {
        centre[j] = {0, 0, -INFINITY, 0};
        if (j < p.clusters)
            centre[j] = {p.moved.values[2 * j], p.moved.values[2 * j + 1], p.moved.bias[j], 0};
    }
}

/* A thread for each cell. */
__global__ void __launch_bounds__(CELL_THREADS)
    cells_kernel(const __grid_constant__ few_pass p, cell_grid *grid) {
    __shared__ float4 centre[NO_CENTRE + 1];
    __shared__ cell_axes axes;
    __shared__ double error;
    load_cell_centres(p, centre);
    __syncthreads();
    if (threadIdx.x == 0) error = lay_cells(p, centre, axes);
    __syncthreads();
    const int cell = blockIdx.x * CELL_THREADS + threadIdx.x, at[2] = {cell % CELLS, cell / CELLS};
    double low[2], high[2];
    for (int axis = 0; axis < 2; axis++) {
        low[axis] = cell_end(axes, axis, at[axis], false);
        high[axis] = cell_end(axes, axis, at[axis], true);
    }
    grid->candidates[cell] = candidates_of(p, centre, low, high, error);
    if (cell == 0) grid->axes = axes;
}

/* The cells in shared memory, as a lane uses them. */
struct cell_table {
    const float4 *centre;
    const uint32_t *candidates;
    cell_axes axes;

    __device__ __forceinline__ static bool inside(float at) {
        return at >= -CELLS && at <= 2 * CELLS;
    }

    __device__ __forceinline__ static int clamp(float at) {
        return (int)fminf(fmaxf(at, 0.0f), (float)(CELLS - 1));
    }

    __device__ __forceinline__ uint32_t at(const float (&x)[2]) const {
        const float a = (x[0] - axes.origin[0]) * axes.scale[0], b = (x[1] - axes.origin[1]) * axes.scale[1];
        return inside(a) && inside(b) ? candidates[clamp(b) * CELLS + clamp(a)] : ALL_CENTRES;
    }

    __device__ __forceinline__ void add(const float (&x)[2], uint32_t j, lane_best &state) const {
        const float4 c = centre[j];
        state.add(fmaf(x[1], c.y, fmaf(x[0], c.x, c.z)), j);
    }

    /* Scores with all centres. Returns the gap that decides. */
    __device__ __forceinline__ float score_all(const few_pass &p, const float (&x)[2],
                                               lane_best &state) const {
        const double norm = nearest_few_norm(fmaf(x[0], x[0], x[1] * x[1]));
        state = {-INFINITY, -INFINITY, 0};
        for (uint32_t j = 0; j < p.clusters; j++) add(x, j, state);
        return (float)(2.001 * nearest_few_error(p.features, FLT_EPSILON, FLT_TRUE_MIN, FLT_MAX, norm,
                                                 *p.moved.norm));
    }

    /* The labels of the rows of a lane; NEAREST_NONE if float32 does not decide. A score of NO_CENTRE is
       -infinity. */
    __device__ __forceinline__ void label(const few_pass &p, const float (&x)[CELL_ROWS][2],
                                          uint32_t (&label)[CELL_ROWS]) const {
        lane_best state[CELL_ROWS];
        uint32_t list[CELL_ROWS], left[CELL_ROWS];
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++) {
            list[i] = at(x[i]);
            const bool one = list[i] >= ONE_CENTRE;
            state[i] = {one ? INFINITY : -INFINITY, -INFINITY, list[i] & NO_CENTRE};
            left[i] = one ? ALL_CENTRES : list[i]; /* nothing to score here */
        }
        for (int k = 0; k < 4; k++) {
            bool any = false;
#pragma unroll
            for (int i = 0; i < CELL_ROWS; i++) any |= left[i] != ALL_CENTRES;
            if (!__any_sync(0xffffffffu, any)) break;
#pragma unroll
            for (int i = 0; i < CELL_ROWS; i++) {
                add(x[i], left[i] & NO_CENTRE, state[i]);
                left[i] = left[i] >> 8 | NO_CENTRE << 24;
            }
        }
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++) {
            const float gap = list[i] == ALL_CENTRES ? score_all(p, x[i], state[i]) : axes.gap;
            label[i] = state[i].best - state[i].second > gap ? state[i].index : NEAREST_NONE;
        }
    }
};

/* The next rows of a lane, every 32nd, and their labels. */
struct cell_rows {
    pack<double, 2> x[CELL_ROWS][1];
    uint32_t label[CELL_ROWS];

    __device__ __forceinline__ void load(const few_pass &p, size_t base) {
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++) {
            const size_t at = base + i * 32 + threadIdx.x % 32, row = at < p.rows ? at : 0;
            load_features<2>(p, row, x[i]);
            label[i] = p.label[row];
        }
    }
};

/* Shared memory of a warp: the table of sums, [clusters + 1][32 / FEATURES][FEATURES], and the members. Rows
   beyond the end go to the last cluster. */
template <int FEATURES> struct cell_sums {
    double *table;
    uint32_t *members;

    static __host__ __device__ size_t bytes(size_t clusters) {
        return ((clusters + 1) * 32 + (clusters / 2 + 2) / 2 * 2) * sizeof(double); /* packs are aligned */
    }

    __device__ void open(char *memory, size_t clusters) {
        table = (double *)memory;
        members = (uint32_t *)(table + (clusters + 1) * 32);
        for (size_t i = threadIdx.x % 32; i < (clusters + 1) * 32; i += 32) table[i] = 0;
        for (size_t j = threadIdx.x % 32; j <= clusters; j += 32) members[j] = 0;
    }

    /* Adds the rows in order. Every sum belongs to one lane: with two columns lane l < 16 adds the first one
       of its own rows and of those of lane l + 16, which adds the second one of both. Of four sums that are
       loaded at once, a later one may be an earlier one. */
    __device__ __forceinline__ void add(const uint32_t (&label)[CELL_ROWS], const cell_rows &rows) const {
        const unsigned lane = threadIdx.x % 32;
        const bool upper = lane >= 16;
        double *own = table + (FEATURES == 1 ? lane : lane % 16 * 2 + upper);
#pragma unroll
        for (int first = 0; first < CELL_ROWS; first += 4 / FEATURES) {
            uint32_t to[4];
            double value[4], sum[4];
#pragma unroll
            for (int i = 0; i < 4; i += FEATURES) {
                const int r = first + i / FEATURES;
                const double *x = rows.x[r][0].value;
                to[i] = label[r];
                value[i] = x[0];
                atomicAdd(&members[label[r]], 1u);
                if (FEATURES == 1) continue;
                const uint32_t other_label = __shfl_xor_sync(0xffffffffu, label[r], 16);
                const double other = __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[1], 16);
                to[i] = upper ? other_label : label[r];
                value[i] = upper ? other : x[0];
                to[i + FEATURES - 1] = upper ? label[r] : other_label;
                value[i + FEATURES - 1] = upper ? x[1] : other;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] = own[to[i] * 32];
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int e = 0; e < i; e++)
                    if (to[e] == to[i]) sum[i] = sum[e];
                sum[i] += value[i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) own[to[i] * 32] = sum[i];
        }
    }

    /* The partial sums are added in pairs, half of them apart, then a quarter, .. */
    __device__ void store(const slice_sums &to, size_t slice, size_t clusters) const {
        const unsigned lane = threadIdx.x % 32;
        __syncwarp();
        for (size_t j = 0; j < clusters; j++) {
            double sum = table[j * 32 + lane];
            for (unsigned half = 16; half >= FEATURES; half /= 2)
                sum += __shfl_down_sync(0xffffffffu, sum, half);
            if (lane < FEATURES) to.sums[(slice * clusters + j) * FEATURES + lane] = sum;
        }
        for (size_t j = lane; j < clusters; j += 32) to.count[slice * clusters + j] = members[j];
    }
};

template <int FEATURES>
__global__ void __launch_bounds__(CELL_THREADS, 1)
    cell_sums_kernel(const __grid_constant__ few_pass p, const __grid_constant__ slice_sums sums,
                     const cell_grid *grid) {
    extern __shared__ __align__(16) char shared[];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t slice = (size_t)blockIdx.x * CELL_WARPS + warp, first = slice * sums.slice_rows,
                 end = p.rows < first + sums.slice_rows ? p.rows : first + sums.slice_rows;
    uint32_t *candidates = (uint32_t *)shared;
    float4 *centre = (float4 *)(candidates + CELLS * CELLS);
    const cell_table cells = {centre, candidates, grid->axes};
    const double mean[2] = {p.moved.mean[0], p.moved.mean[1]};
    cell_sums<FEATURES> table;
    table.open((char *)(centre + NO_CENTRE + 1) + warp * cell_sums<FEATURES>::bytes(p.clusters), p.clusters);
    for (unsigned i = threadIdx.x; i < CELLS * CELLS; i += CELL_THREADS) candidates[i] = grid->candidates[i];
    load_cell_centres(p, centre);
    __syncthreads();
    if (first >= p.rows) return;
    unsigned changed = 0;
    cell_rows next;
    next.load(p, first);
    for (size_t base = first; base < end; base += CELL_ROWS * 32) {
        const cell_rows rows = next;
        float x[CELL_ROWS][2];
        uint32_t label[CELL_ROWS];
        bool open = false;
        if (base + CELL_ROWS * 32 < end) next.load(p, base + CELL_ROWS * 32);
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++) move<2>(rows.x[i], mean, x[i]);
        cells.label(p, x, label);
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++) {
            if (base + i * 32 + lane >= end) label[i] = (uint32_t)p.clusters;
            open |= label[i] == NEAREST_NONE;
        }
        if (__any_sync(0xffffffffu, open)) {
#pragma unroll
            for (int i = 0; i < CELL_ROWS; i++) label[i] = resolve_rows(p, base + i * 32, label[i]);
        }
#pragma unroll
        for (int i = 0; i < CELL_ROWS; i++) {
            if (label[i] != p.clusters && label[i] != rows.label[i]) {
                p.label[base + i * 32 + lane] = label[i];
                changed++;
            }
        }
        table.add(label, rows);
    }
    table.store(sums, slice, p.clusters);
    count_changed(p, changed);
}

template <int FEATURES> static size_t cell_sums_bytes(size_t clusters) {
    return CELLS * CELLS * sizeof(uint32_t) + (NO_CENTRE + 1) * sizeof(float4) +
           CELL_WARPS * cell_sums<FEATURES>::bytes(clusters);
}

/* As launch_tensor_sums, of certified labels. The sums of a cluster are one for each lane of a warp. */
template <int FEATURES>
static bool launch_cell_sums(fused_nearest *base, const few_pass &p, const nearest_lloyd *run,
                             cuda_ops_context *ops) {
    const cluster_sums *to = run->sums;
    const size_t clusters = to->clusters, slices = cluster_slices(p.rows, clusters, FEATURES),
                 header = (sizeof(cell_grid) + 255) / 256 * 256;
    slice_sums sums = {.slice_rows = cluster_slice_rows(p.rows, clusters, FEATURES),
                       .lanes = (unsigned)cluster_lanes(clusters, FEATURES),
                       .sums = run->rows->slices};
    const size_t shared = cell_sums_bytes<FEATURES>(clusters);
    if (!p.certify || clusters > CELL_CENTRES || sums.lanes * FEATURES != 32 ||
        slices < 2 * (size_t)base->processors || shared + 2048 > (size_t)base->shared_bytes)
        return false;
    char *scratch = (char *)cuda_scratch(ops, header + slices * clusters * sizeof *sums.count);
    if (!scratch) return true;
    cell_grid *grid = (cell_grid *)scratch;
    sums.count = (uint32_t *)(scratch + header);
    cells_kernel<<<CELLS * CELLS / CELL_THREADS, CELL_THREADS, 0, base->stream>>>(p, grid);
    CUDA_LAUNCHED(&base->fault, "cells_kernel");
    CUDA_TRY(&base->fault, cudaFuncSetAttribute(cell_sums_kernel<FEATURES>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    cell_sums_kernel<FEATURES>
        <<<(unsigned)((slices + CELL_WARPS - 1) / CELL_WARPS), CELL_THREADS, shared, base->stream>>>(p, sums,
                                                                                                     grid);
    CUDA_LAUNCHED(&base->fault, "cell_sums_kernel");
    cuda_cluster_add_slices(ops, slices, sums.sums, sums.count, to);
    return true;
}

} // namespace few

#endif
