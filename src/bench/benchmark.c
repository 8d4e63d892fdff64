#include "src/bench/benchmark.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "src/backend/registry.h"
#include "src/base/text.h"

enum { PROBE = 192 /* m = n = k */, UNTIMED_CALLS = 5 /* of verification and warm-up */ };
static const double SAMPLE_SECONDS = 0.01; /* long enough that reading the clock costs nothing */

/* Short products depend on the addresses of their operands and on what else the machine does: they are
   measured in several rounds with new operands. */
enum { ROUNDS = 3, FEW_REPEATS = 7 }; /* with fewer repeats there is one round */
static const double SHORT_SAMPLE = 0.02, ALIKE = 1.05;
static const double MOST_OF_PEAK = 1.3; /* clocks vary */
static const size_t LARGEST_ROTATION = (size_t)1 << 30;

enum status rates_measure(struct compute *compute, int ordinal, struct rates *rates) {
    const struct device_options options = {.threads = compute->threads, .ordinal = ordinal};
    struct device device = {.driver = registry_device(compute->backend->device)};
    *rates = (struct rates){0};
    enum status status = device.driver->open(&device, &options);
    if (status) return status;
    if (device.driver->peak)
        for (int dtype = GEMM_F32; dtype <= GEMM_F64 && !status; dtype++)
            status = device.driver->peak(&device, (enum gemm_dtype)dtype, &rates->flops[dtype]);
    if (!status && device.driver->bandwidth) status = device.driver->bandwidth(&device, &rates->bandwidth);
    device.driver->close(&device);
    return status;
}

/* A candidate on the shape. */
struct entry {
    struct candidate *candidate;
    struct result *result;
    struct problem problem;
    double *samples;    /* [ROUNDS * repeats] */
    double *peaks;      /* [ROUNDS * repeats]: after each sample, or 0 */
    size_t rounds;      /* completed */
    double least, most; /* of the medians of the rounds */
    size_t calls;       /* of a sample */
};

/* Does the measured peak apply to its arithmetic? */
static bool has_peak(const struct entry *entry) {
    return entry->problem.call.dtype != GEMM_BF16 && entry->problem.compute->precision == GEMM_TRUE;
}

/* The median of all rounds, or what was measured at the start. */
static double peak_of(const struct benchmark *benchmark, const struct entry *entry) {
    if (!has_peak(entry)) return 0;
    const double peak = statistics_of(entry->peaks, entry->rounds * benchmark->repeats).median;
    return peak > 0 ? peak : entry->candidate->rates.flops[entry->problem.call.dtype];
}

static void exclude(struct entry *entry, enum status status) {
    entry->result->outcome = outcome_of(status);
    snprintf(entry->result->reason, sizeof entry->result->reason, "%s", status_message());
}

static size_t rotation(struct compute *compute) {
    const struct device_driver *driver = compute->device.driver;
    const size_t cache = driver->last_cache ? driver->last_cache(&compute->device) : 0;
    return 2 * cache < LARGEST_ROTATION ? 2 * cache : LARGEST_ROTATION;
}

static double *seconds_per_flop(const struct entry *entry) {
    const struct gemm_call *call = &entry->problem.call;
    return &entry->candidate->seconds_per_flop[call->dtype][call->op];
}

/* Estimates the rate on a small product, so that the first shape does not take an hour. */
static enum status probe(struct candidate *candidate, enum gemm_dtype dtype, enum gemm_op op) {
    const struct gemm_shape small = {.op = op, .m = PROBE, .n = PROBE, .k = PROBE, .what = "probe"};
    struct problem problem;
    double seconds = 0, least = 0;
    enum status status = problem_open(&problem, &candidate->compute, dtype, &small, 0);
    /* the first call is cold, and threads of another team may still spin */
    for (int call = 0; call < 4 && !status; call++) {
        status = problem_time(&problem, 1, &seconds);
        if (call == 0 || seconds < least) least = seconds;
    }
    if (!status) candidate->seconds_per_flop[dtype][op] = least / problem_flops(&problem);
    problem_close(&problem);
    return status;
}

static enum status prepare(const struct benchmark *benchmark, struct entry *entry, enum gemm_dtype dtype,
                           const struct gemm_shape *shape) {
    struct candidate *candidate = entry->candidate;
    struct compute *compute = &candidate->compute;
    if (!compute->backend->supports(dtype, shape->op))
        return status_set(STATUS_UNAVAILABLE, "does not support %s %s", dtype_name(dtype),
                          gemm_op_name(shape->op));
    if (benchmark->limit_seconds > 0 && candidate->seconds_per_flop[dtype][shape->op] == 0) {
        const enum status probed = probe(candidate, dtype, shape->op);
        if (probed) return probed;
    }
    const double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k,
                 predicted = candidate->seconds_per_flop[dtype][shape->op] * flops *
                             (double)(benchmark->repeats + UNTIMED_CALLS);
    if (benchmark->limit_seconds > 0 && predicted > benchmark->limit_seconds)
        return status_set(STATUS_UNAVAILABLE, "would take about %s: --limit-seconds is %g",
                          text_seconds(predicted).text, benchmark->limit_seconds);
    enum status status =
        problem_open(&entry->problem, compute, dtype, shape, benchmark->warm ? 0 : rotation(compute));
    if (status) return status;
    status = problem_verify(&entry->problem, PROBLEM_INTEGERS, 1);
    double seconds = 0;
    if (!status) status = problem_time(&entry->problem, 1, &seconds);
    if (status) return status;
    const double wanted = SAMPLE_SECONDS / (seconds > 1e-7 ? seconds : 1e-7);
    entry->calls = wanted < 1 ? 1 : (size_t)wanted + 1;
    entry->result->outcome = OUTCOME_RIGHT;
    return problem_time(&entry->problem, entry->calls, &seconds); /* warm */
}

/* Ends a round: the times of all rounds so far. They are also noisy if the medians of the rounds disagree. */
static struct statistics times_of(const struct benchmark *benchmark, struct entry *entry) {
    const size_t repeats = benchmark->repeats, before = entry->rounds++ * repeats;
    const double median = statistics_of(entry->samples + before, repeats).median;
    entry->least = before ? fmin(entry->least, median) : median;
    entry->most = before ? fmax(entry->most, median) : median;
    struct statistics all = statistics_of(entry->samples, before + repeats);
    all.noisy = all.noisy || entry->most > ALIKE * entry->least;
    return all;
}

/* No kernel multiplies faster than all cores can: such a time is of calls that computed nothing. The peak is
   the highest that was measured, because one that was disturbed is too low. */
static enum status check_rate(const struct benchmark *benchmark, const struct entry *entry) {
    const struct result *result = entry->result;
    const struct compute *compute = entry->problem.compute;
    if (!has_peak(entry) || compute->backend->device != GEMM_ON_HOST) return STATUS_OK;
    double peak = entry->candidate->rates.flops[entry->problem.call.dtype];
    for (size_t i = 0; i < entry->rounds * benchmark->repeats; i++) peak = fmax(peak, entry->peaks[i]);
    const double rate = result->flops / result->seconds.median,
                 most = MOST_OF_PEAK * peak * (double)sysconf(_SC_NPROCESSORS_ONLN) / compute->threads;
    if (peak <= 0 || rate <= most) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "backend '%s' is wrong: %.4g GFLOP/s is more than all cores can do, %.4g GFLOP/s",
                      compute->backend->name, 1e-9 * rate, 1e-9 * most / MOST_OF_PEAK);
}

/* Verifies again and fills the result. */
static enum status finish(const struct benchmark *benchmark, struct entry *entry) {
    struct result *result = entry->result;
    const struct problem *problem = &entry->problem;
    enum status status = problem_verify(&entry->problem, PROBLEM_REALS, 2);
    if (!status && problem->compute->backend->device != GEMM_ON_HOST)
        status = problem_transfers(&entry->problem, &result->h2d, &result->d2h);
    if (status) return status;
    result->seconds = times_of(benchmark, entry);
    result->flops = problem_flops(problem);
    result->bytes = problem_bytes(problem);
    result->peak = peak_of(benchmark, entry);
    result->kernels =
        compute_kernels(problem->compute, &problem->call, result->kernel, BENCHMARK_MOST_KERNELS);
    *seconds_per_flop(entry) = result->seconds.median / result->flops;
    return check_rate(benchmark, entry);
}

/* Only on the host, if the backend has no threads of its own, which would compete with the peak loop. */
static bool measures_peak(const struct entry *entry) {
    const struct compute *compute = entry->problem.compute;
    const struct gemm_backend *backend = compute->backend;
    const bool own_threads = backend->own_threads && backend->own_threads(compute->context);
    return has_peak(entry) && backend->device == GEMM_ON_HOST && compute->device.driver->peak_now &&
           !own_threads;
}

/* One sample, then the peak at the same clock frequency. */
static enum status take_sample(struct entry *entry, size_t sample) {
    struct device *device = &entry->problem.compute->device;
    const enum status status = problem_time(&entry->problem, entry->calls, &entry->samples[sample]);
    if (status || !measures_peak(entry)) return status;
    return device->driver->peak_now(device, entry->problem.call.dtype, &entry->peaks[sample]);
}

static void time_interleaved(const struct benchmark *benchmark, struct entry *entries) {
    for (size_t r = 0; r < benchmark->repeats; r++)
        for (size_t i = 0; i < benchmark->count; i++) {
            struct entry *entry = &entries[i];
            if (entry->result->outcome != OUTCOME_RIGHT) continue;
            const enum status status = take_sample(entry, entry->rounds * benchmark->repeats + r);
            if (status) exclude(entry, status);
        }
}

/* Verifies, times and verifies again, with new operands. */
static void run_round(const struct benchmark *benchmark, struct entry *entries, size_t round,
                      enum gemm_dtype dtype, const struct gemm_shape *shape) {
    for (size_t i = 0; i < benchmark->count; i++) {
        struct entry *entry = &entries[i];
        if (round && entry->result->outcome != OUTCOME_RIGHT) continue;
        const enum status prepared = prepare(benchmark, entry, dtype, shape);
        if (prepared) exclude(entry, prepared);
    }
    time_interleaved(benchmark, entries);
    for (size_t i = 0; i < benchmark->count; i++) {
        struct entry *entry = &entries[i];
        const enum status finished =
            entry->result->outcome == OUTCOME_RIGHT ? finish(benchmark, entry) : STATUS_OK;
        if (finished) exclude(entry, finished);
        problem_close(&entry->problem);
    }
}

/* Are there samples, and are all of them short? */
static bool are_short(const struct benchmark *benchmark, const struct entry *entries) {
    double longest = 0;
    for (size_t i = 0; i < benchmark->count; i++) {
        if (entries[i].result->outcome != OUTCOME_RIGHT) continue;
        longest = fmax(longest, entries[i].result->seconds.median * (double)entries[i].calls);
    }
    return longest > 0 && longest <= SHORT_SAMPLE;
}

enum status benchmark_run(struct benchmark *benchmark, enum gemm_dtype dtype, const struct gemm_shape *shape,
                          struct result *results) {
    const size_t most = ROUNDS * benchmark->repeats;
    struct entry *entries = calloc(benchmark->count, sizeof *entries);
    double *samples = calloc(2 * benchmark->count * most, sizeof *samples);
    const enum status status = entries && samples ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < benchmark->count && !status; i++) {
        entries[i] = (struct entry){.candidate = &benchmark->candidates[i],
                                    .result = &results[i],
                                    .samples = samples + 2 * i * most,
                                    .peaks = samples + (2 * i + 1) * most};
        results[i] = (struct result){0};
    }
    for (size_t s = 0; s < ROUNDS && !status; s++) {
        run_round(benchmark, entries, s, dtype, shape);
        if (benchmark->repeats < FEW_REPEATS || !are_short(benchmark, entries)) break;
    }
    free(entries);
    free(samples);
    return status;
}
