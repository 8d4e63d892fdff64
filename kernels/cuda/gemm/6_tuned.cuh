/* The own kernels of cuda-tuned. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_TUNED_CUH
#define TESSERA_KERNELS_CUDA_GEMM_TUNED_CUH

extern "C" {
#include "kernels/gemm.h"
}
#include "kernels/cuda/ops/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops/reduce.cuh"
#include "kernels/cuda/tensor/bf16.cuh"
#include "kernels/cuda/tensor/bf16_output_large.cuh"
#include "kernels/cuda/tensor/bf16x6.cuh"
#include "kernels/cuda/tensor/float32.cuh"
#include "kernels/cuda/tensor/short.cuh"
#include "kernels/cuda/tensor/tf32.cuh"

struct tuned_context {
    cudaStream_t stream;
    struct cuda_fault fault;
    struct cuda_reduction reduction;
    int shared_bytes; /* limit of a block */
    int processors;   /* SMs */
    int major;        /* compute capability: 8 and above copies to shared memory asynchronously (cp.async) */
    void *library;    /* the context of cublas; NULL until the first call that cuBLAS runs */
    enum gemm_precision precision;
    int tensor_cores; /* the option `tensor`, of float32 products and those of 16 bits */
    struct float32_workspace float32;
    struct later_sums later;
    struct bf16_workspace bf16;
    struct short_workspace short_rows;
    struct bf16x6_workspace bf16x6;
    bool tf32_open;
    bool output_open; /* of bf16_output.cu */
    bool large_output_open;
    struct large_output_clusters large_output;
    unsigned float32_output_blocks;
    bool float32_output_large_open;
};

/* Engine fused: kernels/cuda/persistent/fused.cu. */
extern "C" const struct gemm_fused cuda_fused;

/* k-means, engine fused: kernels/cuda/cluster/fused.cu. */
extern "C" const struct gemm_nearest cuda_nearest;

/* 6_tuned_narrow.cu: one dimension is at most 16. */
static const int NARROW_SHARED = 96 << 10; /* bytes that a block needs */
bool narrow_takes(const struct gemm_call *call);
bool narrow_fuses_backward(const struct gemm_call *call); /* only for calls that narrow_takes */
void narrow_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher);

/* 6_tuned_narrow_bf16.cu: the same for 16 bits, which those above call. */
bool narrow_bf16_takes(const struct gemm_call *call);
bool narrow_bf16_fuses_backward(const struct gemm_call *call);
void narrow_bf16_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher);

/* 6_tuned_small.cu: few multiplications, so that latency dominates. */
static const double SMALL_MULTIPLICATIONS = 64 << 20; /* above these cuBLAS is faster */
bool small_takes(const struct gemm_call *call);
void small_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher);

/* 6_tuned_few_rows.cu: the output layer of a small batch. */
bool few_rows_takes(const struct gemm_call *call);
void few_rows_gemm(const struct gemm_call *call, cuda_launcher &launcher);

/* 6_tuned_few_rows_tn.cu: its weight gradient, with or without the update of the weights (NULL: without). */
bool few_rows_tn_takes(const struct gemm_call *call);
bool few_rows_tn_updates(const struct gemm_call *call, const struct weight_update *update);
void few_rows_tn_gemm(const struct gemm_call *call, const struct weight_update *update,
                      cuda_launcher &launcher);

/* 6_tuned_output.cu: all of it, in one kernel of a training step. Can the kernel compute this layer? */
bool float32_output_takes(const struct output_layer *layer);
/* The thread blocks of the kernel's cluster on this GPU; 0: it cannot run. */
unsigned float32_output_blocks(void);
/* For layers that it takes; errors go to launcher.fault. */
void float32_output(const struct output_layer *layer, unsigned blocks, cuda_launcher &launcher);

/* 6_tuned_output_large.cu: the same for many images, in two kernels. Can this GPU run them? */
bool float32_output_large_open(void);
bool float32_output_large_takes(const struct output_layer *layer);
void float32_output_large(struct tuned_context *context, const struct output_layer *layer,
                          cuda_launcher &launcher);

/* Calls `function<T, C>()`: the types of A and B, and of C. */
template <typename F> static void with_types(const struct gemm_call *call, F function) {
    if (call->dtype == GEMM_F32) {
        function.template operator()<float, float>();
    } else if (call->dtype == GEMM_F64) {
        function.template operator()<double, double>();
    } else if (call->dtype == GEMM_F16) {
        call->c_f32 ? function.template operator()<__half, float>()
                    : function.template operator()<__half, __half>();
    } else {
        call->c_f32 ? function.template operator()<__nv_bfloat16, float>()
                    : function.template operator()<__nv_bfloat16, __nv_bfloat16>();
    }
}

#endif
