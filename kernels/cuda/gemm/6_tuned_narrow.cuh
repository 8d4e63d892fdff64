/* Shared by the narrow products of cuda-tuned. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_TUNED_NARROW_CUH
#define TESSERA_KERNELS_CUDA_GEMM_TUNED_NARROW_CUH

#include "kernels/cuda/gemm/6_tuned.cuh"
#include "kernels/cuda/gemm/gemm.cuh"

/* Can rows be read in packs of 16 bytes? */
static bool whole_packs(const gemm_call *call, const void *memory, size_t cols, size_t ld) {
    const size_t size = call->dtype == GEMM_F32 ? sizeof(float) : sizeof(double);
    return packs_fit(memory, cols, ld, 16 / size, size);
}

/* Calls `function<N>()` with the smallest multiple of 4 that holds `width`. */
template <typename F> static void with_width(size_t width, F function) {
    if (width <= 4) return function.template operator()<4>();
    if (width <= 8) return function.template operator()<8>();
    if (width <= 12) return function.template operator()<12>();
    return function.template operator()<16>();
}

/* Loads N elements of shared memory, the same address in all lanes (broadcast). */
template <int N, typename R> __device__ inline void load_row(R (&row)[N], const R *from) {
    constexpr int W = WIDEST<R> < N ? WIDEST<R> : N;
#pragma unroll
    for (int j = 0; j < N; j += W) {
        const pack<R, W> some = pack_at<W>(from + j);
#pragma unroll
        for (int e = 0; e < W; e++) row[j + e] = some.value[e];
    }
}

/* Number of chunks of `length`, at least `shortest` each, with `groups` blocks a chunk: one wave of resident
   blocks, because a second wave takes as long as the first. */
template <typename K>
static size_t chunks_for(tuned_context *context, K kernel, size_t threads, size_t shared, size_t groups,
                         size_t length, size_t shortest) {
    int blocks = 1; /* an SM */
    CUDA_TRY(&context->fault,
             cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, (int)threads, shared));
    const size_t resident = (size_t)context->processors * (blocks > 0 ? blocks : 1),
                 most = (length + shortest - 1) / shortest;
    const size_t chunks = resident / groups > 1 ? resident / groups : 1;
    return chunks < most ? chunks : most;
}

/* 6_tuned_narrow_nt.cu */
void narrow_nt_gemm(struct tuned_context *context, const struct gemm_call *call, cuda_launcher &launcher);

#endif
