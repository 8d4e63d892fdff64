/* Engine fused on the GPU: one kernel runs many steps. There are forms of it; fused.cu takes the one that expects to be faster. */
#ifndef TESSERA_KERNELS_CUDA_FUSED_CUH
#define TESSERA_KERNELS_CUDA_FUSED_CUH

extern "C" {
#include "kernels/fused.h"
}
#include "kernels/cuda/tuned.cuh"

struct fused_form {
    const char *name;

    /* Seconds that a step will take, about; 0: it cannot, for the reason (a phrase) in `why`. */
    double (*estimate)(const tuned_context *context, const fused_network *network, char *why, size_t size);

    /* As in kernels/fused.h. */
    void *(*open)(tuned_context *context, const fused_network *network, char *why, size_t size);
    void (*close)(void *state);
    size_t (*run)(void *state, size_t first, size_t count);
};

extern const fused_form fused_phases, fused_resident;

static inline size_t fused_rows(const fused_network &network, size_t step) {
    const size_t left = network.count - step * network.batch;
    return left < network.batch ? left : network.batch;
}

#endif
