/* The contract of engine "fused": whole training steps in one call, by those who own the GEMM inside them. A
   backend that can has the slot `fused` (kernels/gemm.h). The steps compute what the eager engine does:
   batch, forward, softmax cross-entropy, backward, SGD as kernels/ops.h defines them; on the host in the same
   order of sums within an element of a product, on a GPU in a fixed one of their own. After a bad step of the
   tally a call changes nothing, on a GPU as in kernels/ops.h. */
#ifndef TESSERA_KERNELS_FUSED_H
#define TESSERA_KERNELS_FUSED_H

#include <signal.h>

#include "kernels/ops.h"

enum { FUSED_MAX_LAYERS = 64 };

struct fused_layer {
    size_t in, out, ld; /* rows of the weights are ld >= out elements apart: only in mixed precision more */
    enum activation activation;            /* none for the last */
    void *weight, *bias;                   /* [in][out], [out]: updated in place */
    void *weight_velocity, *bias_velocity; /* the same; NULL without momentum */
};

/* What is trained and on what: all pointers are memory of the backend's device, and live longer than the
   state. */
struct fused_network {
    enum gemm_dtype dtype;
    enum gemm_precision precision; /* of the products; all else is float32, whatever it is */
    size_t depth;
    struct fused_layer layer[FUSED_MAX_LAYERS];
    double momentum, weight_decay;
    size_t batch, count, features;      /* rows of a full batch; images of an epoch; pixels of an image */
    enum input_range range;             /* of the pixels */
    const uint8_t *images, *labels;     /* [..][features], [..] */
    const uint32_t *order;              /* [count]: batch after batch */
    const struct step_scalars *scalars; /* by step of the epoch: the learning rates */
    double *losses;                     /* by step: receives the mean loss of its batch */
    struct tally *tally;
    /* networks that train on the device at the same time, this one included (0 means 1); each may use 1 /
       share of the GPU */
    size_t share;
};

/* Seconds. An update is part of the product that gives the gradient. */
struct fused_times {
    double gemm[3][FUSED_MAX_LAYERS]; /* [NN, TN, NT][layer] */
    double elementwise, batch;
};

struct gemm_fused {
    /* A state for this network with the backend's context, or NULL with the reason (a phrase) in `why`.
       Unless `forced`, steps that are expected to be slower than op by op are such a reason. */
    void *(*open)(void *context, const struct fused_network *network, bool forced, char *why, size_t size);
    void (*close)(void *state);

    /* Steps `first` .. first + count - 1 of an epoch, one at least, on the threads that the backend had at
       `open`, or has if these are fewer. Returns how many were done: fewer if *stop (may be NULL) was not 0
       after a step, or after a step whose loss was not finite, which changes no weight. Adds to `times`. A
       GPU may return before the work is done: the number of steps that it took on, whatever a loss or *stop
       will say, and no times. 0: it failed, and `error` of the backend knows why. */
    size_t (*run)(void *state, size_t first, size_t count, const volatile sig_atomic_t *stop,
                  struct fused_times *times);

    /* (optional) How, in a phrase: the way chosen for this network, and what was expected of it. */
    void (*describe)(void *state, char *text, size_t size);

    /* (optional) What there was to choose from, a line each: a way, and what is expected of it or why it
       cannot be. */
    void (*explain)(void *context, const struct fused_network *network, char *text, size_t size);
};

#endif
