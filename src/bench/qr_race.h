/* The methods of sliding windows on the same matrix: each verified, timed, verified again. */
#ifndef TESSERA_BENCH_QR_RACE_H
#define TESSERA_BENCH_QR_RACE_H

#include "src/base/statistics.h"
#include "src/bench/qr_problem.h"
#include "src/bench/verdict.h"
#include "src/nn/config.h"
#include "src/window/windows.h"

enum { QR_MOST_REPEATS = 1000 };

struct qr_variant {
    enum windows_method method;
    const char *backend;  /* as in --backend */
    size_t count;         /* of windows */
    size_t group, nb;     /* as in struct windows_shape */
    bool host_panels;     /* with a GPU backend: the fastest backend of the host factors the panels */
    size_t repeats;       /* timed runs, at least */
    double limit_seconds; /* method naive runs on as many windows as take so long; 0: on all */
};

struct qr_time {
    enum outcome outcome;
    char reason[640]; /* of every outcome but OUTCOME_RIGHT */
    int threads;
    char gpu[256];           /* in words; "" without */
    struct qr_errors errors; /* the largest ones; 0 before the first check */
    /* Only with OUTCOME_RIGHT: */
    struct statistics seconds; /* of all timed windows: their R, from rows in memory of the device */
    double parts[PART_COUNT];  /* seconds of the median run */
    size_t timed;              /* windows; less than `count` if the limit forces it */
    double flops;              /* of the method, for the timed windows */
    size_t group;              /* in use */
    double startup;            /* seconds to allocate and plan */
};

/* Runs the variant and checks three windows, times it, runs and checks it again. The check: all windows come,
   in order, and the backward error is at most qr_problem_bound. A timed run reads the last diagonal element
   of each R: it depends on every row of the window. */
void qr_race_run(struct qr_problem *problem, const struct config *config, const struct qr_variant *variant,
                 struct qr_time *time);

/* The same on a backend that is open. */
void qr_race_run_on(struct qr_problem *problem, struct compute *compute, const struct qr_variant *variant,
                    struct qr_time *time);

#endif
