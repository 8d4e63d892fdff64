#include "src/cluster/kmeans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"

/* Why the run ends after this iteration; KMEANS_LIMIT: it does not, but for the limit. */
static enum kmeans_end find_end(const struct kmeans *run, const struct kmeans_record *record) {
    const struct kmeans_options *options = run->options;
    if (record->counts.changed == 0) return KMEANS_NO_CHANGE;
    if (run->split && !run->was_split) return KMEANS_LIMIT; /* first the split of the new empty clusters */
    if (record->shift == 0) return KMEANS_NO_SHIFT;
    if ((double)record->counts.changed <= options->change_limit * (double)run->points->count)
        return KMEANS_FEW_CHANGES;
    if (record->shift <= options->tolerance * run->variance) return KMEANS_TOLERANCE;
    return KMEANS_LIMIT;
}

/* The next iteration is done. */
static void note(const struct kmeans *run, struct kmeans_record *record,
                 const struct kmeans_observer *observer, struct kmeans_result *result) {
    const double square = run->options->scale * run->options->scale;
    result->state.iteration = record->iteration;
    result->end = find_end(run, record);
    kmeans_add_counts(&result->counts, &record->counts);
    record->inertia *= square;
    record->shift *= square;
    if (observer && observer->iteration) observer->iteration(observer->self, record);
}

static enum status iterate_once(struct kmeans *run, size_t restart, const struct kmeans_observer *observer,
                                struct kmeans_result *result) {
    struct profile *profile = run->compute->device.profile;
    const struct profile before = profile ? *profile : (struct profile){0};
    struct kmeans_record record = {.restart = restart, .iteration = result->state.iteration + 1};
    const enum status status =
        run->options->batch ? kmeans_batches(run, &record) : kmeans_lloyd(run, &record);
    if (status) return status;
    if (profile) record.time = profile_since(profile, &before);
    note(run, &record, observer, result);
    return STATUS_OK;
}

/* The records of a launch. */
static enum status note_launch(const struct kmeans *run, size_t restart, size_t done,
                               const struct kmeans_observer *observer, struct kmeans_result *result) {
    for (size_t i = 0; i < done; i++) {
        const struct nearest_iteration *one = &run->launched[i];
        struct kmeans_record record = {.restart = restart,
                                       .iteration = result->state.iteration + 1,
                                       .inertia = run->spread + one->cost,
                                       .shift = one->shift,
                                       .counts = one->counts,
                                       .empty = one->empty};
        record.time.seconds[PART_STEPS] = one->label_seconds;
        record.time.seconds[PART_OPTIMIZER] = one->centres_seconds;
        note(run, &record, observer, result);
        if (result->end != KMEANS_LIMIT && i + 1 < done)
            return status_set(STATUS_FAILED, "iteration %zu was to be the last, and backend '%s' went on",
                              record.iteration, run->compute->name);
    }
    return STATUS_OK;
}

static enum status iterate(struct kmeans *run, size_t restart, const struct kmeans_observer *observer,
                           struct kmeans_result *result) {
    const struct kmeans_options *options = run->options;
    enum status status = STATUS_OK;
    result->end = KMEANS_LIMIT;
    result->state.iteration = options->start ? options->start->iteration : 0;
    while (result->state.iteration < options->iterations && !status && result->end == KMEANS_LIMIT) {
        size_t done;
        status = kmeans_launch(run, options->iterations - result->state.iteration, &done);
        if (status) break;
        status = done ? note_launch(run, restart, done, observer, result)
                      : iterate_once(run, restart, observer, result);
        if (options->stop && *options->stop) result->end = KMEANS_INTERRUPTED;
    }
    return status;
}

/* What a later run needs to go on. */
static void keep_state(struct kmeans *run, struct kmeans_state *state) {
    struct device *device = &run->compute->device;
    const size_t clusters = run->sums.clusters, features = run->points->features;
    state->fingerprint = run->fingerprint;
    device->driver->download(device, state->values, run->assigner.centres.values,
                             clusters * features * dtype_size(run->points->dtype));
    if (run->options->batch) {
        device->driver->download(device, state->sums, run->sums.sums,
                                 clusters * features * sizeof *state->sums);
        device->driver->download(device, state->members, run->sums.count, clusters * sizeof *state->members);
    } else {
        device->driver->download(device, state->label, run->label, run->points->count * sizeof *state->label);
    }
}

/* The labels of the final centres, and what follows from them. */
static enum status finish(struct kmeans *run, struct kmeans_result *result) {
    struct device *device = &run->compute->device;
    const struct points *points = run->points;
    const size_t clusters = run->sums.clusters;
    struct nearest_counts counts = {0};
    keep_state(run, &result->state);
    enum status status = kmeans_label(run, NULL, NULL, &counts);
    kmeans_add_counts(&result->counts, &counts);
    if (!status) status = kmeans_inertia(run, points, run->label, &result->inertia);
    if (status) return status;
    result->inertia *= run->options->scale * run->options->scale;
    device->driver->download(device, result->label, run->label, points->count * sizeof *result->label);
    memset(result->count, 0, clusters * sizeof *result->count);
    for (size_t i = 0; i < points->count; i++) result->count[result->label[i]]++;
    result->empty = 0;
    for (size_t j = 0; j < clusters; j++) result->empty += result->count[j] == 0;
    return STATUS_OK;
}

static size_t first_restart(const struct kmeans *run) {
    return run->options->start ? run->options->start->restart : 1;
}

static enum status seed(struct kmeans *run, size_t restart, struct kmeans_result *result) {
    struct device *device = &run->compute->device;
    const double start = clock_seconds();
    if (device->profile) profile_divert(device->profile, PART_OTHER);
    const struct kmeans_state *state = run->options->start;
    enum status status = kmeans_reset(run);
    if (!status) status = state ? kmeans_restore(run, state) : kmeans_seed(run, restart);
    if (!status) assigner_set_centres(&run->assigner, run->sums.clusters);
    if (!status && restart == first_restart(run))
        status = run->step.step ? kmeans_check_step(run) : assigner_verify(&run->assigner, run->points);
    if (!status && restart == first_restart(run)) status = kmeans_verify_launch(run);
    if (device->profile) profile_restore(device->profile);
    result->seeding_seconds += clock_seconds() - start;
    return status;
}

static enum status open_result(const struct kmeans *run, struct kmeans_result *result) {
    const struct points *points = run->points;
    const size_t clusters = run->options->clusters;
    const size_t labels = points->count * sizeof(uint32_t), elements = clusters * points->features;
    struct kmeans_state *state = &result->state;
    *result = (struct kmeans_result){.inertia = INFINITY};
    state->values = pages_alloc(elements * dtype_size(points->dtype));
    result->label = pages_alloc(labels);
    result->count = pages_alloc(clusters * sizeof *result->count);
    if (!state->values || !result->label || !result->count) return STATUS_FAILED;
    if (!run->options->batch) return (state->label = pages_alloc(labels)) ? STATUS_OK : STATUS_FAILED;
    state->sums = pages_alloc(elements * sizeof *state->sums);
    state->members = pages_alloc(clusters * sizeof *state->members);
    return state->sums && state->members ? STATUS_OK : STATUS_FAILED;
}

static enum status run_restarts(struct kmeans *run, const struct kmeans_observer *observer,
                                struct kmeans_result *best) {
    struct kmeans_result next;
    enum status status = open_result(run, &next);
    bool stopped = false;
    const size_t first = first_restart(run), end = first + (run->options->start ? 1 : run->options->restarts);
    for (size_t r = first; r < end && !status && !stopped; r++) {
        status = seed(run, r, &next);
        if (!status) status = iterate(run, r, observer, &next);
        if (!status) status = finish(run, &next);
        if (status) break;
        next.state.restart = r;
        stopped = next.end == KMEANS_INTERRUPTED;
        best->counts = next.counts;
        best->seeding_seconds = next.seeding_seconds;
        if (!(next.inertia < best->inertia) && best->state.restart) continue;
        const struct kmeans_result old = *best;
        *best = next;
        next.state = old.state; /* the memory changes places */
        next.label = old.label;
        next.count = old.count;
    }
    kmeans_free(&next);
    if (stopped) best->end = KMEANS_INTERRUPTED; /* even if an earlier restart is the best */
    return stopped && !status ? STATUS_INTERRUPTED : status;
}

enum status kmeans_run(struct compute *compute, const struct points *points,
                       const struct kmeans_options *options, const struct kmeans_observer *observer,
                       struct kmeans_result *result) {
    struct kmeans run = {.compute = compute, .options = options, .points = points};
    enum status status = open_result(&run, result);
    if (!status) status = kmeans_open(&run);
    if (!status) status = kmeans_measure(&run);
    if (!status) kmeans_check_points(&run);
    if (!status && observer && observer->start) {
        char engine[160];
        if (options->step) {
            stepper_describe(&run.step, engine, sizeof engine);
        } else {
            assigner_describe(&run.assigner, engine, sizeof engine);
        }
        observer->start(observer->self, engine);
    }
    if (compute->device.profile) device_lap(&compute->device, PART_STARTUP);
    if (!status) status = run_restarts(&run, observer, result);
    result->audited = run.assigner.audited;
    if (!status || status == STATUS_INTERRUPTED)
        assigner_describe_bounds(&run.assigner, result->bounds, sizeof result->bounds);
    kmeans_close(&run);
    return status;
}

void kmeans_free(struct kmeans_result *result) {
    kmeans_state_free(&result->state);
    free(result->label);
    free(result->count);
    *result = (struct kmeans_result){0};
}
