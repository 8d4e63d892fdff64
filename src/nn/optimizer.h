/* The optimiser: update rule, its state, and one update of all parameters. */
#ifndef TESSERA_NN_OPTIMIZER_H
#define TESSERA_NN_OPTIMIZER_H

#include "src/nn/mlp.h"

struct optimizer {
    struct update update;         /* the rule and its arrays */
    struct update after_max_norm; /* with max_norm: average and rounded copy of the scaled weights */
    double clip_norm, max_norm;   /* limits; 0: none */
    double *clip;                 /* device memory: the scale factor of the gradient */
    void *average;                /* moving average of the weights, a state arena; NULL: none */
};

/* Adds the state of the rule and the average to the network (mlp_add_state). */
enum status optimizer_open(struct optimizer *optimizer, struct mlp *mlp, const struct config *config);
void optimizer_close(struct optimizer *optimizer, struct mlp *mlp);

/* One update of all parameters. `step` and `guard` are device memory (see struct ops). */
void optimizer_step(struct optimizer *optimizer, struct mlp *mlp, const struct step_scalars *step,
                    const struct tally *guard);

/* Can the update be made in parts? Not if it needs the norm of all gradients, or of weights. */
bool optimizer_divides(const struct optimizer *optimizer);

/* One update of `count` elements of the parameter arena from `first` on, the first of a layer. */
void optimizer_step_part(struct optimizer *optimizer, struct mlp *mlp, size_t first, size_t count,
                         const struct step_scalars *step, const struct tally *guard);

#endif
