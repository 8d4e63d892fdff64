/* cuda-tuned: own kernels for the shapes that cuBLAS serves badly, cuBLAS for the others.

   Idea       cuBLAS is built for large products (2048 x 2048). A training step on MNIST also has an output
              layer of 10 columns, bound by memory (6_tuned_narrow.cu), and small batches, bound by latency
              (6_tuned_small.cu). On compute capability 9.0 medium and large float32 products run on the
              tensor cores, as accurate as float32 arithmetic, and so do those of 16 bits and of TF32
              (kernels/cuda/tensor/). Own kernels run bias and activation while C is in registers.
   Bound by   bytes of the large matrix (narrow); latency (small); tensor cores; others as 5_cublas.cu
   Improves   5_cublas.cu; last of the course
   Run        ./train --backend cuda-tuned --precision f32 (or tf32, bf16, fp16) */
#include "kernels/cuda/gemm/6_tuned.cuh"

#include <cublas_v2.h>
#include <stdlib.h>

extern "C" {
#include "kernels/ops.h"
}
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/tensor/bf16_gradient.cuh"
#include "kernels/cuda/tensor/bf16_output.cuh"

extern "C" const struct gemm_backend gemm_cublas;

enum { TENSOR_AUTO, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BF16X6 };
static const struct gemm_option tuned_options[] = {
    {"tensor", "auto|always|never|bf16x6", "auto",
     "own kernels on tensor cores of compute capability 9.0, for float32, tf32, bf16 and fp16: where they "
     "are faster, always, or never; bf16x6: always, for float32 and tf32, the one for medium batches"},
    {}};

static void tuned_destroy(void *opaque) {
    tuned_context *context = (tuned_context *)opaque;
    if (context->library) gemm_cublas.destroy(context->library);
    reduction_close(&context->reduction);
    float32_workspace_close(&context->float32);
    context->later.close();
    free(context);
}

/* The context of cublas, which takes 0.1 s to make. A captured graph may have the first call that needs it:
   relaxed, because it allocates memory. NULL if it does not start, with the reason in the fault. */
static void *library_of(tuned_context *context) {
    if (context->library || context->fault.message[0]) return context->library;
    const gemm_setup setup = {.stream = context->stream, .precision = context->precision};
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    context->library = gemm_cublas.create(&setup, context->fault.message, sizeof context->fault.message);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return context->library;
}

static bool open_parts(tuned_context *context, const struct gemm_setup *setup, char *why, size_t size) {
    int device = 0;
    context->stream = (cudaStream_t)setup->stream;
    context->precision = setup->precision;
    context->tensor_cores = (int)setup->option[0].number;
    const auto ask = [&](int *value, cudaDeviceAttr attribute) {
        return CUDA_TRY(&context->fault, cudaDeviceGetAttribute(value, attribute, device));
    };
    const bool open = CUDA_TRY(&context->fault, cudaGetDevice(&device)) &&
                      ask(&context->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin) &&
                      ask(&context->processors, cudaDevAttrMultiProcessorCount) &&
                      ask(&context->major, cudaDevAttrComputeCapabilityMajor) &&
                      reduction_open(&context->reduction, &context->fault) &&
                      float32_workspace_open(&context->float32, (unsigned)context->processors,
                                             setup->precision == GEMM_TF32, &context->fault);
    if (open) bf16_workspace_open(&context->bf16, context->processors, &context->reduction, &context->later);
    if (open)
        bf16x6_workspace_open(&context->bf16x6, setup->precision == GEMM_TF32 ? 2 : 3, context->processors,
                              &context->reduction);
    if (open) short_workspace_open(&context->short_rows, setup->precision == GEMM_TF32);
    if (open)
        context->tf32_open =
            setup->precision == GEMM_TF32 && context->float32.open && context->bf16.open && tf32_open();
    if (open) context->output_open = bf16_output_open();
    if (open) context->large_output_open = large_output_open(&context->large_output);
    if (open) context->float32_output_blocks = float32_output_blocks();
    if (open) context->float32_output_large_open = float32_output_large_open();
    if (!open) snprintf(why, size, "%s", context->fault.message);
    return open;
}

static void *tuned_create(const struct gemm_setup *setup, char *why, size_t size) {
    tuned_context *context = (tuned_context *)calloc(1, sizeof *context);
    if (!context) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    if (open_parts(context, setup, why, size)) return context;
    tuned_destroy(context);
    return NULL;
}

static bool tuned_supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)dtype;
    return op != GEMM_TT;
}

enum kernel { NARROW, GRADIENT, FEW_ROWS, FEW_ROWS_TN, SMALL, TENSOR, SHORT, BF16X6, BF16, TF32, LIBRARY };

static bool on_tensor_cores(tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    if (context->precision != GEMM_TRUE || !float32_supports(&context->float32, call)) return false;
    const bool wanted = context->tensor_cores == TENSOR_ALWAYS ||
                        (context->tensor_cores == TENSOR_AUTO && float32_pays(call));
    return wanted && (launcher.describe || float32_reserve(&context->float32, call, launcher.fault));
}

/* TF32 that is not short. */
static bool tf32_on_tensor_cores(tuned_context *context, const struct gemm_call *call,
                                 cuda_launcher &launcher) {
    if (!context->tf32_open || !tf32_supports(&context->bf16, call)) return false;
    const bool wanted = context->tensor_cores == TENSOR_ALWAYS ||
                        (context->tensor_cores == TENSOR_AUTO && tf32_pays(&context->bf16, call));
    return wanted && (launcher.describe || call->op == GEMM_NN ||
                      float32_reserve_transposed(&context->float32, call, launcher.fault));
}

static bool bf16_on_tensor_cores(const tuned_context *context, const struct gemm_call *call) {
    return bf16_supports(&context->bf16, call) &&
           (context->tensor_cores == TENSOR_ALWAYS ||
            (context->tensor_cores == TENSOR_AUTO && bf16_pays(&context->bf16, call)));
}

/* Does the kernel for up to 128 rows, of 16 bits or TF32, run this call? */
static bool is_short(const tuned_context *context, const struct gemm_call *call) {
    const size_t fewest_rows = 16, fewest_columns = 64;
    return short_supports(&context->short_rows, call) &&
           (context->tensor_cores == TENSOR_ALWAYS ||
            (context->tensor_cores == TENSOR_AUTO && call->m >= fewest_rows && call->n >= fewest_columns));
}

/* Of three planes; with TF32 three products of two planes. */
static bool six_products_open(const tuned_context *context) {
    return (context->precision == GEMM_TRUE || context->precision == GEMM_TF32) && context->bf16x6.open &&
           (context->tensor_cores == TENSOR_BF16X6 || context->tensor_cores == TENSOR_AUTO);
}

static bool by_six_products(const tuned_context *context, const struct gemm_call *call) {
    return six_products_open(context) && bf16x6_supports(&context->bf16x6, call) &&
           (context->tensor_cores == TENSOR_BF16X6 || bf16x6_pays(&context->bf16x6, call));
}

static bool by_gradient_kernel(const tuned_context *context) {
    return context->bf16.open && context->tensor_cores == TENSOR_AUTO;
}

/* Without the update other kernels are faster. */
static bool is_weight_gradient(const tuned_context *context, const struct gemm_call *call) {
    return call->as_update && by_gradient_kernel(context) && bf16_gradient_takes(call);
}

/* Is it the weight gradient of a large batch? */
static bool is_large_gradient(const tuned_context *context, const struct gemm_call *call) {
    return call->as_update && by_gradient_kernel(context) && bf16_large_gradient_takes(&context->bf16, call);
}

static enum kernel choose(tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    const bool always = context->tensor_cores == TENSOR_ALWAYS, bf16 = bf16_on_tensor_cores(context, call);
    const bool short_rows = is_short(context, call);
    if (always && short_rows) return SHORT;
    if (always && bf16) return BF16;
    if (always && tf32_on_tensor_cores(context, call, launcher)) return TF32;
    if (always && on_tensor_cores(context, call, launcher)) return TENSOR;
    const bool six = by_six_products(context, call);
    if (six && context->tensor_cores == TENSOR_BF16X6) return BF16X6;
    if (context->major >= 8 && context->shared_bytes >= NARROW_SHARED && narrow_takes(call)) return NARROW;
    if (is_weight_gradient(context, call)) return GRADIENT;
    if (short_rows) return SHORT;
    if (bf16 || is_large_gradient(context, call)) return BF16;
    if (six) return BF16X6;
    if (few_rows_takes(call)) return FEW_ROWS;
    if (few_rows_tn_takes(call)) return FEW_ROWS_TN;
    if (small_takes(call)) return SMALL;
    if (tf32_on_tensor_cores(context, call, launcher)) return TF32;
    return on_tensor_cores(context, call, launcher) ? TENSOR : LIBRARY;
}

static bool tuned_fuses(void *opaque, const struct gemm_call *call) {
    tuned_context *context = (tuned_context *)opaque;
    cuda_launcher launcher = {.stream = context->stream, .fault = &context->fault};
    const enum kernel kernel = choose(context, call, launcher);
    if (kernel == FEW_ROWS || kernel == SMALL || kernel == TENSOR || kernel == SHORT || kernel == BF16X6 ||
        kernel == BF16 || kernel == TF32)
        return true;
    return kernel == NARROW && (call->backward ? narrow_fuses_backward(call) : call->op == GEMM_NN);
}

/* Returns false if cuBLAS has to run the call. */
static bool launch_own(tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    const enum kernel kernel = choose(context, call, launcher);
    if (!launcher.describe) tf32_restore(&context->float32, call, kernel == TF32, launcher);
    if (kernel != TENSOR && kernel != TF32 && !launcher.describe) float32_forget(&context->float32, call);
    if (kernel == NARROW) narrow_gemm(context, call, launcher);
    if (kernel == GRADIENT) bf16_gradient_gemm(call, (unsigned)context->processors, launcher);
    if (kernel == FEW_ROWS) few_rows_gemm(call, launcher);
    if (kernel == FEW_ROWS_TN) few_rows_tn_gemm(call, NULL, launcher);
    if (kernel == SMALL) small_gemm(context, call, launcher);
    if (kernel == TENSOR) float32_gemm(&context->float32, call, launcher);
    if (kernel == SHORT) short_gemm(&context->short_rows, call, launcher);
    if (kernel == BF16X6) bf16x6_gemm(&context->bf16x6, call, launcher);
    if (kernel == BF16) bf16_gemm(&context->bf16, call, launcher);
    if (kernel == TF32) tf32_gemm(&context->bf16, &context->float32, call, launcher);
    return kernel != LIBRARY;
}

/* A weight gradient by a kernel that does not use the scratch memory, which the sums read. */
static bool runs_beside_sums(tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher) {
    const enum kernel kernel = choose(context, call, launcher);
    return call->op == GEMM_TN && (kernel == BF16 || kernel == TF32 || kernel == LIBRARY);
}

static enum gemm_status tuned_gemm(void *opaque, const struct gemm_call *call) {
    tuned_context *context = (tuned_context *)opaque;
    if (call->m == 0 || call->n == 0) return GEMM_OK;
    if ((call->epilogue || call->backward) && !tuned_fuses(opaque, call)) return GEMM_UNSUPPORTED;
    cuda_launcher launcher = {.stream = context->stream, .fault = &context->fault};
    struct later_sums before = context->later;
    const bool beside = before.pending && runs_beside_sums(context, call, launcher);
    context->later.pending = false;
    if (!beside) before.join(context->stream, &context->fault);
    const bool own = launch_own(context, call, launcher);
    void *const library = own ? NULL : library_of(context);
    const enum gemm_status status = library ? gemm_cublas.gemm(library, call) : GEMM_OK;
    if (beside) before.join(context->stream, &context->fault);
    return context->fault.message[0] ? GEMM_FAILED : status;
}

/* The kernel that does this update; LIBRARY: none. */
static enum kernel choose_update(tuned_context *context, const struct gemm_call *call,
                                 const struct weight_update *update) {
    cuda_launcher launcher = {.stream = context->stream, .fault = &context->fault};
    struct gemm_call product = *call;
    product.as_update = true;
    const enum kernel kernel = call->k ? choose(context, &product, launcher)
                               : by_gradient_kernel(context) && gemm_is_16bit(call->dtype) ? GRADIENT
                               : six_products_open(context)                                ? BF16X6
                                                                                           : LIBRARY;
    const bool can = kernel == GRADIENT ? bf16_gradient_updates(call, update)
                     : kernel == BF16
                         ? is_large_gradient(context, &product) && bf16_gradient_fits(call, update)
                     : kernel == BF16X6      ? bf16x6_updates(call, update)
                     : kernel == FEW_ROWS_TN ? few_rows_tn_updates(call, update)
                                             : false;
    return can ? kernel : LIBRARY;
}

static bool tuned_fuses_update(void *opaque, const struct gemm_call *call,
                               const struct weight_update *update) {
    return choose_update((tuned_context *)opaque, call, update) != LIBRARY;
}

/* Neighbours in the list that the same kernel does, in one launch if it can. An update on a stream of its own
   need not wait for pending sums: these are of 16 bits, whose updates are a list without such streams. Beside
   the weight gradients of large batches, which come first, run pending sums and all that has no product. */
static enum gemm_status tuned_gemm_update(void *opaque, const struct gemm_call *calls,
                                          const struct weight_update *updates, size_t count) {
    tuned_context *context = (tuned_context *)opaque;
    const auto kernel_of = [&](size_t i) { return choose_update(context, calls + i, updates + i); };
    size_t products = count;
    for (size_t i = 0; i < count; i++)
        if (kernel_of(i) == LIBRARY) return GEMM_UNSUPPORTED;
    while (products && !calls[products - 1].k) products--;
    if (products == 0 || kernel_of(0) != BF16) {
        context->later.join(context->stream, &context->fault);
        products = count;
    } else if (products < count) {
        const cuda_launcher before = {.stream = context->stream, .fault = &context->fault};
        context->later.run(before, [&](cuda_launcher &own) {
            bf16_gradient_update(calls + products, updates + products, count - products,
                                 (unsigned)context->processors, own);
        });
    }
    for (size_t i = 0, done; i < products; i += done) {
        const enum kernel kernel = kernel_of(i);
        const bool aside = updates[i].stream && (count == 1 || kernel == FEW_ROWS_TN);
        cudaStream_t stream = aside ? (cudaStream_t)updates[i].stream : context->stream;
        cuda_launcher launcher = {.stream = stream, .fault = &context->fault};
        for (done = 1; i + done < products && kernel != FEW_ROWS_TN && kernel_of(i + done) == kernel;) done++;
        if (kernel == GRADIENT)
            bf16_gradient_update(calls + i, updates + i, done, (unsigned)context->processors, launcher);
        if (kernel == BF16X6) done = bf16x6_update(&context->bf16x6, calls + i, updates + i, done, launcher);
        if (kernel == FEW_ROWS_TN) few_rows_tn_gemm(calls + i, updates + i, launcher);
        if (kernel == BF16)
            for (size_t l = 0; l < done; l++)
                bf16_large_gradient_update(&context->bf16, calls + i + l, updates + i + l, launcher);
    }
    context->later.join(context->stream, &context->fault);
    return context->fault.message[0] ? GEMM_FAILED : GEMM_OK;
}

/* The float32 kernels do not use tensor cores. */
static enum gemm_status tuned_output_layer(void *opaque, const struct output_layer *layer) {
    tuned_context *context = (tuned_context *)opaque;
    cuda_launcher launcher = {.stream = context->stream, .fault = &context->fault};
    const struct gemm_call *const calls[] = {layer->logits, layer->gradient, layer->input_gradient};
    context->later.join(context->stream, &context->fault);
    if (context->output_open && context->tensor_cores != TENSOR_NEVER && bf16_output_takes(layer)) {
        bf16_output(layer, launcher);
    } else if (context->large_output_open && context->tensor_cores != TENSOR_NEVER &&
               large_output_takes(layer)) {
        large_output(layer, &context->large_output, &context->reduction, context->later, launcher);
    } else if (context->float32_output_blocks && context->tensor_cores != TENSOR_ALWAYS &&
               float32_output_takes(layer)) {
        for (const struct gemm_call *call : calls) float32_forget(&context->float32, call);
        float32_output(layer, context->float32_output_blocks, launcher);
    } else if (context->float32_output_large_open && context->tensor_cores != TENSOR_ALWAYS &&
               float32_output_large_takes(layer)) {
        for (const struct gemm_call *call : calls) float32_forget(&context->float32, call);
        float32_output_large(context, layer, launcher);
    } else {
        return GEMM_UNSUPPORTED;
    }
    return context->fault.message[0] ? GEMM_FAILED : GEMM_OK;
}

static enum gemm_status tuned_gemm_batch(void *opaque, const struct gemm_call *call, size_t count,
                                         const struct gemm_strides *strides) {
    tuned_context *const context = (tuned_context *)opaque;
    void *library = library_of(context);
    context->later.join(context->stream, &context->fault);
    float32_forget_all(&context->float32);
    return library ? gemm_cublas.gemm_batch(library, call, count, strides) : GEMM_FAILED;
}

/* Reports no kernels for calls of cuBLAS. */
static size_t tuned_kernels(void *opaque, const struct gemm_call *call, struct gemm_kernel *list,
                            size_t size) {
    tuned_context *context = (tuned_context *)opaque;
    cuda_launcher launcher = {.fault = &context->fault, .describe = true, .list = list, .size = size};
    if (call->m && call->n && tuned_supports(call->dtype, call->op)) launch_own(context, call, launcher);
    return launcher.count;
}

static void tuned_describe(void *opaque, char *text, size_t size) {
    const tuned_context *context = (const tuned_context *)opaque;
    const char *tensor = "";
    if (context->tensor_cores != TENSOR_NEVER && context->float32.open && context->precision == GEMM_TRUE)
        tensor = " and, on tensor cores, medium and large float32 ones";
    if (six_products_open(context) && context->precision == GEMM_TF32)
        tensor = context->tensor_cores == TENSOR_BF16X6 ? " and, as two bfloat16 an operand, medium ones"
                                                        : " and, on tensor cores, TF32 ones";
    if (context->tensor_cores != TENSOR_NEVER && context->bf16.open) {
        if (context->precision == GEMM_MIXED_BF16) tensor = " and, on tensor cores, bfloat16 ones";
        if (context->precision == GEMM_MIXED_F16) tensor = " and, on tensor cores, half-precision ones";
    }
    snprintf(text, size, "own kernels for narrow and small products%s, else cuBLAS %d", tensor,
             CUBLAS_VER_MAJOR);
}

static bool tuned_takes_precision(enum gemm_precision precision) {
    return gemm_cublas.takes_precision(precision);
}

static const char *tuned_error(void *opaque) {
    const tuned_context *context = (const tuned_context *)opaque;
    return context->fault.message[0] ? context->fault.message
           : context->library        ? gemm_cublas.error(context->library)
                                     : "";
}

extern "C" const struct gemm_backend gemm_cuda_tuned = {
    .name = "cuda-tuned",
    .summary = "own kernels for narrow and small products, float32, tf32, bf16 and fp16 on tensor cores, "
               "cuBLAS for others",
    .device = GEMM_ON_CUDA,
    .supports = tuned_supports,
    .gemm = tuned_gemm,
    .create = tuned_create,
    .destroy = tuned_destroy,
    .options = tuned_options,
    .takes_precision = tuned_takes_precision,
    .fuses = tuned_fuses,
    .describe = tuned_describe,
    .kernels = tuned_kernels,
    .error = tuned_error,
    .fused = &cuda_fused,
    .nearest = &cuda_nearest,
    .gemm_batch = tuned_gemm_batch,
    .light_multiplications = SMALL_MULTIPLICATIONS,
    .fuses_update = tuned_fuses_update,
    .gemm_update = tuned_gemm_update,
    .output_layer = tuned_output_layer,
};
