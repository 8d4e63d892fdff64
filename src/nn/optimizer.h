/* The optimiser: its rule, what it keeps beside the weights, and one update of all of them. */
#ifndef TESSERA_NN_OPTIMIZER_H
#define TESSERA_NN_OPTIMIZER_H

#include "src/nn/mlp.h"

struct optimizer {
    struct update update;       /* the rule and its arrays */
    struct update afterwards;   /* with max-norm: what follows the weights when they have been scaled */
    double clip_norm, max_norm; /* limits; 0: none */
    double *clip;               /* device memory: the factor of a step */
    void *average; /* the moving average of the weights; NULL: none. What it keeps is the network's */
};

/* What the rule keeps, and the average, become arenas of the network (mlp_add_state). */
enum status optimizer_open(struct optimizer *optimizer, struct mlp *mlp, const struct config *config);
void optimizer_close(struct optimizer *optimizer, struct mlp *mlp);

/* One update of all parameters. `step` and `guard` are device memory (see struct ops). */
void optimizer_step(struct optimizer *optimizer, struct mlp *mlp, const struct step_scalars *step,
                    const struct tally *guard);

#endif
