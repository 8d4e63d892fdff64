/* Audits a plug-in on the host: are the data that a training only reads unchanged, and is its evaluation
   right? */
#ifndef TESSERA_NN_EPOCH_AUDIT_H
#define TESSERA_NN_EPOCH_AUDIT_H

#include "src/nn/trainer.h"

/* Around the steps of an epoch. Labels, order and learning rates must stay as they are, in an audited epoch
   also the images; rounding mode, locale, directory and affinity must be those of the start, and the epochs
   must have used no more cores than the backend has threads, and left no crowd of threads.
   STATUS_VERIFY_FAILED if not. */
void epoch_audit_begin(struct trainer *trainer);
enum status epoch_audit_end(struct trainer *trainer);

/* samples_evaluate, and in an audited epoch (step_audit_affords) the same on a built-in backend: loss and
   count may differ as lockstep.h says. The weights must stay as they are in an evaluation, and the test and
   validation sets from the first epoch on. STATUS_VERIFY_FAILED if not. */
enum status epoch_audit_evaluate(struct trainer *trainer, const struct samples *samples, struct mlp *mlp,
                                 struct evaluation *result);

#endif
