/* Sums over the parts of a batch: gradients, and the values beside them.

   Bound by   bytes: three passes over the gradients; the launch for the values. */
extern "C" {
#include "kernels/parts.h"
}
#include "kernels/cuda/ops/element.cuh"
#include "kernels/cuda/ops/ops.cuh"

static const unsigned THREADS = 256;

template <typename R> __global__ void add_kernel(size_t count, const R *from, R *into) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS)
        into[i] += from[i];
}

template <typename R> void cuda_add(void *opaque, size_t count, const void *from, void *into) {
    cuda_ops_context *context = open_ops(opaque);
    add_kernel<R>
        <<<cuda_grid_for(count, THREADS), THREADS, 0, context->stream>>>(count, (const R *)from, (R *)into);
    CUDA_LAUNCHED(&context->fault, "add_kernel");
}

template void cuda_add<float>(void *, size_t, const void *, void *);
template void cuda_add<double>(void *, size_t, const void *, void *);

__global__ static void part_values_kernel(const tally *part, const double *stop, batch_values *values) {
    *values = values_of_part(part, *stop);
}

__global__ static void count_batch_kernel(const batch_values *values, double *loss, tally *to) {
    *loss = count_values(values, to);
}

void cuda_part_values(void *opaque, const struct tally *part, const double *stop,
                      struct batch_values *values) {
    cuda_ops_context *context = open_ops(opaque);
    part_values_kernel<<<1, 1, 0, context->stream>>>(part, stop, values);
    CUDA_LAUNCHED(&context->fault, "part_values_kernel");
}

void cuda_count_batch(void *opaque, const struct batch_values *values, double *loss, struct tally *tally) {
    cuda_ops_context *context = open_ops(opaque);
    count_batch_kernel<<<1, 1, 0, context->stream>>>(values, loss, tally);
    CUDA_LAUNCHED(&context->fault, "count_batch_kernel");
}
