/* cuda-tuned, the gradients of the float32 output layer of a training step with many images: those of weights
   and biases, and the input gradient with the backward epilogue of the layer below.

   Idea       A thread block has 64 units, and blocks of 64 x 64 elements of X and of its gradient, as those
              of planes (planes.cuh), which it writes as well; for TF32 the transpose, beside it or alone.
              Two blocks of X are requested ahead. Weight gradients stay in registers over all rows of the
              thread block.
   Sums       float32 multiply-adds over the rows of a thread, then over warps and thread blocks in order. The
              last thread block of 64 units adds those of the others.
   Bound by   bytes: X read, its gradient and planes written, 201 MB for 8192 x 2048: 50 us at 4 TB/s; with
              the transpose alone 134 MB
   Improves   6_tuned_narrow.cu and 6_tuned_narrow_nt.cu
   Run        ./train --backend cuda-tuned --config configs/high-throughput.cfg */
#include "kernels/cuda/gemm/6_tuned_output_large.cuh"

#include <cuda_pipeline_primitives.h>

#include "kernels/cuda/tensor/float32_block.cuh"

namespace {

const unsigned SIDE = PLANE_SIDE;
const unsigned GROUP = float32::BLOCK_THREADS;

template <unsigned C> struct gradient_shape {
    static constexpr unsigned VALUES = C + 1, COUNT = SIDE * VALUES;
};

template <unsigned C> struct gradient_memory {
    float32::block_memory x[2];                       /* 64 rows of 64 units */
    __align__(16) float grad[2][SIDE][GRAD_PITCH<C>]; /* of the logits of 64 rows */
};

/* Requests 64 rows of the logits' gradients. */
template <unsigned P> __device__ void request_grads(float (&to)[SIDE][P], const float *from) {
    for (unsigned e = threadIdx.x * 4; e < SIDE * P; e += GROUP * 4)
        __pipeline_memcpy_async(&to[0][e], from + e, 16);
}

/* The units of a thread: four of eight rows, as the fours of block_area. */
struct share {
    const output<float> &p;
    unsigned unit;

    /* Are all rows and units of this block inside? */
    __device__ bool whole(unsigned row0) const {
        return row0 + SIDE <= p.m && unit / SIDE * SIDE + SIDE <= p.units;
    }
    __device__ bool has(unsigned row) const {
        return row < p.m && unit < p.units;
    }
    /* Zeros outside. */
    __device__ void request(const float32::block_area &to, unsigned row0) const {
        const float *from = p.x + (row0 + to.row(0)) * p.ldx + unit;
        const size_t step = 2 * p.ldx;
        if (whole(row0)) {
#pragma unroll
            for (unsigned i = 0; i < to.FOURS; i++) __pipeline_memcpy_async(to.four(i), from + i * step, 16);
        } else {
            for (unsigned i = 0; i < to.FOURS; i++) {
                const bool inside = has(row0 + to.row(i));
                __pipeline_memcpy_async(to.four(i), inside ? from + i * step : p.x, 16, inside ? 0 : 16);
            }
        }
    }
    __device__ void store(const float32::block_area &area, unsigned row0, const float (&x)[8][4]) const {
        float *const to = p.x_grad + (row0 + area.row(0)) * p.ldx + unit;
        const size_t step = 2 * p.ldx;
        const bool all = whole(row0);
#pragma unroll
        for (unsigned i = 0; i < area.FOURS; i++)
            if (all || has(row0 + area.row(i))) *(float4 *)(to + i * step) = *(const float4 *)x[i];
    }
};

/* What a thread adds over its rows, of four units. */
template <unsigned C> struct gradient_totals { float w[4][C], below[4]; };

/* x = the input gradient, which is stored if `stores`; `all` += the sums over the rows. w: times alpha. What
   is outside is 0, or NaN as the rest of its row or column. */
template <unsigned C>
__device__ void gradients(const share &own, const float32::block_area &area, unsigned row0,
                          const float (*grad)[GRAD_PITCH<C>], const float (&w)[4][C], float (&x)[8][4],
                          gradient_totals<C> &all, bool stores) {
    const output<float> &p = own.p;
    with_activation(
        p.activation, [&]<enum activation A>() {
#pragma unroll
            for (unsigned i = 0; i < area.FOURS; i++) {
                const float4 y = *area.four(i);
#pragma unroll
                for (unsigned e = 0; e < 4; e++) x[i][e] = derivative(A, (&y.x)[e], (&y.x)[e]);
            }
        });
#pragma unroll
    for (unsigned i = 0; i < area.FOURS; i++) {
        const float4 y = *area.four(i);
        float of_row[GRAD_PITCH<C>], sum[4] = {};
#pragma unroll
        for (unsigned c = 0; c < GRAD_PITCH<C>; c += 4)
            *(float4 *)(of_row + c) = *(const float4 *)&grad[area.row(i)][c];
#pragma unroll
        for (unsigned c = 0; c < C; c++)
#pragma unroll
            for (unsigned e = 0; e < 4; e++) {
                sum[e] = fmaf(of_row[c], w[e][c], sum[e]);
                all.w[e][c] = fmaf((&y.x)[e], of_row[c], all.w[e][c]);
            }
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            x[i][e] *= sum[e];
            all.below[e] += x[i][e];
        }
    }
    if (stores) own.store(area, row0, x);
    __syncwarp(); /* the warp has read its memory of the area */
}

/* Writes x as columns of the transposed matrix, each warp its 16 rows: two lanes have 32 bytes. (Lines of 256
   bytes, through the memory of all warps, were slower.) */
__device__ void store_transposed(const float32::block_area &area, const float (&x)[8][4],
                                 const float32_transposed &to, unsigned row0, unsigned unit0) {
    const unsigned lane = area.lane;
#pragma unroll
    for (unsigned i = 0; i < area.FOURS; i++) *area.four(i) = *(const float4 *)x[i];
    __syncwarp();
#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        const unsigned unit = lane / 2 + i / 2 * 16, row = (lane % 2 + i % 2 * 2) * 4;
        const float4 four = {area.at(row, unit), area.at(row + 1, unit), area.at(row + 2, unit),
                             area.at(row + 3, unit)};
        *(float4 *)(to.values + (unit0 + unit) * to.ld + row0 + area.warp * 16 + row) = four;
    }
}

/* To the sums of this strip, and from those of all strips to the results: by the last block of a group. */
template <unsigned C>
__device__ void add_strips(const large_layer &all, gradient_totals<C> &own, unsigned group, unsigned strip,
                           float *shared) {
    typedef gradient_shape<C> S;
    const output<float> &p = all.layer;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned e = 0; e < 4; e++)
#pragma unroll
        for (unsigned v = 0; v < S::VALUES; v++) {
            float total = v < C ? own.w[e][v] : own.below[e];
            total += __shfl_xor_sync(~0u, total, 16);
            if (lane < 16) shared[warp * S::COUNT + (lane * 4 + e) * S::VALUES + v] = total;
        }
    __syncthreads();
    float *const sums = all.sums + group * S::COUNT;
    const size_t step = (size_t)all.groups * S::COUNT;
    for (unsigned k = threadIdx.x; k < S::COUNT; k += GROUP) {
        float total = shared[k];
        for (unsigned other = 1; other < GROUP / 32; other++) total += shared[other * S::COUNT + k];
        sums[strip * step + k] = total;
    }
    if (!last_block(all.tickets + group, all.strips)) return;
    for (unsigned k0 = 4 * threadIdx.x; k0 < S::COUNT; k0 += 4 * GROUP) {
        float total[4] = {};
#pragma unroll 12
        for (unsigned i = 0; i < all.strips; i++) {
            const float4 four = __ldcg((const float4 *)(sums + i * step + k0));
#pragma unroll
            for (unsigned e = 0; e < 4; e++) total[e] += (&four.x)[e];
        }
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            const unsigned unit = group * SIDE + (k0 + e) / S::VALUES, v = (k0 + e) % S::VALUES;
            if (unit >= p.units) continue;
            if (v == C) p.below_grad[unit] = total[e];
            if (v < p.classes) p.w_grad[unit * p.ldw_grad + v] = total[e];
        }
    }
}

/* A block: the loss of all rows, and the bias gradient. */
__device__ void add_parts(const large_layer &all, float (*shared)[MOST_CLASSES], partial_loss *losses) {
    const unsigned c = threadIdx.x % MOST_CLASSES, every = GROUP / MOST_CLASSES, warp = threadIdx.x / 32;
    float bias = 0;
    partial_loss loss = {0, 0};
#pragma unroll 8
    for (unsigned i = threadIdx.x / MOST_CLASSES; i < all.parts; i += every)
        bias += all.biases[i * MOST_CLASSES + c];
    for (unsigned i = threadIdx.x; i < all.parts; i += GROUP) {
        loss.loss += all.losses[i].loss;
        loss.correct += all.losses[i].correct;
    }
    shared[threadIdx.x / MOST_CLASSES][c] = bias;
    sum_over_lanes<32>(loss);
    if (threadIdx.x % 32 == 0) losses[warp] = loss;
    __syncthreads();
    const output<float> &p = all.layer;
    if (threadIdx.x < p.classes) {
        for (unsigned i = 1; i < every; i++) bias += shared[i][c];
        p.bias_grad[c] = bias;
    }
    if (threadIdx.x) return;
    for (unsigned i = 1; i < GROUP / 32; i++) {
        loss.loss += losses[i].loss;
        loss.correct += losses[i].correct;
    }
    tally_batch(*p.tally, loss, p.m, p.loss, p.tally, p.counted);
}

/* The first block has the loss and the bias gradient, each other one a strip of a group of units. */
template <unsigned C>
__global__ void __launch_bounds__(GROUP, C <= FEW_CLASSES ? 3 : 2)
    float32_gradients_kernel(const __grid_constant__ large_layer all) {
    __shared__ gradient_memory<C> shared;
    const output<float> &p = all.layer;
    const unsigned group = (blockIdx.x - 1) % all.groups, strip = (blockIdx.x - 1) / all.groups;
    const unsigned tiles = (p.m + SIDE - 1) / SIDE;
    const share own = {p, group * SIDE + threadIdx.x % 16 * 4};
    wait_for_kernels_before();
    start_next_kernel();
    if (blockIdx.x == 0) return add_parts(all, (float(*)[MOST_CLASSES])shared.grad, (partial_loss *)shared.x);
    const auto request = [&](unsigned tile, unsigned stage) {
        if (tile < tiles) {
            own.request(float32::block_area(shared.x[stage]), tile * SIDE);
            request_grads(shared.grad[stage], all.grads + tile * SIDE * GRAD_PITCH<C>);
        }
        __pipeline_commit();
    };
    request(strip, 0);
    request(strip + all.strips, 1);
    float w[4][C];
#pragma unroll
    for (unsigned e = 0; e < 4 * C; e++) {
        const unsigned unit = own.unit + e / C, c = e % C;
        w[e / C][e % C] = unit < p.units && c < p.classes ? p.alpha * __ldg(p.w + unit * p.ldw + c) : 0;
    }
    gradient_totals<C> totals = {};
    unsigned raised = 0, stage = 0;
    for (unsigned tile = strip; tile < tiles; tile += all.strips, stage ^= 1) {
        const float32::block_area area(shared.x[stage]);
        float x[8][4];
        __pipeline_wait_prior(1);
        __syncthreads();
        gradients<C>(own, area, tile * SIDE, shared.grad[stage], w, x, totals, !all.transposed.alone);
        if (all.x_grad.blocks) { /* with a barrier of its own */
            raised |= area.split(x, all.x_grad, tile * all.x_grad.column_blocks + group);
        } else {
            if (all.transposed.values) store_transposed(area, x, all.transposed, tile * SIDE, group * SIDE);
            __syncthreads();
        }
        request(tile + 2 * all.strips, stage);
    }
    if (all.x_grad.blocks && threadIdx.x == 0)
        planes_done(all.x_grad.flags, raised | PLANES_LOW, all.groups * all.strips);
    __syncthreads();
    add_strips<C>(all, totals, group, strip, (float *)shared.x);
}

} // namespace

bool float32_gradients_open(void) {
    return cuda_allows_wgmma((const void *)float32_gradients_kernel<FEW_CLASSES>, 0) &&
           cuda_allows_wgmma((const void *)float32_gradients_kernel<MOST_CLASSES>, 0);
}

unsigned float32_gradients_resident(size_t classes, cuda_fault *fault) {
    int blocks = 0;
    with_classes(classes, [&]<unsigned C>() {
        const auto kernel = float32_gradients_kernel<C>;
        CUDA_TRY(fault, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, GROUP, 0));
    });
    return blocks > 0 ? (unsigned)blocks : 1;
}

void float32_gradients(const large_layer &all, cuda_launcher &launcher) {
    with_classes(all.layer.classes, [&]<unsigned C>() {
        launch_dependent(launcher, "float32_gradients_kernel", float32_gradients_kernel<C>,
                         dim3(1 + all.groups * all.strips), GROUP, 0, 1, all);
    });
}
