/* The part of ./train that trains several networks. */
#ifndef TESSERA_CMD_TRAIN_ENSEMBLE_H
#define TESSERA_CMD_TRAIN_ENSEMBLE_H

#include "src/nn/ensemble.h"

struct ensemble_job {
    const struct config *config;
    struct compute *compute; /* open */
    const struct dataset_pair *data;
    struct comm *comm;           /* processes that share the networks out */
    double started;              /* the time when the program started */
    volatile sig_atomic_t *stop; /* set by a signal */
    bool dry_run, verbose;
};

/* Trains config->ensemble networks, prints a line for each and the committee of all, and writes logs and
   checkpoints. */
enum status train_ensemble(const struct ensemble_job *job);

#endif
