/* The element-wise contract: the operations of a training step other than GEMM, in a table per dtype and
   device.

   Matrices are row-major and dense, [rows][cols]; `void *` points to elements of the table's dtype in device
   memory. In the tables for 16 bits, activations and their gradients (x, pre, out, logits, grad of a layer)
   have them; parameters, their gradients and optimiser state are float32. Arithmetic is float32, and each
   stored result is rounded once.

   Calls may be asynchronous and return no error: the device reports faults when it is synchronised. Every
   reduction has a fixed order, so that results do not depend on the number of threads. */
#ifndef TESSERA_KERNELS_OPS_H
#define TESSERA_KERNELS_OPS_H

#include <stdint.h>

#include "kernels/augment.h"
#include "kernels/gemm.h"

/* Accumulated over images, in device memory; all zero at the start. */
struct tally {
    double loss_sum;   /* of the cross-entropy of every image, in nats */
    uint64_t images;   /* counted so far */
    uint64_t correct;  /* images whose label is the first largest logit */
    uint64_t batches;  /* counted so far */
    uint64_t bad_step; /* 1 + index of the first batch whose loss was not finite; 0: none */
};

/* What the parts of a batch add up to beside the gradients: doubles, so that processes can sum them. */
struct batch_values {
    double loss_sum, correct, images; /* as in struct tally */
    double bad;                       /* > 0: a loss is not finite */
    double stops;                     /* > 0: a process was interrupted */
};

/* The values that change from step to step. They are in device memory, so that a replayed graph reads those
   of the current epoch. */
struct step_scalars {
    double learning_rate;
    double adam_rate;     /* learning_rate / (1 - beta1^t) at the t-th update; the first is t = 1 */
    double adam_root;     /* 1 / sqrt(1 - beta2^t) */
    double average_decay; /* of the moving average: average = decay average + (1 - decay) weights */
    uint64_t number;      /* of the step in the whole training, from 0: counter of dropout */
};

/* The range of the network's input, [0, 1] or [-1, 1]: x = scale (pixel - offset). The difference is exact,
   so that x has the same bits everywhere. */
enum input_range { INPUT_UNIT, INPUT_SIGNED };

HOST_DEVICE double input_width(enum input_range range) {
    return range == INPUT_SIGNED ? 2 : 1;
}

HOST_DEVICE double input_scale(enum input_range range) {
    return input_width(range) / 255;
}

HOST_DEVICE double input_offset(enum input_range range) {
    return range == INPUT_SIGNED ? 127.5 : 0;
}

/* The optimisers: X(with, ID, name, second_moment). `with` is an argument for X; second_moment is 1 if the
   rule has a running mean of the squared gradient. UPDATE_NONE does not change the weights. */
#define OPTIMIZERS(X, with)  \
    X(with, SGD, "sgd", 0)   \
    X(with, ADAM, "adam", 1) \
    X(with, ADAMW, "adamw", 1)

#define OPTIMIZER_METHOD(with, ID, name, second_moment) UPDATE_##ID,
#define OPTIMIZER_NAME(with, ID, name, second_moment) name,
#define OPTIMIZER_SECOND_MOMENT(with, ID, name, second_moment) | second_moment << UPDATE_##ID

enum update_method { OPTIMIZERS(OPTIMIZER_METHOD, ) UPDATE_NONE };
enum { WITH_SECOND_MOMENT = 0 OPTIMIZERS(OPTIMIZER_SECOND_MOMENT, ) /* one bit each */ };

static inline bool uses_second_moment(enum update_method method) {
    return WITH_SECOND_MOMENT >> method & 1;
}

/* One update of parameters. All arrays have the same length. The rules are those of PyTorch (torch.optim); w
   is a weight, and g is its gradient times *clip if `clip` is not NULL:
     sgd     g += weight_decay w;  v = momentum v + g;  w -= learning_rate (nesterov ? g + momentum v : v)
     adam    g += weight_decay w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
             w -= adam_rate m / (adam_root sqrt(v) + epsilon); on a GPU, in float32, root and quotient are
             within 2 units in the last place
     adamw   w -= learning_rate weight_decay w, then adam with weight_decay 0
     none    the weights do not change; average and rounded are computed
   Adam: Kingma and Ba 2015, arXiv 1412.6980. AdamW: Loshchilov and Hutter 2019, arXiv 1711.05101. */
struct update {
    enum update_method method;
    bool nesterov;
    double momentum, weight_decay, beta1, beta2, epsilon;
    const double *clip; /* device memory, or NULL */
    void *weights;
    const void *grad;
    void *moment1, *moment2; /* sgd: the velocity (NULL without momentum) and NULL; adam: m and v */
    void *average;           /* (optional) the moving average of the weights */
    void *rounded;           /* (optional) the low-precision copy, operand of a GEMM */
};

/* An update with what it reads in device memory. In gemm_update (kernels/gemm.h) the arrays have the layout
   of C, and the gradient is C. */
struct weight_update {
    struct update rule;
    const struct step_scalars *step;
    const struct tally *guard; /* nothing changes once guard->bad_step is set */
    void *stream;              /* (optional) to issue it on, instead of the backend's; in a list only if it
                                  has a launch of its own */
};

/* The output layer of a training step: logits, their softmax cross-entropy (as the op below), gradients of
   weights and bias, and the input gradient. A of the last call is written: the gradient of the logits. */
struct output_layer {
    const struct gemm_call *logits;         /* NN, with the bias as epilogue; see b_complete of gemm_call */
    const struct gemm_call *gradient;       /* TN */
    const struct gemm_call *input_gradient; /* NT, with the backward epilogue of the layer below */
    void *bias_grad;
    size_t batch;
    double smoothing;
    const uint8_t *labels;
    double *loss;
    struct tally *tally;
    bool counted;
};

/* Inverted dropout (Srivastava et al. 2014, JMLR 15): each element is retained with probability 1 - rate and
   then divided by it. kernels/dropout.h rounds the rate to 16 bits. */
struct dropout {
    double rate; /* 0 <= rate < 1 - 2^-16 */
    uint64_t seed;
    uint32_t layer;                  /* the mask depends on the layer */
    const struct step_scalars *step; /* device memory; the mask depends on the step */
    size_t first;                    /* the first element is this one of the batch; a multiple of 8 */
};

struct ops {
    /* x[r][:] = images[i][:] scaled to `range`, and y[r] = labels[i] with i = index[r]; index NULL: i = r.
       images [..][features], labels [..], index [rows], x [rows][features], y [rows]. */
    void (*gather)(void *context, size_t rows, size_t features, enum input_range range, const uint8_t *images,
                   const uint8_t *labels, const uint32_t *index, void *x, uint8_t *y);

    /* pre += bias (a row), out = act(pre). `out` may be `pre` unless activation_needs_input. */
    void (*bias_activation)(void *context, size_t rows, size_t cols, enum activation activation,
                            const void *bias, void *pre, void *out);

    /* grad *= act'(pre), then bias_grad[c] = alpha sum_r grad[r][c] + beta bias_grad[c]. With beta 0,
       bias_grad is not read. `pre` is read only if activation_needs_input, else `out`. With GEMM_F16, Inf and
       all beyond 65504 become 65504 with their sign, before and after the derivative is applied: one image
       cannot make the weights infinite. */
    void (*bias_activation_backward)(void *context, size_t rows, size_t cols, enum activation activation,
                                     const void *pre, const void *out, void *grad, double alpha, double beta,
                                     void *bias_grad);

    /* out[i] = 0 or in[i] / (1 - rate); `out` may be `in`. The backward pass calls it on the gradients, with
       the same layer and step. */
    void (*dropout)(void *context, size_t count, const struct dropout *dropout, const void *in, void *out);

    /* x[i] += amount sign(grad[i]); unchanged where grad[i] is 0 or NaN. The fast gradient sign method
       (Goodfellow et al. 2015, arXiv 1412.6572, section 4). */
    void (*sign_step)(void *context, size_t count, double amount, const void *grad, void *x);

    /* Softmax cross-entropy, shifted by the row maximum so that it cannot overflow. The target is (1 -
       smoothing) onehot + smoothing / classes (Szegedy et al. 2016, as torch.nn.CrossEntropyLoss). `grad`
       receives (softmax - target) / divisor (the images of the batch, of which the rows are a part or all,
       over the scale of the gradients) and `loss` the mean over the rows; either may be NULL. A label of
       `classes` or more makes the loss NaN. A loss that is not finite sets tally->bad_step; the other fields
       of the tally change only if `counted` (false for adversarial images). */
    void (*softmax_cross_entropy)(void *context, size_t rows, double divisor, size_t classes,
                                  double smoothing, const void *logits, const uint8_t *labels, void *grad,
                                  double *loss, struct tally *tally, bool counted);

    /* into[i] += from[i], both of the parameters' dtype. */
    void (*add)(void *context, size_t count, const void *from, void *into);

    /* *values = those of the tally of one part, and *stop. All are device memory, also in the next op. */
    void (*part_values)(void *context, const struct tally *part, const double *stop,
                        struct batch_values *values);

    /* Counts a batch with these values, as softmax_cross_entropy does: adds it to the tally, and *loss is its
       mean loss. */
    void (*count_batch)(void *context, const struct batch_values *values, double *loss, struct tally *tally);

    /* Executes `update` in one pass. Does nothing once guard->bad_step is set, so that the values before the
       bad step remain. */
    void (*update)(void *context, size_t count, const struct update *update, const struct step_scalars *step,
                   const struct tally *guard);

    /* *factor (device memory) = min(1, limit / (norm + 1e-6)) with the Euclidean norm of `grad`, as
       torch.nn.utils.clip_grad_norm_. */
    void (*clip_norm)(void *context, size_t count, const void *grad, double limit, double *factor);

    /* Scales each column of weights [rows][cols] (the inputs of one unit) whose Euclidean norm exceeds the
       limit by limit / (norm + 1e-7), as torch.renorm (Srivastava et al. 2014). Does nothing once
       guard->bad_step is set. */
    void (*max_norm)(void *context, size_t rows, size_t cols, double limit, const struct tally *guard,
                     void *weights);

    /* rounded[i] = values[i]: the low-precision copy of parameters. */
    void (*round)(void *context, size_t count, const void *values, void *rounded);

    /* deformed[i] = images[i] augmented for this epoch (kernels/augment.h): the same pixels on every device.
       images [count][height][width], labels [count], deformed [count][to_height][to_width], with the sizes of
       the plan. The arrays do not overlap. */
    void (*augment)(void *context, const struct augment_plan *plan, uint32_t epoch, size_t count,
                    const uint8_t *images, const uint8_t *labels, uint8_t *deformed);
};

#endif
