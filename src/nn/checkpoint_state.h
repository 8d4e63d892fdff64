/* How far a run has come, as text in the metadata of its checkpoint: what checkpoint.c is made of. */
#ifndef TESSERA_NN_CHECKPOINT_STATE_H
#define TESSERA_NN_CHECKPOINT_STATE_H

#include "src/nn/checkpoint.h"

enum { BEST_KEYS = 3, STATE_KEYS = 8 + BEST_KEYS };

/* What the metadata points to. */
struct state_text {
    char value[STATE_KEYS][64];
};

/* Fills up to STATE_KEYS entries, and returns how many. */
size_t checkpoint_state_write(const struct train_state *state, int64_t seed, struct state_text *text,
                              struct metadata *metadata);

/* A file without state (--save-init, or made elsewhere) stands at the start. STATUS_BAD_DATA if it cannot be
   read. */
enum status checkpoint_state_read(const struct checkpoint *checkpoint, struct train_state *state);

/* STATUS_BAD_DATA: the checkpoint, by its name, `what`. */
enum status checkpoint_bad(const struct checkpoint *checkpoint, const char *what);

#endif
