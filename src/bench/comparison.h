/* The same training on several backends, side by side: which of them agree, and how fast are those that
   do? */
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
    char reason[512];   /* why left out, what failed, or what is wrong */
    struct drift drift; /* if it ran */
    struct trace trace; /* if asked for, or wrong */

    /* Of OUTCOME_RIGHT alone: a backend that is wrong gets no time. */
    struct run_result *runs; /* [repeats] */
    size_t repeats;
    struct run_result
        ops; /* one epoch op by op, where the engine of the runs does not take its steps apart */
    struct statistics epoch;  /* seconds, over all epochs of all repeats */
    double *epoch_seconds;    /* sorted; [epoch.count] */
    double part[PART_COUNT];  /* seconds an epoch, mean over all repeats */
    double gemm[PROFILE_OPS]; /* seconds an epoch in NN, TN, NT; from `ops` if that was needed */
    double gemm_rate;         /* flop/s inside GEMM calls */
    double transfer_ratio;    /* (H2D + D2H) / training time */
    bool extrapolated;        /* no epoch was finished: from the steps that were done */
};

struct comparison {
    const struct config *config;
    const struct dataset_pair *data;
    struct agreement agreement;
    struct comparison_row *rows;
    size_t count, repeats;
    double limit_seconds; /* of training, for each row and repeat; 0: none */
    bool trace;           /* every row, not only those that are wrong */
    /* (optional) Called as work starts: `what` in words, row `row` of `count`. */
    void (*progress)(const struct comparison_row *row, const char *what);
};

/* Runs everything: reference, verification on the shapes of the training, agreement, then `repeats` trainings
   of each row in turn, then verification again. A row that fails does not stop the others: STATUS_OK unless
   nothing could be run. */
enum status comparison_run(struct comparison *comparison, const struct sweep *sweep);
/* What the rows say together: verdict_status of them all. */
enum status comparison_verdict(const struct comparison *comparison);
void comparison_close(struct comparison *comparison);

/* Verifies a backend on every product of a training step, set up as `config` says; if `last`, on those of the
   smaller batch that ends an epoch, too. */
enum status comparison_verify(const struct config *config, const struct gemm_backend *backend,
                              const struct dataset_pair *data, enum problem_inputs inputs, bool last);

/* The first right row of that backend; NULL if there is none. */
const struct comparison_row *comparison_find(const struct comparison *comparison, const char *backend);

#endif
