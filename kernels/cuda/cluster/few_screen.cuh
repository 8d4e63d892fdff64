/* Scores in float32 of points of float64 with up to 8 features, moved by the mean of the centres: the rows
   that they do not decide are left open for float64 (few.cu). As kernels/host/tuned/nearest_few.c.

   Idea       a thread keeps SCREEN_POINTS points in registers. Only the largest score of each group of 8
              centres is compared with the two best of the groups before: (7 + 5) / 8 comparisons a score
              instead of 5. Then the scores of the best group are computed again, for the index and the
              second best.
   Bound by   instructions: with 2 features 122 for 32 scores (64 FFMA, 48 comparisons at half the rate),
              and about 110 for each point. 67 million points and 64 centres: predicted 0.8 to 0.9 ms
   Improves   float64 at once: 2 DFMA and 8 other instructions a score, at half the rate */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_FEW_SCREEN_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_FEW_SCREEN_CUH

#include "kernels/cuda/cluster/few_pass.cuh"

namespace few {

static const int SCREEN_THREADS = 256, SCREEN_POINTS = 4;
static const size_t SCREEN_SHARED = 96 << 10; /* most bytes of centres: two thread blocks on an SM */

/* A group in shared memory: values[D][8], bias[8], and 4 floats that spread groups over the banks. */
template <int D> constexpr int group_floats = MOVED_GROUP *(D + 1) + 4;

template <int D> static inline size_t screen_bytes(size_t clusters) {
    return padded_clusters(clusters) / MOVED_GROUP * group_floats<D> * sizeof(float);
}

/* Copies all centres to shared memory. */
template <int D> __device__ void load_groups(const few_pass &p, float *groups) {
    const unsigned count = (unsigned)(p.clusters + MOVED_GROUP - 1) / MOVED_GROUP * MOVED_GROUP;
    for (unsigned i = threadIdx.x; i < count * (D + 1); i += SCREEN_THREADS) {
        const unsigned j = i / (D + 1), f = i % (D + 1);
        groups[j / MOVED_GROUP * group_floats<D> + f * MOVED_GROUP + j % MOVED_GROUP] =
            f < D ? p.moved.values[j * D + f] : p.moved.bias[j];
    }
}

/* The scores of a group. The sum starts with the bias. */
template <int D>
__device__ __forceinline__ void score_group(const float *group, const float (&x)[D],
                                            float (&score)[MOVED_GROUP]) {
    pack<float, 4> some[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        some[h] = pack_at<4>(group + D * MOVED_GROUP + 4 * h);
#pragma unroll
        for (int i = 0; i < 4; i++) score[4 * h + i] = some[h].value[i];
    }
#pragma unroll
    for (int f = 0; f < D; f++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            some[h] = pack_at<4>(group + f * MOVED_GROUP + 4 * h);
#pragma unroll
            for (int i = 0; i < 4; i++) score[4 * h + i] = fmaf(x[f], some[h].value[i], score[4 * h + i]);
        }
}

/* The best and the second best of the largest scores of groups; a NaN is ignored. */
struct two_best {
    float best, second;
    uint32_t group;
};

__device__ __forceinline__ void add_group(two_best &state, const float (&score)[MOVED_GROUP],
                                          uint32_t group) {
    float most[MOVED_GROUP / 2];
#pragma unroll
    for (int i = 0; i < 4; i++) most[i] = fmaxf(score[i], score[i + 4]);
    const float largest = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    const bool above = largest > state.best;
    state.second = fmaxf(state.second, fminf(state.best, largest));
    state.best = fmaxf(state.best, largest);
    if (above) state.group = group;
}

/* Finds the index in the best group. Returns best - second best of all. */
template <int D>
__device__ __forceinline__ float finish_groups(const float *groups, const float (&x)[D],
                                               const two_best &state, uint32_t *index) {
    float score[MOVED_GROUP], best = -INFINITY, second = state.second;
    score_group<D>(groups + state.group * group_floats<D>, x, score);
    uint32_t j = 0;
#pragma unroll
    for (int i = 0; i < MOVED_GROUP; i++) {
        if (score[i] == state.best) j = i;
        second = fmaxf(second, fminf(best, score[i]));
        best = fmaxf(best, score[i]);
    }
    *index = state.group * MOVED_GROUP + j;
    return state.best - second;
}

/* The features of a point; those beyond the last are 0. */
template <int D>
__device__ __forceinline__ void load_features(const few_pass &p, size_t row, pack<double, 2> (&raw)[D / 2]) {
    const double *from = (const double *)p.x + row * p.features;
#pragma unroll
    for (int i = 0; i < D / 2; i++) {
        raw[i] = {};
        if (p.aligned) {
            if (2 * i < (int)p.features) raw[i] = pack_at<2>(from + 2 * i);
        } else {
            if (2 * i < (int)p.features) raw[i].value[0] = from[2 * i];
            if (2 * i + 1 < (int)p.features) raw[i].value[1] = from[2 * i + 1];
        }
    }
}

/* The point less the mean, in float32. Returns the sum of its squares. */
template <int D>
__device__ __forceinline__ float move(const pack<double, 2> (&raw)[D / 2], const double *mean,
                                      float (&x)[D]) {
    float squares = 0;
#pragma unroll
    for (int f = 0; f < D; f++) {
        x[f] = (float)(raw[f / 2].value[f % 2] - mean[f]); /* means beyond the last feature are 0 */
        squares = fmaf(x[f], x[f], squares);
    }
    return squares;
}

template <int D>
__global__ void __launch_bounds__(SCREEN_THREADS) screen_kernel(const __grid_constant__ few_pass p) {
    extern __shared__ __align__(16) char shared[];
    __shared__ double mean[MOVED_MOST];
    float *groups = (float *)shared;
    const uint32_t count = (uint32_t)((p.clusters + MOVED_GROUP - 1) / MOVED_GROUP);
    const double centre_norm = *p.moved.norm;
    unsigned changed = 0;
    load_groups<D>(p, groups);
    if (threadIdx.x < MOVED_MOST) mean[threadIdx.x] = p.moved.mean[threadIdx.x];
    __syncthreads();
    for (size_t base = (size_t)blockIdx.x * SCREEN_THREADS * SCREEN_POINTS; base < p.rows;
         base += (size_t)gridDim.x * SCREEN_THREADS * SCREEN_POINTS) {
        float x[SCREEN_POINTS][D], squares = 0; /* the largest; a point with a NaN has no scores */
        two_best state[SCREEN_POINTS];
        pack<double, 2> raw[SCREEN_POINTS][D / 2];
#pragma unroll
        for (int i = 0; i < SCREEN_POINTS; i++) {
            const size_t row = base + i * SCREEN_THREADS + threadIdx.x;
            load_features<D>(p, row < p.rows ? row : 0, raw[i]);
        }
#pragma unroll
        for (int i = 0; i < SCREEN_POINTS; i++) {
            squares = fmaxf(squares, move<D>(raw[i], mean, x[i]));
            state[i] = {-INFINITY, -INFINITY, 0};
        }
        for (uint32_t g = 0; g < count; g++)
#pragma unroll
            for (int i = 0; i < SCREEN_POINTS; i++) {
                float score[MOVED_GROUP];
                score_group<D>(groups + g * group_floats<D>, x[i], score);
                add_group(state[i], score, g);
            }
        const double error = nearest_few_error(p.features, FLT_EPSILON, FLT_TRUE_MIN, FLT_MAX,
                                               nearest_few_norm(squares), centre_norm);
#pragma unroll
        for (int i = 0; i < SCREEN_POINTS; i++) {
            const size_t row = base + i * SCREEN_THREADS + threadIdx.x;
            uint32_t label;
            const float gap = finish_groups<D>(groups, x[i], state[i], &label);
            if (row < p.rows) changed += store_or_open(p, row, gap, error, label);
        }
    }
    count_changed(p, changed);
}

} // namespace few

#endif
