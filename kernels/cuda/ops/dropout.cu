/* Dropout, as kernels/host/ops/dtype_ops.h: a thread computes a block of eight elements. The backward pass
   draws the same mask again.

   Bound by   bytes, and about 12 instructions an element for the random bits: 1024 x 2500 in float32 reads
              and writes 20 MB, 7 us at 3 TB/s (less from the L2 cache). */
extern "C" {
#include "kernels/dropout.h"
}
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/ops.cuh"

static const unsigned THREADS = 256;

template <typename T>
__global__ void dropout_kernel(size_t count, uint32_t threshold, real<T> scale, uint64_t seed, uint32_t layer,
                               const struct step_scalars *step, size_t first, const T *in, T *out) {
    typedef pack<T, DROPOUT_BLOCK> eight;
    const uint64_t number = step->number;
    for (size_t block = (size_t)blockIdx.x * THREADS + threadIdx.x; block * DROPOUT_BLOCK < count;
         block += (size_t)gridDim.x * THREADS) {
        const size_t start = block * DROPOUT_BLOCK;
        const bool whole = start + DROPOUT_BLOCK <= count;
        eight x = {};
        if (whole) {
            x = pack_at<DROPOUT_BLOCK>(in + start);
        } else {
            for (int e = 0; start + e < count; e++) x.value[e] = in[start + e];
        }
        const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        uint32_t counter[4], word[4];
        dropout_counter(layer, number, first / DROPOUT_BLOCK + block, counter);
        philox4x32(counter, key, word);
#pragma unroll
        for (int e = 0; e < DROPOUT_BLOCK; e++) {
            const uint32_t bits = word[e / 2] >> 16 * (e % 2) & 0xffff;
            x.value[e] = bits < threshold ? T(real<T>(0)) : T(scale * real<T>(x.value[e]));
        }
        if (whole) {
            pack_at<DROPOUT_BLOCK>(out + start) = x;
        } else {
            for (int e = 0; start + e < count; e++) out[start + e] = x.value[e];
        }
    }
}

template <typename T>
void cuda_dropout(void *opaque, size_t count, const struct dropout *dropout, const void *in, void *out) {
    cuda_ops_context *context = open_ops(opaque);
    const unsigned blocks = cuda_grid_for(count, THREADS * DROPOUT_BLOCK);
    dropout_kernel<T><<<blocks, THREADS, 0, context->stream>>>(
        count, dropout_threshold(dropout->rate), (real<T>)dropout_scale(dropout->rate), dropout->seed,
        dropout->layer, dropout->step, dropout->first, (const T *)in, (T *)out);
    CUDA_LAUNCHED(&context->fault, "dropout_kernel");
}

#define INSTANTIATE(T) \
    template void cuda_dropout<T>(void *, size_t, const struct dropout *, const void *, void *);
INSTANTIATE(float)
INSTANTIATE(double)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)
