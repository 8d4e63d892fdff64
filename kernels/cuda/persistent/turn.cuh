/* The turn of a step for blocks that have several rows of the batch (fused_phases.cuh has one for a row a
   block, which all its threads share): a warp has a row, and waits for nobody.

   Last layer lanes lie side by side along the classes, a power of 2 of them, and share k where there are few;
   then they add up.
   Way back lanes lie along k, and read 16 bytes of a row of the weights: these are kept with a pitch of 16
   bytes more than a row.
   Bound by latency: about 2,500 cycles for as many rows as there are warps. Row after row it was 3,000 for
   each. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TURN_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TURN_CUH

#include "kernels/cuda/persistent/tiled.cuh"

/* Elements of shared memory: each warp's logits, their gradients and row of the input, then the weights. */
template <typename T>
static inline size_t turn_elements(size_t warps, size_t in, size_t padded_in, size_t columns) {
    return warps * (2 * columns + padded_in) + in * (columns + WIDEST<T>);
}

template <typename P> __device__ void worker<P>::turn_by_warps() const {
    const phase_layer<P> &last = plan.layer[plan.depth - 1];
    const matrix from = input_of(plan.depth - 1, step);
    const int classes = last.out, ld = last.grad.ld, pitch = ld + W, thread = thread_now(),
              lane = thread % 32, warp = thread / 32, warps = blockDim.x / 32;
    T *logits = shared + warp * (2 * ld + from.ld), *gradient = logits + ld, *input = gradient + ld,
      *weight = shared + warps * (2 * ld + from.ld);
    int wide = 1;
    while (wide < 32 && wide < classes) wide *= 2;

    for (int e = thread * W; e < last.in * ld; e += blockDim.x * W)
        __pipeline_memcpy_async(weight + e / ld * pitch + e % ld, last.weight.at + e, UNIT);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    for (int c = classes + lane; c < ld; c += 32) gradient[c] = 0; /* weights there are 0 */
    __syncthreads();

#pragma unroll 1
    for (int r = blockIdx.x + warp * gridDim.x; r < plan.batch; r += warps * gridDim.x) {
        if (r >= rows) {
            clear_row(r, lane, 32);
            continue;
        }
#pragma unroll 1
        for (int e = lane * W; e < from.ld; e += 32 * W)
            __pipeline_memcpy_async(input + e, from.at + (size_t)r * from.ld + e, UNIT);
        __pipeline_commit();
        const int label = labels_of(step)[r];
        __pipeline_wait_prior(0);
        __syncwarp();
#pragma unroll 1
        for (int first = 0; first < classes; first += wide) {
            const int c = first + lane % wide;
            T sum = 0;
            if (c < classes)
#pragma unroll 4
                for (int k = lane / wide; k < last.in; k += 32 / wide)
                    sum += input[k] * weight[k * pitch + c];
            for (int offset = wide; offset < 32; offset *= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (lane < wide && c < classes) logits[c] = sum + last.bias[c];
        }
        __syncwarp();
        loss_of_row(logits, gradient, last.grad, classes, label, r);
        __syncwarp();
        if (plan.depth == 1) continue;
        const phase_layer<P> &below = plan.layer[plan.depth - 2];
        const size_t row = (size_t)r * below.grad.ld;
#pragma unroll 1
        for (int k = lane; k < last.in; k += 32) {
            const T y = input[k], z = below.pre == below.output.at ? y : below.pre[row + k];
            T value = 0;
#pragma unroll 4
            for (int o = 0; o < classes; o += W) {
                const pack<T, W> some = pack_at<W>(weight + k * pitch + o);
#pragma unroll
                for (int q = 0; q < W; q++) value += gradient[o + q] * some.value[q];
            }
            below.grad.put(r, k, pack<T, 1>{value * derivative_compactly(below.activation, z, y)});
        }
        __syncwarp(); /* before the next row */
    }
}

#endif
