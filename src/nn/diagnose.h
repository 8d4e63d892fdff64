/* Where a loss that is not finite comes from. */
#ifndef TESSERA_NN_DIAGNOSE_H
#define TESSERA_NN_DIAGNOSE_H

#include "src/nn/trainer.h"

/* To be called when state.tally.bad_step is set. STATUS_FAILED with epoch, step and the first layer that is
   not finite in the message. */
enum status diagnose_divergence(struct trainer *trainer);

#endif
