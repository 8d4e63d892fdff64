/* Two float32 training paths, compared step by step from the same state.

   Free-running float32 is chaotic: a ReLU that is 0 in one path and 6e-9 in the other drives two right
   programs 1e-4 apart in eight steps, and which unit that is depends on the CPU. So before every step the
   other trainer receives the state of the reference (weights, biases, and what the optimiser keeps), and
   one step of both is compared. Free-running curves are compared in float64 alone. */
#ifndef TESSERA_TESTS_LOCKSTEP_H
#define TESSERA_TESTS_LOCKSTEP_H

#include "tests/training_bench.h"

/* How far apart one step of two right programs may be. */
struct lockstep_bound {
    double loss;      /* the losses, relative to max(1, loss) */
    double update;    /* the updates of a tensor, relative to the norm of its update */
    double whole;     /* the same, relative to the norm of the update of all tensors of its kind */
    double correct;   /* images classified right in an epoch, relative to all; one image always may differ */
    double perturbed; /* pre-activations that differ by this much are equal, as far as the arithmetic knows */
};

/* True float32. A step sums up to some thousand products: each gradient is right within 1e-4 of its norm
   (the largest difference of 1,864 steps of two engines was 1.1e-5), a loss within 1e-6. A tensor that
   hardly changes is the difference of large sums: 1e-6 of the whole update. A pre-activation of 784
   products is off by sqrt(784) roundings of 2^-24 of terms up to 2: 2^-18. */
extern const struct lockstep_bound lockstep_float32;

/* Products of operands rounded by up to `unit` (2^-11 for tf32, 2^-8 for bfloat16): each number of a
   forward and backward pass is rounded a few times and independently, which adds up to about one unit, and
   in biases, sums of numbers of either sign, to several; 8 are allowed, and one of the whole update. A
   pre-activation of a trained network reaches 4 and more, so its rounding 4 units; a single image that is
   classified right has a gradient as small as that moves. A tail
   that is left out is off by a tenth, which is 26 units of bfloat16. */
struct lockstep_bound lockstep_rounded(double unit);

/* What was seen: the largest differences as fractions of their bounds. */
struct lockstep_seen {
    double loss, update;
    double
        weights[PROFILE_MAX_LAYERS]; /* of each layer: the largest difference, relative to the update alone */
    size_t steps;
    size_t discontinuous; /* steps beyond the bound, in which a perturbed float64 step jumps as far */
};

/* Trains `other` from the states of `reference`, all epochs of its config. Both are open, with the same
   `recipe` but for backend, engine, threads, precision, dtype and residency.

   After the first step all weights are halved in both.

   For every step, and for every tensor (weights and biases of each layer, and the same of what the
   optimiser keeps): the updates differ by at most `update` of the norm of the tensor's update, `whole` of
   the norm of the whole update, and the rounding of what is stored, added up. A step beyond that is
   compared with float64: there every layer's pre-activations are moved up and down by `perturbed`, and the
   difference may grow by how far the exact step then moves. So a ReLU (or a sign, or Adam's m / sqrt(v))
   that may legally fall on either side is allowed for, by as much as it matters, and nothing else is. */
struct lockstep_seen lockstep_check(struct bench *reference, struct bench *other, const char *recipe,
                                    const struct lockstep_bound *bound);

void lockstep_print(const struct lockstep_seen *seen);

/* All state tensors as doubles, without the padding between rows: weights of layer 1, its biases, weights
   of layer 2, ..; then the same of each tensor that the optimiser keeps. To be freed. */
double *lockstep_state(struct bench *bench);
size_t lockstep_state_count(const struct bench *bench);

/* The same, into a bench of the same recipe. */
void lockstep_set_state(struct bench *bench, const double *state);

/* One step of the current epoch, after trainer_begin_epoch; returns its loss. */
double lockstep_step(struct bench *bench, size_t step);

#endif
