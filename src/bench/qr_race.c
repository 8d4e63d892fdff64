#include "src/bench/qr_race.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/platform.h"

enum { TRIALS = 3, READ_TOGETHER = 1024 };
static const double LEAST_SECONDS = 0.2; /* of the timed runs of a row */

struct race {
    struct qr_problem *problem;
    struct compute *compute;
    struct compute panels; /* of the host, with host_panels; else not open */
    const struct qr_variant *variant;
    struct qr_time *time;
    void *a; /* the matrix in memory of the device */
    struct windows *windows;
};

static enum status open_windows(struct race *race, size_t count) {
    const struct qr_problem *problem = race->problem;
    const struct windows_shape shape = {.dtype = problem->dtype,
                                        .n = problem->n,
                                        .cols = problem->n,
                                        .window = problem->window,
                                        .stride = problem->stride,
                                        .count = count,
                                        .group = race->variant->group,
                                        .nb = race->variant->nb,
                                        .panels = race->panels.backend ? &race->panels : NULL};
    return windows_open(&race->windows, race->compute, race->variant->method, &shape);
}

/* --- a run that is checked --- */

struct check {
    struct race *race;
    size_t seen; /* windows */
    double *r;   /* [n][n] */
    void *row;   /* [n] of the dtype */
};

/* Copies the upper triangle to the host. */
static void fetch(const struct check *check, const void *values, size_t ld) {
    const struct qr_problem *problem = check->race->problem;
    struct device *device = &check->race->compute->device;
    const size_t n = problem->n, size = dtype_size(problem->dtype);
    for (size_t i = 0; i < n; i++) {
        device->driver->download(device, check->row, (const char *)values + (i * ld + i) * size,
                                 (n - i) * size);
        for (size_t j = i; j < n; j++) check->r[i * n + j] = dtype_get(problem->dtype, check->row, j - i);
    }
}

/* Unlike fmax, keeps a NaN. */
static double larger(double a, double b) {
    return isnan(a) || b <= a ? a : b;
}

static enum status compare(const struct check *check, size_t which) {
    const struct qr_problem *problem = check->race->problem;
    const struct qr_errors errors = qr_problem_errors(problem, which, check->r);
    const double bound = qr_problem_bound(problem);
    struct qr_errors *largest = &check->race->time->errors;
    largest->backward = larger(largest->backward, errors.backward);
    largest->orthogonality = larger(largest->orthogonality, errors.orthogonality);
    if (errors.backward <= bound) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "|R^T R - A^T A| of window %zu is %.3g |A^T A|, and rounding explains %.3g",
                      problem->checked[which].index, errors.backward, bound);
}

static enum status check_visit(void *self, size_t first, size_t count, const struct qr_triangles *r) {
    struct check *check = self;
    const struct qr_checked *checked = check->race->problem->checked;
    if (first != check->seen)
        return status_set(STATUS_VERIFY_FAILED, "after %zu windows comes number %zu", check->seen, first);
    check->seen += count;
    for (size_t which = 0; which < QR_CHECKED; which++) {
        const size_t index = checked[which].index;
        if (index < first || index >= first + count || (which && index == checked[which - 1].index)) continue;
        fetch(check, r->from[index - first], r->ld);
        const enum status status = compare(check, which);
        if (status) return status;
    }
    return STATUS_OK;
}

static enum status run(struct race *race, const struct windows_visitor *visitor) {
    struct device *device = &race->compute->device;
    const enum status status = windows_run(race->windows, race->a, race->problem->n, visitor);
    const enum status finished = device->driver->synchronize(device);
    return status ? status : finished;
}

static enum status all_seen(size_t seen, size_t count) {
    if (seen == count) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED, "%zu of %zu windows came", seen, count);
}

static enum status run_checked(struct race *race) {
    const size_t n = race->problem->n;
    struct check check = {.race = race,
                          .r = malloc(n * n * sizeof(double)),
                          .row = malloc(n * dtype_size(race->problem->dtype))};
    const struct windows_visitor visitor = {&check, check_visit};
    enum status status = check.r && check.row ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) status = run(race, &visitor);
    if (!status) status = all_seen(check.seen, race->problem->count);
    free(check.r);
    free(check.row);
    return status;
}

/* --- timed runs --- */

struct reader {
    struct race *race;
    const struct qr_ops *ops;
    size_t seen;
    double sum; /* of the last diagonal elements */
};

static enum status read_visit(void *self, size_t first, size_t count, const struct qr_triangles *r) {
    struct reader *reader = self;
    const struct qr_problem *problem = reader->race->problem;
    const void *corner[READ_TOGETHER];
    double element[READ_TOGETHER];
    (void)first;
    for (size_t done = 0, some; done < count; done += some) {
        some = count - done < READ_TOGETHER ? count - done : READ_TOGETHER;
        for (size_t i = 0; i < some; i++)
            corner[i] =
                (const char *)r->from[done + i] + (problem->n - 1) * (r->ld + 1) * dtype_size(problem->dtype);
        const struct qr_triangles corners = {.from = corner, .ld = r->ld};
        reader->ops->diagonals(reader->race->compute->device.ops_context, some, 1, &corners, element);
        for (size_t i = 0; i < some; i++) reader->sum += fabs(element[i]);
    }
    reader->seen += count;
    return STATUS_OK;
}

struct timed {
    double seconds;
    struct profile profile;
};

static enum status run_timed(struct race *race, struct timed *timed) {
    struct device *device = &race->compute->device;
    struct reader reader = {.race = race, .ops = device->driver->qr_ops(device, race->problem->dtype)};
    const struct windows_visitor visitor = {&reader, read_visit};
    device->profile = &timed->profile;
    profile_start(&timed->profile);
    const double begin = clock_seconds();
    enum status status = run(race, &visitor);
    timed->seconds = clock_seconds() - begin;
    device_lap(device, PART_OTHER);
    device->profile = NULL;
    if (!status) status = all_seen(reader.seen, race->problem->count);
    if (!status && !isfinite(reader.sum))
        status = status_set(STATUS_VERIFY_FAILED, "a timed run has a triangle that is not finite");
    return status;
}

/* The parts of the run whose time is nearest to the median. */
static void keep(const struct timed *timed, size_t count, struct qr_time *time) {
    double seconds[QR_MOST_REPEATS];
    size_t best = 0;
    for (size_t i = 0; i < count; i++) seconds[i] = timed[i].seconds;
    time->seconds = statistics_of(seconds, count);
    const double median = time->seconds.median;
    for (size_t i = 1; i < count; i++)
        if (fabs(timed[i].seconds - median) < fabs(timed[best].seconds - median)) best = i;
    memcpy(time->parts, timed[best].profile.seconds, sizeof time->parts);
}

/* Repeats short runs for LEAST_SECONDS. */
static enum status time_runs(struct race *race) {
    struct timed *timed = calloc(QR_MOST_REPEATS, sizeof *timed);
    enum status status = timed ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    double sum = 0;
    size_t count = 0;
    while (!status && count < QR_MOST_REPEATS && (count < race->variant->repeats || sum < LEAST_SECONDS)) {
        status = run_timed(race, &timed[count]);
        sum += timed[count++].seconds;
    }
    if (!status) keep(timed, count, race->time);
    free(timed);
    return status;
}

/* --- a variant --- */

/* Windows that naive factors in the time limit, by the time of one; two more runs are checked. */
static enum status fit_count(struct race *race, size_t *count) {
    const struct qr_variant *variant = race->variant;
    struct timed one;
    double least = INFINITY;
    if (variant->method != WINDOWS_NAIVE || !(variant->limit_seconds > 0)) return STATUS_OK;
    qr_problem_use(race->problem, 1);
    enum status status = open_windows(race, 1);
    for (int i = 0; i < TRIALS && !status; i++) {
        status = run_timed(race, &one);
        least = fmin(least, one.seconds);
    }
    if (!status) {
        const double fits = variant->limit_seconds / ((double)(variant->repeats + 2) * least);
        if (fits < (double)*count) *count = fits < 1 ? 1 : (size_t)fits;
    }
    windows_close(race->windows);
    race->windows = NULL;
    return status;
}

static enum status race_windows(struct race *race) {
    struct qr_time *time = race->time;
    size_t count = race->variant->count;
    enum status status = fit_count(race, &count);
    if (status) return status;
    qr_problem_use(race->problem, count);
    const double begin = clock_seconds();
    status = open_windows(race, count);
    time->startup = clock_seconds() - begin;
    if (!status) status = run_checked(race);
    if (!status) status = time_runs(race);
    if (!status) status = run_checked(race);
    if (!status) {
        time->timed = count;
        time->flops = windows_flops(race->windows);
        time->group = windows_group(race->windows);
    }
    windows_close(race->windows);
    return status;
}

static enum status upload(struct race *race) {
    struct device *device = &race->compute->device;
    const size_t bytes = qr_problem_elements(race->problem) * dtype_size(race->problem->dtype);
    race->a = race->problem->a;
    if (device->driver->host_memory) return STATUS_OK;
    race->a = device->driver->alloc(device, bytes);
    if (!race->a) return STATUS_FAILED;
    device->driver->upload(device, race->a, race->problem->a, bytes);
    return STATUS_OK;
}

static enum status open_panels(struct race *race) {
    const struct gemm_backend *backend;
    const struct compute_options options = {.threads = platform_threads(0)};
    if (!race->variant->host_panels || race->compute->device.driver->host_memory) return STATUS_OK;
    const enum status status = registry_find("auto", &backend);
    return status ? status : compute_open(&race->panels, backend, &options);
}

static void note(struct qr_time *time, enum status status) {
    time->outcome = outcome_of(status);
    snprintf(time->reason, sizeof time->reason, "%s", status ? status_message() : "");
}

void qr_race_run_on(struct qr_problem *problem, struct compute *compute, const struct qr_variant *variant,
                    struct qr_time *time) {
    struct race race = {.problem = problem, .compute = compute, .variant = variant, .time = time};
    struct device *device = &compute->device;
    *time = (struct qr_time){.threads = compute->threads};
    snprintf(time->gpu, sizeof time->gpu, "%s", compute->gpu);
    enum status status = open_panels(&race);
    if (!status) status = upload(&race);
    if (!status) status = race_windows(&race);
    note(time, status);
    compute_close(&race.panels);
    if (!device->driver->host_memory) device->driver->free(device, race.a);
}

void qr_race_run(struct qr_problem *problem, const struct config *config, const struct qr_variant *variant,
                 struct qr_time *time) {
    struct config own = *config;
    const struct gemm_backend *backend;
    struct compute compute = {0};
    snprintf(own.backend, sizeof own.backend, "%s", variant->backend);
    const struct compute_options options = config_compute(&own);
    enum status status = registry_find(own.backend, &backend);
    if (!status) status = compute_open(&compute, backend, &options);
    if (!status) {
        qr_race_run_on(problem, &compute, variant, time);
    } else {
        *time = (struct qr_time){0};
        note(time, status);
    }
    compute_close(&compute);
}
