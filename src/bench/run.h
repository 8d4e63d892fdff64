/* One timed training, from opening the backend to closing it: what comparisons of training times repeat. */
#ifndef TESSERA_BENCH_RUN_H
#define TESSERA_BENCH_RUN_H

#include "src/bench/energy_use.h"
#include "src/nn/trainer.h"

struct run_limits {
    double seconds;            /* of training; 0: no limit. The run ends where the engine then can */
    size_t steps;              /* 0: no limit */
    double *losses;            /* NULL, or [steps]: receives the loss of each step */
    struct energy_plan energy; /* if it plans a measurement, this ends the run */
};

struct run_result {
    /* How it ran, for tables and logs. */
    char description[256], gpu[256], device[16], engine[16], residency[32], precision[16];
    int threads;

    size_t images_per_epoch, batch, steps_per_epoch;
    size_t steps; /* done */
    struct evaluation test;
    double *epoch_seconds; /* [epochs], of whole epochs; owned */
    size_t epochs;
    double seconds; /* of training alone, for `images` */
    uint64_t images;
    struct profile time;
    uint64_t calls_audited, steps_audited;
    struct energy_use energy;
    bool limited;  /* a limit ended it */
    bool diverged; /* the status is STATUS_FAILED because a loss was not finite */
};

/* Trains `config` on `backend`, without the log files, checkpoints, ensemble and target of `config`.
   STATUS_FAILED if a loss is not finite, STATUS_UNAVAILABLE if a planned measurement of energy fails; also
   the errors of opening a backend. If the status is STATUS_OK, the caller closes the result. */
enum status run_training(const struct config *config, const struct gemm_backend *backend,
                         const struct dataset_pair *data, const struct run_limits *limits,
                         struct run_result *result);
void run_close(struct run_result *result);

/* Seconds of one epoch: the median of all whole epochs; if there is none, extrapolated from the steps. */
double run_epoch_seconds(const struct run_result *result);
/* (H2D + D2H) / training time. */
double run_transfer_ratio(const struct run_result *result);
/* Mean seconds of a part of the profile in an epoch. */
double run_part_seconds(const struct run_result *result, enum profile_part part);
/* Rate inside GEMM calls, in flop/s; 0 if the engine does not time them. */
double run_gemm_rate(const struct run_result *result);

#endif
