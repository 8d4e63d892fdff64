/* The optimiser: its rule, what it keeps beside the weights, and one update of all of them. */
#ifndef TESSERA_NN_OPTIMIZER_H
#define TESSERA_NN_OPTIMIZER_H

#include "src/nn/mlp.h"

enum { OPTIMIZER_ARENAS = 2 };

/* Something that it keeps for every parameter: a device arena laid out as the parameters. */
struct optimizer_arena {
    const char *prefix; /* of the names of its tensors in a checkpoint */
    void *memory;
};

struct optimizer {
    struct update update;       /* the rule and its arrays */
    struct update afterwards;   /* with max-norm: what follows the weights when they have been scaled */
    double clip_norm, max_norm; /* limits; 0: none */
    double *clip;               /* device memory: the factor of a step */
    struct optimizer_arena arena[OPTIMIZER_ARENAS]; /* the first `arenas` are in use */
    size_t arenas;
};

enum status optimizer_open(struct optimizer *optimizer, struct mlp *mlp, const struct config *config);
void optimizer_close(struct optimizer *optimizer, struct mlp *mlp);

/* One update of all parameters. `step` and `guard` are device memory (see struct ops). */
void optimizer_step(struct optimizer *optimizer, struct mlp *mlp, const struct step_scalars *step,
                    const struct tally *guard);

#endif
