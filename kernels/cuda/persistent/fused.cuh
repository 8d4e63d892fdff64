/* Engine fused on the GPU: a persistent kernel runs many training steps in one launch. It has several
   forms; fused.cu chooses the one with the shortest expected step. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_FUSED_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_FUSED_CUH

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "kernels/fused.h"
}
#include "kernels/cuda/gemm/6_tuned.cuh"

/* Hz. Estimates assume an H100; only the number of SMs is that of the GPU in use. */
static const double FUSED_CLOCK = 1.7e9;

/* SMs that a network may occupy. */
static inline int fused_processors(const tuned_context *context, const fused_network *network) {
    const int all = context->processors,
              networks = network->concurrent_networks ? (int)network->concurrent_networks : 1;
    return all > networks ? all / networks : 1;
}

/* A network that a form has opened: `run`, `describe` and `close` as in kernels/fused.h. */
struct fused_instance {
    size_t (*run)(fused_instance *self, size_t first, size_t count);
    void (*describe)(const fused_instance *self, char *text, size_t size);
    void (*close)(fused_instance *self);
    size_t
        longest; /* 0, or the most steps of a launch; at its multiples a launch starts from weights alone */
};

struct fused_form {
    const char *name;

    /* Expected seconds of a step; 0 if the form does not support the network, with the reason (a phrase) in
       `why`. */
    double (*estimate)(const tuned_context *context, const fused_network *network, char *why, size_t size);

    /* NULL on failure, with the reason in `why`. */
    fused_instance *(*open)(tuned_context *context, const fused_network *network, char *why, size_t size);
};

extern const fused_form fused_tiled, fused_two_hidden, fused_two_ahead, fused_split_pixels, fused_split_units,
    fused_look_ahead;

#endif
