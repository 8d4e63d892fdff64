/* The multi-layer perceptron: buffers and the order of calls. It contains no arithmetic, so that one code
   serves every dtype, device, backend and engine.

   Layer l computes  Z = X W + b,  Y = act(Z);  X [rows][in], W [in][out], b [out], Z and Y [rows][out].
   The last layer has no activation: its Y are the logits. */
#ifndef TESSERA_NN_MLP_H
#define TESSERA_NN_MLP_H

#include "src/backend/compute.h"
#include "src/nn/config.h"

/* All pointers are device memory in the arenas of struct mlp. */
struct mlp_layer {
    size_t in, out;
    size_t ld; /* >= out: leading dimension of every [..][out] tensor; rows of the next layer's weights */
    enum activation activation;
    void *weight, *bias;           /* [in][out], [out] */
    const void *gemm_weight;       /* what GEMM reads: `weight` or its low-precision copy */
    void *weight_grad, *bias_grad; /* the same shapes */
    void *pre, *output;            /* [capacity][out]: Z and Y; one buffer unless the derivative needs both */
    void *dropped;       /* [capacity][out]: Y after dropout, the next layer's input; may be `output` */
    void *grad;          /* [capacity][out]: dL/dZ */
    bool updated;        /* the last mlp_backward has updated the weights, and not stored their gradient */
    bool updated_beside; /* .. has stored their gradient, and updated them beside its later products */
};

/* If a checkpoint has no tensors for a state arena: */
enum mlp_missing {
    MISSING_IS_AN_ERROR,    /* training cannot resume without it */
    MISSING_COPIES_WEIGHTS, /* start from the weights */
    MISSING_IS_EMPTY        /* nothing was stored yet */
};

/* Training state with one value for every parameter (momentum, averages): an arena with the layout of the
   parameters. */
struct mlp_state {
    const char *prefix; /* of its tensors' names in a checkpoint, as in "optimizer.velocity." */
    void *memory;       /* device */
    enum mlp_missing missing;
};

enum { MLP_MAX_STATE = 6 };

struct mlp {
    struct compute *compute;
    const struct ops *ops;
    enum gemm_dtype dtype;            /* of parameters (the master weights), gradients and state */
    enum gemm_dtype activation_dtype; /* of activations, their gradients and the low-precision copy */
    /* dL/dZ and dL/dY in memory (`grad`, `input_grad`) are the gradients times this; those of parameters are
       not: mlp_gradient_scale. */
    double gradient_scale;
    size_t depth;     /* layers of weights */
    size_t capacity;  /* the most rows of a batch */
    size_t first_row; /* row 0 is this one of its batch, for the masks of dropout */
    struct mlp_layer layer[PROFILE_MAX_LAYERS];
    /* (optional) mlp_backward calls it when it has issued the gradients of a layer, from the last to the
       first. */
    enum status (*on_gradients)(void *self, size_t layer);
    void *on_gradients_self;
    /* (optional) The update of the parameter arena that follows mlp_backward: weight gradients may update
       their weights themselves, and are then not stored. Requires one backward pass a step, with beta 0, no
       other reader of the gradients, and on_gradients NULL. */
    const struct weight_update *update;
    bool rest_updated;    /* the last mlp_backward has also updated what no weight gradient updates */
    bool updates_overlap; /* updating weight gradients may run at once. They, the bias gradient of the output
                             layer, the gathering of the next batch (if it has memory) and, from
                             many_rows images on, updates of stored gradients and sums that only updates read
                             may run beside other work (aside_begin in device.h) */
    size_t many_rows;     /* in steps of many_rows images or more, products hide other work, which has the
                             lowest priority, such as updates of the layers above; mlp_open sets 2048 */
    bool beside_sums;     /* products run beside sums that `on_gradients` has begun */
    void *input;          /* [capacity][in of layer 0] */
    void *dropped_input; /* the input of layer 0 in training: `input`, unless mlp_attack needs the original */
    void *input_grad;    /* dL/d input, for mlp_attack; may share the memory of dropped_input */
    uint8_t *labels;     /* [capacity] */
    struct {
        void *input, *memory;
        uint8_t *labels;
    } next;                                     /* of the next batch; NULL before mlp_open_next */
    void *parameters, *gradients, *activations; /* the arenas */
    void *low_precision; /* copy of the parameters in activation_dtype; NULL if that equals dtype */
    struct mlp_state state[MLP_MAX_STATE];
    size_t state_count;
    double input_dropout, hidden_dropout; /* rates */
    uint64_t seed;                        /* of dropout */
    double adversarial;                   /* step size of mlp_attack, in units of the input; 0: no attack */
    size_t parameter_elements;            /* of the parameter arena, alignment gaps included */
};

/* The widths of the layers in memory, padding included, the input first: the dimensions of the GEMMs. */
struct layer_list mlp_widths(struct compute *compute, const struct config *config);

/* Allocates the arenas for batches of up to `capacity` rows. Parameters are zero. */
enum status mlp_open(struct mlp *mlp, struct compute *compute, const struct config *config, size_t capacity);
void mlp_close(struct mlp *mlp);

/* Draws the initial weights in double and casts them once: the same for every dtype and device. INIT_UNIFORM
   draws weights and biases in [-range, range], with 1 / sqrt(in) if `range` is 0; otherwise biases are zero.
   He et al. 2015 (arXiv 1502.01852), Glorot and Bengio 2010. */
enum status mlp_initialize(struct mlp *mlp, enum init init, double range, uint64_t seed);

/* Adds a zeroed state arena. mlp_close frees it; checkpoints save it. */
enum status mlp_add_state(struct mlp *mlp, const char *prefix, enum mlp_missing missing, void **memory);

/* The same network with its parameters in another arena of the same layout. All else is shared, including the
   low-precision copy: call mlp_parameters_changed on the result before its use, and on the original
   afterwards. The result needs no mlp_close. */
struct mlp mlp_with_parameters(const struct mlp *mlp, void *parameters);

/* The part of an update of the parameter arena from element `first` on. */
struct update mlp_update_from(const struct mlp *mlp, const struct update *update, size_t first);

/* The element of the parameter arena that is the first weight of layer l; l = depth: the end of the arena. */
size_t mlp_first_weight(const struct mlp *mlp, size_t l);

/* Updates the low-precision copy, if there is one. Call it after writing the parameters. */
void mlp_parameters_changed(struct mlp *mlp);

/* Ranges of the parameter arena that the last mlp_backward has not updated, at most MLP_MAX_RANGES. Returns
   how many. */
struct mlp_range {
    size_t first, count; /* elements; multiples of 64 bytes */
};
enum { MLP_MAX_RANGES = PROFILE_MAX_LAYERS + 1 };
size_t mlp_ranges_left(const struct mlp *mlp, struct mlp_range *list);

/* The context of ops beside a step of `rows` images (aside_begin in device.h). From many_rows on at the
   lowest priority: they run where the kernels of the step leave SMs idle. */
void *mlp_beside(const struct mlp *mlp, size_t rows);

/* Memory for a second batch, next.input and next.labels, which may be gathered while this one is used. */
enum status mlp_open_next(struct mlp *mlp);

/* After mlp_open_next: exchanges `input` and `labels` with those of the next batch. */
void mlp_advance(struct mlp *mlp);

/* Computes each layer's Z and Y for the first `rows` rows of `input`. In training, `step` (device memory) has
   the scalars of the step, and dropout is applied: to the input in place, unless the training is adversarial.
   In evaluation `step` is NULL. */
enum status mlp_forward(struct mlp *mlp, size_t rows, const struct step_scalars *step);

/* The hidden layers alone, in evaluation. */
enum status mlp_forward_hidden(struct mlp *mlp, size_t rows);

/* The gradient_scale of a batch: 1, but in fp16, whose smallest number is 2^-24, gradients of a mean over the
   batch would underflow. Those of the sum over the batch, times 2^MLP_HALF_SHIFT, do not; those beyond 65504
   become 65504 with their sign (docs/fp16.md). */
enum { MLP_HALF_SHIFT = 10 };
double mlp_gradient_scale(const struct mlp *mlp, size_t batch);

/* Computes all weight and bias gradients from dL/dZ of the last layer (its `grad`), after mlp_forward with
   the same step: gradient = beta * gradient + (1 - beta) * gradient of this pass. beta is 0 in the first pass
   of a step. */
enum status mlp_backward(struct mlp *mlp, size_t rows, const struct step_scalars *step, double beta);

/* Both passes, with the loss between them. The caller sets `batch` of *loss and the members after it. */
enum status mlp_gradients(struct mlp *mlp, size_t rows, const struct step_scalars *step,
                          const struct output_layer *loss, double beta);

/* After mlp_backward: moves `input` by `adversarial` along the sign of dL/d input (Goodfellow et al. 2015,
   arXiv 1412.6572). A second pass with the same step has the same dropout masks. */
enum status mlp_attack(struct mlp *mlp, size_t rows);

/* Leading dimension of the input of layer l, and rows of its weights. */
static inline size_t mlp_input_ld(const struct mlp *mlp, size_t l) {
    return l ? mlp->layer[l - 1].ld : mlp->layer[0].in;
}

/* The last layer, whose output is the logits, [rows][classes]. */
static inline const struct mlp_layer *mlp_last(const struct mlp *mlp) {
    return &mlp->layer[mlp->depth - 1];
}

/* Weights and biases, without alignment gaps. */
size_t mlp_parameter_count(const struct mlp *mlp);

/* The tensor of another arena of the same layout (gradients, velocity) that corresponds to a parameter
   tensor. */
void *mlp_counterpart(const struct mlp *mlp, const void *tensor, void *arena);

#endif
