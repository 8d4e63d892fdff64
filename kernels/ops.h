/* The element-wise contract: everything a training step needs beside GEMM, once per dtype and device.

   Matrices are row-major and dense, [rows][cols]; `void *` points to elements of the table's dtype in device
   memory. In the table for GEMM_BF16, activations and their gradients (x, pre, out, logits, grad of a layer)
   are bfloat16, parameters and all that belongs to them (bias, bias_grad, and what `update` keeps) float32;
   arithmetic is float32, each stored result rounded once. Calls may be asynchronous and never fail by
   themselves: a device reports faults when it is synchronised. Results do not depend on the number of
   threads: every reduction has one fixed order. */
#ifndef TESSERA_KERNELS_OPS_H
#define TESSERA_KERNELS_OPS_H

#include <stdint.h>

#include "kernels/augment.h"
#include "kernels/gemm.h"

/* What passes over images accumulate, in device memory; all zero at the start. */
struct tally {
    double loss_sum;   /* of the cross-entropy of every image, in nats */
    uint64_t images;   /* seen */
    uint64_t correct;  /* classified right: the first largest logit is the label */
    uint64_t batches;  /* seen */
    uint64_t bad_step; /* 1 + the first batch whose loss was not finite; 0: none */
};

/* What changes from step to step, in device memory: a captured step finds every epoch's own. */
struct step_scalars {
    double learning_rate;
    double adam_rate;    /* learning_rate / (1 - beta1^t) at the t-th update; the first is t = 1 */
    double adam_root;    /* 1 / sqrt(1 - beta2^t) */
    double average_keep; /* of the moving average: average = keep average + (1 - keep) weights */
    uint64_t number;     /* of the step since the training began, from 0: what dropout draws by */
};

/* The range that pixels are brought to, [0, 1] or [-1, 1]: x = scale (pixel - offset). The difference is
   exact, so that x has the same bits everywhere. */
enum input_range { INPUT_UNIT, INPUT_SIGNED };

ANYWHERE double input_width(enum input_range range) {
    return range == INPUT_SIGNED ? 2 : 1;
}

ANYWHERE double input_scale(enum input_range range) {
    return input_width(range) / 255;
}

ANYWHERE double input_offset(enum input_range range) {
    return range == INPUT_SIGNED ? 127.5 : 0;
}

/* The optimisers: X(with, ID, name, second_moment). `with` is passed on; second_moment (0 or 1): the rule has
   a running mean of the squared gradient. UPDATE_NONE leaves the weights as they are. */
#define OPTIMIZERS(X, with)  \
    X(with, SGD, "sgd", 0)   \
    X(with, ADAM, "adam", 1) \
    X(with, ADAMW, "adamw", 1)

#define OPTIMIZER_METHOD(with, ID, name, second_moment) UPDATE_##ID,
#define OPTIMIZER_NAME(with, ID, name, second_moment) name,
#define OPTIMIZER_SECOND_MOMENT(with, ID, name, second_moment) | second_moment << UPDATE_##ID

enum update_method { OPTIMIZERS(OPTIMIZER_METHOD, ) UPDATE_NONE };

ANYWHERE bool uses_second_moment(enum update_method method) {
    return (0 OPTIMIZERS(OPTIMIZER_SECOND_MOMENT, )) >> method & 1;
}

/* One update of parameters; arrays of the same length, of what is computed with. The rules are those of
   PyTorch (torch.optim), w being a weight and g its gradient, times *clip if there is one:
     sgd     g += weight_decay w;  v = momentum v + g;  w -= learning_rate (nesterov ? g + momentum v : v)
     adam    g += weight_decay w;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
             w -= adam_rate m / (adam_root sqrt(v) + epsilon) Kingma and Ba 2015, arXiv 1412.6980
     adamw w -= learning_rate weight_decay w, then adam without it Loshchilov and Hutter 2019, arXiv
     1711.05101
     none    the weights stay: for what follows them */
struct update {
    enum update_method method;
    bool nesterov;
    double momentum, weight_decay, beta1, beta2, epsilon;
    const double *clip; /* device memory, or NULL */
    void *weights;
    const void *grad;
    void *moment1, *moment2; /* sgd: the velocity v, NULL without momentum, and nothing; adam: m and v */
    void *average;           /* (optional) the moving average of the weights */
    void *rounded;           /* (optional) the weights in the table's dtype, operands of a GEMM */
};

/* Inverted dropout (Srivastava et al. 2014, JMLR 15, with the scale while training): each element stays with
   probability 1 - rate and is then divided by that, to the sixteen bits of kernels/dropout.h. */
struct dropout {
    double rate; /* 0 <= rate < 1 - 2^-16 */
    uint64_t seed;
    uint32_t layer;                  /* another layer, another mask */
    const struct step_scalars *step; /* device memory: another step, another mask */
};

struct ops {
    /* x[r][:] = images[i][:], brought to `range`, and y[r] = labels[i] with i = index[r]; index NULL: i = r.
       images [..][features], labels [..], index [rows], x [rows][features], y [rows]. */
    void (*gather)(void *context, size_t rows, size_t features, enum input_range range, const uint8_t *images,
                   const uint8_t *labels, const uint32_t *index, void *x, uint8_t *y);

    /* pre += bias (a row), out = act(pre). `out` may be `pre` unless activation_needs_input. */
    void (*bias_activation)(void *context, size_t rows, size_t cols, enum activation activation,
                            const void *bias, void *pre, void *out);

    /* grad *= act'(pre) (computed from `out` where that is enough), then bias_grad[c] = keep bias_grad[c] +
       (1 - keep) sum_r grad[r][c]; with keep 0, bias_grad is not read. */
    void (*bias_activation_backward)(void *context, size_t rows, size_t cols, enum activation activation,
                                     const void *pre, const void *out, void *grad, double keep,
                                     void *bias_grad);

    /* out[i] = 0 or in[i] / (1 - rate); `out` may be `in`. Of a gradient with the same layer and step: the
       way back. */
    void (*dropout)(void *context, size_t count, const struct dropout *dropout, const void *in, void *out);

    /* x[i] += amount sign(grad[i]), and nothing where grad[i] is 0 or NaN: the fast gradient sign (Goodfellow
       et al. 2015, arXiv 1412.6572, section 4). */
    void (*sign_step)(void *context, size_t count, double amount, const void *grad, void *x);

    /* Softmax cross-entropy, shifted by the row maximum so that it cannot overflow. The target is (1 -
       smoothing) onehot + smoothing / classes (Szegedy et al. 2016, as torch.nn.CrossEntropyLoss). grad =
       (softmax - target) / rows, or NULL; `loss` receives the mean over the rows, or NULL. A label of
       `classes` or more makes the loss NaN. Rows that are not `counted` belong to the batch that was counted
       last: the tally only takes from them that their loss is not finite. */
    void (*softmax_cross_entropy)(void *context, size_t rows, size_t classes, double smoothing,
                                  const void *logits, const uint8_t *labels, void *grad, double *loss,
                                  struct tally *tally, bool counted);

    /* All of `update`, in one pass. Nothing happens once guard->bad_step is set: all stays what it was before
       the bad step. */
    void (*update)(void *context, size_t count, const struct update *update, const struct step_scalars *step,
                   const struct tally *guard);

    /* *factor (device memory) = what brings the Euclidean norm of `grad` down to the limit, at most 1: limit
       / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_. */
    void (*clip_norm)(void *context, size_t count, const void *grad, double limit, double *factor);

    /* Columns of weights [rows][cols], each what goes into one unit, whose Euclidean norm is above the limit
       are scaled down to it: limit / (norm + 1e-7), as torch.renorm (Srivastava et al. 2014). Nothing happens
       once guard->bad_step is set. */
    void (*max_norm)(void *context, size_t rows, size_t cols, double limit, const struct tally *guard,
                     void *weights);

    /* rounded[i] = values[i], parameters made operands of a GEMM in the table's dtype. */
    void (*round)(void *context, size_t count, const void *values, void *rounded);

    /* deformed[i] = images[i] as kernels/augment.h says, for this epoch: the same pixels on every device and
       in every table. images [count][height][width], labels [count], deformed [count][to_height][to_width] of
       the plan; apart. */
    void (*augment)(void *context, const struct augment_plan *plan, uint32_t epoch, size_t count,
                    const uint8_t *images, const uint8_t *labels, uint8_t *deformed);
};

#endif
