/* The initial centres: points, drawn by random numbers that depend on the seed and the restart alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"
#include "src/base/rng.h"
#include "src/cluster/kmeans.h"

enum { ROUNDS = 5, OVERSAMPLING = 2 }; /* of k-means-parallel: Bahmani et al. 2012, section 5 */

/* Distances from the nearest centre so far. */
struct seeding {
    struct kmeans *run;
    struct rng rng;
    size_t count, found; /* points; chosen rows */
    uint32_t *chosen;    /* [clusters] */
    bool *taken;         /* [count] */
    double *nearest;     /* [count]: squared; infinite: no centre yet */
    double *squared;     /* [count]: scratch */
};

static void close_seeding(struct seeding *seeding) {
    free(seeding->chosen);
    free(seeding->taken);
    free(seeding->nearest);
    free(seeding->squared);
}

static enum status open_seeding(struct seeding *seeding, struct kmeans *run, size_t restart) {
    const size_t count = run->points->count;
    *seeding = (struct seeding){.run = run,
                                .rng = rng_open(run->options->seed, RNG_CLUSTER, (uint32_t)restart),
                                .count = count,
                                .chosen = pages_alloc(run->sums.clusters * sizeof *seeding->chosen),
                                .taken = pages_alloc(count * sizeof *seeding->taken),
                                .nearest = pages_alloc(count * sizeof *seeding->nearest),
                                .squared = pages_alloc(count * sizeof *seeding->squared)};
    if (!seeding->chosen || !seeding->taken || !seeding->nearest || !seeding->squared) return STATUS_FAILED;
    memset(seeding->taken, 0, count * sizeof *seeding->taken);
    for (size_t i = 0; i < count; i++) seeding->nearest[i] = INFINITY;
    return STATUS_OK;
}

/* Are centres still to be drawn by distance? After an interruption, random points take their places. */
static bool is_drawing(const struct seeding *seeding) {
    const struct kmeans_options *options = seeding->run->options;
    return seeding->found < seeding->run->sums.clusters && !(options->stop && *options->stop);
}

static void choose(struct seeding *seeding, size_t row) {
    seeding->chosen[seeding->found++] = (uint32_t)row;
    seeding->taken[row] = true;
}

/* A point that is not chosen yet, each with the same probability. */
static void choose_any(struct seeding *seeding) {
    size_t row;
    do row = rng_below(&seeding->rng, (uint32_t)seeding->count);
    while (seeding->taken[row]);
    choose(seeding, row);
}

/* The index of a random item, with a probability in proportion to its weight; `count` if all are 0. */
static size_t draw_weighted(struct rng *rng, const double *weight, size_t count) {
    double total = 0, before = 0;
    size_t last = count;
    for (size_t i = 0; i < count; i++) total += weight[i];
    const double target = rng_uniform(rng) * total;
    for (size_t i = 0; i < count; i++) {
        if (!(weight[i] > 0)) continue;
        last = i;
        before += weight[i];
        if (before > target) break;
    }
    return last;
}

/* Copies rows of the points to the centres. */
static enum status set_values(struct kmeans *run, const uint32_t *rows, size_t count, void *values) {
    struct device *device = &run->compute->device;
    uint32_t *index = device->driver->alloc(device, count * sizeof *index);
    if (!index) return STATUS_FAILED;
    points_gather(run->points, device, rows, count, index, values);
    const enum status status = device->driver->synchronize(device);
    device->driver->free(device, index);
    return status;
}

/* Lowers `nearest` to the distances from one more centre. */
static enum status add_centre(struct seeding *seeding, uint32_t row) {
    struct kmeans *run = seeding->run;
    enum status status = set_values(run, &row, 1, run->assigner.centres.values);
    if (!status) status = kmeans_distances(run, run->points, NULL, seeding->squared);
    for (size_t i = 0; !status && i < seeding->count; i++)
        seeding->nearest[i] = fmin(seeding->nearest[i], seeding->squared[i]);
    return status;
}

static enum status seed_plus_plus(struct seeding *seeding) {
    enum status status = STATUS_OK;
    choose_any(seeding);
    while (!status && is_drawing(seeding)) {
        status = add_centre(seeding, seeding->chosen[seeding->found - 1]);
        const size_t row = draw_weighted(&seeding->rng, seeding->nearest, seeding->count);
        if (status) break;
        if (row < seeding->count) {
            choose(seeding, row);
        } else {
            choose_any(seeding); /* fewer distinct points than clusters */
        }
    }
    return status;
}

/* --- k-means-parallel --- */

/* Candidates and the number of points nearest to each. */
struct candidates {
    size_t count, capacity;
    uint32_t *row;   /* [capacity] */
    double *weight;  /* [capacity] */
    uint32_t *owner; /* [points]: the nearest candidate; the first one if no squared distance is finite */
    uint32_t *label; /* [points]: scratch */
};

/* Draws each point with the probability OVERSAMPLING clusters nearest / total. Returns the number drawn. */
static size_t draw_candidates(struct seeding *seeding, struct candidates *candidates) {
    const size_t before = candidates->count;
    double total = 0;
    for (size_t i = 0; i < seeding->count; i++) total += seeding->nearest[i];
    const double factor = (double)(OVERSAMPLING * seeding->run->sums.clusters) / total;
    for (size_t i = 0; i < seeding->count && candidates->count < candidates->capacity; i++)
        if (rng_uniform(&seeding->rng) < factor * seeding->nearest[i])
            candidates->row[candidates->count++] = (uint32_t)i;
    return candidates->count - before;
}

/* Finds the points that are nearer to one of the candidates from `first` on. `assigner` has room for them. */
static enum status own_points(struct seeding *seeding, struct candidates *candidates,
                              struct assigner *assigner, size_t first) {
    struct kmeans *run = seeding->run;
    struct device *device = &run->compute->device;
    const size_t bytes = seeding->count * sizeof(uint32_t), added = candidates->count - first;
    struct nearest_counts counts;
    uint32_t *label = device->driver->alloc(device, bytes);
    double *squared = device->driver->alloc(device, seeding->count * sizeof *squared);
    enum status status = label && squared ? STATUS_OK : STATUS_FAILED;
    if (!status) status = set_values(run, candidates->row + first, added, assigner->centres.values);
    if (!status) {
        assigner_set_centres(assigner, added);
        status = assigner_run(assigner, run->points, label, NULL, &counts);
    }
    if (!status) status = assigner_distances(assigner, run->points, label, squared);
    if (!status) {
        device->driver->download(device, candidates->label, label, bytes);
        device->driver->download(device, seeding->squared, squared, seeding->count * sizeof *squared);
        for (size_t i = 0; i < seeding->count; i++) {
            if (!(seeding->squared[i] < seeding->nearest[i])) continue;
            seeding->nearest[i] = seeding->squared[i];
            candidates->owner[i] = (uint32_t)first + candidates->label[i];
        }
    }
    device->driver->free(device, label);
    device->driver->free(device, squared);
    return status;
}

/* k-means++ among the weighted candidates: the candidates are the points of `few`. */
static enum status reduce_candidates(struct seeding *seeding, const struct candidates *candidates) {
    struct kmeans *run = seeding->run, few = *run;
    struct device *device = &run->compute->device;
    const struct points *points = run->points;
    struct points chosen = {.dtype = points->dtype, .count = candidates->count, .features = points->features};
    struct seeding small;
    enum status status;
    few.points = &chosen;
    chosen.values = device->driver->alloc(device, chosen.count * chosen.features * dtype_size(chosen.dtype));
    status = open_seeding(&small, &few, 0);
    if (!status) status = chosen.values ? STATUS_OK : STATUS_FAILED;
    if (!status) status = set_values(run, candidates->row, candidates->count, chosen.values);
    for (size_t next = draw_weighted(&seeding->rng, candidates->weight, chosen.count);
         !status && is_drawing(seeding) && next < chosen.count;) {
        choose(seeding, candidates->row[next]);
        status = add_centre(&small, (uint32_t)next);
        for (size_t i = 0; !status && i < chosen.count; i++)
            small.squared[i] = small.nearest[i] * candidates->weight[i];
        next = draw_weighted(&seeding->rng, small.squared, chosen.count);
    }
    while (!status && seeding->found < run->sums.clusters) choose_any(seeding);
    close_seeding(&small);
    device->driver->free(device, chosen.values);
    return status;
}

static enum status run_rounds(struct seeding *seeding, struct candidates *candidates,
                              struct assigner *assigner) {
    enum status status = STATUS_OK;
    candidates->row[candidates->count++] = rng_below(&seeding->rng, (uint32_t)seeding->count);
    for (size_t round = 0, first = 0, drawn = 1; round <= ROUNDS && drawn && !status; round++) {
        status = own_points(seeding, candidates, assigner, first);
        first = candidates->count;
        drawn = round < ROUNDS && !status && is_drawing(seeding) ? draw_candidates(seeding, candidates) : 0;
    }
    for (size_t i = 0; i < seeding->count && !status; i++) candidates->weight[candidates->owner[i]]++;
    return status ? status : reduce_candidates(seeding, candidates);
}

static enum status seed_parallel(struct seeding *seeding) {
    const struct kmeans *run = seeding->run;
    const size_t count = seeding->count, wanted = 2 * OVERSAMPLING * ROUNDS * run->sums.clusters + 64,
                 most = wanted < count ? wanted : count;
    struct candidates candidates = {.capacity = most,
                                    .row = pages_alloc(most * sizeof(uint32_t)),
                                    .weight = calloc(most, sizeof(double)),
                                    .owner = calloc(count, sizeof(uint32_t)),
                                    .label = pages_alloc(count * sizeof(uint32_t))};
    struct assigner assigner = {0};
    enum status status = candidates.row && candidates.weight && candidates.owner && candidates.label
                             ? STATUS_OK
                             : status_set(STATUS_FAILED, "out of memory");
    if (!status)
        status = assigner_open(&assigner, run->compute, run->points, most, run->options->precision,
                               run->options->engine, BOUNDS_OFF);
    if (!status) status = run_rounds(seeding, &candidates, &assigner);
    assigner_close(&assigner);
    free(candidates.row);
    free(candidates.weight);
    free(candidates.owner);
    free(candidates.label);
    return status;
}

enum status kmeans_seed(struct kmeans *run, size_t restart) {
    struct seeding seeding;
    enum status status = open_seeding(&seeding, run, restart);
    if (!status && run->options->init == KMEANS_PLUS_PLUS) status = seed_plus_plus(&seeding);
    if (!status && run->options->init == KMEANS_PARALLEL) status = seed_parallel(&seeding);
    while (!status && seeding.found < run->sums.clusters) {
        if (run->options->init == KMEANS_FIRST) {
            choose(&seeding, seeding.found);
        } else {
            choose_any(&seeding);
        }
    }
    if (!status) status = set_values(run, seeding.chosen, seeding.found, run->assigner.centres.values);
    close_seeding(&seeding);
    return status;
}
