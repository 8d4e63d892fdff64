/* Early stopping: training ends after `patience` epochs without improvement on the validation set, and
   restores the weights of the best epoch. An epoch is better if more images are classified correctly, or as
   many with less loss. If there is a moving average of the weights, its evaluation counts. */
#ifndef TESSERA_NN_EARLY_STOPPING_H
#define TESSERA_NN_EARLY_STOPPING_H

#include "src/nn/optimizer.h"
#include "src/nn/samples.h"
#include "src/nn/train_state.h"

struct early_stopping {
    int64_t patience;     /* epochs without improvement; 0: off */
    void *best, *average; /* state arenas: the best weights and their moving average, or NULL */
};

/* Adds its arenas to the network (mlp_add_state). */
enum status early_stopping_open(struct early_stopping *stopping, struct mlp *mlp,
                                const struct optimizer *optimizer, int64_t patience);

/* After the evaluation of an epoch (1 is the first): stores the weights and updates `best` if they are the
   best so far. */
void early_stopping_update(const struct early_stopping *stopping, const struct mlp *mlp,
                           const struct optimizer *optimizer, int64_t epoch,
                           const struct evaluation *evaluation, struct best_epoch *best);

/* Were the last `patience` epochs without improvement? */
bool early_stopping_due(const struct early_stopping *stopping, const struct train_state *state);

/* Restores the best weights and their average, if any were stored. */
void early_stopping_restore(const struct early_stopping *stopping, struct mlp *mlp,
                            const struct optimizer *optimizer, const struct best_epoch *best);

#endif
