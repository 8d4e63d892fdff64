/* The contract of engine "fused": one call runs whole training steps inside the backend. A backend that
   supports this has the slot `fused` (kernels/gemm.h). The steps compute what the eager engine computes:
   batch, forward, softmax cross-entropy, backward, SGD as kernels/ops.h defines them. Each element of a
   product is summed in the same order as in eager on the host, and in another fixed order on a GPU. Once
   tally->bad_step is set, a call changes nothing. */
#ifndef TESSERA_KERNELS_FUSED_H
#define TESSERA_KERNELS_FUSED_H

#include <signal.h>

#include "kernels/ops.h"

enum { FUSED_MAX_LAYERS = 64 };

struct fused_layer {
    size_t in, out;
    size_t ld;                  /* of the weights: leading dimension; > out only in lower precisions */
    enum activation activation; /* none for the last layer */
    void *weight, *bias;        /* [in][out], [out]: updated in place */
    void *weight_velocity, *bias_velocity; /* the same; NULL without momentum */
};

/* The network and its training data. All pointers are device memory of the backend and outlive the state. */
struct fused_network {
    enum gemm_dtype dtype;
    enum gemm_precision precision; /* of the products; all else is float32 in every precision */
    size_t depth;
    struct fused_layer layer[FUSED_MAX_LAYERS];
    double momentum, weight_decay;
    size_t batch, count, features;      /* rows of a full batch; images of an epoch; pixels of an image */
    enum input_range range;             /* of the pixels */
    const uint8_t *images, *labels;     /* [..][features], [..] */
    const uint32_t *order;              /* [count]: the image indices, batch after batch */
    const struct step_scalars *scalars; /* [steps of an epoch]: only the learning rates are read */
    double *losses;                     /* [steps of an epoch]: receives the mean loss of each batch */
    struct tally *tally;
    /* Networks that train on the device at the same time, this one included; 0 means 1. Each uses at most an
       equal share of the GPU. */
    size_t concurrent_networks;
};

/* Seconds. An update counts as part of the product that computes its gradient. */
struct fused_times {
    double gemm[3][FUSED_MAX_LAYERS]; /* [NN, TN, NT][layer] */
    double elementwise, batch;
};

struct gemm_fused {
    /* Returns a state for this network on the backend's context, or NULL with the reason (a phrase) in `why`.
       Unless `forced`, it also returns NULL if it estimates that engine fused is slower than eager. */
    void *(*open)(void *context, const struct fused_network *network, bool forced, char *why, size_t size);
    void (*close)(void *state);

    /* Runs steps `first` .. first + count - 1 of an epoch, count >= 1, on as many threads as the backend had
       at `open` or has now, whichever is fewer. Returns the number of steps done and adds to `times`. It
       returns fewer than `count` if *stop (`stop` may be NULL) is not 0 after a step, or after a step whose
       loss is not finite, which changes no weight. It returns 0 if it failed; `error` of the backend has the
       reason. On a GPU it may return before the work is done: it then returns the number of steps issued,
       ignores *stop and the losses, and adds no times. */
    size_t (*run)(void *state, size_t first, size_t count, const volatile sig_atomic_t *stop,
                  struct fused_times *times);

    /* (optional) Can a training stop before this step of an epoch, and resume from a checkpoint with the same
       bits as if it had not stopped? NULL: before every step. */
    bool (*may_end)(void *state, size_t step);

    /* (optional) The variant chosen for this network and its estimated time, in a phrase. */
    void (*describe)(void *state, char *text, size_t size);

    /* (optional) All variants, one line each: the estimated time, or the reason why it cannot run. */
    void (*explain)(void *context, const struct fused_network *network, char *text, size_t size);
};

#endif
