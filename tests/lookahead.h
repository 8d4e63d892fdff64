/* SGD whose first layer looks ahead by Gram matrices, as plain code: the oracle for kernels that do so.
   docs/look-ahead.md explains the idea and derives the formulas.

   Inputs are constants. So the first layer's weights may lag `depth` steps behind the other layers: each step
   computes its pre-activations from these late weights, and adds a correction for each step whose gradient
   they lack. Depth 0 is plain SGD.

   A bias is the last row of its layer's weights, for one more input of value 1: weights are [in + 1][out].
   A pixel is an integer u over 255: byte / 255, or (2 byte - 255) / 255 for inputs in [-1, 1]. */
#ifndef TESSERA_TESTS_LOOKAHEAD_H
#define TESSERA_TESTS_LOOKAHEAD_H

#include "src/data/dataset.h"
#include "src/nn/config.h"

enum {
    LOOKAHEAD_MOST_DEPTH = 8,
    LOOKAHEAD_ONE = 255 /* the integer of an input of value 1 */
};

/* The images of one step and its learning rate. */
struct lookahead_batch {
    size_t rows;
    const uint32_t *index; /* [rows]: images of the data set */
    double rate;
};

/* The first layer's weights after the steps of `rates`, oldest first, as a linear function:
     W = weights W_late + velocity V_late + sum over k of gradient[k] X_k^T dZ1_k. */
struct lookahead_terms {
    double weights, velocity, gradient[LOOKAHEAD_MOST_DEPTH];
};

struct lookahead_layer {
    size_t in, out;
    double *weight, *velocity; /* [in + 1][out], in the state; velocity NULL: without momentum */
    double *gradient;          /* the same shape */
    double *input;             /* [rows][in + 1]: the last column is 1 */
    double *pre, *grad;        /* [rows][out]: Z and dL/dZ */
};

/* A step whose gradient the late weights lack. */
struct lookahead_past {
    size_t rows;
    uint32_t *index; /* [rows] */
    double rate;
    double *grad; /* dL/dZ of layer 1, [rows][out] */
};

struct lookahead {
    const struct config *config;
    const struct dataset *data;
    size_t depth;
    bool float32;  /* every stored number and every partial sum is rounded to float32 */
    double *state; /* as lockstep_state: weights of all layers, then their velocities */
    size_t state_count, layers;
    struct lookahead_layer layer[PROFILE_MAX_LAYERS];
    struct lookahead_past past[LOOKAHEAD_MOST_DEPTH + 1]; /* oldest first */
    size_t pasts;
    double *ahead;      /* [in + 1][out] of layer 1: weights W_late + velocity V_late */
    double *gram_row;   /* [rows]: of the Gram matrix, as real numbers */
    double *correction; /* [rows][out] of layer 1 */
    int32_t *products;  /* [rows][rows]: the Gram matrix */
    int16_t *pixels[2]; /* [rows][in + 1] of layer 1 */
    /* Tests replace these by wrong ones, to see that the comparison finds them. */
    void (*gram)(struct lookahead *model, const struct lookahead_batch *a, const struct lookahead_batch *b,
                 int32_t *products);
    struct lookahead_terms (*terms)(const struct config *config, const double *rates, size_t count);
};

/* `config` is of SGD without options that engine fused lacks (Nesterov momentum is supported); `state` has
   `state_count` numbers and is copied. */
void lookahead_open(struct lookahead *model, const struct config *config, const struct dataset *data,
                    const double *state, size_t state_count, size_t depth);
void lookahead_close(struct lookahead *model);

/* One training step. Returns the mean loss before its update. */
double lookahead_step(struct lookahead *model, const struct lookahead_batch *batch);

/* Applies the gradients that the late weights lack: the state is that of SGD. */
void lookahead_drain(struct lookahead *model);

/* The first part of a step: layer[0].pre, [batch->rows][out]. */
void lookahead_first_layer(struct lookahead *model, const struct lookahead_batch *batch);

/* Gives `to`, opened with the same config and depth, the state of `from`. */
void lookahead_copy(struct lookahead *to, const struct lookahead *from);

/* Rounds all that is stored to float32, and computes in float32 from now on. */
void lookahead_round(struct lookahead *model);

/* products[i][j] = the sum of u_i u_j over pixels and the bias' input, of image i of `a` and j of `b`: 255^2
   times the Gram matrix. Exact: below 2^31 up to 33,000 pixels. */
void lookahead_gram(struct lookahead *model, const struct lookahead_batch *a, const struct lookahead_batch *b,
                    int32_t *products);

struct lookahead_terms lookahead_terms(const struct config *config, const double *rates, size_t count);

#endif
