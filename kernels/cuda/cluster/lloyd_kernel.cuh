/* Lloyd's algorithm on pixels with up to 64 clusters, all iterations in one launch: the kernel.

   Labels     each warp has 16 rows of pixels in shared memory, and multiplies them by all centres, which the
              block keeps there as two slices of bytes (pixels_kernel.cuh). The copy engine brings the next
              rows of a warp while other warps multiply, also across iterations: pixels do not change. Rows
              that the scores do not decide are decided at once, by the same warp (decide.cuh).
   Sums       a row that moved is added to a table of int32 differences: with up to 16 clusters in shared
              memory, else in the L2 cache.
   Centres    after a barrier of the grid a block takes a cluster: it adds the differences to the sum, and
              computes the mean, its cost, its shift and its slices. After a second barrier all blocks read
              the slices.
   The sums of float64 have the order of the contract, and those of pixels are integers: the same bits as
   step by step. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_LLOYD_KERNEL_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_LLOYD_KERNEL_CUH

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/cluster/decide.cuh"
#include "kernels/cuda/cluster/lloyd_params.cuh"
#include "kernels/cuda/persistent/grid.cuh"

namespace lloyd {

using pixels::best_two;
using pixels::LOWEST;

template <int NT> struct body {
    static constexpr int CENTRES = 8 * NT;
    static constexpr bool OWN_TABLE = layout<NT>::OWN_TABLE;
    static constexpr unsigned COPIES = layout<NT>::COPIES;
    const params &p;
    char *centres, *own_rows;
    int *table; /* that this block adds to */
    int *bias, *moved;
    uint64_t *count, *full; /* the clusters' counts; the barrier of this warp's rows */
    unsigned phase, target; /* of `full`; of the grid barrier */
    const int lane, warp;
    size_t first_tile, end_tile; /* of this warp, in steps of p.warps */

    /* Shared by the block. */
    struct block_state {
        unsigned changed, ambiguous, exact, uncertified;
        double rounding, shift, cost, left[MOST_WARPS];
    } & own;

    __device__ body(const params &all, char *shared, block_state &state)
        : p(all), phase(0), target(0), lane(threadIdx.x % 32), warp(threadIdx.x / 32), own(state) {
        const layout<NT> at(p);
        centres = shared;
        own_rows = shared + at.rows + warp * layout<NT>::row_bytes(p);
        table = OWN_TABLE ? (int *)(shared + at.table)
                          : p.table + (size_t)(blockIdx.x % COPIES) * p.clusters * p.features;
        bias = (int *)(shared + at.bias);
        count = (uint64_t *)(shared + at.count);
        moved = (int *)(shared + at.moved);
        full = (uint64_t *)(shared + at.barriers) + warp;
        const size_t tiles = (p.rows + ROWS - 1) / ROWS;
        first_tile = tiles * blockIdx.x / gridDim.x + warp;
        end_tile = tiles * (blockIdx.x + 1) / gridDim.x;
        for (unsigned i = threadIdx.x; OWN_TABLE && i < p.clusters * p.features; i += blockDim.x)
            table[i] = 0;
        for (unsigned j = threadIdx.x; j < CENTRES; j += blockDim.x) {
            moved[j] = 0;
            count[j] = j < p.clusters ? p.count[j] : 0;
        }
        if (threadIdx.x == 0) own = {};
        if (lane == 0) mbarrier_init(full);
        __syncthreads();
        load_rows(first_tile);
    }

    /* --- labels --- */

    __device__ unsigned rows_of(size_t tile) const {
        const size_t left = p.rows - tile * ROWS;
        return left < ROWS ? (unsigned)left : ROWS;
    }

    /* Starts the copy of a tile to this warp's rows, which no lane reads any more. */
    __device__ void load_rows(size_t tile) const {
        if (tile >= end_tile) return;
        const unsigned count_of_rows = rows_of(tile);
        const uint8_t *from = p.x + tile * ROWS * p.features;
        if (lane == 0) mbarrier_expect_tx(full, count_of_rows * p.features);
        __syncwarp();
        if (p.row_pitch == p.features) {
            if (lane == 0) bulk_copy(own_rows, from, count_of_rows * p.features, full);
        } else if (lane < (int)count_of_rows) {
            bulk_copy(own_rows + lane * p.row_pitch, from + lane * p.features, p.features, full);
        }
    }

    /* The scores of the 16 rows: score[n][2 h + e] is that of row lane / 4 + 8 h, centre 8 n + 2 (lane % 4) +
       e. */
    __device__ void score_rows(int (&score)[NT][4]) const {
        int low[NT][4];
        const char *of_a = own_rows + lane % 16 * p.row_pitch + lane / 16 * 16;
        const char *of_high = centres + (lane / 16 * 8 + lane % 8) * p.centre_pitch + lane / 8 % 2 * 16;
        const char *of_low = of_high + CENTRES * p.centre_pitch;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                score[n][e] = bias[8 * n + lane % 4 * 2 + e % 2];
                low[n][e] = 128;
            }
#pragma unroll 2
        for (unsigned f = 0; f < p.features; f += STEP) {
            uint32_t a[4], high_words[NT / 2][4], low_words[NT / 2][4];
            ldmatrix_x4(a, of_a + f);
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
                ldmatrix_x4(high_words[n], of_high + n * 16 * p.centre_pitch + f);
                ldmatrix_x4(low_words[n], of_low + n * 16 * p.centre_pitch + f);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const int w = n % 2 * 2;
                persistent::mma_int8<true>(score[n], a, high_words[n / 2][w], high_words[n / 2][w + 1]);
                persistent::mma_int8<true>(low[n], a, low_words[n / 2][w], low_words[n / 2][w + 1]);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) score[n][e] += low[n][e] >> 8;
    }

    /* The best two of a row (slot 0: lane / 4, slot 1: the same + 8), in its four lanes. */
    __device__ best_two best_of(const int (&score)[NT][4], int slot) const {
        best_two all = {LOWEST - 1, LOWEST - 1, UINT32_MAX};
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) all.add(score[n][2 * slot + e], (uint32_t)(8 * n + lane % 4 * 2 + e));
        all.merge_lanes();
        return all;
    }

    /* The centres whose score is at least `limit`, as bits, in the four lanes of a row. */
    __device__ uint64_t candidates_of(const int (&score)[NT][4], int slot, int limit) const {
        uint64_t some = 0;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (score[n][2 * slot + e] >= limit) some |= (uint64_t)1 << (8 * n + lane % 4 * 2 + e);
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) some |= __shfl_xor_sync(0xffffffffu, some, offset);
        return some & (UINT64_MAX >> (64 - p.clusters));
    }

    /* The nearest of the candidates, in all lanes of the warp. */
    __device__ uint32_t decide_row(const uint8_t *x, uint64_t candidates) const {
        decide::decision<uint8_t, float> nearest = {p.features, x, p.values, false, false, false, 0, 0};
        while (candidates) { /* two at a time, half a warp each */
            const uint32_t a = (uint32_t)__ffsll((long long)candidates) - 1;
            candidates &= candidates - 1;
            const uint32_t b = candidates ? (uint32_t)__ffsll((long long)candidates) - 1 : a;
            const uint32_t mine = lane < NEAREST_LANES ? a : b;
            const double distance = squared_distance(p.features, x, p.values + (size_t)mine * p.features);
            const double of_b = __shfl_sync(0xffffffffu, distance, NEAREST_LANES);
            if (lane == 0) nearest.consider(a, distance);
            if (lane == 0 && b != a) nearest.consider(b, of_b);
            candidates &= candidates - 1;
        }
        if (lane == 0) {
            atomicAdd(&own.ambiguous, 1u);
            if (nearest.exact) atomicAdd(&own.exact, 1u);
            if (nearest.inexact) atomicAdd(&own.uncertified, 1u);
        }
        return __shfl_sync(0xffffffffu, nearest.label, 0);
    }

    /* Adds the bytes of words, 32 words apart. In shared memory also those that are 0,
       and 0 for what is beyond the row: branches cost more. */
    template <unsigned N>
    __device__ void add_words(int *to_words, const uint32_t (&words)[N], int sign) const {
#pragma unroll
        for (unsigned e = 0; e < 4; e++) { /* bytes in an order of the lane: no bank conflicts */
            const unsigned own_e = (e + lane / 8) % 4;
#pragma unroll
            for (unsigned a = 0; a < N; a++) {
                int *to = to_words + 128 * a + own_e;
                const int value = sign * (int)__byte_perm(words[a], 0, 0x4440 + own_e);
                if (OWN_TABLE || value) atomicAdd(to, value);
            }
        }
    }

    /* Adds a row of this warp to one cluster and subtracts it from another, or NEAREST_NONE. */
    __device__ void move_row(int row, uint32_t label, uint32_t before) const {
        const uint32_t *x = (const uint32_t *)(own_rows + row * p.row_pitch) + lane;
        int *own_columns = table + 4 * lane;
        for (unsigned first = 0; first < p.features / 4; first += 32 * AHEAD) {
            uint32_t words[AHEAD];
#pragma unroll
            for (unsigned a = 0; a < AHEAD; a++)
                words[a] = first + 32 * a + lane < p.features / 4 ? x[first + 32 * a] : 0;
            add_words(own_columns + label * p.features + 4 * first, words, 1);
            if (before != NEAREST_NONE) add_words(own_columns + before * p.features + 4 * first, words, -1);
        }
        if (lane == 0) atomicAdd(&moved[label], 1);
        if (lane == 0 && before != NEAREST_NONE) atomicAdd(&moved[before], -1);
    }

    __device__ void label_tile(size_t tile) {
        int score[NT][4], error[2];
        uint32_t labels[2];
#pragma unroll
        for (int slot = 0; slot < 2; slot++) { /* what comes from memory is asked for early */
            const size_t r = tile * ROWS + slot * 8 + lane / 4;
            labels[slot] = r < p.rows ? p.label[r] : 0;
            error[slot] =
                pixels::error_of_difference(r < p.rows ? p.norm[r / NEAREST_BLOCK] : 0, own.rounding);
        }
        mbarrier_wait(full, phase++);
        score_rows(score);
#pragma unroll
        for (int slot = 0; slot < 2; slot++) {
            const size_t r = tile * ROWS + slot * 8 + lane / 4;
            const bool valid = r < p.rows;
            const best_two best = best_of(score, slot);
            const bool open = valid && p.certify && best.best - best.second <= error[slot];
            uint32_t label = best.index;
            unsigned undecided = __ballot_sync(0xffffffffu, open && lane % 4 == 0);
            if (undecided) {
                const int limit = error[slot] == 1 << 30 ? INT_MIN : best.best - error[slot];
                const uint64_t some = candidates_of(score, slot, limit);
                for (; undecided; undecided &= undecided - 1) {
                    const int leader = __ffs((int)undecided) - 1;
                    const uint32_t nearest =
                        decide_row((const uint8_t *)own_rows + (slot * 8 + leader / 4) * p.row_pitch,
                                   __shfl_sync(0xffffffffu, some, leader));
                    if (lane / 4 == leader / 4) label = nearest;
                }
            }
            const uint32_t before = valid ? labels[slot] : label;
            unsigned changed = __ballot_sync(0xffffffffu, label != before && lane % 4 == 0);
            if (label != before && lane % 4 == 0) p.label[r] = label;
            if (lane == 0 && changed) atomicAdd(&own.changed, (unsigned)__popc(changed));
            for (; changed; changed &= changed - 1) {
                const int leader = __ffs((int)changed) - 1;
                move_row(slot * 8 + leader / 4, __shfl_sync(0xffffffffu, label, leader),
                         __shfl_sync(0xffffffffu, before, leader));
            }
        }
        __syncwarp();
    }

    __device__ void label_rows() {
        for (size_t tile = first_tile; tile < end_tile; tile += p.warps) {
            label_tile(tile);
            const size_t next = tile + p.warps;
            load_rows(next < end_tile ? next : first_tile); /* the first one is of the next iteration */
        }
    }

    /* Adds what this block counted to the memory of all. */
    __device__ void publish(int iteration) {
        nearest_counts *counts = &p.to->record[iteration].counts;
        __syncthreads();
        if (threadIdx.x == 0) {
            add_count(&counts->changed, own.changed);
            add_count(&counts->ambiguous, own.ambiguous);
            add_count(&counts->exact, own.exact);
            add_count(&counts->uncertified, own.uncertified);
            own.changed = own.ambiguous = own.exact = own.uncertified = 0;
        }
        for (unsigned j = threadIdx.x; j < p.clusters; j += blockDim.x) {
            if (moved[j]) atomicAdd(&p.moved[iteration % 2 * p.clusters + j], moved[j]);
            moved[j] = 0;
        }
        int4 *four = (int4 *)table;
        for (unsigned i = threadIdx.x; OWN_TABLE && i < p.clusters * p.features / 4; i += blockDim.x) {
            const int4 more = four[i];
            if (more.x) atomicAdd(&p.table[4 * i], more.x);
            if (more.y) atomicAdd(&p.table[4 * i + 1], more.y);
            if (more.z) atomicAdd(&p.table[4 * i + 2], more.z);
            if (more.w) atomicAdd(&p.table[4 * i + 3], more.w);
            if (more.x | more.y | more.z | more.w) four[i] = {};
        }
    }

    /* --- centres --- */

    /* Slices four values of a centre; adds the squares of the errors to *left. */
    __device__ void pack_values(uint32_t j, unsigned f, float4 values, double *left) const {
        const float value[4] = {values.x, values.y, values.z, values.w};
        uint32_t high = 0, low = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const pixels::slices of = pixels::slices_of((double)value[e]);
            *left += of.square_of_error;
            high |= (uint32_t)(of.high & 255) << 8 * e;
            low |= (uint32_t)(of.low & 255) << 8 * e;
        }
        *(uint32_t *)(p.packed + j * p.centre_pitch + f) = high;
        *(uint32_t *)(p.packed + (CENTRES + j) * p.centre_pitch + f) = low;
    }

    /* Cluster j: adds the differences to its sum, and, if `moves`, takes the centre to the mean. */
    __device__ void update_centre(uint32_t j, bool adds, bool moves) const {
        double *cost = (double *)centres, *move = cost + p.features, *square = move + p.features;
        const double members = (double)count[j];
        double left = 0;
        for (unsigned f = threadIdx.x * 4; f < p.features; f += blockDim.x * 4) {
            const size_t at = (size_t)j * p.features + f;
            float4 values = *(float4 *)(p.values + at);
            const float before[4] = {values.x, values.y, values.z, values.w};
            float after[4];
            int more[4] = {};
#pragma unroll
            for (unsigned copy = 0; copy < COPIES; copy++) {
                int4 *from = (int4 *)(p.table + (size_t)copy * p.clusters * p.features + at);
                const int4 difference = adds ? __ldcg(from) : int4{};
                more[0] += difference.x;
                more[1] += difference.y;
                more[2] += difference.z;
                more[3] += difference.w;
                if (difference.x | difference.y | difference.z | difference.w) *from = {};
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const double sum = p.sums[at + e] + (double)more[e];
                if (more[e]) p.sums[at + e] = sum;
                after[e] = moves && members != 0 ? (float)(sum / members) : before[e];
                const double shift = (double)after[e] - (double)before[e];
                cost[f + e] = cost_term((double)before[e], p.mean[f + e], sum, members);
                move[f + e] = shift * shift;
                square[f + e] = (double)after[e] * (double)after[e];
            }
            values = {after[0], after[1], after[2], after[3]};
            if (moves) *(float4 *)(p.values_before + at) = {before[0], before[1], before[2], before[3]};
            if (moves) *(float4 *)(p.values + at) = values;
            pack_values(j, f, values, &left);
        }
#pragma unroll
        for (int offset = 16; offset; offset /= 2) left += __shfl_xor_sync(0xffffffffu, left, offset);
        if (lane == 0) own.left[warp] = left;
        __syncthreads();
        if (warp < 2) { /* half a warp for each of the three sums */
            const double *terms = warp ? square : lane < NEAREST_LANES ? cost : move;
            double sum = 0;
#pragma unroll 8
            for (unsigned f = lane % NEAREST_LANES; f < p.features; f += NEAREST_LANES) sum += terms[f];
            sum = add_lanes(sum);
            if (warp == 0 && lane == 0) p.cost[j] = members != 0 ? sum : 0;
            if (warp == 0 && lane == NEAREST_LANES) p.shift[j] = sum;
            if (warp == 1 && lane == 0) {
                left = 0;
                for (unsigned w = 0; w < p.warps; w++) left += own.left[w];
                p.bias[j] = pixels::bias_of(sum, &left);
                p.rounding[j] = pixels::rounding_of(left);
            }
        }
        __syncthreads();
    }

    __device__ void update_centres(bool adds, bool moves) const {
        for (uint32_t j = blockIdx.x; j < p.clusters; j += gridDim.x) update_centre(j, adds, moves);
    }

    /* Takes the counts over from all blocks. Returns the clusters without points. */
    __device__ int update_counts(int iteration) {
        bool empty = false;
        if (threadIdx.x < p.clusters) {
            const int more = __ldcg(p.moved + iteration % 2 * p.clusters + threadIdx.x);
            count[threadIdx.x] += (uint64_t)(int64_t)more;
            empty = count[threadIdx.x] == 0;
            if (blockIdx.x == 0) { /* those of the iteration before, which all have read */
                p.moved[(iteration + 1) % 2 * p.clusters + threadIdx.x] = 0;
                p.count[threadIdx.x] = count[threadIdx.x];
            }
        }
        return __syncthreads_count(empty);
    }

    /* Copies the slices to shared memory, and finds the largest rounding, and the cost and shift of all. */
    __device__ void load_centres() const {
        const unsigned bytes = 2 * CENTRES * p.centre_pitch;
        for (unsigned i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
            __pipeline_memcpy_async(centres + i, p.packed + i, 16);
        __pipeline_commit();
        for (unsigned j = threadIdx.x; j < CENTRES; j += blockDim.x)
            bias[j] = j < p.clusters ? __ldcg(p.bias + j) : LOWEST;
        if (warp == 1) {
            double largest = 0;
            for (unsigned j = lane; j < p.clusters; j += 32) largest = fmax(largest, __ldcg(p.rounding + j));
#pragma unroll
            for (int offset = 16; offset; offset /= 2)
                largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
            if (lane == 0) own.rounding = largest;
        }
        if (warp == 0) own.shift = sum_clusters(p.shift);
        if (warp == 2) own.cost = sum_clusters(p.cost);
        __pipeline_wait_prior(0);
        __syncthreads();
    }

    /* The sum over the clusters, in all lanes of a warp. */
    __device__ double sum_clusters(const double *values) const {
        double mine = 0;
        for (unsigned j = lane % NEAREST_LANES; j < p.clusters; j += NEAREST_LANES)
            mine += __ldcg(values + j);
        return add_lanes(mine);
    }

    __device__ void run() {
        const bool first_block = blockIdx.x == 0;
        bool ends = false;
        int i = 0;
        update_centres(false, false);
        grid_barrier(p.arrived, target);
        load_centres();
        while (!ends) {
            const double start = seconds_now();
            label_rows();
            publish(i);
            grid_barrier(p.arrived, target);
            const double labelled = seconds_now();
            const int empty = update_counts(i);
            const bool stays = empty && p.run.stop_at_empty;
            update_centres(true, !stays);
            grid_barrier(p.arrived, target);
            load_centres();
            const nearest_counts *counts = &p.to->record[i].counts;
            const uint64_t changed = __ldcg((const unsigned long long *)&counts->changed);
            ends = stays || i + 1 == (int)p.run.iterations || nearest_ends(&p.run, changed, own.shift);
            if (first_block && threadIdx.x == 0) {
                nearest_iteration *record = &p.to->record[i];
                record->empty = (uint64_t)empty;
                record->cost = own.cost;
                record->shift = own.shift;
                record->label_seconds = labelled - start;
                record->centres_seconds = seconds_now() - labelled;
            }
            i++;
        }
        if (first_block && threadIdx.x == 0) p.to->iterations = (unsigned)i;
        if (first_tile < end_tile) mbarrier_wait(full, phase); /* a copy is under way */
    }
};

template <int NT>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1) lloyd_kernel(const __grid_constant__ params p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ typename body<NT>::block_state own;
    body<NT> all(p, shared, own);
    all.run();
}

} // namespace lloyd

#endif
