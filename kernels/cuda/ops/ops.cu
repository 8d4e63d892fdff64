/* Element-wise ops on the GPU, as kernels/host/ops/dtype_ops.h: one pass over memory and one launch each.
   This file has gather, rounding, sign steps and the table; the others have files of their own.

   Bound by   the launch (2 us) for small batches, bytes for large ones. */
#include "kernels/cuda/ops/ops.cuh"

#include "kernels/cuda/ops/element.cuh"

static const unsigned THREADS = 256;

void *cuda_grow(void **memory, size_t *bytes, size_t wanted, cudaStream_t stream, struct cuda_fault *fault) {
    if (wanted <= *bytes) return *memory;
    CUDA_TRY(fault, cudaStreamSynchronize(stream));
    CUDA_TRY(fault, cudaFree(*memory));
    *memory = NULL;
    *bytes = 0;
    if (!CUDA_TRY(fault, cudaMalloc(memory, wanted))) return NULL;
    *bytes = wanted;
    return *memory;
}

void *cuda_scratch(struct cuda_ops_context *context, size_t bytes) {
    return cuda_grow(&context->scratch, &context->scratch_bytes, bytes, context->stream, &context->fault);
}

/* A thread converts WIDE pixels at a time; rows start at multiples of WIDE. */
template <typename T, int WIDE>
__global__ void gather_kernel(size_t rows, size_t features, enum input_range range, const uint8_t *images,
                              const uint8_t *labels, const uint32_t *index, T *x, uint8_t *y) {
    const real<T> scale = real<T>(input_scale(range)), offset = real<T>(input_offset(range));
    for (size_t r = (size_t)blockIdx.x * blockDim.y + threadIdx.y; r < rows;
         r += (size_t)gridDim.x * blockDim.y) {
        const size_t i = index ? index[r] : r;
        for (size_t j = threadIdx.x * WIDE; j < features; j += blockDim.x * WIDE) {
            const pack<uint8_t, WIDE> in = pack_at<WIDE>(images + i * features + j);
            pack<T, WIDE> out;
#pragma unroll
            for (int p = 0; p < WIDE; p++) out.value[p] = T(scale * (real<T>(in.value[p]) - offset));
            pack_at<WIDE>(x + r * features + j) = out;
        }
        if (threadIdx.x == 0) y[r] = labels[i];
    }
}

template <typename T>
static void gather(void *opaque, size_t rows, size_t features, enum input_range range, const uint8_t *images,
                   const uint8_t *labels, const uint32_t *index, void *x, uint8_t *y) {
    cuda_ops_context *context = open_ops(opaque);
    const dim3 block(128, 2);
    const auto run = [&]<int WIDE>() {
        launch_op(context, "gather_kernel", gather_kernel<T, WIDE>, cuda_grid_for(rows, block.y), block, rows,
                  features, range, images, labels, index, (T *)x, y);
    };
    if (packs_fit(images, features, features, 8)) /* a row of MNIST in one turn of the threads */
        run.template operator()<8>();
    else if (packs_fit(images, features, features, 4))
        run.template operator()<4>();
    else
        run.template operator()<1>();
}

template <typename T> __global__ void round_kernel(size_t count, const real<T> *values, T *rounded) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS)
        rounded[i] = T(values[i]);
}

template <typename T>
static void round_to_storage(void *opaque, size_t count, const void *values, void *rounded) {
    cuda_ops_context *context = open_ops(opaque);
    round_kernel<T><<<cuda_grid_for(count, THREADS), THREADS, 0, context->stream>>>(
        count, (const real<T> *)values, (T *)rounded);
    CUDA_LAUNCHED(&context->fault, "round_kernel");
}

template <typename T> __global__ void sign_step_kernel(size_t count, real<T> amount, const T *grad, T *x) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS) {
        const real<T> slope = real<T>(grad[i]);
        x[i] = T(real<T>(x[i]) + (slope > 0 ? amount : slope < 0 ? -amount : real<T>(0)));
    }
}

template <typename T>
static void sign_step(void *opaque, size_t count, double amount, const void *grad, void *x) {
    cuda_ops_context *context = open_ops(opaque);
    sign_step_kernel<T><<<cuda_grid_for(count, THREADS), THREADS, 0, context->stream>>>(
        count, (real<T>)amount, (const T *)grad, (T *)x);
    CUDA_LAUNCHED(&context->fault, "sign_step_kernel");
}

template <typename T> static const struct ops *table(void) {
    static const struct ops ops = {
        .gather = gather<T>,
        .bias_activation = cuda_bias_activation<T>,
        .bias_activation_backward = cuda_bias_activation_backward<T>,
        .dropout = cuda_dropout<T>,
        .sign_step = sign_step<T>,
        .softmax_cross_entropy = cuda_softmax_cross_entropy<T>,
        .add = cuda_add<real<T>>,
        .part_values = cuda_part_values,
        .count_batch = cuda_count_batch,
        .update = cuda_update<T>,
        .clip_norm = cuda_clip_norm<real<T>>,
        .max_norm = cuda_max_norm<real<T>>,
        .round = round_to_storage<T>,
        .augment = cuda_augment,
    };
    return &ops;
}

const struct ops *cuda_ops(enum gemm_dtype dtype) {
    return dtype == GEMM_F32    ? table<float>()
           : dtype == GEMM_F64  ? table<double>()
           : dtype == GEMM_BF16 ? table<__nv_bfloat16>()
                                : table<__half>();
}
