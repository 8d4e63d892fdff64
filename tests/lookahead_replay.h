/* A training in float64 by engine eager, and its replay by the model of tests/lookahead.h. */
#ifndef TESSERA_TESTS_LOOKAHEAD_REPLAY_H
#define TESSERA_TESTS_LOOKAHEAD_REPLAY_H

#include "tests/lookahead.h"
#include "tests/training_bench.h"

struct lookahead_training {
    struct bench bench;  /* with the losses of all steps */
    double *start, *end; /* states, as lockstep_state */
    size_t count;
};

/* Trains as `settings` say; at most 400 steps. */
void lookahead_training_open(struct lookahead_training *training, const char *settings);
void lookahead_training_close(struct lookahead_training *training);

/* Relative differences of a replay: the largest of the losses, and the norm of that of the weights and
   velocities, to their change in the training. Infinite if a loss is not finite. */
struct lookahead_apart {
    double loss, weights;
};

#define LOOKAHEAD_NEVER SIZE_MAX

/* The batch of a step of the epoch that is in the trainer's feed, in host memory. */
struct lookahead_batch lookahead_batch_of(const struct trainer *trainer, size_t step);

/* Drains the model every so many steps, and at the end of the training. */
struct lookahead_apart lookahead_replay(struct lookahead_training *training, struct lookahead *model,
                                        size_t drain_every);

#endif
