/* Evaluation while training: of the weights and, beside it, of their moving average. */
#ifndef TESSERA_NN_EVALUATE_H
#define TESSERA_NN_EVALUATE_H

#include "src/nn/committee.h"
#include "src/nn/trainer.h"

/* The test set, to last_test and last_average; nothing to do if these are of the weights as they are. */
enum status evaluate_test(struct trainer *trainer);

/* The validation part if there is one, else the test set, to the record of an epoch. */
enum status evaluate_epoch(struct trainer *trainer, struct epoch_record *record);

/* Adds what the network says of these images to one committee, and what it says with the average as its
   weights, if there is one, to another. */
enum status evaluate_members(struct trainer *trainer, const struct samples *samples,
                             struct committee *of_weights, struct committee *of_average);

#endif
