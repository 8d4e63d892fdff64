/* Checks a secret random sample of the real steps of engine fused, in which there are no calls for audit.h.

   The engine alone decides what happens in such a step, and how long it takes. So, from time to time, the
   state of the training is copied, and engine eager, whose products are checked, takes the same steps from the
   same state. Then the training goes on from the copy. If one step in f is wrong, n audited steps find that
   with probability 1 - (1 - 1/f)^n. */
#ifndef TESSERA_NN_STEP_AUDIT_H
#define TESSERA_NN_STEP_AUDIT_H

#include "src/nn/trainer.h"

/* Draws the steps. For a plug-in there is an audit in the first and in the last epoch; all others only if
   they are within the share of trainer->audit. trainer->audit is started. */
void step_audit_start(struct trainer *trainer);

/* Is there an audit now? If not, *count is lowered if one is due within so many steps. The first call of the
   engine is never audited: it is one step. */
bool step_audit_due(struct trainer *trainer, size_t *count);

/* Runs up to *count steps with the trainer's engine, as engine->run does. Before that, from the same state:
   - the first four of them one by one, each compared with eager as lockstep.h says;
   - all of them with eager. The weights that the engine then reaches in one call may differ from these by
     5 % of the way from the start, and by eight times what a rounding error at the start changes.
   One of the eager steps is drawn in which every product is audited. All but the call itself is PART_AUDIT.
   STATUS_VERIFY_FAILED says what is wrong. */
enum status step_audit_run(struct trainer *trainer, size_t first, size_t *count);

#endif
