/* The output layer of a training step with up to 128 images, in one kernel: logits, softmax cross-entropy,
   gradients of weights and biases, and input gradient with the backward epilogue of the layer below.

   Idea       These are five small kernels, bound by latency. A cluster of thread blocks has 16 rows each, and
              all of the small matrix: each row's logits, loss and gradients stay in a block. Sums over rows
              (gradients of weights and of both biases) are added over the cluster, in the order of its
              blocks, through distributed shared memory.
   Layout     X [16 rows][units] and W^T [16 classes][units] in shared memory, with 16 bytes more than a
              multiple of 32 in a row, so that ldmatrix has no bank conflicts. Sums: [units][classes] of W,
              [units] of the bias below, [classes] of the bias.
   Bound by   latency: a launch, two round trips to the L2 cache, two cluster barriers */
#include "kernels/cuda/tensor/bf16_output.cuh"

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/tensor/bf16_output_tile.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace {

const unsigned ROWS = OUTPUT_ROWS, MOST_BLOCKS = MOST_ROWS / ROWS;
const unsigned WARPS = 8, WORKERS = 32 * WARPS,
               THREADS = WORKERS + 32; /* a warp more for losses and biases */

typedef output<__nv_bfloat16> bf16_layer;

/* Shared memory, in bytes from its beginning. */
struct places {
    unsigned pitch; /* of a row of X, W^T, and what the derivative reads */
    unsigned x, w, read, sums, bytes, count;

    __host__ __device__ places(unsigned padded, unsigned classes)
        : pitch(padded * 2 + 16), x(0), w(x + ROWS * pitch), read(w + MOST_CLASSES * pitch),
          sums(read + ROWS * pitch), count(count_of_sums(padded, classes)) {
        bytes = sums + count * sizeof(float);
    }
};

struct small_parts {
    float logits[WARPS][ROWS][MOST_CLASSES];
    __align__(16) __nv_bfloat16 grad[ROWS][MOST_CLASSES]; /* of the logits */
    row_sums row[ROWS];
    __align__(16) partial_loss totals[MOST_BLOCKS]; /* of block 0: those of all blocks */
};

/* Requests the rows of this block, zeros outside. */
__device__ void load_rows(const bf16_layer &p, char *to, unsigned pitch, const __nv_bfloat16 *from,
                          unsigned row0) {
    const unsigned lanes = THREADS / ROWS, row = threadIdx.x / lanes;
    for (unsigned unit = threadIdx.x % lanes * 8; unit < p.padded; unit += lanes * 8) {
        const bool inside = row0 + row < p.m && unit < p.units;
        __pipeline_memcpy_async(to + row * pitch + unit * 2,
                                inside ? from + (row0 + row) * p.ldx + unit : from, 16, inside ? 0 : 16);
    }
}

/* parts.logits[warp] = X W over the units of this warp. */
__device__ void multiply(const bf16_layer &p, const char *shared, const places &at, small_parts &parts) {
    const unsigned warp = threadIdx.x / 32;
    float sums[2][4] = {};
    for (unsigned unit = 16 * warp; unit < p.padded; unit += 16 * WARPS)
        multiply_units<__nv_bfloat16>(sums, shared + at.x + unit * 2, shared + at.w + unit * 2, at.pitch);
    keep_logits(parts.logits[warp], sums);
}

/* The logits of this block, and their gradients: a thread each. */
__device__ void logits(const bf16_layer &p, small_parts &parts, unsigned row0, float bias, unsigned label) {
    const unsigned row = threadIdx.x / MOST_CLASSES, c = threadIdx.x % MOST_CLASSES;
    float total = bias;
#pragma unroll
    for (unsigned warp = 0; warp < WARPS; warp++) total += parts.logits[warp][row][c];
    const logit<__nv_bfloat16> one = softmax(p, row0 + row < p.m, total, label);
    parts.grad[row][c] = one.grad;
    store_logit(p, row0 + row, one);
    if (c == 0) parts.row[row] = one.row;
}

/* The warp that does not multiply: the loss of the rows of this block, to block 0, and the sums of the
   gradients of the logits. */
__device__ void losses_and_biases(const bf16_layer &p, char *shared, const places &at, small_parts &parts,
                                  unsigned row0, unsigned rank) {
    const unsigned lane = threadIdx.x % 32, row = lane % ROWS;
    __align__(16) partial_loss mine = {0, 0};
    float total = 0;
    if (lane < ROWS && row0 + row < p.m) mine = loss_of(p, parts.row[row]);
    sum_over_lanes<ROWS>(mine);
    if (lane == 0) cluster_store((uint4 *)&parts.totals[rank], 0, *(const uint4 *)&mine);
    if (lane >= p.classes) return;
    for (unsigned r = 0; r < ROWS; r++) total += (float)parts.grad[r][lane];
    ((float *)(shared + at.sums))[p.padded * (p.classes + 1) + lane] = total;
}

/* Input gradient, and its sums and the weight gradient of the rows of this block. */
template <enum activation A>
__device__ void gradients(const bf16_layer &p, char *shared, const places &at, const small_parts &parts) {
    const unsigned warp = threadIdx.x / 32, second = 16 * WARPS;
    float *const w_sums = (float *)(shared + at.sums), *const below = w_sums + p.padded * p.classes;
    const logit_gradients grad((const char *)parts.grad);
    for (unsigned first = 16 * warp; first < p.padded; first += 2 * second) {
        float columns[8] = {};
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const unsigned unit = first + i * second;
            float sums[2][4] = {}, products[2][4] = {};
            if (unit >= p.padded) break;
            multiply_gradients<__nv_bfloat16>(sums, products, grad, shared + at.x + unit * 2,
                                              shared + at.w + unit * 2, at.pitch);
            multiply_slopes<A>(p, sums, shared + at.read + unit * 2, at.pitch, columns + 4 * i);
            keep_products(w_sums + unit * p.classes, p.classes, products);
        }
        const float total = sum_of_column(columns);
        const unsigned unit = first + column_of_lane(second);
        if (unit < p.padded) below[unit] = total;
    }
}

/* The input gradient of the rows of this block. */
__device__ void store_rows(const bf16_layer &p, const char *from, unsigned pitch, unsigned row0) {
    const unsigned lanes = THREADS / ROWS, row = threadIdx.x / lanes;
    for (unsigned unit = threadIdx.x % lanes * 8; unit < p.units && row0 + row < p.m; unit += lanes * 8)
        *(uint4 *)(p.x_grad + (row0 + row) * p.ldx + unit) = *(const uint4 *)(from + row * pitch + unit * 2);
}

/* This block's share of the sums, over all blocks in order. */
__device__ void add_blocks(const bf16_layer &p, const char *shared, const places &at, unsigned rank,
                           unsigned blocks) {
    const uint4 *const sums = (const uint4 *)(shared + at.sums);
    for (unsigned e = rank * THREADS + threadIdx.x; e < at.count / 4; e += blocks * THREADS) {
        uint4 words[MOST_BLOCKS];
        float total[4] = {};
#pragma unroll
        for (unsigned other = 0; other < MOST_BLOCKS; other++)
            words[other] = other < blocks ? cluster_load(sums + e, other) : uint4{};
#pragma unroll
        for (unsigned other = 0; other < MOST_BLOCKS; other++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[i] += __uint_as_float((&words[other].x)[i]);
        store_sums(p, 4 * e, total);
    }
}

/* Block 0: what all blocks have sent. */
__device__ void add_losses(const bf16_layer &p, const small_parts &parts, unsigned blocks) {
    partial_loss total = {0, 0};
    for (unsigned other = 0; other < blocks; other++) {
        total.loss += parts.totals[other].loss;
        total.correct += parts.totals[other].correct;
    }
    tally_batch(*p.tally, total, p.m, p.loss, p.tally, p.counted);
}

__global__ void __launch_bounds__(THREADS) bf16_output_kernel(bf16_layer p) {
    extern __shared__ __align__(128) char shared[];
    __shared__ __align__(16) small_parts parts;
    const places at(p.padded, p.classes);
    const unsigned rank = cluster_rank(), row0 = rank * ROWS, warp = threadIdx.x / 32;
    cluster_arrive_relaxed();
    if (!p.w_early) wait_for_kernels_before();
    load_weights(p, shared + at.w, at.pitch, THREADS);
    wait_for_kernels_before();
    start_next_kernel();
    const unsigned row = row0 + threadIdx.x / MOST_CLASSES, c = threadIdx.x % MOST_CLASSES;
    const unsigned label = threadIdx.x < WORKERS && row < p.m ? p.labels[row] : 0;
    const float bias = c < p.classes ? p.bias[c] : 0;
    load_rows(p, shared + at.x, at.pitch, p.x, row0);
    load_rows(p, shared + at.read, at.pitch, p.read, row0);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    if (warp < WARPS) multiply(p, shared, at, parts);
    __syncthreads();
    if (warp < WARPS) logits(p, parts, row0, bias, label);
    cluster_wait(); /* block 0 has started: its memory may be written */
    __syncthreads();
    if (warp < WARPS)
        with_activation(
            p.activation, [&]<enum activation A>() { gradients<A>(p, shared, at, parts); });
    else
        losses_and_biases(p, shared, at, parts, row0, rank);
    __syncwarp();
    cluster_arrive(); /* before the stores, for which its fence would wait */
    __syncthreads();
    store_rows(p, shared + at.read, at.pitch, row0);
    cluster_wait();
    if (rank == 0 && threadIdx.x == THREADS - 1) add_losses(p, parts, gridDim.x);
    add_blocks(p, shared, at, rank, gridDim.x);
    cluster_barrier_of_reads(); /* the others have read this block's sums */
}

/* --- the host --- */

unsigned bytes_of(unsigned units, unsigned classes) {
    return places((units + 15) / 16 * 16, classes).bytes;
}

} // namespace

bool bf16_output_open(void) {
    const void *const kernel = (const void *)bf16_output_kernel;
    const unsigned bytes = bytes_of(MOST_UNITS, MOST_CLASSES);
    return cuda_allows_wgmma(kernel, bytes) && clusters_that_fit(kernel, MOST_BLOCKS, THREADS, bytes) > 0;
}

bool bf16_output_takes(const struct output_layer *layer) {
    return output_layer_fits<__nv_bfloat16>(layer, GEMM_BF16, MOST_ROWS, MOST_UNITS);
}

void bf16_output(const struct output_layer *layer, cuda_launcher &launcher) {
    const bf16_layer p = output_of<__nv_bfloat16>(layer, blocks_for(layer->logits->k, 16) * 16);
    const unsigned blocks = blocks_for(p.m, ROWS);
    launch_dependent(launcher, "bf16_output_kernel", bf16_output_kernel, dim3(blocks), THREADS,
                     bytes_of(p.units, p.classes), blocks, p);
}
