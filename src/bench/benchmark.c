#include "src/bench/benchmark.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/bench/serve.h"

enum { UNTIMED_CALLS = 6 /* of verification and warm-up */ };

/* Short products depend on the addresses of their operands and on what else the machine does: they are
   measured in several rounds with new operands. */
enum { ROUNDS = 3, FEW_REPEATS = 7 }; /* with fewer repeats there is one round */
static const double SHORT_SAMPLE = 0.02, ALIKE = 1.05;
/* Of a core, times the bytes of an element: two multiply-adds of 64 bytes a cycle at 6.5 GHz. */
static const double MOST_FLOPS_A_CORE = 2 * 2 * 64 * 6.5e9;

/* A candidate on the shape. */
struct entry {
    struct candidate *candidate;
    struct result *result;
    struct serve_slot slot; /* without a contestant: a view of the compute */
    struct server here;
    enum gemm_dtype dtype;
    const struct gemm_shape *shape;
    double *samples;    /* [ROUNDS * repeats] */
    double *peaks;      /* [ROUNDS * repeats]: after each sample, or 0 */
    size_t rounds;      /* completed */
    double least, most; /* of the medians of the rounds */
    size_t calls;       /* of a sample */
    bool has_peak;
};

static enum status ask(struct entry *entry, enum contest_task task, const char *stage,
                       struct contest_request *request, struct contest_reply *reply) {
    const struct candidate *candidate = entry->candidate;
    request->task = task;
    request->slot = candidate->slot;
    if (candidate->contestant) return contestant_ask(candidate->contestant, stage, request, reply);
    *reply = (struct contest_reply){0};
    return serve_task(&entry->here, request, reply);
}

/* The median of all rounds, or what was measured at the start. */
static double peak_of(const struct benchmark *benchmark, const struct entry *entry) {
    if (!entry->has_peak) return 0;
    const double peak = statistics_of(entry->peaks, entry->rounds * benchmark->repeats).median;
    return peak > 0 ? peak : entry->candidate->rates.flops[entry->dtype];
}

static void exclude(struct entry *entry, enum status status) {
    entry->result->outcome = outcome_of(status);
    snprintf(entry->result->reason, sizeof entry->result->reason, "%s", status_message());
}

static double *seconds_per_flop(const struct entry *entry) {
    return &entry->candidate->seconds_per_flop[entry->dtype][entry->shape->op];
}

static enum status prepare(const struct benchmark *benchmark, struct entry *entry) {
    struct contest_reply reply;
    struct contest_request request = {.plan = {.dtype = entry->dtype,
                                               .shape = *entry->shape,
                                               .warm = benchmark->warm,
                                               .fresh = benchmark->fresh,
                                               .calls = benchmark->repeats + UNTIMED_CALLS,
                                               .limit_seconds = benchmark->limit_seconds,
                                               .seconds_per_flop = *seconds_per_flop(entry)}};
    const enum status status = ask(entry, CONTEST_SAMPLER_OPEN, "verify", &request, &reply);
    if (status) return status;
    entry->calls = reply.calls;
    entry->has_peak = reply.has_peak;
    entry->result->outcome = OUTCOME_RIGHT;
    return STATUS_OK;
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

/* No processor multiplies faster: such a time is of calls that computed nothing. (A measured peak would not
   do: it is too low if other programs ran meanwhile.) */
static enum status check_rate(const struct entry *entry) {
    const struct result *result = entry->result;
    const struct compute *compute = &entry->candidate->compute;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const double rate = result->flops / result->seconds.median;
    if (compute->backend->device != GEMM_ON_HOST || gemm_is_16bit(entry->dtype)) return STATUS_OK;
    if (rate * (double)dtype_size(entry->dtype) <= MOST_FLOPS_A_CORE * (double)cores) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "backend '%s' is wrong: %.4g GFLOP/s is more than any processor of %ld cores can do",
                      compute->backend->name, 1e-9 * rate, cores);
}

/* On the host, where the operands are in memory; a GPU's counters need a process of their own. */
static enum status count(struct entry *entry) {
    struct contest_request request = {0};
    struct contest_reply reply;
    const enum status status = ask(entry, CONTEST_COUNT, "counting", &request, &reply);
    entry->result->counters = reply.counters;
    entry->result->counters.of = COUNTERS_CPU;
    return status;
}

/* Verifies again and fills the result. */
static enum status finish(const struct benchmark *benchmark, struct entry *entry) {
    struct result *result = entry->result;
    struct contest_request request = {0};
    struct contest_reply reply;
    const bool counts = benchmark->counters && entry->candidate->compute.backend->device == GEMM_ON_HOST;
    enum status status = counts ? count(entry) : STATUS_OK;
    if (!status) status = ask(entry, CONTEST_SAMPLER_FINISH, "verify again", &request, &reply);
    if (status) return status;
    const struct sampler_facts *facts = &reply.facts;
    result->seconds = times_of(benchmark, entry);
    result->flops = facts->flops;
    result->bytes = facts->bytes;
    result->h2d = facts->h2d;
    result->d2h = facts->d2h;
    result->relative_error = facts->relative_error;
    result->peak = peak_of(benchmark, entry);
    result->kernels = facts->kernels;
    memcpy(result->kernel, facts->kernel, sizeof result->kernel);
    *seconds_per_flop(entry) = result->seconds.median / result->flops;
    return check_rate(entry);
}

static enum status take_sample(struct entry *entry, size_t sample) {
    struct contest_request request = {0};
    struct contest_reply reply;
    const enum status status = ask(entry, CONTEST_SAMPLE, "timing", &request, &reply);
    entry->samples[sample] = reply.seconds;
    entry->peaks[sample] = reply.peak;
    return status;
}

static void release(struct entry *entry) {
    struct contest_request request = {0};
    struct contest_reply reply;
    ask(entry, CONTEST_SAMPLER_CLOSE, "closing", &request, &reply);
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
static void run_round(const struct benchmark *benchmark, struct entry *entries, size_t round) {
    for (size_t i = 0; i < benchmark->count; i++) {
        struct entry *entry = &entries[i];
        if (round && entry->result->outcome != OUTCOME_RIGHT) continue;
        const enum status prepared = prepare(benchmark, entry);
        if (prepared) exclude(entry, prepared);
    }
    time_interleaved(benchmark, entries);
    for (size_t i = 0; i < benchmark->count; i++) {
        struct entry *entry = &entries[i];
        const enum status finished =
            entry->result->outcome == OUTCOME_RIGHT ? finish(benchmark, entry) : STATUS_OK;
        if (finished) exclude(entry, finished);
        release(entry);
    }
}

/* A GPU that cannot be profiled now cannot later: the reason is kept. */
static void count_on_gpu(struct benchmark *benchmark, struct entry *entry) {
    const struct candidate *candidate = entry->candidate;
    struct counters *counters = &entry->result->counters;
    if (entry->result->outcome != OUTCOME_RIGHT || candidate->compute.backend->device == GEMM_ON_HOST) return;
    *counters = benchmark->no_profiler;
    if (counters->why[0]) return;
    gpu_counters_take(counters, NULL, &candidate->config, entry->dtype, entry->shape, benchmark->warm);
    if (counters->nowhere) benchmark->no_profiler = *counters;
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

/* On another op or dtype, if it is unknown on this one. */
static double known_rate(const struct candidate *candidate, enum gemm_dtype dtype, enum gemm_op op) {
    if (candidate->seconds_per_flop[dtype][op] > 0) return candidate->seconds_per_flop[dtype][op];
    double longest = 0;
    for (int d = 0; d < 3; d++)
        for (int o = 0; o < 3; o++) longest = fmax(longest, candidate->seconds_per_flop[d][o]);
    return longest;
}

double benchmark_predict(const struct benchmark *benchmark, enum gemm_dtype dtype,
                         const struct gemm_shape *shape) {
    const double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
    const double verification = 0.1; /* seconds; a guess: the plan is for a person who waits */
    const double calls = (double)(benchmark->repeats + UNTIMED_CALLS), limit = benchmark->limit_seconds;
    double sum = 0;
    for (size_t i = 0; i < benchmark->count; i++) {
        const double seconds = calls * flops * known_rate(&benchmark->candidates[i], dtype, shape->op);
        if (limit <= 0 || seconds <= limit)
            sum += fmax(seconds, ROUNDS * calls * SHORT_SAMPLE / 2) + verification;
    }
    return sum;
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
                                    .dtype = dtype,
                                    .shape = shape,
                                    .samples = samples + 2 * i * most,
                                    .peaks = samples + (2 * i + 1) * most};
        entries[i].slot.compute = benchmark->candidates[i].compute;
        entries[i].here = (struct server){.slots = &entries[i].slot, .count = 1};
        results[i] = (struct result){0};
    }
    for (size_t s = 0; s < ROUNDS && !status; s++) {
        run_round(benchmark, entries, s);
        if (benchmark->repeats < FEW_REPEATS || !are_short(benchmark, entries)) break;
    }
    for (size_t i = 0; i < benchmark->count && !status && benchmark->counters; i++)
        count_on_gpu(benchmark, &entries[i]);
    free(entries);
    free(samples);
    return status;
}
