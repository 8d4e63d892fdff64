/* The nearest centres of reals with many features, by wgmma: scores of points and centres that are rounded to
   16 bits, or to tf32, are compared in registers (many.cu).

   Idea       points and centres, less the mean of some centres and times a power of two, are rounded to
              float16 for exact labels, or to the format of the labels. A warpgroup converts 64 or 128 rows
              to shared memory, once; the packed centres stream through a ring buffer in tiles of 128. A lane
              keeps the best score, the second best and the index of each of its rows, and no score is
              stored. While one warpgroup compares, another one multiplies. COLLECT: the candidates of the
              rows that the first pass leaves open
   Bound by   the tensor cores: 2 N K d flops at 989 TFLOP/s (tf32: 495); comparisons, 7 to 11 clocks of a
              quarter of an SM for 32 scores, which is as much as the products of 128 features; and the packed
              centres, which each 256 rows (128 with more than 256 features, 64 with more than 512) read once
              from the L2 cache
   Why float16 and not three products of bfloat16: it has 3 bits more. Of 1,000,000 uniform points of 128
              features and 16,384 centres 4.6 % stay open, with three products 1.9 %, with one of bfloat16
              34 %; a second pass over 4.6 % costs less than two more products over all. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_MANY_KERNEL_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_MANY_KERNEL_CUH

#include "kernels/cuda/cluster/many_round.cuh"

namespace many {

static const int GROUP = 128, WARPS = GROUP / 32; /* threads of a warpgroup */
static const int M = 64;                          /* rows of a wgmma */

struct best_scores {
    float best, second;
    uint32_t index;

    template <bool SECOND> __device__ __forceinline__ void add(float score, uint32_t j) {
        const bool above = score > best;
        if (SECOND) second = fmaxf(second, fminf(best, score));
        if (above) index = j;
        best = fmaxf(best, score);
    }

    /* Over the four lanes that share a row; equal scores go to the lower index. */
    __device__ __forceinline__ void merge_lanes() {
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, distance),
                        below = __shfl_xor_sync(0xffffffffu, second, distance);
            const uint32_t j = __shfl_xor_sync(0xffffffffu, index, distance);
            second = fmaxf(fmaxf(second, below), fminf(best, other));
            if (other > best || (other == best && j < index)) index = j;
            best = fmaxf(best, other);
        }
    }
};

/* Stores the label of row r, or appends the row to the list. True if the label changed. */
template <bool CERTIFIES>
__device__ __forceinline__ bool finish_row(const pass &p, size_t r, const best_scores &all, float error) {
    if (CERTIFIES) {
        const double slack = 2.0 * error - 2.02 * p.facts->share / (1 - p.facts->share) * p.bias[all.index];
        if (!((double)all.best - (double)all.second > slack)) {
            const unsigned at = atomicAdd(p.list.count, 1u);
            p.list.row[at] = (uint32_t)r;
            p.list.limit[at] = __double2float_rd((double)all.best - slack);
            p.list.found[at] = 0;
            return false;
        }
    }
    const bool changed = p.label[r] != all.index;
    if (changed) p.label[r] = all.index;
    return changed;
}

/* GROUPS warpgroups multiply, of TILES times 64 rows each, and one more copies the centres. */
template <typename T, wgmma_format FORMAT, int GROUPS_, int TILES_, bool COLLECT_> struct kernel_shape {
    using real = T;
    static constexpr wgmma_format F = FORMAT;
    static constexpr bool COLLECT = COLLECT_, CERTIFIES = format<FORMAT>::CERTIFIES;
    static constexpr int GROUPS = GROUPS_, TILES = TILES_, ROWS = TILES * M; /* of a group */
    static constexpr int TOGETHER = GROUPS * ROWS, THREADS = (GROUPS + 1) * GROUP;
    static constexpr int UNIT = format<FORMAT>::UNIT;
};

/* Row tiles times parts of the centres: work of the thread blocks, in turn. */
struct work {
    size_t rows, row_tiles, parts;

    template <typename S> static __device__ work of(const pass &p) {
        const size_t rows = S::COLLECT ? *p.list.count : p.rows,
                     row_tiles = (rows + S::TOGETHER - 1) / S::TOGETHER;
        size_t parts = 1;
        if (S::COLLECT && row_tiles) /* few rows are spread over the SMs */
            parts = min((size_t)p.tiles, (2 * gridDim.x + row_tiles - 1) / row_tiles);
        return {rows, row_tiles, parts};
    }
    __device__ size_t count() const {
        return row_tiles * parts;
    }
    __device__ unsigned first_tile(const pass &p, size_t i) const {
        return (unsigned)(p.tiles * (i % parts) / parts);
    }
    __device__ unsigned end_tile(const pass &p, size_t i) const {
        return (unsigned)(p.tiles * (i % parts + 1) / parts);
    }
};

template <typename S> struct group_body {
    using T = typename S::real;
    static constexpr int SLOTS = 2 * S::TILES;   /* rows of a lane */
    static constexpr int BATCH = 16 / sizeof(T); /* rows of a thread that are loaded together */
    static constexpr int LANES = UNITS;          /* which share a row that is loaded */
    static constexpr int APART = GROUP / LANES;  /* rows that are loaded at once */

    const pass &p;
    const ring centres;
    char *rows;            /* [TILES][chunks][64][CHUNK] */
    float *factor, *error; /* [ROWS] */
    unsigned use;          /* of the ring buffer, counted over all tiles */
    const int lane, warp, group;

    __device__ group_body(const pass &all, char *shared)
        : p(all), centres(shared, shared + barriers_at(S::TOGETHER, all.chunks)), use(0),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32 % WARPS), group(threadIdx.x / GROUP) {
        rows = shared + ring::STAGES_BYTES + (size_t)group * S::ROWS * p.chunks * CHUNK;
        factor = (float *)(shared + factors_at(S::TOGETHER, p.chunks)) + 2 * group * S::ROWS;
        error = factor + S::ROWS;
    }

    __device__ void synchronize() const {
        asm volatile("bar.sync %0, %1;" : : "r"(1 + group), "n"(GROUP) : "memory");
    }

    __device__ __forceinline__ size_t row_number(size_t i) const {
        return S::COLLECT ? p.list.row[i] : i;
    }

    static __device__ __forceinline__ void load_packs(const T *from, T (&raw)[S::UNIT]) {
#pragma unroll
        for (int i = 0; i < S::UNIT; i += WIDEST<T>) {
            const pack<T, WIDEST<T>> some = pack_at<WIDEST<T>>(from + i);
#pragma unroll
            for (int e = 0; e < WIDEST<T>; e++) raw[i + e] = some.value[e];
        }
    }

    /* Features of a unit of a row; 0 beyond the last. */
    __device__ __forceinline__ void load_unit(const T *from, unsigned f, T (&raw)[S::UNIT]) const {
        if (p.aligned && f + S::UNIT <= p.features) return load_packs(from + f, raw);
#pragma unroll
        for (int i = 0; i < S::UNIT; i++) raw[i] = f + i < p.features ? from[f + i] : T(0);
    }

    /* Batch b of the group's rows. Eight lanes share a row: each converts a unit of every chunk. */
    __device__ __forceinline__ void load_batch(size_t first, unsigned count, int b) const {
        const unsigned unit = threadIdx.x % LANES, top = threadIdx.x % GROUP / LANES + b * BATCH * APART;
        const double centre_norm = *p.centre_norm;
        const T *from[BATCH];
        row_scale scale[BATCH];
        float squares[BATCH] = {}, errors[BATCH] = {};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const unsigned r = min(top + i * APART, count - 1); /* rows beyond the last are copies of it */
            const size_t row = row_number(first + r);
            from[i] = (const T *)p.x + row * p.features;
            scale[i] = scale_of_row<T>(p.norm[row / NEAREST_BLOCK], centre_norm);
        }
        for (unsigned chunk = 0; chunk < p.chunks; chunk++) {
            const unsigned f = (chunk * UNITS + unit) * S::UNIT;
            T raw[BATCH][S::UNIT];
#pragma unroll
            for (int i = 0; i < BATCH; i++) load_unit(from[i], f, raw[i]);
            T mean[S::UNIT];
            load_packs((const T *)p.mean + f, mean);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const T power = power_of_two<T>(scale[i].exponent);
                const unsigned r = top + i * APART;
                float value[S::UNIT];
#pragma unroll
                for (int e = 0; e < S::UNIT; e++) value[e] = (float)((raw[i][e] - mean[e]) * power);
                *(uint4 *)(rows + r / M * p.chunks * M * CHUNK +
                           unit_offset(M, r % M, chunk * UNITS + unit)) =
                    encode_unit<S::F>(value, &squares[i], &errors[i]);
            }
        }
        float own_squares = 0, own_errors = 0; /* lane i of the eight finishes row i */
        row_scale own_scale = {};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (S::CERTIFIES)
#pragma unroll
                for (int distance = 1; distance < LANES; distance *= 2) {
                    squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], distance);
                    errors[i] += __shfl_xor_sync(0xffffffffu, errors[i], distance);
                }
            if (unit != i) continue;
            own_squares = squares[i];
            own_errors = errors[i];
            own_scale = scale[i];
        }
        if (unit >= BATCH) return;
        factor[top + unit * APART] = own_scale.factor;
        if (S::CERTIFIES)
            error[top + unit * APART] =
                own_scale.in_range
                    ? row_error(own_squares, own_errors, own_scale.factor, p.chunks * STEPS, *p.facts)
                    : INFINITY;
    }

    __device__ void load_rows(size_t first, unsigned count) const {
        synchronize(); /* no warp reads the rows before */
#pragma unroll
        for (int b = 0; b < S::ROWS / (APART * BATCH); b++) load_batch(first, count, b);
        wgmma_written();
        synchronize();
    }

    /* To the L2 cache. */
    __device__ void prefetch_rows(size_t first) const {
        if (S::COLLECT || first >= p.rows) return;
        const size_t row_bytes = p.features * sizeof(T), left = p.rows - first;
        const size_t bytes = (left < S::ROWS ? left : S::ROWS) * row_bytes;
        for (size_t at = threadIdx.x % GROUP * 128; at < bytes; at += GROUP * 128)
            asm volatile("prefetch.global.L2 [%0];" : : "l"((const char *)p.x + first * row_bytes + at));
    }

    /* Starts the products of a stage, and ends those of the stage before. */
    __device__ __forceinline__ void multiply_stage(float (&sums)[S::TILES][64], unsigned chunk) {
        const char *c = centres.wait(use), *x = rows + chunk * M * CHUNK;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; step++) /* features beyond the last are 0 */
#pragma unroll
            for (int m = 0; m < S::TILES; m++)
                wgmma_n128<S::F>(sums[m], wgmma_swizzle128(x + m * p.chunks * M * CHUNK + step * 32),
                                 wgmma_swizzle128(c + step * 32), chunk + step > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (chunk) centres.release(use - 1);
        use++;
    }

    /* visit(slot, score, centre) for the 128 centres of a tile and the rows of this lane: slot 2 m + h is row
       lane / 4 + 8 h of the warp's 16 rows of tile m. */
    template <typename V>
    __device__ __forceinline__ void score_tile(unsigned tile, const float (&scale)[SLOTS], V visit) {
        const uint32_t j0 = tile * N + lane % 4 * 2;
        float sums[S::TILES][64];
        float2 bias[N / 8];
        for (unsigned chunk = 0; chunk < p.chunks; chunk++) multiply_stage(sums, chunk);
#pragma unroll
        for (int n = 0; n < N / 8; n++) bias[n] = *(const float2 *)(p.bias + j0 + n * 8);
        wgmma_wait<0>();
#pragma unroll
        for (int m = 0; m < S::TILES; m++) wgmma_done(sums[m]);
        centres.release(use - 1);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int s = 0; s < SLOTS; s++)
                    visit(s, fmaf(sums[s / 2][4 * n + s % 2 * 2 + e], scale[s], e ? bias[n].y : bias[n].x),
                          j0 + n * 8 + e);
    }

    __device__ __forceinline__ unsigned row_of_slot(int slot) const {
        return slot / 2 * M + warp * 16 + slot % 2 * 8 + lane / 4;
    }

    __device__ void label_rows(size_t first, unsigned count, unsigned first_tile, unsigned end_tile) {
        best_scores own[SLOTS];
        float scale[SLOTS];
        unsigned changed = 0;
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            own[s] = {-INFINITY, -INFINITY, 0};
            scale[s] = factor[row_of_slot(s)];
        }
        for (unsigned tile = first_tile; tile < end_tile; tile++)
            score_tile(tile, scale,
                       [&](int s, float score, uint32_t j) { own[s].template add<S::CERTIFIES>(score, j); });
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const unsigned r = row_of_slot(s);
            own[s].merge_lanes();
            const bool moved =
                lane % 4 == 0 && r < count && finish_row<S::CERTIFIES>(p, first + r, own[s], error[r]);
            changed += __popc(__ballot_sync(0xffffffffu, moved));
        }
        if (lane == 0) add_count(&p.counts->changed, changed);
    }

    __device__ void collect_rows(size_t first, unsigned count, unsigned first_tile, unsigned end_tile) {
        float scale[SLOTS], limit[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const unsigned r = row_of_slot(s);
            scale[s] = factor[r];
            limit[s] = r < count ? p.list.limit[first + r] : INFINITY;
        }
        for (unsigned tile = first_tile; tile < end_tile; tile++)
            score_tile(tile, scale, [&](int s, float score, uint32_t j) {
                if (score < limit[s]) return; /* a NaN is a candidate */
                const unsigned r = row_of_slot(s);
                if (r >= count || j >= p.clusters) return;
                const uint32_t place = atomicAdd(&p.list.found[first + r], 1u);
                if (place < MOST_CANDIDATES) p.list.candidate[(first + r) * MOST_CANDIDATES + place] = j;
            });
    }
};

/* One thread: the stages of all work of the block. */
template <typename S> __device__ void copy_centres(const pass &p, const ring &centres, const work &all) {
    unsigned use = 0;
    for (size_t i = blockIdx.x; i < all.count(); i += gridDim.x) {
        const unsigned last = all.end_tile(p, i) * p.chunks;
        for (unsigned stage = all.first_tile(p, i) * p.chunks; stage < last; stage++)
            centres.fill(use++, p.packed + (size_t)stage * STAGE);
    }
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 1) many_kernel(const __grid_constant__ pass p) {
    extern __shared__ __align__(1024) char shared[]; /* there is nothing before */
    const work all = work::of<S>(p);
    if (threadIdx.x == 0) ring(shared, shared + barriers_at(S::TOGETHER, p.chunks)).open(S::GROUPS * WARPS);
    __syncthreads();
    if (threadIdx.x >= S::GROUPS * GROUP) {
        if (S::GROUPS > 1) warpgroup_fewer_registers<24>();
        if (threadIdx.x == S::GROUPS * GROUP)
            copy_centres<S>(p, ring(shared, shared + barriers_at(S::TOGETHER, p.chunks)), all);
        return;
    }
    if (S::GROUPS > 1) warpgroup_more_registers<240>();
    group_body<S> body(p, shared);
    if (body.group) __nanosleep(700); /* so that one group compares while the other one multiplies */
    for (size_t i = blockIdx.x; i < all.count(); i += gridDim.x) {
        const size_t first = i / all.parts * S::TOGETHER + body.group * S::ROWS;
        const size_t left = first < all.rows ? all.rows - first : 0;
        const unsigned count = (unsigned)(left < S::ROWS ? left : S::ROWS);
        if (count) body.load_rows(first, count);
        body.prefetch_rows(first + gridDim.x * S::TOGETHER);
        if (S::COLLECT) {
            body.collect_rows(first, count, all.first_tile(p, i), all.end_tile(p, i));
        } else {
            body.label_rows(first, count, all.first_tile(p, i), all.end_tile(p, i));
        }
    }
}

} // namespace many

#endif
