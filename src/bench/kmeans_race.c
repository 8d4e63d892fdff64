#include "src/bench/kmeans_race.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/pages.h"

enum { MOST_LOOPS = 1000 };

static size_t clusters_of(const struct kmeans_race *race) {
    return (size_t)race->config.clusters;
}

static enum status open_compute(struct compute *compute, const struct config *config, const char *backend,
                                int threads, enum residency residency) {
    struct config own = *config;
    const struct gemm_backend *found;
    snprintf(own.backend, sizeof own.backend, "%s", backend);
    own.residency = (int)residency;
    if (threads) own.threads = threads;
    const struct compute_options options = config_compute(&own);
    const enum status status = registry_find(own.backend, &found);
    return status ? status : compute_open(compute, found, &options);
}

static double largest_of(const struct points *points) {
    const size_t elements = points->count * points->features;
    double largest = 0;
    for (size_t i = 0; i < elements; i++) { /* GCC 12 for aarch64 crashes on fmax here */
        const double value = fabs(dtype_get(points->dtype, points->values, i));
        if (value > largest) largest = value;
    }
    return largest;
}

enum status kmeans_race_open(struct kmeans_race *race, const struct config *config, const char *gpu) {
    *race = (struct kmeans_race){.config = *config, .has_gpu = gpu != NULL};
    const size_t clusters = clusters_of(race);
    struct compute *reference = gpu ? &race->reference : &race->home;
    enum status status = open_compute(&race->home, config, "auto", 0, RESIDENCY_DEVICE);
    if (!status) status = points_load(&race->on_host, &race->home.device, config);
    if (!status && gpu) status = open_compute(reference, config, gpu, 0, RESIDENCY_DEVICE);
    if (!status && gpu) status = points_load(&race->on_gpu, &reference->device, config);
    if (status) return status;
    const struct points *points = gpu ? &race->on_gpu.train : &race->on_host.train;
    if (clusters > points->count)
        return status_set(STATUS_USAGE,
                          "%zu clusters need as many points, and there are %zu: lower --clusters", clusters,
                          points->count);
    race->largest = largest_of(&race->on_host.train);
    race->label = reference->device.driver->alloc(&reference->device, points->count * sizeof *race->label);
    if (!race->label) return STATUS_FAILED;
    return assigner_open(&race->exact, reference, points, clusters, NEAREST_EXACT, ENGINE_EAGER, BOUNDS_OFF);
}

void kmeans_race_close(struct kmeans_race *race) {
    struct compute *reference = race->has_gpu ? &race->reference : &race->home;
    assigner_close(&race->exact);
    if (reference->backend) reference->device.driver->free(&reference->device, race->label);
    if (race->reference.backend) points_close(&race->on_gpu, &race->reference.device);
    if (race->home.backend) points_close(&race->on_host, &race->home.device);
    compute_close(&race->reference);
    compute_close(&race->home);
}

/* --- the check of a result --- */

static enum status check_labels(struct kmeans_race *race, const struct kmeans_result *result) {
    struct assigner *exact = &race->exact;
    struct device *device = &exact->compute->device;
    const struct points *points = race->has_gpu ? &race->on_gpu.train : &race->on_host.train;
    device->driver->upload(device, exact->centres.values, result->state.values,
                           clusters_of(race) * points->features * dtype_size(points->dtype));
    assigner_set_centres(exact, clusters_of(race));
    device->driver->upload(device, race->label, result->label, points->count * sizeof *race->label);
    return assigner_check_labels(exact, points, race->label, points->count);
}

/* A sum of n numbers of at most `largest`, in any order, has an error of at most n^2 2^-53 largest, and so
   their mean one of n 2^-53 largest; the mean is rounded to the dtype. */
static enum status compare_means(const struct kmeans_race *race, const struct kmeans_result *result,
                                 const double *sums, const uint64_t *count) {
    const struct points *points = &race->on_host.train;
    const double epsilon = points->dtype == GEMM_F32 ? FLT_EPSILON : DBL_EPSILON;
    for (size_t j = 0; j < clusters_of(race); j++)
        for (size_t f = 0; f < points->features && count[j]; f++) {
            const size_t at = j * points->features + f;
            const double got = dtype_get(points->dtype, result->state.values, at),
                         want = sums[at] / (double)count[j],
                         bound = ((double)count[j] * DBL_EPSILON + epsilon) * race->largest;
            if (!(fabs(got - want) <= bound))
                return status_set(STATUS_VERIFY_FAILED,
                                  "feature %zu of centre %zu is %.17g, and the mean of its points %.17g", f,
                                  j, got, want);
        }
    return STATUS_OK;
}

static enum status check_means(struct kmeans_race *race, const struct kmeans_result *result) {
    struct device *device = &race->home.device;
    const struct points *points = &race->on_host.train;
    const size_t clusters = clusters_of(race), elements = clusters * points->features;
    const struct cluster_sums sums = {.clusters = clusters,
                                      .features = points->features,
                                      .sums = calloc(elements, sizeof(double)),
                                      .count = calloc(clusters, sizeof(uint64_t))};
    const struct cluster_rows rows = {
        .count = points->count,
        .x = points->values,
        .label = result->state.label,
        .moved = pages_alloc(points->count * sizeof(uint32_t)),
        .slices =
            pages_alloc((cluster_scratch(points->count, clusters, points->features) + 1) * sizeof(double))};
    enum status status = sums.sums && sums.count && rows.moved && rows.slices
                             ? STATUS_OK
                             : status_set(STATUS_FAILED, "out of memory");
    if (!status) {
        device->driver->cluster_ops(device, points->dtype)->sum(device->ops_context, &rows, &sums);
        status = compare_means(race, result, sums.sums, sums.count);
    }
    free(sums.sums);
    free(sums.count);
    free(rows.moved);
    free(rows.slices);
    return status;
}

/* --- a run --- */

struct loops {
    struct kmeans_time *time;
    double seconds[MOST_LOOPS], gpu, transfers;
    bool on_gpu, on_host; /* the variant runs on a GPU; its points are in host memory */
    double begin, counted;
};

static void on_start(void *self, const char *engine) {
    struct loops *loops = self;
    snprintf(loops->time->kernel, sizeof loops->time->kernel, "%s", engine);
}

static double gpu_seconds(const struct loops *loops, const struct profile *time) {
    if (!loops->on_gpu) return 0;
    if (loops->on_host) return time->seconds[PART_STEPS] + time->seconds[PART_GEMM_NN];
    return profile_total(time) - time->seconds[PART_H2D] - time->seconds[PART_D2H] -
           time->seconds[PART_OTHER];
}

static void on_iteration(void *self, const struct kmeans_record *record) {
    struct loops *loops = self;
    const double seconds = profile_total(&record->time);
    loops->counted += seconds;
    const double startup = clock_seconds() - loops->begin - loops->counted;
    /* (a backend may do all iterations before the first record) */
    loops->time->startup = record->iteration == 1 ? startup : fmin(startup, loops->time->startup);
    if (record->iteration <= MOST_LOOPS) loops->seconds[record->iteration - 1] = seconds;
    loops->gpu += gpu_seconds(loops, &record->time);
    loops->transfers += record->time.seconds[PART_H2D] + record->time.seconds[PART_D2H];
}

static void keep_time(struct loops *loops, size_t count, struct kmeans_time *time) {
    time->loops = count;
    time->seconds = statistics_of(loops->seconds, count);
    time->gpu = loops->gpu / (double)count;
    time->transfers = loops->transfers / (double)count;
    time->cpu = fmax(0, time->seconds.mean - time->gpu - time->transfers);
}

/* Runs and checks so many loops. */
static enum status run_loops(struct kmeans_race *race, const struct kmeans_variant *variant,
                             struct compute *compute, size_t count, struct kmeans_time *time) {
    const bool on_host = compute->device.driver->host_memory;
    struct loops loops = {
        .time = time, .on_gpu = variant->on_gpu, .on_host = on_host, .begin = clock_seconds()};
    const struct kmeans_observer observer = {&loops, on_start, on_iteration};
    const struct kmeans_options options = {.clusters = clusters_of(race),
                                           .iterations = count,
                                           .restarts = 1,
                                           .init = KMEANS_FIRST,
                                           .empty = EMPTY_KEEP,
                                           .precision = variant->step ? NEAREST_F32 : NEAREST_EXACT,
                                           .engine = variant->engine,
                                           .bounds = BOUNDS_OFF,
                                           .step = variant->step,
                                           .block = variant->block,
                                           .scale = 1};
    struct kmeans_result result = {0};
    struct profile profile;
    profile_start(&profile);
    compute->device.profile = &profile;
    enum status status = kmeans_run(compute, on_host ? &race->on_host.train : &race->on_gpu.train, &options,
                                    &observer, &result);
    compute->device.profile = NULL;
    if (!status) status = check_labels(race, &result);
    if (!status) status = check_means(race, &result);
    if (!status) keep_time(&loops, result.state.iteration, time);
    time->inertia = result.inertia;
    kmeans_free(&result);
    return status;
}

void kmeans_race_run_on(struct kmeans_race *race, const struct kmeans_variant *variant,
                        struct compute *compute, struct kmeans_time *time) {
    const size_t most = (size_t)race->config.iterations, loops = most < MOST_LOOPS ? most : MOST_LOOPS;
    *time = (struct kmeans_time){.threads = compute->threads};
    enum status status = run_loops(race, variant, compute, 1, time);
    if (!status) status = run_loops(race, variant, compute, loops, time);
    time->outcome = outcome_of(status);
    snprintf(time->reason, sizeof time->reason, "%s", status ? status_message() : "");
}

void kmeans_race_run(struct kmeans_race *race, const struct kmeans_variant *variant,
                     struct kmeans_time *time) {
    struct compute compute = {0};
    const enum status status =
        open_compute(&compute, &race->config, variant->backend, variant->threads,
                     variant->step && !variant->updates ? RESIDENCY_HOST : RESIDENCY_DEVICE);
    if (!status) {
        kmeans_race_run_on(race, variant, &compute, time);
    } else {
        *time = (struct kmeans_time){.outcome = outcome_of(status)};
        snprintf(time->reason, sizeof time->reason, "%s", status_message());
    }
    compute_close(&compute);
}
