/* Engine fused on the GPU: one kernel runs many steps. There are forms of it; fused.cu takes the one that
   expects to be faster. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_FUSED_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_FUSED_CUH

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "kernels/fused.h"
}
#include "kernels/cuda/gemm/6_tuned.cuh"

/* Hz. Estimates are for an H100; of other GPUs they know the number of SMs alone. */
static const double FUSED_CLOCK = 1.7e9;

/* SMs that a network may keep busy. */
static inline int fused_processors(const tuned_context *context, const fused_network *network) {
    const int all = context->processors,
              networks = network->concurrent_networks ? (int)network->concurrent_networks : 1;
    return all > networks ? all / networks : 1;
}

struct fused_form {
    /* Seconds that a step will take, about; 0: it cannot, for the reason (a phrase) in `why`. */
    double (*estimate)(const tuned_context *context, const fused_network *network, char *why, size_t size);

    /* As in kernels/fused.h. */
    void *(*open)(tuned_context *context, const fused_network *network, char *why, size_t size);
    void (*close)(void *state);
    size_t (*run)(void *state, size_t first, size_t count);
    void (*describe)(void *state, char *text, size_t size);
    const char *name;
};

extern const fused_form fused_phases, fused_pair, fused_resident, fused_whole;

/* Forms that multiply with the pixels as they are take those of range [0, 1] alone. */
static inline bool fused_byte_pixels(const fused_network *network, char *why, size_t size) {
    if (network->range == INPUT_UNIT) return true;
    snprintf(why, size, "it takes pixels of input-range 0,1");
    return false;
}

/* Hands out pieces of `base`; with NULL it only measures. */
static inline void *fused_take(char *base, size_t *used, size_t bytes) {
    void *piece = base ? base + *used : NULL;
    *used += (bytes + 255) / 256 * 256;
    return piece;
}

/* A state S of a form, zero but for `context`, `network` and what `set_up(state)` makes of it; NULL, after
   close(state), if that fails, with the reason in `why` unless it has put one there. */
template <typename S, typename F>
static void *fused_make_state(tuned_context *context, const fused_network *network, char *why, size_t size,
                              void (*close)(void *), F set_up) {
    S *state = (S *)calloc(1, sizeof *state);
    if (size) why[0] = '\0';
    if (state) {
        state->context = context;
        state->network = *network;
        if (set_up(state)) return state;
        close(state);
    }
    if (size && !why[0])
        snprintf(why, size, "%s", context->fault.message[0] ? context->fault.message : "out of memory");
    return NULL;
}

/* Memory of the GPU, zero. */
static inline bool fused_memory(tuned_context *context, void **memory, size_t bytes) {
    cuda_fault *fault = &context->fault;
    return CUDA_TRY(fault, cudaMalloc(memory, bytes)) &&
           CUDA_TRY(fault, cudaMemsetAsync(*memory, 0, bytes, context->stream)) &&
           CUDA_TRY(fault, cudaStreamSynchronize(context->stream));
}

/* Launches `count` steps of a state whose packets carry `tag` and those that follow; in a launch that would
   reach the last tag they start anew, for which nothing may be there that has one of them. Returns how many
   steps ran: all or none. */
template <typename S, typename L> static size_t fused_launch(S *state, size_t count, L launch) {
    cuda_fault *fault = &state->context->fault;
    if (count > UINT32_MAX - state->tag) {
        if (!CUDA_TRY(fault, cudaMemsetAsync(state->memory, 0, state->bytes, state->context->stream)))
            return 0;
        state->tag = 1;
    }
    const bool ran = launch(fault);
    state->tag += (uint32_t)count;
    return ran ? count : 0;
}

/* A kernel that is a whole step has to stay in the instruction cache: activations other than ReLU are called,
   not inlined. */
#ifdef __CUDACC__
template <typename R> __device__ __noinline__ R activate_apart(enum activation activation, R z) {
    return activate(activation, z);
}

template <typename R> __device__ __noinline__ R derivative_apart(enum activation activation, R z, R y) {
    return derivative(activation, z, y);
}

template <typename R> __device__ inline R activate_compactly(enum activation activation, R z) {
    return activation == ACTIVATION_RELU ? activate(ACTIVATION_RELU, z) : activate_apart(activation, z);
}

template <typename R> __device__ inline R derivative_compactly(enum activation activation, R z, R y) {
    return activation == ACTIVATION_RELU ? derivative(ACTIVATION_RELU, z, y)
                                         : derivative_apart(activation, z, y);
}
#endif

#endif
