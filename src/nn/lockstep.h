/* Compares two trainings step by step, from the same state.

   Two correct float32 programs drift apart: if a pre-activation is 0 in one and 6e-9 in the other, ReLU
   treats it differently, and after eight steps they differ by 1e-4. Which unit does so depends on the CPU. So
   before every step both trainers receive the same state (weights, biases and optimiser state), and the loss
   and the updates of that one step are compared. */
#ifndef TESSERA_NN_LOCKSTEP_H
#define TESSERA_NN_LOCKSTEP_H

#include "src/nn/trainer.h"

/* How much one step of two correct programs may differ. */
struct lockstep_bound {
    double loss;      /* the losses, relative to max(1, loss) */
    double update;    /* the updates of a tensor, relative to their norm */
    double whole;     /* plus this times the norm of the whole update of its arena */
    double stored;    /* plus this times the norm of the tensor: the rounding of stored values */
    double correct;   /* images classified right in an epoch, relative to all; one may always differ */
    double perturbed; /* the rounding error of a pre-activation */
};

/* True float32. A step adds up to a few thousand products: each gradient is right within 1e-4 of its norm
   (the largest difference in 1,864 steps of two engines was 1.1e-5), a loss within 1e-6. If a tensor hardly
   changes, its update is a difference of large sums: 1e-6 of the whole update is allowed. A pre-activation of
   784 products is off by sqrt(784) roundings of 2^-24 of terms up to 2: 2^-18. */
extern const struct lockstep_bound lockstep_float32;

/* The same with 2^-53 for 2^-24, and a margin of 100: a sum of 784 products has no such error in float64. */
extern const struct lockstep_bound lockstep_float64;

/* Operands are rounded by up to `unit` (2^-11 for tf32 and fp16, 2^-8 for bfloat16). Each number of a
   pass is rounded a few times, independently: an error of about one unit, and of several in biases, whose
   sums cancel. 8 units are allowed, and one of the whole update. Pre-activations of a trained network
   reach 4 and more, so they are off by 4 units; the gradient of one image that is classified right can change
   completely by that. A missing tail is an error of a tenth, which is 26 units of bfloat16. */
struct lockstep_bound lockstep_rounded(double unit);

/* The bound of a recipe's dtype and precision. */
struct lockstep_bound lockstep_bound(const struct config *config);

/* What was measured: the largest differences. */
struct lockstep_seen {
    double loss, update;                /* as fractions of their bounds */
    double drift;                       /* of the losses, relative to max(1, loss) */
    size_t worst;                       /* the step of that loss; 1 is the first */
    double weights[PROFILE_MAX_LAYERS]; /* the largest difference in each layer, relative to the update */
    size_t steps;
    size_t discontinuous; /* steps beyond the bound that float64 explains */
};

/* Both trainers are open, of the same recipe but for backend, engine, threads, precision, dtype and
   residency, and at the start of the same epoch. They may be the same with two engines. */
struct lockstep {
    struct trainer *reference, *other;
    const struct engine *engine; /* of the reference; NULL: its own */
    struct lockstep_bound bound;
    bool halve; /* all weights in both before the second step, so that a stale copy is detected */
    /* A trainer of the same recipe at the start of the reference's epoch, in float64 or as exact as there is;
       NULL if it cannot be opened. Called if a step is beyond its bound; it may return the reference. Its
       steps run op by op. */
    struct trainer *(*exact)(void *self);
    void *self;

    struct lockstep_seen seen;
    double *start, *end[2]; /* states: before the step, after it of both */
};

/* STATUS_FAILED if memory ran out. */
enum status lockstep_open(struct lockstep *lockstep);
void lockstep_close(struct lockstep *lockstep);

/* Runs step `step` of the epoch on both, from the reference's state, which is rounded to the dtype of
   `other`.

   For every tensor (weights and biases of each layer, and their optimiser state), the updates may differ by
   the sum of the bound's parts. A step beyond that is repeated in float64, with each layer's pre-activations
   moved up and down by `perturbed`; the bound grows by how far the exact step then moves. This allows for a
   ReLU (or a sign, or Adam's m / sqrt(v)) that may fall on either side, by its exact effect, and for nothing
   else. STATUS_VERIFY_FAILED says what differs. */
enum status lockstep_step(struct lockstep *lockstep, size_t step);

/* All state tensors as doubles, without the padding between rows: weights of layer 1, its biases, weights of
   layer 2, ..; then each optimiser state tensor likewise. NULL if memory ran out; the caller frees them. */
double *lockstep_state(struct trainer *trainer);
size_t lockstep_state_count(const struct trainer *trainer);

/* Copies such a state into a trainer of the same recipe; false if memory ran out. */
bool lockstep_set_state(struct trainer *trainer, const double *state);

/* Runs one step of the current epoch with this engine, after trainer_begin_epoch. */
enum status lockstep_run(struct trainer *trainer, const struct engine *engine, size_t step, double *loss);

/* The Euclidean norm of x - y; y may be NULL: of x. */
double lockstep_distance(const double *x, const double *y, size_t count);

#endif
