/* Checks a secret random sample of the real steps of a training as a whole: those of engine fused, in which
   there are no calls for audit.h, and all steps of a plug-in.

   A backend may be right in every call that is checked, and change weights, data or learning rates beside it.
   So, from time to time, the state of the training is copied, and the same steps are taken from the same
   state op by op: by a built-in backend instead of a plug-in on the host, else by the same backend with its
   calls audited. Then the training goes on from the copy. If one step in f is wrong, n audited steps find
   that with probability 1 - (1 - 1/f)^n. */
#ifndef TESSERA_NN_STEP_AUDIT_H
#define TESSERA_NN_STEP_AUDIT_H

#include "src/nn/trainer.h"

/* Images that two right counts may always differ by: in each, one whose two largest logits almost agree. */
enum { STEP_AUDIT_TIES = 2 };

/* Draws the steps: in an epoch, a random one and the last. A plug-in's first and last epochs are always
   audited, the others in 5 % of the time; a built-in backend within the share of trainer->audit, which is
   started. */
void step_audit_start(struct trainer *trainer);
void step_audit_stop(struct trainer *trainer);

/* May there be an audit in this epoch? */
bool step_audit_affords(const struct trainer *trainer);

/* Exchanges the backend of the trainer and the trusted one, if there is one. */
void step_audit_swap(struct trainer *trainer);

/* Is there an audit now? If not, *count is lowered if one is due within so many steps. On the
   host the first call of engine fused is never audited: it is one step. */
bool step_audit_due(struct trainer *trainer, size_t *count);

/* Runs up to *count steps with the trainer's engine, as engine->run does, or 128 steps of a plug-in that are
   issued one by one. Before that, from the same state:
   - the first four of them one by one, each compared as lockstep.h says;
   - all of them op by op. Each tensor of weights or biases that the engine then reaches in one call may
     differ from these by half a step of the way from the start, at most 5 % of it, and by eight times what a
     rounding error at the start changes; likewise counts and losses (step_way.h). If they differ by more,
     the engine takes the steps once more in pieces of 16, each compared from its own start and within a
     smaller share of its way; if all are right, the call must end as near to the steps op by op as they do.
   All but the call itself is PART_AUDIT. STATUS_VERIFY_FAILED says what is wrong. */
enum status step_audit_run(struct trainer *trainer, size_t first, size_t *count);

#endif
