/* Early stopping: training ends when the validation part has seen no better epoch for a while, and the best
   weights are taken. Better are more images classified right, or as many with less loss; of the moving
   average of the weights, if there is one. */
#ifndef TESSERA_NN_EARLY_STOPPING_H
#define TESSERA_NN_EARLY_STOPPING_H

#include "src/nn/optimizer.h"
#include "src/nn/samples.h"
#include "src/nn/train_state.h"

struct early_stopping {
    int64_t patience; /* epochs without a better one; 0: off */
    void *best,
        *average; /* arenas of the network: the best weights and the average that belongs to them, or NULL */
};

/* The arenas become the network's (mlp_add_state). */
enum status early_stopping_open(struct early_stopping *stopping, struct mlp *mlp,
                                const struct optimizer *optimizer, int64_t patience);

/* After the evaluation of an epoch (1 is the first): keeps the weights if they are the best so far, and says
   so in `best`. */
void early_stopping_update(const struct early_stopping *stopping, const struct mlp *mlp,
                           const struct optimizer *optimizer, int64_t epoch,
                           const struct evaluation *evaluation, struct best_epoch *best);

/* Has the patience run out? */
bool early_stopping_due(const struct early_stopping *stopping, const struct train_state *state);

/* Puts the best weights, and their average, in the place of the last ones, if there are any better ones. */
void early_stopping_restore(const struct early_stopping *stopping, struct mlp *mlp,
                            const struct optimizer *optimizer, const struct best_epoch *best);

#endif
