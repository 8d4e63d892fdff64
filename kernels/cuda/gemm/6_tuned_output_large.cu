/* cuda-tuned, the float32 output layer of a training step with many images, in two kernels. This one has the
   logits and softmax cross-entropy; 6_tuned_output_gradients.cu has the gradients of weights and biases, and
   the input gradient with the backward epilogue of the layer below.

   Idea       Apart, these are five kernels that read X three times. The input gradient is written as planes
              as well (planes.cuh), whose scales need blocks of 64 x 64 elements, so that X is read twice
              here: by warps that have some rows of all units, and by thread blocks that have some units of
              all rows.
   Layout     W^T in shared memory. A lane has four units of each of four rows at a time, which it requests
              ahead, so that only the beginning needs a barrier.
   Sums       float32 multiply-adds of the units of a lane, then over lanes as a tree
   Bound by   bytes of X: 67 MB for 8192 x 2048, 17 us at 4 TB/s
   Improves   6_tuned_narrow.cu and the softmax of the ops
   Run        ./train --backend cuda-tuned --config configs/high-throughput.cfg */
#include "kernels/cuda/gemm/6_tuned_output_large.cuh"

#include <cuda_pipeline_primitives.h>

#include <algorithm>

namespace {

const unsigned SIDE = PLANE_SIDE;
const unsigned FEWEST_ROWS = 1024, MOST_LARGE_ROWS = 1 << 16; /* whose gradients fit into REDUCTION_BYTES */
const unsigned WARPS = 16, THREADS = 32 * WARPS, UNITS = 128; /* of a warp at a time: four a lane */
const unsigned ROWS = 4, AHEAD = 2;                           /* of a warp; times UNITS that are requested */
const unsigned MOST_SHARED = 200 << 10;

/* W^T in shared memory: [C][pitch]. */
__host__ __device__ unsigned pitch_of(unsigned padded) {
    return padded + 4;
}

struct logit_memory {
    float logits[WARPS][ROWS][MOST_CLASSES];
    row_sums row[WARPS][ROWS];
    float bias[WARPS][MOST_CLASSES];
    partial_loss loss[WARPS];
};

/* Requests W^T, zeros outside. */
template <unsigned C> __device__ void request_weights(const output<float> &p, float *to) {
    for (unsigned e = threadIdx.x; e < p.padded * C; e += THREADS) {
        const unsigned unit = e / C, c = e % C;
        const bool inside = unit < p.units && c < p.classes;
        __pipeline_memcpy_async(to + c * pitch_of(p.padded) + unit, inside ? p.w + unit * p.ldw + c : p.w, 4,
                                inside ? 0 : 4);
    }
    __pipeline_commit();
}

/* Four units of each row of a warp. Those outside are others of the same row, and have the weight 0; rows
   outside are the last one. */
typedef pack<float, 4> units[ROWS];

struct warp_rows {
    const float *row[ROWS];
    unsigned last; /* four units */

    __device__ warp_rows(const output<float> &p, unsigned row0) : last(p.units - 4) {
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) row[r] = p.x + min(row0 + r, p.m - 1) * p.ldx;
    }
    __device__ void load(units &x, unsigned unit) const {
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) x[r] = pack_at<4>(row[r] + min(unit, last));
    }
    __device__ void load_first(units (&x)[AHEAD]) const {
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) load(x[i], i * UNITS + threadIdx.x % 32 * 4);
    }
};

/* sums[row][class] of this lane's units, of which x has the first ones. */
template <unsigned C>
__device__ void multiply(float (&sums)[ROWS * C], units (&x)[AHEAD], const warp_rows &from, const float *w,
                         unsigned padded) {
#pragma unroll 1
    for (unsigned first = threadIdx.x % 32 * 4; first < padded; first += AHEAD * UNITS)
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) {
            const unsigned unit = first + i * UNITS;
            if (unit >= padded) break;
#pragma unroll
            for (unsigned c = 0; c < C; c++) {
                const pack<float, 4> of_class = pack_at<4>(w + c * pitch_of(padded) + unit);
#pragma unroll
                for (unsigned r = 0; r < ROWS; r++)
#pragma unroll
                    for (unsigned e = 0; e < 4; e++)
                        sums[r * C + c] = fmaf(x[i][r].value[e], of_class.value[e], sums[r * C + c]);
            }
            from.load(x[i], unit + AHEAD * UNITS);
        }
}

/* Adds them over all lanes. */
template <unsigned C> __device__ void add_lanes(float (&sums)[ROWS * C], float (*logits)[MOST_CLASSES]) {
    const unsigned lane = threadIdx.x % 32, V = ROWS * C;
    halve<V>(sums, lane & 16, 16);
    halve<V / 2>(sums, lane & 8, 8);
    halve<V / 4>(sums, lane & 4, 4);
    const unsigned first = (lane >> 4) * (V / 2) + (lane >> 3 & 1) * (V / 4) + (lane >> 2 & 1) * (V / 8);
#pragma unroll
    for (unsigned i = 0; i < V / 8; i++) {
        float total = sums[i] + __shfl_xor_sync(~0u, sums[i], 2);
        total += __shfl_xor_sync(~0u, total, 1);
        if (lane % 4 == 0) logits[(first + i) / C][(first + i) % C] = total;
    }
    __syncwarp();
}

template <unsigned C>
__global__ void __launch_bounds__(THREADS, 1) float32_logits_kernel(const __grid_constant__ large_layer all) {
    extern __shared__ __align__(16) float w[];
    __shared__ logit_memory shared;
    const output<float> &p = all.layer;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane % MOST_CLASSES;
    const unsigned rows = (p.m + SIDE - 1) / SIDE * SIDE, step = gridDim.x * WARPS * ROWS;
    unsigned row0 = (blockIdx.x * WARPS + warp) * ROWS;
    float bias_grad = 0;
    partial_loss loss = {0, 0};
    units x[AHEAD];
    wait_for_kernels_before();
    start_next_kernel();
    warp_rows(p, row0).load_first(x);
    request_weights<C>(p, w);
    const float bias = c < p.classes ? p.bias[c] : 0;
    __pipeline_wait_prior(0);
    __syncthreads();
    for (; row0 < rows; row0 += step) {
        float sums[ROWS * C] = {};
        multiply<C>(sums, x, warp_rows(p, row0), w, p.padded);
        add_lanes<C>(sums, shared.logits[warp]);
#pragma unroll 1
        for (unsigned r = lane / MOST_CLASSES; r < ROWS; r += 2) {
            const unsigned row = row0 + r, label = row < p.m ? p.labels[row] : 0;
            const float total = shared.logits[warp][r][min(c, C - 1)] + bias;
            const logit<float> one = softmax(p, row < p.m, total, label);
            store_logit(p, row, one);
            if (c < GRAD_PITCH<C>) all.grads[row * GRAD_PITCH<C> + c] = one.grad;
            bias_grad += one.grad;
            if (c == 0) shared.row[warp][r] = one.row;
        }
        __syncwarp();
        if (lane < ROWS && row0 + lane < p.m) {
            const partial_loss one = loss_of(p, shared.row[warp][lane]);
            loss.loss += one.loss;
            loss.correct += one.correct;
        }
        __syncwarp();
        warp_rows(p, row0 + step).load_first(x);
    }
    sum_over_lanes<ROWS>(loss);
    bias_grad += __shfl_xor_sync(~0u, bias_grad, MOST_CLASSES);
    if (lane == 0) shared.loss[warp] = loss;
    if (lane < MOST_CLASSES) shared.bias[warp][lane] = bias_grad;
    __syncthreads();
    if (threadIdx.x >= MOST_CLASSES) return;
    for (unsigned other = 1; other < WARPS; other++) {
        bias_grad += shared.bias[other][lane];
        loss.loss += shared.loss[other].loss;
        loss.correct += shared.loss[other].correct;
    }
    all.biases[blockIdx.x * MOST_CLASSES + lane] = bias_grad;
    if (lane == 0) all.losses[blockIdx.x] = loss;
}

/* --- the host --- */

size_t bytes_of_weights(size_t classes, size_t padded) {
    return (padded + 4) * (classes <= FEW_CLASSES ? FEW_CLASSES : MOST_CLASSES) * sizeof(float);
}

unsigned padded_units(size_t units) {
    return blocks_for(units, UNITS) * UNITS;
}

template <unsigned C>
large_layer place(tuned_context *context, const struct output_layer *layer, cuda_launcher &launcher) {
    large_layer all = {.layer = output_of<float>(layer, padded_units(layer->logits->k))};
    const unsigned m = all.layer.m, processors = (unsigned)context->processors,
                   resident = processors * float32_gradients_resident(all.layer.classes, launcher.fault);
    all.x_grad = float32_planes_of_c(&context->float32, layer->input_gradient);
    all.transposed = float32_transposed_of_c(&context->float32, layer->input_gradient);
    all.groups = blocks_for(all.layer.units, SIDE);
    /* one more block, and all of them resident */
    all.strips = std::max(1u, std::min((resident - 1) / all.groups, blocks_for(m, SIDE)));
    all.parts = std::min(processors, blocks_for(m, WARPS * ROWS));
    all.losses = (partial_loss *)context->reduction.scratch;
    all.biases = (float *)(all.losses + all.parts);
    all.grads = all.biases + all.parts * MOST_CLASSES;
    all.sums = all.grads + blocks_for(m, SIDE) * SIDE * GRAD_PITCH<C>;
    all.tickets = context->reduction.tickets;
    return all;
}

} // namespace

bool float32_output_large_open(void) {
    return float32_gradients_open() &&
           cuda_allows_wgmma((const void *)float32_logits_kernel<FEW_CLASSES>, MOST_SHARED) &&
           cuda_allows_wgmma((const void *)float32_logits_kernel<MOST_CLASSES>, MOST_SHARED);
}

bool float32_output_large_takes(const struct output_layer *layer) {
    const struct gemm_call *const logits = layer->logits;
    return logits->m >= FEWEST_ROWS &&
           output_layer_fits<float>(layer, GEMM_F32, MOST_LARGE_ROWS, MOST_SHARED) &&
           bytes_of_weights(logits->n, padded_units(logits->k)) <= MOST_SHARED &&
           output_layer_reads(*layer->input_gradient->backward) == logits->a;
}

void float32_output_large(struct tuned_context *context, const struct output_layer *layer,
                          cuda_launcher &launcher) {
    with_classes(layer->logits->n, [&]<unsigned C>() {
        const large_layer all = place<C>(context, layer, launcher);
        launch_dependent(launcher, "float32_logits_kernel", float32_logits_kernel<C>, dim3(all.parts),
                         THREADS, bytes_of_weights(C, all.layer.padded), 1, all);
        float32_gradients(all, launcher);
    });
}
