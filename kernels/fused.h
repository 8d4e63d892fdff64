/* The contract of engine "fused": one call runs whole training steps inside the backend. A backend that
   supports this has the slot `fused` (kernels/gemm.h). The steps compute what the eager engine computes:
   batch, forward, softmax cross-entropy, backward, SGD as kernels/ops.h defines them. On the host the sums
   within an element of a product have the same order; on a GPU they have another, fixed order. After a bad
   step of the tally a call changes nothing, as in kernels/ops.h. */
#ifndef TESSERA_KERNELS_FUSED_H
#define TESSERA_KERNELS_FUSED_H

#include <signal.h>

#include "kernels/ops.h"

enum { FUSED_MAX_LAYERS = 64 };

struct fused_layer {
    size_t in, out,
        ld; /* rows of the weights are ld >= out elements apart; ld > out in mixed precision alone */
    enum activation activation;            /* none for the last layer */
    void *weight, *bias;                   /* [in][out], [out]: updated in place */
    void *weight_velocity, *bias_velocity; /* the same; NULL without momentum */
};

/* The network and its training data. All pointers are memory of the backend's device and outlive the state.
   */
struct fused_network {
    enum gemm_dtype dtype;
    enum gemm_precision precision; /* of the products; all else is float32 in every precision */
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
    /* Networks that train on the device at the same time, this one included; 0 means 1. Each may use an equal
       part of the GPU. */
    size_t concurrent_networks;
};

/* Seconds. An update counts as part of the product that computes its gradient. */
struct fused_times {
    double gemm[3][FUSED_MAX_LAYERS]; /* [NN, TN, NT][layer] */
    double elementwise, batch;
};

struct gemm_fused {
    /* Returns a state for this network on the backend's context, or NULL with the reason (a phrase) in `why`.
       Unless `forced`, an estimate that is slower than op by op is such a reason. */
    void *(*open)(void *context, const struct fused_network *network, bool forced, char *why, size_t size);
    void (*close)(void *state);

    /* Runs steps `first` .. first + count - 1 of an epoch, count >= 1, on the threads that the backend had at
       `open`, or has now if these are fewer. Returns the number of steps that it did: fewer if *stop (may be
       NULL) was not 0 after a step, or if the loss of a step was not finite; such a step changes no weight.
       Adds to `times`. On a GPU it may return before the work is done: it then returns the number of steps
       issued, whatever their losses or *stop, and adds no times. 0: it failed, and `error` of the backend has
       the reason. */
    size_t (*run)(void *state, size_t first, size_t count, const volatile sig_atomic_t *stop,
                  struct fused_times *times);

    /* (optional) The variant chosen for this network and its estimated time, in a phrase. */
    void (*describe)(void *state, char *text, size_t size);

    /* (optional) All variants, one line each: the estimated time, or the reason why it cannot run. */
    void (*explain)(void *context, const struct fused_network *network, char *text, size_t size);
};

#endif
