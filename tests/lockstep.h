/* Compares two float32 training paths step by step, from the same state.

   Two correct float32 programs drift apart: if a pre-activation is 0 in one and 6e-9 in the other, ReLU
   treats it differently, and after eight steps they differ by 1e-4. Which unit does so depends on the CPU. So
   before every step the other trainer receives the state of the reference (weights, biases and optimiser
   state), and one step of both is compared. Free-running curves are compared in float64 alone. */
#ifndef TESSERA_TESTS_LOCKSTEP_H
#define TESSERA_TESTS_LOCKSTEP_H

#include "tests/training_bench.h"

/* How much one step of two correct programs may differ. */
struct lockstep_bound {
    double loss;      /* the losses, relative to max(1, loss) */
    double update;    /* the updates of a tensor, relative to their norm */
    double whole;     /* plus this times the norm of the whole update of its arena */
    double correct;   /* images classified right in an epoch, relative to all; one may always differ */
    double perturbed; /* the rounding error of a pre-activation */
};

/* True float32. A step adds up to a few thousand products: each gradient is right within 1e-4 of its norm
   (the largest difference in 1,864 steps of two engines was 1.1e-5), a loss within 1e-6. If a tensor hardly
   changes, its update is a difference of large sums: 1e-6 of the whole update is allowed. A pre-activation of
   784 products is off by sqrt(784) roundings of 2^-24 of terms up to 2: 2^-18. */
extern const struct lockstep_bound lockstep_float32;

/* Operands are rounded by up to `unit` (2^-11 for tf32, 2^-8 for bfloat16). Each number of a forward and
   backward pass is rounded a few times, independently: an error of about one unit, and of several in biases,
   whose sums cancel. 8 units are allowed, and one of the whole update. Pre-activations of a trained network
   reach 4 and more, so they are off by 4 units; the gradient of one image that is classified right can change
   completely by that. A missing tail is an error of a tenth, which is 26 units of bfloat16. */
struct lockstep_bound lockstep_rounded(double unit);

/* What lockstep_check measured: the largest differences as fractions of their bounds. */
struct lockstep_seen {
    double loss, update;
    double weights[PROFILE_MAX_LAYERS]; /* the largest difference in each layer, relative to the update */
    size_t steps;
    size_t discontinuous; /* steps beyond the bound that float64 explains */
};

/* Trains `other` from the states of `reference`, all epochs of its config. Both are open, with the same
   `recipe` but for backend, engine, threads, precision, dtype and residency.

   After the first step all weights are halved in both, so that a stale copy of the weights is detected.

   For every step and every tensor (weights and biases of each layer, and their optimiser state), the updates
   may differ by `update` of the norm of the tensor's update, plus `whole` of the norm of the whole update,
   plus the rounding of the stored values. A step beyond that is repeated in float64, with each layer's
   pre-activations moved up and down by `perturbed`; the bound grows by how far the exact step then moves.
   This allows for a ReLU (or a sign, or Adam's m / sqrt(v)) that may fall on either side, by its exact
   effect, and for nothing else. */
struct lockstep_seen lockstep_check(struct bench *reference, struct bench *other, const char *recipe,
                                    const struct lockstep_bound *bound);

void lockstep_print(const struct lockstep_seen *seen);

/* All state tensors as doubles, without the padding between rows: weights of layer 1, its biases, weights of
   layer 2, ..; then each optimiser state tensor likewise. The caller frees them. */
double *lockstep_state(struct bench *bench);
size_t lockstep_state_count(const struct bench *bench);

/* Copies such a state into a bench of the same recipe. */
void lockstep_set_state(struct bench *bench, const double *state);

/* Runs one step of the current epoch, after trainer_begin_epoch; returns its loss. */
double lockstep_step(struct bench *bench, size_t step);

#endif
