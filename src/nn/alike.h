/* What all processes of a training must have in common. */
#ifndef TESSERA_NN_ALIKE_H
#define TESSERA_NN_ALIKE_H

#include "src/comm/comm.h"
#include "src/nn/config.h"

/* STATUS_USAGE, with the same message on all ranks, if a rank has another program version, recipe, data set
   or `weights`, a hash of these and of the state of the training, than rank 0. */
enum status alike_check(struct comm *comm, const struct config *config, const struct dataset_pair *data,
                        uint64_t weights);

#endif
