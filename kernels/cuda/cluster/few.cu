/* The nearest centres of reals with few features: the slot of cuda-tuned.

   Idea       a thread keeps two points in registers, and the best score, the second best and the index of
              each. The centres are in shared memory, where all threads read the same one. No score is
              stored. A row whose two best scores are too close for their error goes to a list; a second
              kernel takes a thread block for each (decide.cuh).
   Bound by   float64: 2 flops for each point, centre and feature, at 34 Tflop/s; with 2 features by the
              comparisons, about 8 instructions a score
   Improves   a GEMM and a pass over its scores (nearest.cu)
   Run        ./train kmeans --data uniform:1024MB,32 --dtype f64 --clusters 64 --backend cuda-tuned */
#include <stdlib.h>

#include "kernels/cuda/cluster/decide.cuh"
#include "kernels/cuda/cluster/fused.cuh"
#include "kernels/cuda/ops/element.cuh"

static const int THREADS = 256, POINTS = 2; /* points of a thread */
static const int SHARED = 40 << 10;         /* bytes of centres */
static const size_t PART = (size_t)1 << 24; /* rows of a pass */

/* Rows that the scores do not decide. */
struct undecided {
    unsigned *count;
    double *threshold; /* centres with a score below it are out */
    uint32_t *row;
};

struct few_pass {
    const void *x;
    size_t rows, features, clusters, tile; /* centres that fit into shared memory */
    const void *values, *bias;
    const double *norm, *centre_norm;
    bool certify, aligned; /* rows of x start at multiples of 16 bytes */
    uint32_t *label;
    nearest_counts *counts;
    undecided list;
};

struct few_state {
    fused_nearest base;
    struct nearest_centres centres;
    void *lists;
    size_t list_rows;
};

/* Adds in two chains, which overlap. */
template <typename T, int D> __device__ static T product(const T (&x)[D], const T *c) {
    constexpr int WIDE = D < WIDEST<T> ? D : WIDEST<T>;
    T even = 0, odd = 0;
#pragma unroll
    for (int f = 0; f < D; f += WIDE) {
        const pack<T, WIDE> some = pack_at<WIDE>(c + f);
#pragma unroll
        for (int e = 0; e < WIDE; e += 2) {
            even = fma(x[f + e], some.value[e], even);
            odd = fma(x[f + e + 1], some.value[e + 1], odd);
        }
    }
    return even + odd;
}

/* One point; features beyond the last are 0. */
template <typename T, int D> __device__ static void load_point(const few_pass &p, size_t row, T (&x)[D]) {
    constexpr int WIDE = D < WIDEST<T> ? D : WIDEST<T>;
    const T *from = (const T *)p.x + row * p.features;
    if (p.aligned) {
#pragma unroll
        for (int f = 0; f < D; f += WIDE) {
            pack<T, WIDE> some = {};
            if (f < (int)p.features) some = pack_at<WIDE>(from + f);
#pragma unroll
            for (int e = 0; e < WIDE; e++) x[f + e] = some.value[e];
        }
        return;
    }
#pragma unroll
    for (int f = 0; f < D; f++) x[f] = f < (int)p.features ? from[f] : T(0);
}

/* Copies centres first .. first + count - 1 and their biases to shared memory. */
template <typename T, int D>
__device__ static void load_centres(const few_pass &p, size_t first, size_t count, T *centres, T *bias) {
    for (size_t i = threadIdx.x; i < count * D; i += THREADS) {
        const size_t f = i % D;
        centres[i] = f < p.features ? ((const T *)p.values)[(first + i / D) * p.features + f] : T(0);
    }
    for (size_t j = threadIdx.x; j < count; j += THREADS) bias[j] = ((const T *)p.bias)[first + j];
}

/* Stores a label, or appends the row to the list. True if the label changed. */
template <typename T>
__device__ static bool store_row(const few_pass &p, size_t row, T best, T second, uint32_t index) {
    const double error = nearest_error(p.features, real_limits<T>::epsilon, real_limits<T>::least,
                                       real_limits<T>::largest, p.norm[row / NEAREST_BLOCK], *p.centre_norm);
    if (!p.certify || (double)best - (double)second > 2 * error) {
        const bool changed = p.label[row] != index;
        p.label[row] = index;
        return changed;
    }
    const unsigned at = atomicAdd(p.list.count, 1u);
    p.list.row[at] = (uint32_t)row;
    p.list.threshold[at] = (double)best - 2 * error;
    return false;
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS) few_kernel(const __grid_constant__ few_pass p) {
    extern __shared__ __align__(16) char shared[];
    T *centres = (T *)shared, *bias = centres + p.tile * D;
    unsigned changed = 0;
    bool loaded = false;
    for (size_t base = (size_t)blockIdx.x * THREADS * POINTS; base < p.rows;
         base += (size_t)gridDim.x * THREADS * POINTS) {
        T x[POINTS][D], best[POINTS], second[POINTS];
        uint32_t index[POINTS];
#pragma unroll
        for (int i = 0; i < POINTS; i++) {
            const size_t row = base + i * THREADS + threadIdx.x;
            load_point(p, row < p.rows ? row : 0, x[i]);
            best[i] = second[i] = -(T)INFINITY;
            index[i] = 0;
        }
        for (size_t first = 0; first < p.clusters; first += p.tile) {
            const size_t count = p.clusters - first < p.tile ? p.clusters - first : p.tile;
            if (!loaded || p.tile < p.clusters) {
                __syncthreads();
                load_centres<T, D>(p, first, count, centres, bias);
                __syncthreads();
                loaded = true;
            }
            for (uint32_t j = 0; j < count; j++)
#pragma unroll
                for (int i = 0; i < POINTS; i++) {
                    const T score = product(x[i], centres + j * D) + bias[j];
                    const bool better = score > best[i];
                    const T lower = better ? best[i] : score;
                    if (lower > second[i]) second[i] = lower;
                    if (better) best[i] = score;
                    if (better) index[i] = (uint32_t)first + j;
                }
        }
#pragma unroll
        for (int i = 0; i < POINTS; i++) {
            const size_t row = base + i * THREADS + threadIdx.x;
            if (row < p.rows) changed += store_row(p, row, best[i], second[i], index[i]);
        }
    }
    for (int offset = 16; offset; offset /= 2) changed += __shfl_xor_sync(0xffffffffu, changed, offset);
    if (threadIdx.x % 32 == 0) add_count(&p.counts->changed, changed);
}

template <typename T>
__global__ void __launch_bounds__(decide::THREADS) decide_few_kernel(const __grid_constant__ few_pass p) {
    __shared__ decide::candidates some;
    const T *values = (const T *)p.values, *bias = (const T *)p.bias;
    const unsigned rows = *p.list.count;
    for (unsigned i = blockIdx.x; i < rows; i += gridDim.x) {
        const size_t r = p.list.row[i];
        const double threshold = p.list.threshold[i];
        const T *x = (const T *)p.x + r * p.features;
        const auto candidate = [=, features = p.features](size_t j) {
            T sum = 0;
            for (size_t f = 0; f < features; f++) sum = fma(x[f], values[j * features + f], sum);
            return !((double)(sum + bias[j]) < threshold); /* a NaN is a candidate */
        };
        decide::store(decide::nearest_of(some, p.clusters, p.features, x, values, candidate), &p.label[r],
                      p.counts);
    }
}

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

static size_t most_features(enum gemm_dtype dtype) {
    return dtype == GEMM_F32 ? 64 : 32;
}

static bool few_centres(void *opaque, const struct nearest_centres *centres) {
    ((few_state *)opaque)->centres = *centres;
    return true;
}

static bool open_lists(few_state *state, size_t rows, undecided &list) {
    fused_nearest *base = &state->base;
    const size_t header = 256;
    if (rows > state->list_rows) {
        CUDA_TRY(&base->fault, cudaStreamSynchronize(base->stream));
        CUDA_TRY(&base->fault, cudaFree(state->lists));
        state->lists = NULL;
        state->list_rows = 0;
        if (!CUDA_TRY(&base->fault,
                      cudaMalloc(&state->lists, header + rows * (sizeof(double) + sizeof(uint32_t)))))
            return false;
        state->list_rows = rows;
    }
    double *thresholds = (double *)((char *)state->lists + header);
    list = {(unsigned *)state->lists, thresholds, (uint32_t *)(thresholds + rows)};
    return CUDA_TRY(&base->fault, cudaMemsetAsync(list.count, 0, sizeof *list.count, base->stream));
}

static void launch_part(few_state *state, few_pass &p) {
    fused_nearest *base = &state->base;
    const unsigned grid = cuda_grid_for(p.rows, THREADS * POINTS);
    with_width(base->shape, [&]<typename T, int D>() {
        const size_t most = SHARED / ((D + 1) * sizeof(T));
        p.tile = p.clusters < most ? p.clusters : most;
        p.aligned = (p.features * sizeof(T)) % 16 == 0 && (uintptr_t)p.x % 16 == 0;
        few_kernel<T, D><<<grid, THREADS, p.tile *(D + 1) * sizeof(T), base->stream>>>(p);
        CUDA_LAUNCHED(&base->fault, "few_kernel");
        if (!p.certify) return;
        decide_few_kernel<T><<<(unsigned)base->processors * 8, decide::THREADS, 0, base->stream>>>(p);
        CUDA_LAUNCHED(&base->fault, "decide_few_kernel");
    });
}

static void few_run(void *opaque, const struct nearest_call *call, struct nearest_counts *counts) {
    few_state *state = (few_state *)opaque;
    const struct nearest_centres *centres = &state->centres;
    const size_t row_bytes = centres->features * (state->base.shape.dtype == GEMM_F32 ? 4 : 8);
    for (size_t first = 0; first < call->rows; first += PART) {
        few_pass p = {.x = (const char *)call->x + first * row_bytes,
                      .rows = call->rows - first < PART ? call->rows - first : PART,
                      .features = centres->features,
                      .clusters = centres->count,
                      .values = centres->values,
                      .bias = centres->bias,
                      .norm = call->norm + first / NEAREST_BLOCK,
                      .centre_norm = centres->norm,
                      .certify = call->certify,
                      .label = call->label + first,
                      .counts = counts};
        if (!open_lists(state, p.rows, p.list)) return;
        launch_part(state, p);
    }
}

static void few_close(void *opaque) {
    cudaFree(((few_state *)opaque)->lists);
    free(opaque);
}

static void few_describe(void *opaque, char *text, size_t size) {
    (void)opaque;
    snprintf(text, size, "few features, points and maxima in registers");
}

static const struct gemm_nearest table = {
    .close = few_close, .centres = few_centres, .run = few_run, .describe = few_describe};

void *cuda_nearest_few(const fused_nearest *base, char *why, size_t size) {
    if (base->shape.features > most_features(base->shape.dtype)) {
        snprintf(why, size, "for these reals it takes at most %zu features: above, a GEMM is faster",
                 most_features(base->shape.dtype));
        return NULL;
    }
    few_state *state = (few_state *)calloc(1, sizeof *state);
    if (!state) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    state->base = *base;
    state->base.table = &table;
    return state;
}
