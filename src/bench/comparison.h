/* Trains the same network on several backends: which of them agree, and how fast are they? */
#ifndef TESSERA_BENCH_COMPARISON_H
#define TESSERA_BENCH_COMPARISON_H

#include "src/base/statistics.h"
#include "src/bench/agreement.h"
#include "src/bench/problem.h"
#include "src/bench/sweep.h"
#include "src/bench/verdict.h"

enum { COMPARISON_MOST_REPEATS = 100 };

struct comparison_row {
    const struct sweep_row *sweep;
    enum outcome outcome;
    char reason[640];   /* of every outcome but OUTCOME_RIGHT */
    struct drift drift; /* if it ran */
    struct trace trace; /* if requested, or if the losses drifted */
    char tensor[32];    /* its tensor */

    /* Only with OUTCOME_RIGHT: a wrong backend gets no time. */
    struct run_result *runs; /* [repeats] */
    size_t repeats;
    struct run_result ops;    /* an epoch of engine eager, if the runs' engine times no single ops */
    struct statistics epoch;  /* seconds, over all epochs of all repeats */
    double *epoch_seconds;    /* sorted; [epoch.count] */
    double part[PART_COUNT];  /* seconds an epoch, mean over all repeats */
    double gemm[PROFILE_OPS]; /* seconds an epoch in NN, TN, NT; from `ops` if that ran */
    double gemm_rate;         /* flop/s inside GEMM calls */
    double transfer_ratio;    /* (H2D + D2H) / training time */
    struct energy_use energy; /* if requested; without a counter: */
    char no_energy[256];      /* the reason; "": not requested */
    uint64_t calls_audited;   /* in the audited epoch, if there was one */
    uint64_t steps_audited;
    bool extrapolated; /* from fewer steps than an epoch has */
};

struct comparison {
    const struct config *config;
    const struct dataset_pair *data;
    struct agreement agreement;
    struct comparison_row *rows;
    size_t count, repeats;
    double limit_seconds; /* of training, for each row and repeat; 0: none */
    bool trace;           /* of every row, not only of those that drifted */
    bool energy;          /* measure it, in one more training of each row */
    /* (optional) Called when a stage starts; `row` is NULL for the reference. */
    void (*progress)(const struct comparison_row *row, const char *what);
};

/* Runs the reference. Verifies each row on the shapes of the training and checks its agreement, trains it
   `repeats` times, interleaved; then audits one epoch whole, unless the config's `audit` says otherwise, and
   verifies it again; then measures its energy, if requested. Each row runs in a contestant: one that fails,
   crashes or hangs does not stop the others. */
enum status comparison_run(struct comparison *comparison, const struct sweep *sweep);
enum status comparison_verdict(const struct comparison *comparison);
void comparison_close(struct comparison *comparison);

/* Verifies a backend, opened with `config`, on every product of a training step and of an evaluation; if
   `last`, also on those of the smaller batch at the end of an epoch. */
enum status comparison_verify(const struct config *config, const struct gemm_backend *backend,
                              const struct dataset_pair *data, enum problem_inputs inputs, bool last);

/* The first right row of the backend "NAME:options", or of any options if the text has none; NULL if there is
   none. */
const struct comparison_row *comparison_find(const struct comparison *comparison, const char *backend);

#endif
