/* Finds the origin of a loss that is not finite. */
#ifndef TESSERA_NN_DIAGNOSE_H
#define TESSERA_NN_DIAGNOSE_H

#include "src/nn/trainer.h"

/* Call it if state.tally.bad_step is set. Returns STATUS_FAILED; the message names epoch, step and the first
   layer that is not finite. */
enum status diagnose_divergence(struct trainer *trainer);

#endif
