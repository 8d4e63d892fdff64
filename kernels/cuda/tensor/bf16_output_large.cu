/* The output layer of a training step with any number of images, for types of 16 bits, in one kernel and a
   sum over its thread blocks: logits, softmax cross-entropy, gradients of weights and biases, and input
   gradient with the backward epilogue of the layer below.

   Idea       Apart, these are five kernels, bound by the bytes of X and of its gradient: X is read three
              times. Here a block has 16 rows of X at a time in shared memory, and replaces them by their
              gradient. Weight gradients stay in registers over all rows of the block, and are added over the
              blocks at the end: over a cluster through distributed shared memory, then over all clusters.
   Layout     Two stages of X [16 rows][units], W^T [16 classes][units]. 16 bytes more in a row: ldmatrix has
              no bank conflicts. A warp copies, and later stores, the units that it multiplies: only the
              logits need a barrier. Beyond 2048 units, two blocks have half of the units each, and exchange
              their parts of the logits.
   Bound by   bytes: X read, its gradient written */
#include "kernels/cuda/tensor/bf16_output_large.cuh"

#include <cuda_pipeline_primitives.h>
#include <limits.h>

#include <algorithm>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/bf16_output_tile.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace {

const unsigned ROWS = OUTPUT_ROWS, WARPS = 16, THREADS = 32 * WARPS;
const unsigned LOGITS = ROWS * MOST_CLASSES, MOST_PARTS = 2;
const unsigned SUM_WARPS = 8, SUM_THREADS = 32 * SUM_WARPS; /* of the kernel that adds the sums */

/* Warp w of a thread block has the 16 STEPS units from 16 STEPS w on. */
template <unsigned STEPS> struct shape {
    static constexpr unsigned PADDED = 16 * STEPS * WARPS, PITCH = PADDED * 2 + 16, STAGE = ROWS * PITCH;
    static constexpr unsigned W = 2 * STAGE, BYTES = W + MOST_CLASSES * PITCH;
};

template <typename T> struct large_output {
    output<T> layer;
    unsigned parts;       /* of the units: 1 or 2 */
    unsigned count;       /* of the sums of a block, as store_sums takes them, rounded up to 4 */
    unsigned mates;       /* blocks of a cluster with the same units */
    float *sums;          /* [clusters][parts][count] */
    partial_loss *losses; /* [clusters][mates] */
};

struct small_parts {
    float logits[WARPS][ROWS][MOST_CLASSES];
    __align__(16) float from_other[2][ROWS][MOST_CLASSES]; /* with two parts: logits of the other block */
    __align__(16) char grad[LOGITS * 2];                   /* of the logits */
    row_sums row[ROWS];
    partial_loss totals[WARPS / 2];
    uint64_t arrived[2]; /* from_other is there */
};

/* The units of a block. */
template <typename T> __device__ output<T> part_of(const large_output<T> &p, unsigned part) {
    output<T> own = p.layer;
    const unsigned first = part * own.padded;
    own.units = min(own.units - first, own.padded);
    own.x += first;
    own.x_grad += first;
    own.w += first * own.ldw;
    own.w_grad += first * own.ldw_grad;
    own.below_grad += first;
    return own;
}

/* The rows of X of this block: 16 from row0 on, 16 from row0 + stride on, and so on. */
struct rows_of_block {
    unsigned row0, stride, tiles, m;

    __device__ rows_of_block(unsigned group, unsigned groups, unsigned rows)
        : row0(group * ROWS), stride(groups * ROWS),
          tiles(row0 < rows ? (rows - row0 + stride - 1) / stride : 0), m(rows) {}
    __device__ unsigned first(unsigned tile) const {
        return row0 + tile * stride;
    }
    __device__ unsigned count(unsigned tile) const {
        return min(m - first(tile), ROWS);
    }
};

/* The units of this warp, in packs of 16 bytes: calls `function` with the row, the first unit, and the place
   in the stage of each pack of this lane. */
template <unsigned STEPS, typename F> __device__ void for_packs(char *stage, F function) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned i = lane; i < ROWS * 2 * STEPS; i += 32) {
        const unsigned row = i / (2 * STEPS), unit = 16 * STEPS * warp + i % (2 * STEPS) * 8;
        function(row, unit, stage + row * shape<STEPS>::PITCH + unit * 2);
    }
}

/* Requests rows of X, zeros outside; one group of copies, with or without any. */
template <unsigned STEPS, typename T>
__device__ void load_rows(const output<T> &p, const rows_of_block &rows, unsigned tile, char *shared) {
    const unsigned count = tile < rows.tiles ? rows.count(tile) : 0, first = rows.first(tile);
    if (count)
        for_packs<STEPS>(shared + tile % 2 * shape<STEPS>::STAGE, [&](unsigned row, unsigned unit, char *to) {
            const bool inside = row < count && unit < p.units;
            __pipeline_memcpy_async(to, inside ? p.x + (first + row) * p.ldx + unit : p.x, 16,
                                    inside ? 0 : 16);
        });
    __pipeline_commit();
}

/* Stores the input gradient. */
template <unsigned STEPS, typename T>
__device__ void store_rows(const output<T> &p, const rows_of_block &rows, unsigned tile, char *stage) {
    for_packs<STEPS>(stage, [&](unsigned row, unsigned unit, const char *from) {
        if (row < rows.count(tile) && unit < p.units)
            *(uint4 *)(p.x_grad + (rows.first(tile) + row) * p.ldx + unit) = *(const uint4 *)from;
    });
}

/* With the units of the other block. */
__device__ float with_other(small_parts &parts, unsigned tile, float total) {
    const unsigned thread = threadIdx.x, lane = thread % 32 & ~3u;
    uint4 four;
#pragma unroll
    for (int i = 0; i < 4; i++) (&four.x)[i] = __float_as_uint(__shfl_sync(~0u, total, lane + i));
    float *const from_other = &parts.from_other[tile % 2][0][0];
    uint64_t *const arrived = &parts.arrived[tile % 2];
    if (thread == 0) mbarrier_expect_tx(arrived, LOGITS * sizeof(float));
    if (thread % 4 == 0)
        cluster_send((const uint4 *)(from_other + thread), cluster_rank() ^ 1, four, arrived);
    mbarrier_wait(arrived, tile / 2);
    return total + from_other[thread];
}

/* The logits of 16 rows, and their gradients: a thread each. Those of the first part are stored. */
template <typename T>
__device__ void logits(const large_output<T> &p, small_parts &parts, unsigned tile, unsigned row0,
                       unsigned part, float bias, unsigned label) {
    const unsigned row = threadIdx.x / MOST_CLASSES, c = threadIdx.x % MOST_CLASSES;
    float total = 0;
#pragma unroll
    for (unsigned warp = 0; warp < WARPS; warp++) total += parts.logits[warp][row][c];
    if (p.parts > 1) total = with_other(parts, tile, total);
    const logit<T> one = softmax(p.layer, row0 + row < p.layer.m, total + bias, label);
    ((T *)parts.grad)[threadIdx.x] = one.grad;
    if (part == 0) store_logit(p.layer, row0 + row, one);
    if (c == 0) parts.row[row] = one.row;
}

/* What a thread adds over all rows of its block. */
template <unsigned STEPS> struct totals {
    float w[STEPS][2][4]; /* as mma.sync holds them */
    float below[STEPS / 2], bias;
    partial_loss loss;
};

/* Input gradient, in place of X, and the sums over the rows. */
template <enum activation A, unsigned STEPS, typename T>
__device__ void gradients(const output<T> &p, char *x, const char *w, const small_parts &parts,
                          totals<STEPS> &all) {
    const unsigned warp = threadIdx.x / 32, pitch = shape<STEPS>::PITCH;
    const logit_gradients grad(parts.grad);
#pragma unroll
    for (unsigned step = 0; step < STEPS; step += 2) {
        float columns[8] = {};
#pragma unroll
        for (unsigned i = step; i < step + 2; i++) {
            const unsigned at = 32 * (STEPS * warp + i);
            float sums[2][4] = {};
            multiply_gradients<T>(sums, all.w[i], grad, x + at, w + at, pitch);
            __syncwarp(); /* all lanes have read X */
            multiply_slopes<A>(p, sums, x + at, pitch, columns + 4 * (i % 2));
        }
        all.below[step / 2] += sum_of_column(columns);
    }
    if (threadIdx.x < MOST_CLASSES)
        for (unsigned row = 0; row < ROWS; row++)
            all.bias += (float)((const T *)parts.grad)[row * MOST_CLASSES + threadIdx.x];
}

template <unsigned STEPS, typename T>
__device__ void work(const large_output<T> &p, const output<T> &own, const rows_of_block &rows, unsigned part,
                     char *shared, small_parts &parts, totals<STEPS> &all) {
    typedef shape<STEPS> at;
    const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32, c = thread % MOST_CLASSES;
    const float bias = c < own.classes ? own.bias[c] : 0;
    for (unsigned tile = 0; tile < rows.tiles; tile++) {
        const unsigned row0 = rows.first(tile), row = row0 + thread / MOST_CLASSES;
        const unsigned label = thread < LOGITS && row < rows.m ? own.labels[row] : 0;
        char *const x = shared + tile % 2 * at::STAGE;
        __pipeline_wait_prior(1);
        __syncwarp();
        float sums[2][4] = {};
#pragma unroll
        for (unsigned i = 0; i < STEPS; i++) {
            const unsigned unit = 32 * (STEPS * warp + i);
            multiply_units<T>(sums, x + unit, shared + at::W + unit, at::PITCH);
        }
        keep_logits(parts.logits[warp], sums);
        __syncthreads();
        if (thread < LOGITS) logits(p, parts, tile, row0, part, bias, label);
        __syncthreads();
        with_activation(
            own.activation, [&]<enum activation A>() {
                gradients<A, STEPS, T>(own, x, shared + at::W, parts, all);
            });
        if (warp == WARPS / 2 + tile % (WARPS / 2) && lane < rows.count(tile)) {
            const partial_loss one = loss_of(own, parts.row[lane]);
            all.loss.loss += one.loss;
            all.loss.correct += one.correct;
        }
        __syncwarp();
        store_rows<STEPS>(own, rows, tile, x);
        __syncwarp();
        load_rows<STEPS>(own, rows, tile + 2, shared);
    }
}

/* The sums of this block to shared memory; its loss to global memory, unless NULL. */
template <unsigned STEPS, typename T>
__device__ void keep_totals(const output<T> &p, float *sums, small_parts &parts, totals<STEPS> &all,
                            partial_loss *loss) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, weights = p.padded * p.classes;
#pragma unroll
    for (unsigned i = 0; i < STEPS; i++)
        keep_products(sums + 16 * (STEPS * warp + i) * p.classes, p.classes, all.w[i]);
#pragma unroll
    for (unsigned i = 0; i < STEPS; i += 2)
        sums[weights + 16 * (STEPS * warp + i) + column_of_lane(16)] = all.below[i / 2];
    if (threadIdx.x < p.classes) sums[weights + p.padded + threadIdx.x] = all.bias;
    sum_over_lanes<ROWS>(all.loss);
    if (warp >= WARPS / 2 && lane == 0) parts.totals[warp - WARPS / 2] = all.loss;
    __syncthreads();
    if (threadIdx.x || !loss) return;
    partial_loss total = {0, 0};
    for (const partial_loss &one : parts.totals) total.loss += one.loss, total.correct += one.correct;
    *loss = total;
}

template <unsigned STEPS, typename T>
__global__ void __launch_bounds__(THREADS) large_output_kernel(large_output<T> p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ __align__(16) small_parts parts;
    const unsigned rank = cluster_rank(), part = rank % p.parts, mates = p.mates;
    const unsigned group = cluster_index() * mates + rank / p.parts;
    const output<T> own = part_of(p, part);
    const rows_of_block rows(group, gridDim.x / p.parts, own.m);
    totals<STEPS> all = {};
    if (threadIdx.x == 0)
        for (uint64_t &barrier : parts.arrived) mbarrier_init(&barrier);
    __syncthreads();
    cluster_arrive_relaxed();
    if (!own.w_early) wait_for_kernels_before();
    load_weights(own, shared + shape<STEPS>::W, shape<STEPS>::PITCH, THREADS);
    wait_for_kernels_before();
    start_next_kernel();
    for (unsigned tile = 0; tile < 2; tile++) load_rows<STEPS>(own, rows, tile, shared);
    cluster_wait(); /* the other block's barriers are ready */
    __syncthreads();
    work<STEPS>(p, own, rows, part, shared, parts, all);
    __syncthreads(); /* stages and W are free */
    float *const sums = (float *)shared;
    keep_totals<STEPS>(own, sums, parts, all, part ? NULL : p.losses + group);
    cluster_barrier();
    for (unsigned e = 4 * (rank / p.parts * THREADS + threadIdx.x); e < p.count; e += 4 * mates * THREADS) {
        __align__(16) float total[4] = {};
        for (unsigned mate = 0; mate < mates; mate++) {
            const uint4 words = cluster_load((const uint4 *)(sums + e), mate * p.parts + part);
#pragma unroll
            for (int i = 0; i < 4; i++) total[i] += __uint_as_float((&words.x)[i]);
        }
        *(float4 *)(p.sums + (size_t)(cluster_index() * p.parts + part) * p.count + e) = *(float4 *)total;
    }
    cluster_barrier_of_reads(); /* the others have read this block's sums */
}

/* Adds the losses of all groups of rows: a warp. */
template <typename T> __device__ void add_losses(const large_output<T> &p, unsigned groups) {
    partial_loss loss = {0, 0};
    for (unsigned i = threadIdx.x % 32; i < groups; i += 32) {
        loss.loss += p.losses[i].loss;
        loss.correct += p.losses[i].correct;
    }
    sum_over_lanes<32>(loss);
    if (threadIdx.x % 32 == 0)
        tally_batch(*p.layer.tally, loss, p.layer.m, p.layer.loss, p.layer.tally, p.layer.counted);
}

/* Adds the sums of all clusters: each warp those of every SUM_WARPS-th, then the first warp those of the
   others. */
template <typename T>
__global__ void __launch_bounds__(SUM_THREADS)
    large_output_sums_kernel(large_output<T> p, unsigned clusters) {
    __shared__ float4 of_warp[SUM_WARPS][32];
    const unsigned part = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                   e = 4 * (blockIdx.x * 32 + lane);
    __align__(16) float total[4] = {};
    wait_for_kernels_before();
    start_next_kernel();
    const float *from = p.sums + (size_t)part * p.count + e;
#pragma unroll 8
    for (unsigned cluster = warp; cluster < clusters && e < p.count; cluster += SUM_WARPS) {
        const float4 one = __ldcg((const float4 *)(from + (size_t)cluster * p.parts * p.count));
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] += (&one.x)[i];
    }
    of_warp[warp][lane] = *(const float4 *)total;
    __syncthreads();
    if (warp) {
        if (warp == 1 && blockIdx.x == 0 && part == 0) add_losses(p, clusters * p.mates);
        return;
    }
    for (unsigned other = 1; other < SUM_WARPS; other++)
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] += (&of_warp[other][lane].x)[i];
    if (e < p.count) store_sums(part_of(p, part), e, total);
}

/* --- the host --- */

const size_t MOST_LARGE_UNITS = shape<8>::PADDED * MOST_PARTS;

/* Of how many clusters of 2 and of 4 blocks all are resident. */
template <typename T, unsigned STEPS> void count_clusters(struct large_output_clusters *clusters) {
    const void *const kernel = (const void *)large_output_kernel<STEPS, T>;
    const bool open = cuda_allows_wgmma(kernel, shape<STEPS>::BYTES);
    for (unsigned i = 0; i < 2; i++)
        clusters->most[i] = std::min(
            clusters->most[i], open ? clusters_that_fit(kernel, 2 << i, THREADS, shape<STEPS>::BYTES) : 0);
}

/* Divides the rows over clusters of 2 or of 4 blocks: those with the fewest turns, the larger if equal.
   Returns the clusters. */
template <typename T> unsigned divide(large_output<T> *p, const struct large_output_clusters *most) {
    unsigned clusters = 0, fewest = UINT_MAX;
    for (unsigned i = 2; i-- > 0;) {
        const unsigned mates = (2 << i) / p->parts, tiles = blocks_for(p->layer.m, ROWS);
        const size_t bytes = p->parts * p->count * sizeof(float) + mates * sizeof(partial_loss),
                     fit = std::min((size_t)most->most[i], REDUCTION_BYTES / bytes);
        const unsigned turns = blocks_for(tiles, (unsigned)fit * mates);
        if (turns >= fewest) continue;
        fewest = turns;
        p->mates = mates;
        clusters = blocks_for(tiles, turns * mates);
    }
    return clusters;
}

template <typename T, unsigned STEPS>
void start(const struct output_layer *layer, const struct large_output_clusters *most,
           const struct cuda_reduction *reduction, struct later_sums &later, cuda_launcher &launcher) {
    large_output<T> p = {.layer = output_of<T>(layer, shape<STEPS>::PADDED)};
    const output<T> &all = p.layer;
    p.parts = blocks_for(all.units, all.padded);
    p.count = count_of_sums(all.padded, all.classes);
    const unsigned clusters = divide(&p, most), blocks = p.parts * p.mates;
    p.losses = (partial_loss *)reduction->scratch;
    p.sums = (float *)(p.losses + clusters * p.mates);
    launch_dependent(launcher, "large_output_kernel", large_output_kernel<STEPS, T>, dim3(clusters * blocks),
                     THREADS, shape<STEPS>::BYTES, blocks, p);
    const dim3 sums(blocks_for(p.count, 4 * 32), p.parts);
    later.launch_sums(launcher, layer->input_gradient->sums_later, "large_output_sums_kernel",
                      large_output_sums_kernel<T>, sums, SUM_THREADS, p, clusters);
}

template <typename T, typename... A> void start_steps(const struct output_layer *layer, A &&...rest) {
    const size_t units = layer->logits->k;
    if (units <= shape<2>::PADDED) return start<T, 2>(layer, rest...);
    if (units <= shape<4>::PADDED) return start<T, 4>(layer, rest...);
    start<T, 8>(layer, rest...);
}

template <typename T> bool takes(const struct output_layer *layer, enum gemm_dtype dtype) {
    return output_layer_fits<T>(layer, dtype, UINT_MAX / MOST_LARGE_UNITS, MOST_LARGE_UNITS) &&
           output_layer_reads(*layer->input_gradient->backward) == layer->logits->a;
}

} // namespace

bool large_output_open(struct large_output_clusters *clusters) {
    *clusters = {{UINT_MAX, UINT_MAX}};
    count_clusters<__nv_bfloat16, 2>(clusters);
    count_clusters<__nv_bfloat16, 4>(clusters);
    count_clusters<__nv_bfloat16, 8>(clusters);
    count_clusters<__half, 2>(clusters);
    count_clusters<__half, 4>(clusters);
    count_clusters<__half, 8>(clusters);
    return clusters->most[0] && clusters->most[1];
}

bool large_output_takes(const struct output_layer *layer) {
    return takes<__nv_bfloat16>(layer, GEMM_BF16) || takes<__half>(layer, GEMM_F16);
}

void large_output(const struct output_layer *layer, const struct large_output_clusters *clusters,
                  const struct cuda_reduction *reduction, struct later_sums &later, cuda_launcher &launcher) {
    if (layer->logits->dtype == GEMM_F16)
        start_steps<__half>(layer, clusters, reduction, later, launcher);
    else
        start_steps<__nv_bfloat16>(layer, clusters, reduction, later, launcher);
}
