/* The nearest centres of reals with few features, in the type of the points: the second level of few.cu, and
   the last.

   Idea       a thread keeps two points in registers, and the best score, the second best and the index of
              each; all threads read the same centre in shared memory, and no score is stored. A row whose two
              best scores are too close for their error goes to a list, and a thread block decides it
              (decide.cuh). */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FEW_LABEL_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FEW_LABEL_CUH

#include "kernels/cuda/cluster/few_pass.cuh"

namespace few {

static const int FEW_THREADS = 256, FEW_POINTS = 2; /* points of a thread */

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
    for (size_t i = threadIdx.x; i < count * D; i += FEW_THREADS) {
        const size_t f = i % D;
        centres[i] = f < p.features ? ((const T *)p.values)[(first + i / D) * p.features + f] : T(0);
    }
    for (size_t j = threadIdx.x; j < count; j += FEW_THREADS) bias[j] = ((const T *)p.bias)[first + j];
}

/* Stores a label, or appends the row to the list. True if the label changed. */
template <typename T>
__device__ static bool store_row(const few_pass &p, size_t row, T best, T second, uint32_t index) {
    const double error = nearest_error(p.features, real_limits<T>::epsilon, real_limits<T>::least,
                                       real_limits<T>::largest, p.norm[row / NEAREST_BLOCK], *p.centre_norm);
    if (!p.certify || (double)best - (double)second > 2 * error) return store_label(p, row, index);
    const unsigned at = atomicAdd(p.list.count, 1u);
    p.list.row[at] = (uint32_t)row;
    p.list.threshold[at] = (double)best - 2 * error;
    return false;
}

/* All rows, or the open ones. */
template <typename T, int D, bool OPEN>
__global__ void __launch_bounds__(FEW_THREADS, D * sizeof(T) <= 64 ? 3 : 1)
    few_kernel(const __grid_constant__ few_pass p) {
    extern __shared__ __align__(16) char shared[];
    T *centres = (T *)shared, *bias = centres + p.tile * D;
    const size_t rows = OPEN ? *p.open.count : p.rows;
    unsigned changed = 0;
    bool loaded = false;
    for (size_t base = (size_t)blockIdx.x * FEW_THREADS * FEW_POINTS; base < rows;
         base += (size_t)gridDim.x * FEW_THREADS * FEW_POINTS) {
        T x[FEW_POINTS][D], best[FEW_POINTS], second[FEW_POINTS];
        uint32_t index[FEW_POINTS];
#pragma unroll
        for (int i = 0; i < FEW_POINTS; i++) {
            const size_t at = base + i * FEW_THREADS + threadIdx.x, row = at < rows ? at : 0;
            load_point(p, OPEN ? p.open.row[row] : row, x[i]);
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
                for (int i = 0; i < FEW_POINTS; i++) {
                    const T score = product(x[i], centres + j * D) + bias[j];
                    const bool better = score > best[i];
                    const T lower = better ? best[i] : score;
                    if (lower > second[i]) second[i] = lower;
                    if (better) best[i] = score;
                    if (better) index[i] = (uint32_t)first + j;
                }
        }
#pragma unroll
        for (int i = 0; i < FEW_POINTS; i++) {
            const size_t at = base + i * FEW_THREADS + threadIdx.x;
            if (at < rows) changed += store_row(p, OPEN ? p.open.row[at] : at, best[i], second[i], index[i]);
        }
    }
    count_changed(p, changed);
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

} // namespace few

#endif
