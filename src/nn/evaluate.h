/* Evaluation during training, of the weights and of their moving average. */
#ifndef TESSERA_NN_EVALUATE_H
#define TESSERA_NN_EVALUATE_H

#include "src/nn/committee.h"
#include "src/nn/trainer.h"

/* Evaluates the reported part (dataset_reported) into last_test and last_average, unless these are of the
   current weights. */
enum status evaluate_test(struct trainer *trainer);

/* Evaluates the validation set if there is one, else the test set, into the record of an epoch. */
enum status evaluate_epoch(struct trainer *trainer, struct epoch_record *record);

/* Adds the predictions of the network to the committee `of_weights` and, if there is a moving average, those
   with the average as its weights to `of_average`. */
enum status evaluate_members(struct trainer *trainer, const struct samples *samples,
                             struct committee *of_weights, struct committee *of_average);

#endif
