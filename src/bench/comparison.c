#include "src/bench/comparison.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/progress.h"
#include "src/base/text.h"
#include "src/bench/shapes.h"

enum { TWO_COPIES = 1 }; /* bytes to rotate: two copies, whose bits differ after a race */

static void report_progress(const struct comparison *comparison, const struct comparison_row *row,
                            const char *what) {
    if (comparison->progress) comparison->progress(row, what);
}

/* Takes the row out of the comparison; the status message is the reason. */
static void exclude(struct comparison_row *row, enum status status) {
    row->outcome = outcome_of(status);
    snprintf(row->reason, sizeof row->reason, "%s", status_message());
}

/* --- correctness --- */

/* The products of a step, or of an evaluation, of `rows` images. */
static enum status verify_shapes(const struct config *config, struct compute *compute, size_t rows,
                                 bool evaluation, enum problem_inputs inputs) {
    const enum gemm_dtype dtype = dtype_of_operands(compute->precision, (enum gemm_dtype)config->dtype);
    struct gemm_shape shapes[SHAPES_MOST];
    const struct layer_list widths = mlp_widths(compute, config);
    const size_t count = shapes_of_training(&widths, config->adversarial > 0, rows, "", shapes);
    enum status status = STATUS_OK;
    for (size_t s = 0; s < count && !status; s++) {
        struct problem problem;
        if (evaluation && shapes[s].op != GEMM_NN) continue;
        progress_set("%s %s m=%zu n=%zu k=%zu", dtype_name(dtype), gemm_op_name(shapes[s].op), shapes[s].m,
                     shapes[s].n, shapes[s].k);
        status = problem_open(&problem, compute, dtype, &shapes[s], TWO_COPIES);
        if (!status) status = problem_verify_special(&problem);
        if (!status) status = problem_verify(&problem, inputs, s + 1);
        problem_close(&problem);
    }
    return status;
}

enum status comparison_verify(const struct config *config, const struct gemm_backend *backend,
                              const struct dataset_pair *data, enum problem_inputs inputs, bool last) {
    const struct compute_options options = config_compute(config);
    struct compute compute;
    const size_t images = data->train.count - (size_t)config->validation;
    const size_t batch = (size_t)config->batch_size < images ? (size_t)config->batch_size : images;
    enum status status = compute_open(&compute, backend, &options);
    if (status) return status;
    const size_t test = data->test.count, pass = trainer_capacity(config, backend, batch, images, test);
    status = verify_shapes(config, &compute, batch, false, inputs);
    if (!status && last && images % batch)
        status = verify_shapes(config, &compute, images % batch, false, inputs);
    if (!status && pass != batch && test >= pass)
        status = verify_shapes(config, &compute, pass, true, inputs);
    if (!status && test % pass) status = verify_shapes(config, &compute, test % pass, true, inputs);
    compute_close(&compute);
    return status;
}

/* Only a whole epoch trains on the smaller batch at its end. */
static bool ends_an_epoch(const struct comparison_row *row) {
    for (size_t r = 0; r < row->repeats; r++)
        if (row->runs[r].epochs > 0) return true;
    return row->repeats == 0; /* not trained yet */
}

/* Asks the contestant of the row, and says so. */
static enum status ask(const struct comparison *comparison, const struct comparison_row *row,
                       const char *what, struct contest_request *request, struct contest_reply *reply) {
    report_progress(comparison, row, what);
    return contestant_ask(row->sweep->contestant, what, request, reply);
}

static enum status verify(const struct comparison *comparison, const struct comparison_row *row,
                          enum problem_inputs inputs) {
    struct contest_reply reply;
    struct contest_request request = {
        .task = CONTEST_VERIFY, .config = row->sweep->config, .inputs = inputs, .last = ends_an_epoch(row)};
    return ask(comparison, row, inputs == PROBLEM_INTEGERS ? "verify" : "verify again", &request, &reply);
}

/* Compares the first steps; finds the tensor that drifts, if they do or if a trace of every row is wanted. */
static void check_agreement(const struct comparison *comparison, struct comparison_row *row) {
    struct contest_reply reply;
    struct contest_request request = {
        .task = CONTEST_AGREEMENT, .config = row->sweep->config, .agreement = comparison->agreement};
    const enum status status = ask(comparison, row, "agreement", &request, &reply);
    row->drift = reply.drift;
    row->outcome = outcome_of(status);
    if (status) exclude(row, status);
    const bool drifted = row->outcome == OUTCOME_WRONG && row->drift.step;
    if (!drifted && (row->outcome != OUTCOME_RIGHT || !comparison->trace)) return;
    request.task = CONTEST_TRACE;
    if (ask(comparison, row, "trace", &request, &reply) == STATUS_OK) {
        memcpy(row->tensor, reply.tensor, sizeof row->tensor);
        row->trace = reply.trace;
        row->trace.tensor = row->tensor;
    }
}

static void check_row(struct comparison *comparison, struct comparison_row *row) {
    const struct sweep_row *sweep = row->sweep;
    if (!sweep->backend) {
        snprintf(row->reason, sizeof row->reason, "%s", sweep->left_out);
        return;
    }
    if (sweep->wrong[0]) {
        row->outcome = OUTCOME_WRONG;
        snprintf(row->reason, sizeof row->reason, "%s", sweep->wrong);
        return;
    }
    enum status status = config_check_training(&sweep->config, comparison->data);
    if (!status) status = verify(comparison, row, PROBLEM_INTEGERS);
    if (status) {
        exclude(row, status);
    } else {
        check_agreement(comparison, row);
    }
}

/* --- speed --- */

/* One training of `config`; the result is the caller's. */
static enum status train(const struct comparison *comparison, const struct comparison_row *row,
                         const char *what, const struct config *config, size_t steps,
                         struct run_result *result) {
    struct contest_reply reply;
    struct contest_request request = {.task = CONTEST_TRAIN,
                                      .config = *config,
                                      .limits = {.seconds = comparison->limit_seconds, .steps = steps}};
    const enum status status = ask(comparison, row, what, &request, &reply);
    if (!status) *result = reply.run;
    return status;
}

static void train_once(struct comparison *comparison, struct comparison_row *row) {
    if (row->outcome != OUTCOME_RIGHT) return;
    char what[32];
    snprintf(what, sizeof what, "train, %zu of %zu", row->repeats + 1, comparison->repeats);
    const enum status status = train(comparison, row, what, &row->sweep->config, 0, &row->runs[row->repeats]);
    if (status) {
        exclude(row, status);
    } else {
        row->repeats++;
    }
}

/* One more epoch with engine eager, if the engine of the runs does not time single ops. */
static enum status time_ops(struct comparison *comparison, struct comparison_row *row) {
    struct config config = row->sweep->config;
    if (row->runs[0].time.seconds[PART_STEPS] == 0) return STATUS_OK;
    config.engine = ENGINE_EAGER;
    return train(comparison, row, "op by op", &config, row->runs[0].steps_per_epoch, &row->ops);
}

/* A training up to the end of its first epoch, in which every call and every step is audited: the timed runs
   audit a sample. Engine graph replays calls, so they are audited in engine eager. */
static enum status audit(const struct comparison *comparison, struct comparison_row *row) {
    struct config config = row->sweep->config;
    struct run_result run;
    if (config.audit != AUDIT_SAMPLE || row->runs[0].images == 0) return STATUS_OK;
    config.audit = AUDIT_ALL;
    if (strcmp(row->runs[0].engine, "graph") == 0) config.engine = ENGINE_EAGER;
    const enum status status = train(comparison, row, "audit", &config, row->runs[0].steps_per_epoch, &run);
    if (status) return status;
    row->calls_audited = run.calls_audited;
    row->steps_audited = run.steps_audited;
    run_close(&run);
    return STATUS_OK;
}

/* One more training, of many epochs. Their learning rate is a hundredth, so that so many do not diverge. A
   row without a counter stays right. */
static void measure_energy(const struct comparison *comparison, struct comparison_row *row) {
    struct config config = row->sweep->config;
    struct contest_reply reply;
    config.epochs = 1000000000;
    config.learning_rate *= 0.01;
    config.lr_min *= 0.01;
    config.evaluate_every = config.patience = 0;
    config.audit = AUDIT_OFF;
    struct contest_request request = {.task = CONTEST_TRAIN,
                                      .config = config,
                                      .limits.energy = {.settle = 1, .pause = 4, .warm_up = 1, .least = 10}};
    if (!comparison->energy) return;
    if (row->extrapolated) {
        snprintf(row->no_energy, sizeof row->no_energy, "an epoch takes longer than --limit-seconds");
    } else if (ask(comparison, row, "energy", &request, &reply) == STATUS_OK) {
        row->energy = reply.run.energy;
        run_close(&reply.run);
    } else {
        snprintf(row->no_energy, sizeof row->no_energy, "%s", status_message());
    }
}

static enum status collect_epochs(struct comparison_row *row) {
    size_t count = 0;
    for (size_t r = 0; r < row->repeats; r++) count += row->runs[r].epochs;
    row->extrapolated = count == 0;
    row->epoch_seconds = calloc(count + row->repeats, sizeof *row->epoch_seconds);
    if (!row->epoch_seconds) return status_set(STATUS_FAILED, "out of memory");
    count = 0;
    for (size_t r = 0; r < row->repeats; r++) {
        const struct run_result *run = &row->runs[r];
        if (row->extrapolated && run->images) row->epoch_seconds[count++] = run_epoch_seconds(run);
        for (size_t e = 0; e < run->epochs; e++) row->epoch_seconds[count++] = run->epoch_seconds[e];
    }
    row->epoch = statistics_of(row->epoch_seconds, count);
    for (size_t r = 0; r < row->repeats; r++) { /* epochs of one run vary less than runs do */
        const double off = run_epoch_seconds(&row->runs[r]) / row->epoch.median - 1;
        if (off > 0.05 || off < -0.05) row->epoch.noisy = true;
    }
    return STATUS_OK;
}

static void average_runs(struct comparison_row *row) {
    const double repeats = (double)row->repeats;
    for (size_t r = 0; r < row->repeats; r++) {
        for (int part = 0; part < PART_COUNT; part++)
            row->part[part] += run_part_seconds(&row->runs[r], (enum profile_part)part) / repeats;
        row->transfer_ratio += run_transfer_ratio(&row->runs[r]) / repeats;
        row->gemm_rate += run_gemm_rate(&row->runs[r]) / repeats;
    }
    const bool eager = row->ops.images > 0;
    for (int op = 0; op < PROFILE_OPS; op++) {
        const enum profile_part part = (enum profile_part)(PART_GEMM_NN + op);
        row->gemm[op] = eager ? run_part_seconds(&row->ops, part) : row->part[part];
    }
    if (eager) row->gemm_rate = run_gemm_rate(&row->ops);
}

static void finish(struct comparison *comparison, struct comparison_row *row) {
    if (row->outcome != OUTCOME_RIGHT) return;
    enum status status = time_ops(comparison, row);
    if (!status) status = audit(comparison, row);
    if (!status) status = verify(comparison, row, PROBLEM_REALS);
    if (!status) status = collect_epochs(row);
    if (status) {
        exclude(row, status);
        return;
    }
    average_runs(row);
    measure_energy(comparison, row);
}

enum status comparison_run(struct comparison *comparison, const struct sweep *sweep) {
    comparison->rows = calloc(sweep->count, sizeof *comparison->rows);
    if (!comparison->rows) return status_set(STATUS_FAILED, "out of memory");
    comparison->count = sweep->count;
    for (size_t i = 0; i < sweep->count; i++) {
        comparison->rows[i].sweep = &sweep->rows[i];
        comparison->rows[i].runs = calloc(comparison->repeats, sizeof *comparison->rows[i].runs);
        if (!comparison->rows[i].runs) return status_set(STATUS_FAILED, "out of memory");
    }
    agreement_plan(&comparison->agreement, comparison->config, comparison->data);
    for (size_t i = 0; i < sweep->count; i++) check_row(comparison, &comparison->rows[i]);
    for (size_t repeat = 0; repeat < comparison->repeats; repeat++) /* interleaved: speed drifts */
        for (size_t i = 0; i < sweep->count; i++) train_once(comparison, &comparison->rows[i]);
    for (size_t i = 0; i < sweep->count; i++) finish(comparison, &comparison->rows[i]);
    return STATUS_OK;
}

enum status comparison_verdict(const struct comparison *comparison) {
    struct verdict verdict = {0};
    for (size_t i = 0; i < comparison->count; i++) {
        const struct comparison_row *row = &comparison->rows[i];
        verdict_note(&verdict, row->outcome, row->sweep->label, row->reason);
    }
    return verdict_status(&verdict);
}

void comparison_close(struct comparison *comparison) {
    for (size_t i = 0; i < comparison->count; i++) {
        struct comparison_row *row = &comparison->rows[i];
        for (size_t r = 0; row->runs && r < row->repeats; r++) run_close(&row->runs[r]);
        run_close(&row->ops);
        free(row->runs);
        free(row->epoch_seconds);
    }
    free(comparison->rows);
    *comparison = (struct comparison){0};
}

const struct comparison_row *comparison_find(const struct comparison *comparison, const char *backend) {
    for (size_t i = 0; i < comparison->count; i++)
        if (comparison->rows[i].outcome == OUTCOME_RIGHT && sweep_row_is(comparison->rows[i].sweep, backend))
            return &comparison->rows[i];
    return NULL;
}
