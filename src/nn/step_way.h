/* Where the steps of an audited call lead, and how far from there an engine ended (step_audit.h). */
#ifndef TESSERA_NN_STEP_WAY_H
#define TESSERA_NN_STEP_WAY_H

#include "src/nn/trainer.h"

/* What a training is restored from. */
struct step_snapshot {
    double *weights; /* and optimiser state, as of lockstep.h; owned */
    struct train_state state;
    struct tally tally;
};

/* STATUS_FAILED if memory ran out. */
enum status step_snapshot_take(struct trainer *trainer, struct step_snapshot *snapshot);
enum status step_snapshot_restore(struct trainer *trainer, const struct step_snapshot *snapshot);

/* What steps lead to. */
struct step_end {
    double *weights; /* and optimiser state; owned */
    double *losses;  /* [steps]: of each; owned */
    struct tally tally;
};

/* The current end of `count` steps from `first`. STATUS_FAILED if memory ran out. */
enum status step_end_take(struct trainer *trainer, size_t first, size_t count, struct step_end *end);
void step_end_free(struct step_end *end);

/* Right results of the same steps from the same start. */
struct step_way {
    const struct step_snapshot *start;
    size_t first, count;
    struct step_end exact;    /* op by op */
    struct step_end rounded;  /* the same with rounding errors at the start */
    struct step_end repeated; /* by the engine, piece by piece; weights NULL: not taken */
};

void step_way_free(struct step_way *way);

/* Is what the trainer has reached right? Allowed is
   - for each tensor of weights or biases, and for what the optimiser keeps for it, `share` of its way from
     the start, 0.01 % of the way of all weights and the rounding of stored values;
   - 0.1 % of the images that are counted as right, and two;
   - a loss of an image that is wrong by 0.1 % of itself or, if it is below 1, by 0.001, in the losses of the
     steps and in that of the tally;
   and each time eight times how far `rounded` (or `repeated`) is from `exact`. STATUS_VERIFY_FAILED says what
   is wrong. */
enum status step_way_check(struct trainer *trainer, const struct step_way *way, double share);

#endif
