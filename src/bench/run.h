/* One training from the first to the last step, opened, timed and closed: the unit of every comparison of
   training times. */
#ifndef TESSERA_BENCH_RUN_H
#define TESSERA_BENCH_RUN_H

#include "src/nn/trainer.h"

struct run_limits {
    double seconds; /* of training; 0: no limit. Past it the run ends after the step in progress */
    size_t steps;   /* likewise; 0: no limit */
    double *losses; /* NULL, or [steps]: receives the loss of each step */
};

struct run_result {
    /* How it ran, for tables and logs. */
    char description[256], gpu[256];
    const char *device, *engine, *residency, *precision;
    int threads;

    size_t images_per_epoch, batch, steps_per_epoch;
    size_t steps; /* done */
    struct evaluation test;
    double *epoch_seconds; /* [epochs], of whole epochs; owned */
    size_t epochs;
    double seconds; /* of training alone, whole epochs or not, for `images` */
    uint64_t images;
    struct profile time;
    bool limited;  /* ended by a limit, before config->epochs */
    bool diverged; /* the status is STATUS_FAILED because a loss was not finite */
};

/* Trains as `config` says, on `backend`, on data that is loaded. Log files, checkpoints, ensembles and
   targets of the config are left alone. STATUS_FAILED if the loss is not finite, and what opening a backend
   can give. The result is to be closed if the status is STATUS_OK. */
enum status run_training(const struct config *config, const struct gemm_backend *backend,
                         const struct dataset_pair *data, const struct run_limits *limits,
                         struct run_result *result);
void run_close(struct run_result *result);

/* Seconds of one epoch: the median of the whole ones, or, without any, what the steps that were done say
   (extrapolated). */
double run_epoch_seconds(const struct run_result *result);
/* (H2D + D2H) / training time. */
double run_transfer_ratio(const struct run_result *result);
/* The seconds that a part of the profile takes an epoch, on average. */
double run_part_seconds(const struct run_result *result, enum profile_part part);
/* Rate inside GEMM calls, in flop/s; 0 if the engine does not take its steps apart. */
double run_gemm_rate(const struct run_result *result);

#endif
