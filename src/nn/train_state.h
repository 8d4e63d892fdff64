/* The progress of a training run, and its text in the metadata of a checkpoint. Random numbers are
   counter-based (src/base/rng.h): their state is seed, epoch and step. */
#ifndef TESSERA_NN_TRAIN_STATE_H
#define TESSERA_NN_TRAIN_STATE_H

#include "kernels/ops.h"
#include "src/nn/safetensors.h"

/* The best evaluation on the validation set; epoch 0: none yet. */
struct best_epoch {
    int64_t epoch; /* 1 is the first */
    uint64_t correct;
    double loss;
};

struct train_state {
    int64_t epoch;      /* finished epochs: the index of the epoch in progress */
    int64_t step;       /* finished steps of the epoch in progress */
    uint64_t updates;   /* of the weights, in total */
    struct tally tally; /* of the epoch in progress */
    struct best_epoch best;
};

enum { TRAIN_STATE_BEST_KEYS = 3, TRAIN_STATE_KEYS = 8 + TRAIN_STATE_BEST_KEYS };

/* Holds the values that the metadata entries point to. */
struct train_state_text {
    char value[TRAIN_STATE_KEYS][64];
};

/* Fills up to TRAIN_STATE_KEYS entries and returns their number. */
size_t train_state_write(const struct train_state *state, int64_t seed, struct train_state_text *text,
                         struct metadata *metadata);

/* A file without state (--save-init, or of another program) is at epoch 0. STATUS_BAD_DATA if the state is
   invalid. */
enum status train_state_read(const struct safetensors *file, struct train_state *state);

#endif
