/* The variants of k-means on the same points, from the same centres: each verified, timed, verified again. */
#ifndef TESSERA_BENCH_KMEANS_RACE_H
#define TESSERA_BENCH_KMEANS_RACE_H

#include "src/base/statistics.h"
#include "src/bench/verdict.h"
#include "src/cluster/kmeans.h"

/* The points in the memory of every device that takes part, and a backend that labels with a certificate. */
struct kmeans_race {
    struct config config; /* device, dtype, clusters, iterations, threads, data: "uniform:SIZE,FEATURES" */
    struct compute home;  /* in host memory */
    struct point_sets on_host, on_gpu;
    struct compute reference; /* on the GPU, if there is one: the points of on_gpu are its own */
    bool has_gpu;
    struct assigner exact; /* on the reference */
    uint32_t *label;       /* memory of the reference */
    double largest;        /* of the points, in magnitude */
};

/* Draws the points, and copies them to the GPU if `gpu` names a backend there (NULL: no GPU takes part). Call
   kmeans_race_close also after a failure. */
enum status kmeans_race_open(struct kmeans_race *race, const struct config *config, const char *gpu);
void kmeans_race_close(struct kmeans_race *race);

struct kmeans_variant {
    const char *name;    /* "serial", a value of --step but auto */
    const char *backend; /* as in --backend */
    bool on_gpu;
    const char *step; /* of kernels/kmeans_steps.h; NULL: none */
    bool updates;     /* the step updates the centres on the GPU: the points are there, too */
    unsigned block;   /* of the step; 0: none */
    enum engine_choice engine;
    int threads; /* 0: those of the config */
};

struct kmeans_time {
    enum outcome outcome;
    char reason[640]; /* of every outcome but OUTCOME_RIGHT */
    char kernel[160]; /* "eager", "fused (..)", "naive (..)" */
    int threads;
    /* Only with OUTCOME_RIGHT: */
    struct statistics seconds;  /* of a loop: labels and new centres */
    double gpu, cpu, transfers; /* mean seconds of a loop; what is neither GPU nor transfer is CPU */
    double startup;             /* seconds before the first loop of the run */
    size_t loops;
    double inertia; /* at the end */
};

/* Runs the variant for one loop and checks it, then for all loops, and checks it again. The check: labels of
   the final centres against certified ones (assigner_check_labels), and centres against the means of the
   labels they were computed from, in float64. */
void kmeans_race_run(struct kmeans_race *race, const struct kmeans_variant *variant,
                     struct kmeans_time *time);

/* The same on a backend that is open. */
void kmeans_race_run_on(struct kmeans_race *race, const struct kmeans_variant *variant,
                        struct compute *compute, struct kmeans_time *time);

#endif
