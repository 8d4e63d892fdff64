/* k-means: Lloyd's algorithm (Lloyd 1982, IEEE Trans. Inf. Theory 28) and its mini-batch form (Sculley 2010,
   WWW). An iteration assigns each point to its nearest centre, and moves each centre to the mean of its
   points.

   A label is certified (kernels/nearest.h), and sums have a fixed order: so the result has the same bits for
   every backend, every chunk size and every number of threads. */
#ifndef TESSERA_CLUSTER_KMEANS_H
#define TESSERA_CLUSTER_KMEANS_H

#include <signal.h>

#include "src/cluster/step.h"

/* The state of a run after an iteration, to go on from. */
struct kmeans_state {
    void *values;              /* [clusters][features] of the dtype: the centres */
    size_t restart, iteration; /* the last one that is done; iteration 0: none */
    /* Lloyd's algorithm: the labels of the last iteration, before the centres moved; NULL: none, so that each
       point counts as changed in the next iteration. */
    uint32_t *label; /* [points] */
    /* Of the points: see struct kmeans. If those of a later run have another one, the labels mean nothing,
       the centres are initial ones, and the run sets iteration to 0. */
    uint64_t fingerprint;
    bool other_points;
    /* Mini-batches: the sum and the number of all points that each centre ever got. */
    double *sums;      /* [clusters][features] */
    uint64_t *members; /* [clusters] */
};

struct kmeans_options {
    size_t clusters, iterations, restarts;
    size_t batch; /* points of a mini-batch; 0: all, Lloyd's algorithm */
    enum kmeans_init init;
    enum kmeans_empty empty;
    double tolerance, change_limit;
    uint64_t seed;
    enum nearest_precision precision;
    enum engine_choice engine;
    enum kmeans_bounds bounds;         /* of Lloyd's algorithm */
    const char *step;                  /* a kernel of kernels/kmeans_steps.h, with NEAREST_F32; NULL: none */
    unsigned block;                    /* its block size */
    struct kmeans_state *start;        /* NULL: draw the initial centres; else there is one restart */
    double scale;                      /* of the inertia and shift that are reported: see struct point_sets */
    const volatile sig_atomic_t *stop; /* NULL: never */
};

/* One iteration; a mini-batch run has one a pass over the points. */
struct kmeans_record {
    size_t restart, iteration; /* from 1 */
    double inertia; /* sum of squared distances from the nearest centre, before the centres moved */
    double shift;   /* sum over the centres of their squared move */
    struct nearest_counts counts;
    size_t empty;        /* clusters without points, before they were filled */
    struct profile time; /* of this iteration */
};

struct kmeans_observer {
    void *self;
    void (*start)(void *self, const char *engine); /* "eager", "fused (..)" */
    void (*iteration)(void *self, const struct kmeans_record *record);
};

enum kmeans_end {
    KMEANS_LIMIT,
    KMEANS_NO_CHANGE,
    KMEANS_NO_SHIFT, /* each centre is the mean of its points already */
    KMEANS_FEW_CHANGES,
    KMEANS_TOLERANCE,
    KMEANS_INTERRUPTED
};

/* The best run of all restarts. All memory is the host's. */
struct kmeans_result {
    struct kmeans_state state; /* with the final centres; sums and members only of mini-batches */
    uint32_t *label;           /* [points]: the nearest of the final centres */
    uint64_t *count;           /* [clusters] */
    double inertia;            /* float64, point by point */
    size_t empty;
    enum kmeans_end end;
    struct nearest_counts counts; /* all iterations of all restarts */
    double seeding_seconds;
    uint64_t audited; /* labels that were checked against all centres */
    char bounds[160]; /* "off", "on (..)" */
};

/* The state of a run. */
struct kmeans {
    struct compute *compute;
    const struct kmeans_options *options;
    const struct points *points;
    struct assigner assigner;
    struct stepper step;          /* labels in place of the assigner, if options->step */
    struct cluster_sums sums;     /* device */
    uint32_t *label, *before;     /* device, [points] */
    uint32_t *moved;              /* device, scratch */
    double *slices;               /* device, scratch */
    double *report;               /* device: sums.count, cost and shift, which are downloaded together */
    double *shift, *cost;         /* device, [clusters] */
    void *values_before;          /* device: the centres before they moved */
    double *mean;                 /* device, [features] */
    double variance, spread;      /* mean over the features; sum of squared distances from the mean */
    uint64_t fingerprint;         /* a hash of these distances, in the order of the points */
    struct points batch;          /* the mini-batch */
    uint32_t *order, *batch_rows; /* host and device */
    double *host_report;          /* a copy of the report; its parts: */
    double *host_shift, *host_cost;
    uint64_t *host_count;
    bool split;     /* the next iteration starts with kmeans_fill_split */
    bool was_split; /* the last one did */
    size_t launch;  /* iterations of the next launch (launch.c); 0: the first */
    struct nearest_iteration launched[NEAREST_ITERATIONS];
};

/* Runs all restarts. STATUS_USAGE if there are fewer points than clusters; STATUS_INTERRUPTED, with a result,
   if *stop was set. Call kmeans_free also after a failure. */
enum status kmeans_run(struct compute *compute, const struct points *points,
                       const struct kmeans_options *options, const struct kmeans_observer *observer,
                       struct kmeans_result *result);
void kmeans_free(struct kmeans_result *result);
void kmeans_state_free(struct kmeans_state *state);

/* --- parts of a run --- */

/* Allocates all but run->compute, options and points. Call kmeans_close also after a failure (lloyd.c). */
enum status kmeans_open(struct kmeans *run);
void kmeans_close(struct kmeans *run);

/* Computes mean, variance, spread and fingerprint. Uses the labels, the sums and centre 0 as scratch. */
enum status kmeans_measure(struct kmeans *run);

void kmeans_clear_sums(struct kmeans *run);
/* Adds the points to the sums of their labels and, of pixels, takes those that moved from the labels before
   (NULL: they had none). Device memory. */
void kmeans_add_rows(struct kmeans *run, const struct points *points, const uint32_t *label,
                     const uint32_t *before);

/* The points for `sum`. */
struct cluster_rows kmeans_rows(const struct kmeans *run, const struct points *points, const uint32_t *label,
                                const uint32_t *before);

/* Labels all points by the step or the assigner, and adds them to `sums` if the step updates them (NULL: it
   does not). `then`: see assigner_run. */
enum status kmeans_label(struct kmeans *run, const struct cluster_sums *sums,
                         const struct points_visitor *then, struct nearest_counts *counts);

/* Labels all points with a step and the last ones with a certificate, which must agree but for the error of
   the step: STATUS_VERIFY_FAILED names a row that differs. run->label stays. */
enum status kmeans_check_step(struct kmeans *run);

/* One iteration: of Lloyd's algorithm, or a pass in mini-batches. Fills the record but for its numbers and
   its time; inertia and shift are in units of x. */
enum status kmeans_lloyd(struct kmeans *run, struct kmeans_record *record);
enum status kmeans_batches(struct kmeans *run, struct kmeans_record *record);

/* The end of an iteration of Lloyd's algorithm, after the points were labelled and added up. */
enum status kmeans_move(struct kmeans *run, struct kmeans_record *record);

/* Up to `most` iterations in one call of the backend, if it can (launch.c): *done of them, with run->launched
   of each; 0: none, do the next one by kmeans_lloyd. */
enum status kmeans_launch(struct kmeans *run, size_t most, size_t *done);

/* Two iterations step by step and by kmeans_launch must have the same bits: STATUS_VERIFY_FAILED otherwise.
   Leaves the state as it was at the start of the run. */
enum status kmeans_verify_launch(struct kmeans *run);

/* The sum of all squared distances from the labelled centres, in the order of the points. */
enum status kmeans_inertia(struct kmeans *run, const struct points *points, const uint32_t *label,
                           double *inertia);

void kmeans_add_counts(struct nearest_counts *to, const struct nearest_counts *counts);

/* Sets centres, labels and sums as after the last iteration of options->start, or, to begin a restart: no
   point has a label, and no cluster has a point. */
enum status kmeans_restore(struct kmeans *run, const struct kmeans_state *start);
enum status kmeans_reset(struct kmeans *run);
/* Compares the points with those of options->start, after kmeans_measure: see struct kmeans_state. */
void kmeans_check_points(const struct kmeans *run);

/* Writes the initial centres to run->assigner.centres.values (kmeans_seed.c). */
enum status kmeans_seed(struct kmeans *run, size_t restart);

/* Fill the clusters without points (kmeans_empty.c): `far` before the means are computed, `split` before the
   next iteration, so that the centres of the result are means. run->host_count is up to date. */
enum status kmeans_fill_far(struct kmeans *run);
enum status kmeans_fill_split(struct kmeans *run);

/* squared[i] (host) = the squared distance of each point from its labelled centre. */
enum status kmeans_distances(struct kmeans *run, const struct points *points, const uint32_t *label,
                             double *squared);

#endif
