/* A training run whose losses are recorded, on the built-in data of tests/reference/mlp_numpy.py. Networks
   with 784 inputs train on 2,500 synthetic digits, those with 624, 480, 400, 304, 64 and 16 on the middle of
   these. */
#ifndef TESSERA_TESTS_TRAINING_BENCH_H
#define TESSERA_TESTS_TRAINING_BENCH_H

#include "src/nn/engine.h"
#include "src/nn/ensemble.h"
#include "tests/support.h"

struct bench {
    struct config config;
    struct compute compute;
    struct dataset_pair data;
    struct profile profile;
    struct trainer trainer;
    double losses[400]; /* of the steps that log-steps selects */
    size_t steps, epochs;
    size_t stop_after; /* if not 0, the run stops after this many steps */
    volatile sig_atomic_t stop;
    double seconds; /* of training, without evaluation */
    struct epoch_record last;
};

/* Opens compute and data as `settings` say, but no trainer. Skips the test as bench_open does. */
void bench_prepare(struct bench *bench, const char *settings);

/* Opens a training as `settings` say ("backend=serial threads=1 layers=42-9-4 ..."); skips the test if the
   backend cannot be used here. */
void bench_open(struct bench *bench, const char *settings, const struct checkpoint *resume);
void bench_close(struct bench *bench);
enum status bench_run(struct bench *bench, struct run_summary *summary);

/* Asserts equal parameters and optimizer state. */
void bench_assert_same_network(const struct mlp *a, const struct mlp *b);

/* After a run of an ensemble with ema-decay and a validation set: asserts that each of its four committees
   has the members' own evaluations. */
void bench_check_averages(const struct ensemble *ensemble);

#endif
