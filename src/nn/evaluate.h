/* Evaluation while training: of the weights and, beside it, of their moving average. */
#ifndef TESSERA_NN_EVALUATE_H
#define TESSERA_NN_EVALUATE_H

#include "src/nn/trainer.h"

/* The test set, to last_test and last_average; nothing to do if these are of the weights as they are. */
enum status evaluate_test(struct trainer *trainer);

/* The validation part if there is one, else the test set, to the record of an epoch. */
enum status evaluate_epoch(struct trainer *trainer, struct epoch_record *record);

#endif
