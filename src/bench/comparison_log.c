#include "src/bench/comparison_log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/jsonl.h"
#include "src/bench/shapes.h"

/* JSON has no infinity. */
static void add_number(cJSON *line, const char *key, double value) {
    cJSON_AddNumberToObject(line, key, isfinite(value) ? value : 1e300);
}

static void add_setup(cJSON *line, const struct comparison *comparison, const struct comparison_row *row) {
    const struct config *config = &row->sweep->config;
    char name[64], layers[CONFIG_TEXT];
    shapes_config_name(config->file, name, sizeof name);
    config_value(config, config_key_find("layers"), layers, sizeof layers);
    jsonl_text(line, "config", name);
    jsonl_text(line, "data", comparison->data->name);
    jsonl_text(line, "layers", layers);
    add_number(line, "batch_size", (double)config->batch_size);
    add_number(line, "epochs", (double)config->epochs);
    add_number(line, "seed", (double)config->seed);
    jsonl_text(line, "label", row->sweep->label);
    jsonl_text(line, "backend", row->sweep->name);
    jsonl_text(line, "dtype", config_choice("dtype", config->dtype));
}

static void add_run(cJSON *line, const struct run_result *run) {
    jsonl_text(line, "description", run->description);
    jsonl_text(line, "device", run->device);
    jsonl_text(line, "gpu", run->gpu);
    jsonl_text(line, "precision", run->precision);
    jsonl_text(line, "engine", run->engine);
    jsonl_text(line, "residency", run->residency);
    add_number(line, "threads", run->threads);
    const char *slow = strstr(run->description, "(slow: "); /* backends put their warning there */
    jsonl_text(line, "warning", slow);
}

/* Keys begin with the name of the part, as in a training log: test_accuracy, validation_accuracy. */
static void add_accuracy(cJSON *line, const char *part, const struct evaluation *evaluation) {
    const double total = (double)evaluation->total, accuracy = (double)evaluation->correct / total;
    char key[64];
    snprintf(key, sizeof key, "%s_accuracy", part);
    add_number(line, key, accuracy);
    add_number(line, "accuracy_error", sqrt(accuracy * (1 - accuracy) / total));
    snprintf(key, sizeof key, "%s_correct", part);
    jsonl_count(line, key, evaluation->correct);
    snprintf(key, sizeof key, "%s_total", part);
    jsonl_count(line, key, evaluation->total);
}

static void add_trace(cJSON *line, const struct trace *trace) {
    if (!trace->step) return;
    cJSON *object = cJSON_AddObjectToObject(line, "trace");
    cJSON_AddBoolToObject(object, "drifts", trace->drifts);
    add_number(object, "step", (double)trace->step);
    add_number(object, "layer", (double)trace->layer);
    jsonl_text(object, "tensor", trace->tensor);
    add_number(object, "relative", trace->relative);
    add_number(object, "tolerance", trace->tolerance);
}

static void add_times(cJSON *line, const struct comparison_row *row) {
    cJSON *seconds = cJSON_AddArrayToObject(line, "epoch_seconds");
    for (size_t i = 0; i < row->epoch.count; i++)
        jsonl_append(seconds, cJSON_CreateNumber(row->epoch_seconds[i]));
    add_number(line, "median_epoch_seconds", row->epoch.median);
    add_number(line, "min_epoch_seconds", row->epoch.min);
    add_number(line, "max_epoch_seconds", row->epoch.max);
    cJSON_AddBoolToObject(line, "noisy", row->epoch.noisy);
    cJSON_AddBoolToObject(line, "extrapolated", row->extrapolated);
    cJSON *time = cJSON_AddObjectToObject(line, "time");
    for (int part = 0; part < PART_COUNT; part++)
        if (profile_is_training((enum profile_part)part))
            add_number(time, profile_part_key((enum profile_part)part), row->part[part]);
    if (row->ops.images) {
        cJSON *ops = cJSON_AddObjectToObject(line, "op_by_op"); /* an epoch of engine eager */
        for (int op = 0; op < PROFILE_OPS; op++)
            add_number(ops, profile_part_key((enum profile_part)(PART_GEMM_NN + op)), row->gemm[op]);
    }
}

/* Like "counters" of a product: the measurement, or the reason why there is none. */
static void add_energy(cJSON *line, const struct comparison_row *row) {
    const struct energy_use *use = &row->energy;
    if (!use->counter[0] && !row->no_energy[0]) return;
    cJSON *energy = cJSON_AddObjectToObject(line, "energy");
    jsonl_text(energy, "reason", row->no_energy);
    if (!use->counter[0]) return;
    jsonl_text(energy, "counter", use->counter);
    add_number(energy, "joules_per_epoch", energy_of_epoch(use));
    add_number(energy, "gross_joules_per_epoch", energy_of_epoch_gross(use));
    add_number(energy, "watts", energy_watts(use));
    add_number(energy, "idle_watts", energy_idle_watts(use));
    add_number(energy, "seconds", use->seconds);
    add_number(energy, "epochs", (double)use->epochs);
    add_number(energy, "idle_seconds", use->idle_seconds);
}

static cJSON *row_line(const struct comparison *comparison, const struct comparison_row *row,
                       const struct comparison_row *baseline) {
    cJSON *line = jsonl_new("compare");
    add_setup(line, comparison, row);
    if (row->outcome == OUTCOME_LEFT_OUT) jsonl_text(line, "left_out", row->reason);
    if (row->outcome == OUTCOME_FAILED) jsonl_text(line, "failed", row->reason);
    if (row->outcome == OUTCOME_WRONG || row->outcome == OUTCOME_RIGHT) {
        cJSON_AddBoolToObject(line, "agrees", row->outcome == OUTCOME_RIGHT);
        jsonl_text(line, "reason", row->reason);
        add_number(line, "drift", row->drift.relative);
        add_number(line, "tolerance", row->drift.tolerance);
        add_trace(line, &row->trace);
    }
    if (row->outcome == OUTCOME_RIGHT) {
        const struct run_result *run = &row->runs[0];
        add_run(line, run);
        add_accuracy(line, dataset_reported(comparison->data), &run->test);
        add_number(line, "epochs_trained", (double)run->images / (double)run->images_per_epoch);
        add_number(line, "repeats", (double)row->repeats);
        if (!run->images) return line; /* --epochs 0: no training, no times */
        if (baseline) {
            jsonl_text(line, "baseline", baseline->sweep->name);
            add_number(line, "speedup", baseline->epoch.median / row->epoch.median);
        }
        add_times(line, row);
        add_energy(line, row);
        add_number(line, "transfer_ratio", row->transfer_ratio);
        add_number(line, "images_per_second", (double)run->images_per_epoch / row->epoch.median);
        add_number(line, "gflops", 1e-9 * row->gemm_rate);
        jsonl_count(line, "gemm_calls_audited", row->calls_audited);
        jsonl_count(line, "steps_audited", row->steps_audited);
    }
    return line;
}

enum status comparison_records(struct records *records, const struct comparison *comparison,
                               const struct comparison_row *baseline) {
    cJSON *header = jsonl_header();
    jsonl_text(header, "command", "compare");
    jsonl_text(header, "data", comparison->data->name);
    for (size_t i = 0; i < comparison->count; i++) {
        if (comparison->rows[i].outcome != OUTCOME_RIGHT || !comparison->rows[i].runs[0].gpu[0]) continue;
        jsonl_text(header, "gpu", comparison->rows[i].runs[0].gpu);
        break;
    }
    enum status status = records_add(records, header);
    for (size_t i = 0; i < comparison->count && !status; i++)
        status = records_add(records, row_line(comparison, &comparison->rows[i], baseline));
    return status;
}
