/* The multi-layer perceptron: buffers and the order of calls. It contains no arithmetic, so it is the same
   for every dtype, device, backend and engine.

   Layer l computes  Z = X W + b,  Y = act(Z);  X [rows][in], W [in][out], b [out], Z and Y [rows][out].
   The last layer has no activation: its Y are the logits. */
#ifndef TESSERA_NN_MLP_H
#define TESSERA_NN_MLP_H

#include "src/backend/compute.h"
#include "src/nn/config.h"

/* All pointers are device memory and lie in one of the arenas of struct mlp. */
struct mlp_layer {
    size_t in, out;
    /* leading dimension of every [..][out] tensor, and of the rows of the weights above; >= out */
    size_t ld;
    enum activation activation;
    void *weight, *bias; /* [in][out], [out] */
    const void *operand; /* the weights that GEMM reads: `weight`, or its copy rounded to `stored` */
    void *weight_grad, *bias_grad; /* the same shapes */
    void *pre, *output;            /* [capacity][out]; the same memory unless the derivative needs both */
    /* [capacity][out]: the input of the next layer while training; equals `output` where dropout may
       overwrite it */
    void *dropped;
    void *grad; /* [capacity][out]: dL/dZ */
};

/* How a checkpoint without a kept arena is taken. */
enum mlp_absent {
    ABSENT_IS_AN_ERROR,    /* training cannot go on without it */
    ABSENT_IS_THE_WEIGHTS, /* it starts as they are */
    ABSENT_IS_NOTHING      /* there is none yet */
};

/* Something that training keeps for every parameter: an arena laid out as theirs. */
struct mlp_kept {
    const char *prefix; /* of the names of its tensors in a checkpoint, as in "optimizer.velocity." */
    void *memory;       /* device */
    enum mlp_absent absent;
};

enum { MLP_MOST_KEPT = 6 };

struct mlp {
    struct compute *compute;
    const struct ops *ops;
    enum gemm_dtype dtype;  /* of parameters, their gradients and what optimisers keep */
    enum gemm_dtype stored; /* of activations, their gradients and the operands: the same, or GEMM_BF16 */
    size_t depth;           /* layers of weights */
    size_t capacity;        /* rows that the activations have room for */
    struct mlp_layer layer[PROFILE_MAX_LAYERS];
    void *input;         /* [capacity][in of layer 0] */
    void *dropped_input; /* what layer 0 reads while training: `input`, unless mlp_attack wants that whole */
    void *input_grad;    /* dL/d input, for mlp_attack; it may be the memory of dropped_input */
    uint8_t *labels;     /* [capacity] */
    void *parameters, *gradients, *activations; /* the arenas */
    void *operands; /* the arena of rounded parameters; NULL where parameters are operands as they are */
    struct mlp_kept kept[MLP_MOST_KEPT];
    size_t kept_count;
    double input_dropout, hidden_dropout; /* rates */
    uint64_t seed;                        /* of dropout */
    double adversarial;                   /* how far mlp_attack moves a pixel; 0: it is not called */
    size_t parameter_elements; /* of the parameter arena and of the gradient arena, alignment gaps included */
};

/* The widths of the layers in memory, the inputs' first: what the products are made of. */
struct layer_list mlp_widths(struct compute *compute, const struct config *config);

/* Allocates the arenas for batches of up to `capacity` rows. Parameters are zero. */
enum status mlp_open(struct mlp *mlp, struct compute *compute, const struct config *config, size_t capacity);
void mlp_close(struct mlp *mlp);

/* Draws the initial weights: the same doubles for a seed whatever dtype or device, cast once. Biases are
   zero, but uniform like the weights for INIT_UNIFORM, whose bound is `range`, or 1 / sqrt(in) if that is 0.
   He et al. 2015 (arXiv 1502.01852), Glorot and Bengio 2010. */
enum status mlp_initialize(struct mlp *mlp, enum init init, double range, uint64_t seed);

/* Adds an arena, zeroed, that is freed with the network and saved in its checkpoints. */
enum status mlp_keep(struct mlp *mlp, const char *prefix, enum mlp_absent absent, void **memory);

/* The same network with the parameters in another arena of the same layout. It shares everything else, the
   rounded operands too: mlp_parameters_changed before it is used and, of the other, after it. Nothing to
   close. */
struct mlp mlp_with_parameters(const struct mlp *mlp, void *parameters);

/* To be called after the parameters were written: renews the operands, if they are kept apart. */
void mlp_parameters_changed(struct mlp *mlp);

/* Each layer's Z and Y for the first `rows` rows of `input`. `step`, device memory, is that of a step of
   training, and dropout is done, on `input` too (which it overwrites, unless the network is trained
   adversarially); NULL evaluates. */
enum status mlp_forward(struct mlp *mlp, size_t rows, const struct step_scalars *step);

/* From dL/dZ of the last layer (its `grad`) to all weight and bias gradients, after mlp_forward with the same
   step: they become keep times what they were plus 1 - keep times those of this pass. keep is 0 for the first
   pass of a step. */
enum status mlp_backward(struct mlp *mlp, size_t rows, const struct step_scalars *step, double keep);

/* After mlp_backward: moves `input` by `adversarial` along the sign of dL/d input (Goodfellow et al. 2015,
   arXiv 1412.6572). With the same step the dropout of the next pass is that of the last, so it is this very
   network that is attacked. */
enum status mlp_attack(struct mlp *mlp, size_t rows);

/* Elements from one row of what goes into layer l to the next: so many rows have its weights. */
static inline size_t mlp_input_ld(const struct mlp *mlp, size_t l) {
    return l ? mlp->layer[l - 1].ld : mlp->layer[0].in;
}

/* The logits, [rows][classes]. */
static inline const struct mlp_layer *mlp_last(const struct mlp *mlp) {
    return &mlp->layer[mlp->depth - 1];
}

/* Weights and biases, without alignment gaps. */
size_t mlp_parameter_count(const struct mlp *mlp);

/* Where `tensor`, in the parameter arena, has its counterpart in an arena of the same layout (gradients,
 * velocity). */
void *mlp_counterpart(const struct mlp *mlp, const void *tensor, void *arena);

#endif
