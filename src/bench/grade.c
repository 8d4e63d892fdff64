#include "src/bench/grade.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/base/platform.h"
#include "src/base/process.h"
#include "src/base/profile.h"
#include "src/report/records.h"

enum { SUBMISSION, RELATIVE };
enum {
    SECRET_CASES = 200,
    MOST_THREADS = 512 /* room for libraries that start a thread for each core of a large machine */
};

/* --- outcomes --- */

static enum status set_outcome(cJSON *line, const char *outcome, const char *reason) {
    jsonl_text(line, "outcome", outcome);
    jsonl_text(line, "reason", reason);
    return STATUS_OK;
}

static const char *end_of(const struct contestant *contestant) {
    static const char *const ends[] = {[CONTESTANT_RUNS] = "wrong",
                                       [CONTESTANT_CRASHED] = "crashes",
                                       [CONTESTANT_HANGS] = "hangs",
                                       [CONTESTANT_EXCEEDS] = "over a limit",
                                       [CONTESTANT_INTERFERES] = "interferes"};
    return ends[contestant->end];
}

/* The outcome of a request that failed. An error of this program stays one. */
static enum status set_failure(cJSON *line, const struct contestant *contestant, enum status status) {
    if (status == STATUS_FAILED && !contestant->pid && !contestant->ended[0]) return status;
    const bool unusable = status == STATUS_UNAVAILABLE || status == STATUS_USAGE;
    return set_outcome(line, unusable ? "not usable" : end_of(contestant), status_message());
}

static void note(const struct grading *grading, const char *what) {
    if (grading->stage) grading->stage(what);
}

static enum status ask(struct grading *grading, enum contest_task task, const char *stage,
                       struct contest_reply *reply) {
    struct contest_request request = {.task = task, .config = grading->config, .secret = SECRET_CASES};
    note(grading, stage);
    return contestant_ask(&grading->contestant[SUBMISSION], stage, &request, reply);
}

/* --- products --- */

/* Of all cores of the assignment, however many the submission uses. */
static enum status find_rates(struct grading *grading, struct rates *rates) {
    const enum gemm_device device = grading->backend[SUBMISSION].device;
    enum status status = STATUS_OK;
    if (!grading->has_rates[device]) {
        note(grading, "measuring the peak");
        status = candidates_rates(&grading->config, device, (int)grading->assignment->threads, false,
                                  &grading->rates[device]);
        grading->has_rates[device] = !status;
    }
    *rates = grading->rates[device];
    return status;
}

static void add_product(struct grading *grading, cJSON *products, enum gemm_dtype dtype,
                        const struct gemm_shape *shape, const struct result results[2]) {
    const struct result *result = &results[SUBMISSION], *other = &results[RELATIVE];
    const double rate = result->flops / result->seconds.median;
    const double peak = grading->pair[SUBMISSION].rates.flops[dtype];
    cJSON *product = cJSON_CreateObject();
    jsonl_text(product, "op", gemm_op_name(shape->op));
    jsonl_text(product, "dtype", dtype_name(dtype));
    jsonl_count(product, "m", shape->m);
    jsonl_count(product, "n", shape->n);
    jsonl_count(product, "k", shape->k);
    if (result->outcome == OUTCOME_LEFT_OUT) {
        jsonl_text(product, "left_out", result->reason);
    } else {
        cJSON_AddNumberToObject(product, "median_seconds", result->seconds.median);
        cJSON_AddNumberToObject(product, "min_seconds", result->seconds.min);
        cJSON_AddNumberToObject(product, "max_seconds", result->seconds.max);
        cJSON_AddBoolToObject(product, "noisy", result->seconds.noisy);
        cJSON_AddNumberToObject(product, "gflops", 1e-9 * rate);
        if (peak > 0) cJSON_AddNumberToObject(product, "share_of_peak", rate / peak);
        if (grading->pair[RELATIVE].contestant)
            cJSON_AddNumberToObject(product, "relative", other->seconds.median / result->seconds.median);
    }
    jsonl_append(products, product);
}

static enum status time_product(struct grading *grading, enum gemm_dtype dtype,
                                const struct gemm_shape *shape, struct result results[2]) {
    struct benchmark benchmark = {.candidates = grading->pair,
                                  .count = grading->pair[RELATIVE].contestant ? 2 : 1,
                                  .repeats = (size_t)grading->assignment->repeats,
                                  .fresh = true,
                                  .limit_seconds = grading->assignment->limit_seconds};
    enum status status = find_rates(grading, &grading->pair[SUBMISSION].rates);
    note(grading, "timing");
    if (!status) status = benchmark_run(&benchmark, dtype, shape, results);
    if (status || benchmark.count == 1 || results[RELATIVE].outcome == OUTCOME_RIGHT) return status;
    return status_set(STATUS_UNAVAILABLE, "relative = %s has no time: %s", grading->assignment->relative,
                      results[RELATIVE].reason);
}

/* Verifies and times one product in a context of its own. *failed: it has failed, and `line` says how. */
static enum status grade_product(struct grading *grading, size_t index, cJSON *line, cJSON *products,
                                 bool *failed) {
    enum gemm_dtype dtype;
    const struct gemm_shape shape = assignment_product(grading->assignment, index, &dtype);
    struct contestant *contestant = &grading->contestant[SUBMISSION];
    struct candidate *one = &grading->pair[SUBMISSION];
    struct result results[2] = {{0}};
    struct contest_reply reply;
    enum status status = candidate_open(one, contestant, &grading->config, &grading->backend[SUBMISSION], 0);
    *failed = true;
    if (status) return set_failure(line, contestant, status);
    if (memcmp(one->supports, grading->supports, sizeof one->supports) != 0)
        return set_outcome(line, "wrong", "its slot `supports` has changed its answer");
    status = time_product(grading, dtype, &shape, results);
    if (status) return status;
    if (results->outcome == OUTCOME_WRONG || results->outcome == OUTCOME_FAILED)
        return set_outcome(line, end_of(contestant), results->reason);
    status = ask(grading, CONTEST_CLOSE, "closing", &reply);
    if (status) return set_failure(line, contestant, status);
    *failed = false;
    add_product(grading, products, dtype, &shape, results);
    return STATUS_OK;
}

/* How many products of the op `wanted` the submission does not support; GEMM_TT: of all ops. */
static size_t missing_of(const struct grading *grading, enum gemm_op wanted) {
    size_t missing = 0;
    for (size_t i = 0; i < assignment_products(grading->assignment); i++) {
        enum gemm_dtype dtype;
        const enum gemm_op op = assignment_product(grading->assignment, i, &dtype).op;
        missing += !grading->supports[dtype][op] && (wanted == GEMM_TT || op == wanted);
    }
    return missing;
}

static enum status grade_products(struct grading *grading, cJSON *line) {
    const size_t count = assignment_products(grading->assignment);
    cJSON *products = cJSON_CreateArray();
    bool failed = false;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && !status && !failed; i++) {
        enum gemm_dtype dtype;
        const enum gemm_op op = assignment_product(grading->assignment, i, &dtype).op;
        if (grading->supports[dtype][op]) status = grade_product(grading, i, line, products, &failed);
    }
    if (status || failed) {
        cJSON_Delete(products);
        return status;
    }
    cJSON_AddItemToObject(line, "products", products);
    return set_outcome(line,
                       !missing_of(grading, GEMM_TT)  ? "right"
                       : missing_of(grading, GEMM_NN) ? "incomplete"
                                                      : "forward only",
                       "");
}

/* --- a submission --- */

static enum status grade_backend(struct grading *grading, cJSON *line) {
    struct contestant *contestant = &grading->contestant[SUBMISSION];
    struct contest_backend *backend = &grading->backend[SUBMISSION];
    struct contest_reply reply;
    enum status status = ask(grading, CONTEST_FIND, "loading", &reply);
    *backend = reply.backend;
    if (!status) {
        jsonl_text(line, "backend", backend->name);
        jsonl_text(line, "summary", backend->summary);
        status = candidate_open(&grading->pair[SUBMISSION], contestant, &grading->config, backend, 0);
        memcpy(grading->supports, grading->pair[SUBMISSION].supports, sizeof grading->supports);
        jsonl_text(line, "description", grading->pair[SUBMISSION].compute.description);
    }
    if (!status && missing_of(grading, GEMM_TT) == assignment_products(grading->assignment))
        return set_outcome(line, "not usable", "it supports none of the ops and dtypes of the assignment");
    if (!status) status = ask(grading, CONTEST_VERIFY_ALL, "verification", &reply);
    if (status) return set_failure(line, contestant, status);
    jsonl_count(line, "checked", reply.checked);
    return grade_products(grading, line);
}

static void hexadecimal(cJSON *line, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    jsonl_text(line, key, text);
}

/* Sets the backend of the config: the file, or what it is compiled to. If there is none, returns false, and
   `line` says why. */
static bool find_backend(struct grading *grading, const struct submission *submission, uint64_t hash,
                         cJSON *line) {
    char object[PATH_MAX], log[PATH_MAX + 8];
    const char *options = submission->options;
    if (submission_is_source(submission)) {
        snprintf(object, sizeof object, "%s/%016" PRIx64 ".so", grading->builds, hash);
        snprintf(log, sizeof log, "%s.log", object);
        note(grading, "compiling");
        if (submission_compile(submission, grading->assignment, object, log)) {
            set_outcome(line, "does not compile", status_message());
            return false;
        }
    } else { /* a plug-in is a path with a '/' */
        snprintf(object, sizeof object, "%s%s", strchr(submission->path, '/') ? "" : "./", submission->path);
    }
    if (snprintf(grading->config.backend, sizeof grading->config.backend, "%s%s%s", object,
                 options[0] ? ":" : "", options) < CONFIG_TEXT)
        return true;
    set_outcome(line, "not usable", "the path of the file is too long");
    return false;
}

/* What a measurement depends on, beside the file. */
static uint64_t setting_of(const struct assignment *assignment) {
    return hash_bytes(assignment_hash(assignment), platform_cpu(), strlen(platform_cpu()));
}

/* In a process of its own, which ends with it. */
static enum status grade_file(struct grading *grading, const struct submission *submission, uint64_t hash,
                              cJSON *line) {
    if (!find_backend(grading, submission, hash, line)) return STATUS_OK;
    grading->contestant[SUBMISSION] = (struct contestant){.most_seconds = grading->assignment->total_seconds};
    const enum status status = grade_backend(grading, line);
    contestant_end(&grading->contestant[SUBMISSION]);
    return status;
}

enum status grade_submission(struct grading *grading, const struct submission *submission, cJSON **line) {
    const double start = clock_seconds();
    uint64_t hash;
    *line = jsonl_new("grade");
    jsonl_text(*line, "file", submission->name);
    hexadecimal(*line, "measured_for", setting_of(grading->assignment));
    cJSON_AddNumberToObject(*line, "threads", (double)grading->assignment->threads);
    enum status status = submission_hash(submission, &hash);
    if (status) {
        status = set_outcome(*line, "not usable", status_message());
    } else {
        hexadecimal(*line, "hash", hash);
        status = grade_file(grading, submission, hash, *line);
    }
    cJSON_AddNumberToObject(*line, "seconds", clock_seconds() - start);
    if (process_is_interrupted()) status = STATUS_INTERRUPTED; /* the line may be of a part */
    if (!status) return STATUS_OK;
    cJSON_Delete(*line);
    *line = NULL;
    return status;
}

bool grade_is_current(const cJSON *line, const struct submission *submission,
                      const struct assignment *assignment) {
    char wanted[24], measured[24];
    uint64_t hash;
    if (strcmp(record_text(line, "file"), submission->name) != 0 || submission_hash(submission, &hash))
        return false;
    snprintf(wanted, sizeof wanted, "%016" PRIx64, hash);
    snprintf(measured, sizeof measured, "%016" PRIx64, setting_of(assignment));
    return strcmp(record_text(line, "hash"), wanted) == 0 &&
           strcmp(record_text(line, "measured_for"), measured) == 0;
}

/* --- all --- */

static enum status open_relative(struct grading *grading, const char *name) {
    struct contest_request request = {.task = CONTEST_FIND, .config = grading->config};
    struct contest_reply reply;
    struct contestant *contestant = &grading->contestant[RELATIVE];
    snprintf(request.config.backend, sizeof request.config.backend, "%s", name);
    enum status status = contestant_ask(contestant, "loading", &request, &reply);
    grading->backend[RELATIVE] = reply.backend;
    if (!status)
        status = candidate_open(&grading->pair[RELATIVE], contestant, &request.config,
                                &grading->backend[RELATIVE], 0);
    return status ? status_context(status, "relative = %s", name) : STATUS_OK;
}

enum status grading_open(struct grading *grading, const struct assignment *assignment, const char *builds) {
    const struct contest_limits limits = {.timeout_seconds = assignment->timeout_seconds,
                                          .memory = (double)assignment->memory_mib * (1 << 20),
                                          .threads = MOST_THREADS,
                                          .confined = true};
    *grading = (struct grading){.assignment = assignment, .builds = builds};
    config_defaults(&grading->config);
    grading->config.threads = assignment->threads;
    enum status status = process_confine((int)assignment->threads);
    if (!status) status = contestants_prepare(NULL, &limits);
    if (!status && assignment->relative[0]) status = open_relative(grading, assignment->relative);
    return status;
}

void grading_close(struct grading *grading) {
    for (int i = SUBMISSION; i <= RELATIVE; i++) contestant_end(&grading->contestant[i]);
}
