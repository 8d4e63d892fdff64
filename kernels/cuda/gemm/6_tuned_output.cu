/* cuda-tuned, the float32 output layer of a training step with up to 128 images, in one kernel: logits,
   softmax cross-entropy, gradients of weights and biases, and input gradient with the backward epilogue of
   the layer below.

   Idea       A cluster of 16 thread blocks shares the units (bf16_output.cu: the rows). A block has X and W
              of up to 64 units, so that its gradients of weights and of the bias below need no other block.
              The blocks exchange only logits: each sends its parts of them to the block that has the row, and
              that block sends their gradients to all, through distributed shared memory.
   Layout     X [128 rows][units], four floats more than a multiple of eight in a row: no bank conflicts where
              lanes have rows, or units. A unit of W has 10 or 18 floats, so that the four units that a warp
              reads at a time are in different banks.
   Sums       float32. Logits: eight parts of a block (every eighth four units), as a tree, then the bias and
              the blocks in order. Gradients: 4 to 16 parts (every fourth to sixteenth row), in order.
   Bound by   latency (launch, round trip to the L2 cache, two exchanges) and 3.9 million multiply-adds for
              128 x 1024 x 10: 1,900 cycles on 16 SMs
   Improves   6_tuned_few_rows.cu, 6_tuned_few_rows_tn.cu and the ops between them
   Run        ./train --backend cuda-tuned --layers 784-1024-1024-1024-10 --batch-size 128 */
#include <cuda_pipeline.h>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/gemm/6_tuned.cuh"
#include "kernels/cuda/tensor/cluster.cuh"
#include "kernels/cuda/tensor/output_layer.cuh"

namespace {

typedef output<float> float32_layer;

const unsigned WORKERS = 256, THREADS = WORKERS + 32; /* the last warp has losses and bias gradient */
const unsigned ROWS = 32;                             /* of two warps, which multiply X and W */
const unsigned LANES = 16;                            /* that copy a row */
const unsigned MOST_OWN = 16;                         /* rows of a block, and blocks */

/* Shared memory, in floats from its beginning. C: classes, rounded up to 10 or 16. */
template <unsigned C> struct places {
    static constexpr unsigned QUADS = (C + 3) / 4, ROW = 4 * (QUADS | 1); /* of logits: four classes each */
    static constexpr unsigned UNIT = C + (10 - C % 8) % 8;                /* of W */
    static constexpr unsigned VALUES = C + 1; /* sums of a unit: its weight gradients, and that of its bias */
    unsigned pitch, pairs, x, read, w, grad, parts, sums, bytes; /* pairs: of units, each of a thread */

    __host__ __device__ explicit places(unsigned padded)
        : pitch(padded + 4), pairs(padded <= 32   ? 16
                                   : padded <= 64 ? 32
                                                  : 64),
          x(0), read(x + MOST_ROWS * pitch), w(read + MOST_ROWS * pitch), grad(w + padded * UNIT),
          parts(grad + MOST_ROWS * ROW), sums(parts + MOST_ROWS * ROW) {
        const unsigned halves = 2 * MOST_ROWS * ROW, all = sums_of(WORKERS / pairs);
        bytes = (sums + (halves > all ? halves : all)) * (unsigned)sizeof(float);
    }

    /* Where the sums of thread group `team` begin, [values][units]. */
    __host__ __device__ unsigned sums_of(unsigned team) const {
        return team * VALUES * units();
    }

    __host__ __device__ unsigned units() const {
        return 2 * pairs + 4;
    }
};

/* What is not in `places`. */
struct small_parts {
    row_sums rows[MOST_OWN];                     /* of this block */
    __align__(16) partial_loss losses[MOST_OWN]; /* of block 0: those of all blocks */
    /* mbarriers: all that this block receives of them is there; totals: `losses` */
    uint64_t logits, gradients, own_rows, totals;
};

/* Before any block may send. `own_rows`: whose softmax this block computes. */
template <unsigned C>
__device__ void open_barriers(const float32_layer &p, small_parts &parts, unsigned rank, unsigned own_rows) {
    const unsigned row_bytes = places<C>::QUADS * 16;
    mbarrier_init(&parts.logits);
    mbarrier_init(&parts.gradients);
    mbarrier_init(&parts.own_rows);
    mbarrier_init(&parts.totals);
    mbarrier_expect_tx(&parts.logits, gridDim.x * own_rows * row_bytes);
    mbarrier_expect_tx(&parts.gradients, p.m * row_bytes);
    mbarrier_expect_tx(&parts.own_rows, own_rows * sizeof(row_sums));
    if (rank == 0) mbarrier_expect_tx(&parts.totals, gridDim.x * sizeof(partial_loss));
}

/* The rows of W of this block's units. */
template <unsigned C>
__device__ void load_weights(const float32_layer &p, float *w, unsigned first, unsigned own) {
    for (unsigned e = threadIdx.x; e < own * C; e += THREADS) {
        const unsigned unit = e / C, c = e % C;
        w[unit * places<C>::UNIT + c] = c < p.classes ? p.w[(first + unit) * p.ldw + c] : 0;
    }
}

/* Requests this block's units of all rows. */
__device__ void load_rows(const float32_layer &p, float *to, unsigned pitch, const float *from,
                          unsigned own) {
    for (unsigned row = threadIdx.x / LANES; row < p.m; row += THREADS / LANES)
        for (unsigned unit = threadIdx.x % LANES * 4; unit < own; unit += LANES * 4)
            __pipeline_memcpy_async(to + row * pitch + unit, from + row * p.ldx + unit, 16);
}

/* Two sums of X W, each over every second group of 16 units, of this lane's row: [2][rows][classes]. Eight
   lanes have 32 rows, and four lanes a quarter of the units each. */
template <unsigned C>
__device__ void multiply(const float32_layer &p, float *shared, const places<C> &at, unsigned own) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % 2, row0 = warp / 2 * ROWS;
    const float *const x_at = shared + at.x + (row0 + lane % 8) * at.pitch, *const w_at = shared + at.w;
    if (warp >= WORKERS / 32 || row0 >= p.m) return;
    float sums[4][C] = {};
#pragma unroll 1
    for (unsigned unit = 16 * half + lane / 8 * 4; unit < own; unit += 32) {
        pack<float, 4> x[4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) x[i] = pack_at<4>(x_at + 8 * i * at.pitch + unit);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
#pragma unroll
            for (unsigned c = 0; c < C; c += 2) {
                const pack<float, 2> w = pack_at<2>(w_at + (unit + j) * at.UNIT + c);
#pragma unroll
                for (unsigned e = 0; e < 8; e++)
                    sums[e / 2][c + e % 2] = fma(x[e / 2].value[j], w.value[e % 2], sums[e / 2][c + e % 2]);
            }
    }
    pack<float, 4> own_row[at.QUADS] = {};
    const bool upper = lane & 16, odd = lane & 8;
#pragma unroll
    for (unsigned c = 0; c < C; c++) {
        const float a = (upper ? sums[2][c] : sums[0][c]) +
                        __shfl_xor_sync(~0u, upper ? sums[0][c] : sums[2][c], 16),
                    b = (upper ? sums[3][c] : sums[1][c]) +
                        __shfl_xor_sync(~0u, upper ? sums[1][c] : sums[3][c], 16);
        own_row[c / 4].value[c % 4] = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 8);
    }
#pragma unroll
    for (unsigned quad = 0; quad < at.QUADS; quad++)
        pack_at<4>(shared + at.sums + (half * MOST_ROWS + row0 + lane) * at.ROW + 4 * quad) = own_row[quad];
}

/* 16 bytes, to be sent. */
template <typename T> __device__ uint4 as_words(const T &of) {
    uint4 words;
    static_assert(sizeof of == sizeof words);
    memcpy(&words, &of, sizeof words);
    return words;
}

/* This block's parts of the logits, each row to the block that has it. */
template <unsigned C>
__device__ void send_logits(const float32_layer &p, float *shared, const places<C> &at, small_parts &parts,
                            unsigned rank, unsigned rows) {
    for (unsigned e = threadIdx.x; e < p.m * at.QUADS; e += THREADS) {
        const unsigned row = e / at.QUADS, quad = e % at.QUADS, owner = row / rows;
        const float *const from = shared + at.sums + row * at.ROW + 4 * quad;
        const pack<float, 4> a = pack_at<4>(from), b = pack_at<4>(from + MOST_ROWS * at.ROW);
        pack<float, 4> sum;
#pragma unroll
        for (unsigned i = 0; i < 4; i++) sum.value[i] = a.value[i] + b.value[i];
        float *const to = shared + at.parts + (rank * rows + row - owner * rows) * at.ROW + 4 * quad;
        cluster_send((const uint4 *)to, owner, as_words(sum), &parts.logits);
    }
}

/* The logits of this block's rows: a thread each. Sends their gradients to all blocks, and what their loss
   needs to this one's last warp. */
template <unsigned C>
__device__ logit<float> share_gradients(const float32_layer &p, float *shared, const places<C> &at,
                                        small_parts &parts, unsigned rank, unsigned rows, float bias,
                                        unsigned label) {
    const unsigned local = threadIdx.x / MOST_CLASSES, c = threadIdx.x % MOST_CLASSES,
                   row = rank * rows + local, blocks = gridDim.x;
    const bool inside = local < rows && row < p.m;
    const float *const from =
        shared + at.parts + min(local, rows - 1) * at.ROW + min(c, 4 * at.QUADS - 1); /* any, outside */
    float total = bias;
#pragma unroll 8
    for (unsigned other = 0; other < blocks; other++) total += from[other * rows * at.ROW];
    const logit<float> one = softmax(p, inside, total, label);
    const unsigned quad = c % at.QUADS, lanes = MOST_CLASSES / at.QUADS;
    pack<float, 4> grad;
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        grad.value[i] = __shfl_sync(~0u, one.grad, (int)(4 * quad + i), MOST_CLASSES);
    if (!inside) return one;
    const float *const to = shared + at.grad + row * at.ROW + 4 * quad;
    for (unsigned other = c / at.QUADS; c < lanes * at.QUADS && other < blocks; other += lanes)
        cluster_send((const uint4 *)to, other, as_words(grad), &parts.gradients);
    if (c == 0) cluster_send((const uint4 *)&parts.rows[local], rank, as_words(one.row), &parts.own_rows);
    return one;
}

/* Input gradient, and the sums over the rows of this thread's group, of two units. */
template <enum activation A, unsigned C>
__device__ void gradients(const float32_layer &p, float *shared, const places<C> &at, const float *read,
                          unsigned first, unsigned own) {
    const unsigned unit = threadIdx.x % at.pairs * 2, team = threadIdx.x / at.pairs;
    if (unit >= own) return;
    float w[2][C], sums[at.VALUES][2] = {};
#pragma unroll
    for (unsigned e = 0; e < 2 * C; e++) w[e / C][e % C] = shared[at.w + (unit + e / C) * at.UNIT + e % C];
#pragma unroll 2
    for (unsigned row = team; row < p.m; row += WORKERS / at.pairs) {
        const pack<float, 2> x = pack_at<2>(shared + at.x + row * at.pitch + unit),
                             y = pack_at<2>(read + row * at.pitch + unit);
        pack<float, 4> grad[at.QUADS];
#pragma unroll
        for (unsigned quad = 0; quad < at.QUADS; quad++)
            grad[quad] = pack_at<4>(shared + at.grad + row * at.ROW + 4 * quad);
        pack<float, 2> below = {};
#pragma unroll
        for (unsigned e = 0; e < 2 * C; e++) {
            const unsigned i = e % 2, c = e / 2;
            below.value[i] = fma(grad[c / 4].value[c % 4], w[i][c], below.value[i]);
            sums[c][i] = fma(x.value[i], grad[c / 4].value[c % 4], sums[c][i]);
        }
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            below.value[i] = p.alpha * below.value[i] * derivative(A, y.value[i], y.value[i]);
            sums[C][i] += below.value[i];
        }
        pack_at<2>(p.x_grad + row * p.ldx + first + unit) = below;
    }
#pragma unroll
    for (unsigned value = 0; value < at.VALUES; value++)
        pack_at<2>(shared + at.sums + at.sums_of(team) + value * at.units() +
                   unit) = {{sums[value][0], sums[value][1]}};
}

/* Adds the sums of all thread groups, and stores them. */
template <unsigned C>
__device__ void store_sums(const float32_layer &p, const float *shared, const places<C> &at, unsigned first,
                           unsigned own) {
    for (unsigned e = threadIdx.x; e < own * (p.classes + 1); e += THREADS) {
        const bool weight = e < own * p.classes;
        const unsigned unit = weight ? e / p.classes : e - own * p.classes, c = weight ? e % p.classes : C;
        float total = 0;
#pragma unroll 4
        for (unsigned team = 0; team < WORKERS / at.pairs; team++)
            total += shared[at.sums + at.sums_of(team) + c * at.units() + unit];
        float *const to = weight ? p.w_grad + (first + unit) * p.ldw_grad + c : p.below_grad + first + unit;
        *to = total;
    }
}

/* The last warp of each block: the loss of the block's rows, to block 0, which adds them. */
__device__ void add_losses(const float32_layer &p, small_parts &parts, unsigned rank, unsigned own_rows) {
    const unsigned lane = threadIdx.x % 32, blocks = gridDim.x;
    const struct tally before = *p.tally;
    partial_loss total = {0, 0};
    mbarrier_wait(&parts.own_rows, 0);
    if (lane < own_rows) total = loss_of(p, parts.rows[lane]);
    sum_over_lanes<MOST_OWN>(total);
    if (lane == 0) cluster_send((const uint4 *)&parts.losses[rank], 0, as_words(total), &parts.totals);
    if (rank) return;
    mbarrier_wait(&parts.totals, 0);
    total = {0, 0};
    if (lane < blocks) total = parts.losses[lane];
    sum_over_lanes<MOST_OWN>(total);
    if (lane == 0) tally_batch(before, total, p.m, p.loss, p.tally, p.counted);
}

/* A warp: the bias gradient. */
template <unsigned C> __device__ void bias_gradient(const float32_layer &p, const float *grad) {
    const unsigned lane = threadIdx.x % 32, c = lane % 16;
    float total = 0;
#pragma unroll 8
    for (unsigned row = lane / 16; row < p.m; row += 2) total += c < C ? grad[row * places<C>::ROW + c] : 0;
    total += __shfl_xor_sync(~0u, total, 16);
    if (lane < p.classes) p.bias_grad[lane] = total;
}

/* rows: those whose softmax a block computes. */
template <unsigned C>
__global__ void __launch_bounds__(THREADS) float32_output_kernel(float32_layer p, unsigned rows) {
    extern __shared__ __align__(128) float memory[];
    __shared__ small_parts parts;
    const places<C> at(p.padded);
    const unsigned rank = cluster_rank(), first = min(rank * p.padded, p.units), row0 = min(rank * rows, p.m),
                   own = min(p.padded, p.units - first), own_rows = min(rows, p.m - row0);
    if (threadIdx.x == 0) open_barriers<C>(p, parts, rank, own_rows);
    cluster_arrive_relaxed(); /* mbarrier_init has a fence */
    if (!p.w_early) wait_for_kernels_before();
    load_weights<C>(p, memory + at.w, first, own);
    wait_for_kernels_before();
    start_next_kernel();
    load_rows(p, memory + at.x, at.pitch, p.x + first, own);
    __pipeline_commit();
    const float *const read = memory + (p.read == p.x ? at.x : at.read);
    if (p.read != p.x) load_rows(p, memory + at.read, at.pitch, p.read + first, own);
    __pipeline_commit();
    const unsigned c = threadIdx.x % MOST_CLASSES, local = threadIdx.x / MOST_CLASSES,
                   row = local < own_rows ? row0 + local : p.m;
    const unsigned label = row < p.m ? p.labels[row] : 0;
    const float bias = c < p.classes ? p.bias[c] : 0;
    __pipeline_wait_prior(1);
    __syncthreads();
    multiply(p, memory, at, own);
    __pipeline_wait_prior(0);
    __syncthreads();
    cluster_wait(); /* all blocks have started, with their mbarriers */
    send_logits(p, memory, at, parts, rank, rows);
    __syncthreads(); /* the sums have been read */
    mbarrier_wait(&parts.logits, 0);
    store_logit(p, row, share_gradients(p, memory, at, parts, rank, rows, bias, label));
    if (threadIdx.x >= WORKERS) add_losses(p, parts, rank, own_rows);
    mbarrier_wait(&parts.gradients, 0);
    if (threadIdx.x >= WORKERS) {
        if (rank + 1 == gridDim.x) bias_gradient<C>(p, memory + at.grad);
    } else {
        with_activation(
            p.activation, [&]<enum activation A>() { gradients<A>(p, memory, at, read, first, own); });
    }
    __syncthreads();
    store_sums(p, memory, at, first, own);
}

const unsigned FEW_CLASSES = 10;

unsigned units_for(size_t units, unsigned blocks) {
    return blocks_for(units, 8 * blocks) * 8;
}

template <unsigned C> bool fits(unsigned blocks) {
    const void *const kernel = (const void *)float32_output_kernel<C>;
    const unsigned bytes = places<C>(units_for(MOST_UNITS, blocks)).bytes;
    return cuda_allows_wgmma(kernel, bytes) &&
           cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
           clusters_that_fit(kernel, blocks, THREADS, bytes) > 0;
}

template <unsigned C> void launch_output(const float32_layer &p, unsigned blocks, cuda_launcher &launcher) {
    launch_dependent(launcher, "float32_output_kernel", float32_output_kernel<C>, dim3(blocks), THREADS,
                     places<C>(p.padded).bytes, blocks, p, blocks_for(p.m, blocks));
}

} // namespace

unsigned float32_output_blocks(void) {
    for (unsigned blocks = 16; blocks >= 8; blocks /= 2)
        if (fits<FEW_CLASSES>(blocks) && fits<MOST_CLASSES>(blocks)) return blocks;
    return 0;
}

bool float32_output_takes(const struct output_layer *layer) {
    return output_layer_fits<float>(layer, GEMM_F32, MOST_ROWS, MOST_UNITS);
}

void float32_output(const struct output_layer *layer, unsigned blocks, cuda_launcher &launcher) {
    const float32_layer p = output_of<float>(layer, units_for(layer->logits->k, blocks));
    const auto launch_for =
        p.classes <= FEW_CLASSES ? launch_output<FEW_CLASSES> : launch_output<MOST_CLASSES>;
    launch_for(p, blocks, launcher);
}
