#include "src/nn/runlog.h"

#include <stdio.h>
#include <string.h>

#include "src/backend/compute_log.h"
#include "src/base/jsonl.h"
#include "src/base/text.h"
#include "src/comm/comm.h"
#include "src/nn/engine.h"

static double fraction(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}

static void write_header(struct runlog *log, const struct trainer *trainer, const char *data_name) {
    const struct config *config = trainer->config;
    cJSON *header = jsonl_header();
    compute_log(header, trainer->compute, trainer->mlp.dtype, compute_residency(trainer->compute));
    cJSON_AddStringToObject(header, "engine", trainer->engine->name);
    cJSON_AddStringToObject(header, "data", data_name);
    cJSON_AddNumberToObject(header, "seed", (double)config->seed);
    if (config->ensemble > 1) jsonl_count(header, "ensemble", (uint64_t)config->ensemble);
    if (trainer->compute->comm) {
        const struct comm *comm = trainer->compute->comm;
        jsonl_count(header, "processes", (uint64_t)comm->size);
        jsonl_text(header, "communicator", comm->description);
        if (comm->device_sums[0]) jsonl_text(header, "device_sums", comm->device_sums);
        jsonl_text(header, "reduction", comm->fixed ? "fixed" : "any");
    }
    jsonl_count(header, "parameters", mlp_parameter_count(&trainer->mlp));
    jsonl_count(header, "train_images", trainer->train.count);
    jsonl_count(header, "validation_images", trainer->validation.count);
    jsonl_count(header, "test_images", trainer->test.count);
    jsonl_count(header, "steps_per_epoch", trainer->steps);
    cJSON *recipe = cJSON_AddObjectToObject(header, "config");
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        char value[CONFIG_TEXT];
        config_value(config, key, value, sizeof value);
        if (key->recipe) cJSON_AddStringToObject(recipe, key->name, value);
    }
    jsonl_write(log->jsonl, header);
}

/* Writes the column titles unless a resumed run continues the file. */
static void write_titles(const struct runlog *log, const char *part) {
    char titles[256];
    if (!log->csv || !logfile_is_empty(log->csv)) return;
    snprintf(titles, sizeof titles,
             "%sepoch,train_loss,train_accuracy,%s_loss,%s_accuracy,seconds,images_per_second%s\n",
             log->seeds ? "seed," : "", part, part, log->averages ? ",ema_loss,ema_accuracy" : "");
    logfile_write(log->csv, titles, strlen(titles));
}

enum status runlog_open(struct runlog *log, const struct trainer *trainer, const char *data_name) {
    const struct config *config = trainer->config;
    *log = (struct runlog){.seeds = config->ensemble > 1, .averages = config->ema_decay > 0};
    const bool append = config->resume[0]; /* a resumed run continues its log */
    enum status status = logfile_open(&log->jsonl, config->log, append);
    if (!status) status = logfile_open(&log->csv, config->csv, append);
    if (status) return logfile_close(log->jsonl, status);
    if (log->jsonl) write_header(log, trainer, data_name);
    write_titles(log, trainer->validation.count ? "validation" : "test");
    return STATUS_OK;
}

static cJSON *line_of(const struct runlog *log, const char *type, const struct config *config) {
    cJSON *line = jsonl_new(type);
    if (log->seeds) cJSON_AddNumberToObject(line, "seed", (double)config->seed);
    return line;
}

void runlog_step(struct runlog *log, const struct config *config, size_t step, double loss) {
    if (!log->jsonl) return;
    cJSON *line = line_of(log, "step", config);
    jsonl_count(line, "step", step);
    cJSON_AddNumberToObject(line, "loss", loss);
    jsonl_write(log->jsonl, line);
}

/* Empty fields if there was no evaluation. */
static void csv_evaluation(char *row, size_t size, const struct evaluation *evaluation) {
    if (evaluation->total) {
        text_append(row, size, ",%.9g,%.9g", evaluation->loss,
                    fraction(evaluation->correct, evaluation->total));
    } else {
        text_append(row, size, ",,");
    }
}

static void write_row(const struct runlog *log, const struct config *config,
                      const struct epoch_record *record) {
    char row[256] = "";
    const size_t size = sizeof row;
    if (!log->csv) return;
    if (log->seeds) text_append(row, size, "%lld,", (long long)config->seed);
    text_append(row, size, "%zu,%.9g,%.9g", record->epoch, record->train_loss,
                fraction(record->train_correct, record->train_images));
    csv_evaluation(row, size, &record->evaluation);
    text_append(row, size, ",%.9g,%.9g", record->seconds, record->images_per_second);
    if (log->averages) csv_evaluation(row, size, &record->average);
    text_append(row, size, "\n");
    logfile_write(log->csv, row, strlen(row));
}

static void jsonl_evaluation(cJSON *line, const char *part, const struct evaluation *evaluation) {
    char key[64];
    if (!evaluation->total) return;
    snprintf(key, sizeof key, "%s_accuracy", part);
    cJSON_AddNumberToObject(line, key, fraction(evaluation->correct, evaluation->total));
    snprintf(key, sizeof key, "%s_loss", part);
    cJSON_AddNumberToObject(line, key, evaluation->loss);
}

void runlog_epoch(struct runlog *log, const struct config *config, const struct epoch_record *record) {
    write_row(log, config, record);
    if (!log->jsonl) return;
    cJSON *line = line_of(log, "epoch", config);
    jsonl_count(line, "epoch", record->epoch);
    cJSON_AddNumberToObject(line, "train_loss", record->train_loss);
    cJSON_AddNumberToObject(line, "train_accuracy", fraction(record->train_correct, record->train_images));
    jsonl_evaluation(line, record->on_validation ? "validation" : "test", &record->evaluation);
    jsonl_evaluation(line, record->on_validation ? "ema_validation" : "ema_test", &record->average);
    cJSON_AddNumberToObject(line, "seconds", record->seconds);
    cJSON_AddNumberToObject(line, "evaluation_seconds", record->time.seconds[PART_EVALUATION]);
    cJSON_AddNumberToObject(line, "images_per_second", record->images_per_second);
    jsonl_write(log->jsonl, line);
}

static void add_time(cJSON *line, const struct profile *profile) {
    static const char *const ops[PROFILE_OPS] = {"NN", "TN", "NT"};
    cJSON *time = cJSON_AddObjectToObject(line, "time");
    for (int part = 0; part < PART_COUNT; part++)
        cJSON_AddNumberToObject(time, profile_part_key((enum profile_part)part), profile->seconds[part]);
    cJSON *gemm = cJSON_AddArrayToObject(line, "gemm");
    for (size_t op = 0; op < PROFILE_OPS; op++)
        for (size_t l = 0; l < PROFILE_MAX_LAYERS; l++) {
            const struct profile_gemm *one = &profile->gemm[op][l];
            if (!one->calls) continue;
            cJSON *entry = cJSON_CreateObject();
            cJSON_AddStringToObject(entry, "op", ops[op]);
            jsonl_count(entry, "layer", l + 1);
            jsonl_count(entry, "calls", one->calls);
            cJSON_AddNumberToObject(entry, "seconds", one->seconds);
            cJSON_AddNumberToObject(entry, "flops", one->flops);
            jsonl_append(gemm, entry);
        }
}

/* The result of a run: accuracy, images and loss, as in "test_accuracy". */
static void jsonl_result(cJSON *line, const char *average, const char *part,
                         const struct evaluation *evaluation) {
    char name[32], key[64];
    snprintf(name, sizeof name, "%s%s", average, part);
    jsonl_evaluation(line, name, evaluation);
    snprintf(key, sizeof key, "%s_correct", name);
    jsonl_count(line, key, evaluation->correct);
    snprintf(key, sizeof key, "%s_total", name);
    jsonl_count(line, key, evaluation->total);
}

void runlog_summary(struct runlog *log, const struct config *config, const struct run_summary *summary) {
    if (!log->jsonl) return;
    cJSON *line = line_of(log, "summary", config);
    jsonl_result(line, "", summary->part, &summary->test);
    if (summary->average.total) jsonl_result(line, "ema_", summary->part, &summary->average);
    if (summary->best_epoch) {
        jsonl_count(line, "best_epoch", (size_t)summary->best_epoch);
        cJSON_AddBoolToObject(line, "stopped_early", summary->stopped_early);
    }
    jsonl_count(line, "epochs", summary->epochs);
    cJSON_AddNumberToObject(line, "median_epoch_seconds", summary->median_epoch_seconds);
    cJSON_AddBoolToObject(line, "noisy", summary->noisy);
    cJSON_AddNumberToObject(line, "total_seconds", profile_total(&summary->time));
    cJSON_AddNumberToObject(line, "startup_seconds", summary->time.seconds[PART_STARTUP]);
    cJSON_AddNumberToObject(line, "transfer_ratio", profile_transfer_ratio(&summary->time));
    cJSON_AddNumberToObject(line, "hidden_communication_seconds",
                            profile_hidden_communication(&summary->time));
    jsonl_count(line, "gemm_calls", summary->calls);
    jsonl_count(line, "gemm_calls_audited", summary->audited);
    jsonl_count(line, "steps_audited", summary->steps_audited);
    cJSON_AddBoolToObject(line, "interrupted", summary->interrupted);
    add_time(line, &summary->time);
    jsonl_write(log->jsonl, line);
}

/* Keys begin with the name of the part: "test_accuracy" is the accuracy of the committee. */
static void add_part(cJSON *line, const char *name, const struct ensemble_part *part) {
    if (!part->committee.members) return;
    const struct evaluation *all = &part->evaluation;
    const struct statistics *members = &part->accuracy;
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"accuracy", fraction(all->correct, all->total)},
                   {"correct", (double)all->correct},
                   {"total", (double)all->total},
                   {"loss", all->loss},
                   {"accuracy_mean", members->mean},
                   {"accuracy_deviation", members->deviation},
                   {"accuracy_min", members->min},
                   {"accuracy_max", members->max}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s", name, numbers[i].key);
        cJSON_AddNumberToObject(line, key, numbers[i].value);
    }
}

void runlog_ensemble(struct runlog *log, const struct ensemble *ensemble, bool interrupted) {
    if (!log->jsonl) return;
    cJSON *line = jsonl_new("ensemble");
    jsonl_count(line, "members", ensemble_reported(ensemble)->committee.members);
    cJSON_AddBoolToObject(line, "at_once", ensemble->concurrent);
    if (comm_size(ensemble->comm) > 1) jsonl_count(line, "processes", (uint64_t)ensemble->comm->size);
    add_part(line, "test", &ensemble->test);
    add_part(line, "ema_test", &ensemble->test_average);
    add_part(line, "validation", &ensemble->validation);
    add_part(line, "ema_validation", &ensemble->validation_average);
    cJSON_AddNumberToObject(line, "seconds", ensemble->seconds);
    cJSON_AddNumberToObject(line, "epoch_seconds", ensemble->epoch_seconds);
    cJSON_AddNumberToObject(line, "startup_seconds", ensemble->startup_seconds);
    cJSON_AddBoolToObject(line, "interrupted", interrupted);
    jsonl_write(log->jsonl, line);
}

enum status runlog_close(struct runlog *log, enum status status) {
    if (log->jsonl && status && status != STATUS_INTERRUPTED) {
        cJSON *line = jsonl_new("stopped");
        jsonl_text(line, "reason", status_message());
        jsonl_write(log->jsonl, line);
    }
    status = logfile_close(log->jsonl, logfile_close(log->csv, status));
    *log = (struct runlog){0};
    return status;
}
