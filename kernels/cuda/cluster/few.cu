/* The nearest centres of reals with few features: the slot of cuda-tuned.

   Idea       three levels, each for the rows that the one before leaves open, as on the host
              (kernels/host/tuned/nearest_few.c): points of float64 are scored in float32 (few_screen.cuh)
              or on the tensor cores (few_tensor.cuh); then in their own type, as are all points of float32;
              the last level decides rows whose two best scores are too close (few_label.cuh). Iterations
              in one call label and add many points of float64 in one pass, if they have 1, 2
              (few_cells.cuh) or 9 to 32 features (few_sums.cuh).
   Bound by   the first level; points of float32 with 2 features by the comparisons, about 8 instructions a
              score
   Improves   a GEMM and a pass over its scores (nearest.cu)
   Run        ./train kmeans --data uniform:1024MB,32 --dtype f64 --clusters 64 --backend cuda-tuned */
#include <stdlib.h>

#include "kernels/cuda/cluster/few_cells.cuh"
#include "kernels/cuda/cluster/few_label.cuh"

using namespace few;

static const int SHARED = 40 << 10;         /* bytes of centres */
static const size_t PART = (size_t)1 << 24; /* rows of a pass */

struct few_state {
    fused_nearest base;
    struct nearest_centres centres;
    moved_centres moved; /* of the first level; values NULL: there is none */
    void *lists;
    size_t list_bytes;
};

/* Calls `function<T, D>()` with the type and the least D that takes the features. */
template <typename F> static void with_width(const nearest_shape &shape, F function) {
    const size_t features = shape.features;
    if (shape.dtype == GEMM_F32) {
        if (features <= 2) return function.template operator()<float, 2>();
        if (features <= 4) return function.template operator()<float, 4>();
        if (features <= 8) return function.template operator()<float, 8>();
        if (features <= 16) return function.template operator()<float, 16>();
        if (features <= 32) return function.template operator()<float, 32>();
        return function.template operator()<float, 64>();
    }
    if (features <= 2) return function.template operator()<double, 2>();
    if (features <= 4) return function.template operator()<double, 4>();
    if (features <= 8) return function.template operator()<double, 8>();
    if (features <= 16) return function.template operator()<double, 16>();
    return function.template operator()<double, 32>();
}

size_t cuda_nearest_few_features(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? 64 : 32;
}

/* --- the centres --- */

static const int MOVE_THREADS = 256, MOVE_CENTRES = 64; /* of a thread block */

/* Each block computes the mean of all centres, in the same order. */
__global__ void __launch_bounds__(MOVE_THREADS)
    move_centres_kernel(size_t clusters, size_t features, const double *__restrict__ values,
                        moved_centres moved) {
    __shared__ double parts[MOVE_THREADS / 32][32], mean[MOVED_MOST];
    const unsigned f = threadIdx.x % 32, part = threadIdx.x / 32;
    double sum = 0;
#pragma unroll 8
    for (size_t j = part; f < features && j < clusters; j += MOVE_THREADS / 32)
        sum += values[j * features + f];
    parts[part][f] = sum;
    __syncthreads();
    if (part == 0) {
        for (int i = 1; i < MOVE_THREADS / 32; i++) sum += parts[i][f];
        mean[f] = sum / (double)clusters;
        if (blockIdx.x == 0) moved.mean[f] = mean[f];
    }
    __syncthreads();
    const size_t j = (size_t)blockIdx.x * MOVE_CENTRES + threadIdx.x;
    if (threadIdx.x >= MOVE_CENTRES || j >= padded_clusters(clusters)) return;
    double squares = 0;
#pragma unroll 8
    for (unsigned i = 0; i < (unsigned)moved.width; i++) {
        const bool valid = j < clusters && i < features;
        const float value = valid ? (float)(values[j * features + i] - mean[i]) : 0.0f;
        moved.values[j * moved.width + i] = value;
        squares += (double)value * (double)value;
    }
    moved.bias[j] = j < clusters ? (float)(-squares / 2) : -INFINITY;
    atomic_max_positive(moved.norm, sqrt(squares) * (1 + 0x1p-20) + 0x1p-140);
}

static bool few_centres(void *opaque, const struct nearest_centres *centres) {
    few_state *state = (few_state *)opaque;
    fused_nearest *base = &state->base;
    const moved_centres &moved = state->moved;
    state->centres = *centres;
    if (!moved.values) return true;
    CUDA_TRY(&base->fault, cudaMemsetAsync(moved.norm, 0, sizeof *moved.norm, base->stream));
    const size_t padded = padded_clusters(centres->count);
    move_centres_kernel<<<(unsigned)((padded + MOVE_CENTRES - 1) / MOVE_CENTRES), MOVE_THREADS, 0,
                          base->stream>>>(centres->count, centres->features, (const double *)centres->values,
                                          moved);
    CUDA_LAUNCHED(&base->fault, "move_centres_kernel");
    return true;
}

/* --- the points --- */

static bool open_lists(few_state *state, few_pass &p) {
    fused_nearest *base = &state->base;
    const size_t header = 256, row_bytes = sizeof(double) + 2 * sizeof(uint32_t);
    unsigned *counts = (unsigned *)cuda_grow(&state->lists, &state->list_bytes, header + p.rows * row_bytes,
                                             base->stream, &base->fault);
    if (!counts) return false;
    double *thresholds = (double *)((char *)counts + header);
    uint32_t *rows = (uint32_t *)(thresholds + p.rows);
    p.list = {counts, thresholds, rows};
    p.open = {counts + 1, rows + p.rows};
    return CUDA_TRY(&base->fault, cudaMemsetAsync(counts, 0, 2 * sizeof *counts, base->stream));
}

/* Starts a kernel of the first level: as many blocks as run at once. */
static void launch_first(few_state *state, const few_pass &p, void (*kernel)(few_pass), int threads,
                         size_t block_rows, size_t shared) {
    fused_nearest *base = &state->base;
    const size_t blocks = (p.rows + block_rows - 1) / block_rows;
    int resident = 1;
    CUDA_TRY(&base->fault,
             cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    CUDA_TRY(&base->fault, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared));
    const size_t most = (size_t)base->processors * (resident < 1 ? 1 : resident);
    kernel<<<(unsigned)(blocks < most ? blocks : most), threads, shared, base->stream>>>(p);
    CUDA_LAUNCHED(&base->fault, "the first level of few.cu");
}

template <int D> static void launch_screen(few_state *state, const few_pass &p) {
    launch_first(state, p, screen_kernel<D>, SCREEN_THREADS, SCREEN_THREADS * SCREEN_POINTS,
                 screen_bytes<D>(p.clusters));
}

template <int STEPS> static void launch_tensor(few_state *state, few_pass p) {
    const size_t all = padded_clusters(p.clusters), most = TENSOR_SHARED / tensor_bytes<STEPS> * MOVED_GROUP;
    p.tile = all < most ? all : most;
    launch_first(state, p, tensor_kernel<STEPS>, TENSOR_THREADS, TENSOR_THREADS / 32 * TENSOR_ROWS,
                 p.tile / MOVED_GROUP * tensor_bytes<STEPS>);
}

static void launch_first_level(few_state *state, const few_pass &p) {
    switch (p.moved.width) {
    case 2:
        return launch_screen<2>(state, p);
    case 4:
        return launch_screen<4>(state, p);
    case 8:
        return launch_screen<8>(state, p);
    case 16:
        return launch_tensor<1>(state, p);
    default:
        return launch_tensor<2>(state, p);
    }
}

static void launch_part(few_state *state, few_pass &p) {
    fused_nearest *base = &state->base;
    const bool first_level = p.moved.values;
    if (first_level) launch_first_level(state, p);
    with_width(base->shape, [&]<typename T, int D>() {
        const size_t most = SHARED / ((D + 1) * sizeof(T));
        p.tile = p.clusters < most ? p.clusters : most;
        const size_t shared = p.tile * (D + 1) * sizeof(T);
        if (first_level) {
            few_kernel<T, D, true><<<(unsigned)base->processors * 4, FEW_THREADS, shared, base->stream>>>(p);
        } else {
            few_kernel<T, D, false>
                <<<cuda_grid_for(p.rows, FEW_THREADS * FEW_POINTS), FEW_THREADS, shared, base->stream>>>(p);
        }
        CUDA_LAUNCHED(&base->fault, "few_kernel");
        if (!p.certify) return;
        decide_few_kernel<T><<<(unsigned)base->processors * 8, decide::THREADS, 0, base->stream>>>(p);
        CUDA_LAUNCHED(&base->fault, "decide_few_kernel");
    });
}

/* Rows first .. first + rows - 1 of a call. */
static few_pass pass_of(const few_state *state, const struct nearest_call *call, size_t first, size_t rows,
                        struct nearest_counts *counts) {
    const struct nearest_centres *centres = &state->centres;
    const size_t row_bytes = centres->features * (state->base.shape.dtype == GEMM_F32 ? 4 : 8);
    const void *x = (const char *)call->x + first * row_bytes;
    return {.x = x,
            .rows = rows,
            .features = centres->features,
            .clusters = centres->count,
            .values = centres->values,
            .transposed = centres->transposed,
            .bias = centres->bias,
            .norm = call->norm + first / NEAREST_BLOCK,
            .centre_norm = centres->norm,
            .certify = call->certify,
            .aligned = row_bytes % 16 == 0 && (uintptr_t)x % 16 == 0,
            .label = call->label + first,
            .counts = counts,
            .moved = state->moved};
}

static void few_run(void *opaque, const struct nearest_call *call, struct nearest_counts *counts) {
    few_state *state = (few_state *)opaque;
    for (size_t first = 0; first < call->rows; first += PART) {
        few_pass p =
            pass_of(state, call, first, call->rows - first < PART ? call->rows - first : PART, counts);
        if (!open_lists(state, p)) return;
        launch_part(state, p);
    }
}

static bool few_label_and_sum(void *opaque, const struct nearest_lloyd *run, struct nearest_counts *counts,
                              struct cuda_ops_context *ops) {
    few_state *state = (few_state *)opaque;
    const few_pass p = pass_of(state, run->points, 0, run->points->rows, counts);
    if (p.features == 1) return launch_cell_sums<1>(&state->base, p, run, ops);
    if (p.features == 2) return launch_cell_sums<2>(&state->base, p, run, ops);
    switch (p.moved.width) {
    case 16:
        return launch_tensor_sums<1>(&state->base, p, run, ops);
    case 32:
        return launch_tensor_sums<2>(&state->base, p, run, ops);
    default:
        return false;
    }
}

/* --- the state --- */

static void few_close(void *opaque) {
    few_state *state = (few_state *)opaque;
    cudaFree(state->lists);
    cudaFree(state->moved.mean);
    free(state);
}

static void few_describe(void *opaque, char *text, size_t size) {
    const moved_centres &moved = ((few_state *)opaque)->moved;
    snprintf(text, size, "few features, points and maxima in registers%s",
             !moved.values     ? ""
             : moved.width > 8 ? ", bfloat16 tensor cores before float64"
                               : ", float32 before float64");
}

static const struct gemm_nearest table = {
    .close = few_close, .centres = few_centres, .run = few_run, .describe = few_describe};

/* Memory of the first level, if there is one for these points. */
static bool open_moved(few_state *state) {
    fused_nearest *base = &state->base;
    const size_t features = base->shape.features, clusters = base->shape.clusters,
                 padded = padded_clusters(clusters);
    moved_centres &moved = state->moved;
    const int width = features <= 2 ? 2 : features <= 4 ? 4 : features <= 8 ? 8 : features <= 16 ? 16 : 32;
    if (base->shape.dtype != GEMM_F64) return true;
    const size_t limit = (size_t)base->shared_bytes - 1024; /* what is declared __shared__ counts as well */
    if (width > 8 ? base->major < 8 || limit < TENSOR_SHARED
                  : screen_bytes<8>(clusters) > (limit < SCREEN_SHARED ? limit : SCREEN_SHARED))
        return true;
    const size_t header = (MOVED_MOST + 2) * sizeof(double);
    if (!CUDA_TRY(&base->fault,
                  cudaMalloc((void **)&moved.mean, header + padded * (width + 1) * sizeof(float))))
        return false;
    moved.norm = moved.mean + MOVED_MOST;
    moved.values = (float *)((char *)moved.mean + header);
    moved.bias = moved.values + padded * width;
    moved.width = width;
    base->label_and_sum = few_label_and_sum;
    return true;
}

void *cuda_nearest_few(const fused_nearest *base, char *why, size_t size) {
    few_state *state = (few_state *)calloc(1, sizeof *state);
    if (!state) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    state->base = *base;
    state->base.table = &table;
    if (open_moved(state)) return state;
    snprintf(why, size, "%s", state->base.fault.message);
    cudaGetLastError(); /* clears the error */
    few_close(state);
    return NULL;
}
