/* ./train readout --log. */
#include "src/backend/compute_log.h"
#include "src/base/jsonl.h"
#include "src/base/text.h"
#include "src/cmd/readout.h"

static void add_value(cJSON *recipe, const struct config *config, const char *name) {
    char value[CONFIG_TEXT];
    config_value(config, config_key_find(name), value, sizeof value);
    cJSON_AddStringToObject(recipe, name, value);
}

void readout_log_header(const struct readout_job *job) {
    static const char *const keys[] = {"layers", "activation", "init", "input-range"};
    if (!job->log) return;
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "readout");
    compute_log(header, &job->compute, job->mlp.dtype, compute_residency(&job->compute));
    cJSON_AddStringToObject(header, "data", job->data.name);
    cJSON_AddNumberToObject(header, "seed", (double)job->config.seed);
    jsonl_text(header, "model", job->model);
    jsonl_count(header, "features", job->features.count);
    jsonl_count(header, "images", job->train.count);
    jsonl_count(header, "validation", job->validation);
    cJSON *recipe = cJSON_AddObjectToObject(header, "config");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) add_value(recipe, &job->config, keys[i]);
    for (size_t i = 0; i < config_key_count(); i++)
        if (config_key_reads_out(config_key_at(i))) add_value(recipe, &job->config, config_key_at(i)->name);
    jsonl_write(job->log, header);
}

static void add_score(cJSON *line, const struct readout_score *score) {
    cJSON_AddNumberToObject(line, "accuracy", readout_accuracy(score));
    jsonl_count(line, "correct", score->correct);
    jsonl_count(line, "total", score->total);
    cJSON_AddNumberToObject(line, "squared_error", score->total ? score->error / (double)score->total : 0);
}

void readout_log_ridges(const struct readout_job *job, const struct ridges *ridges) {
    for (size_t k = 0; k < ridges->count && job->log; k++) {
        cJSON *line = jsonl_new("readout_ridge");
        cJSON_AddNumberToObject(line, "ridge", ridges->value[k]);
        cJSON_AddNumberToObject(line, "relative", ridges->relative[k]);
        cJSON_AddBoolToObject(line, "chosen", k == ridges->best);
        add_score(line, &ridges->score[k]);
        jsonl_write(job->log, line);
    }
}

static void add_time(cJSON *line, const struct readout_job *job) {
    cJSON *parts = cJSON_AddObjectToObject(line, "time");
    for (int part = 0; part < PART_COUNT; part++)
        cJSON_AddNumberToObject(parts, profile_part_key((enum profile_part)part), job->profile.seconds[part]);
    cJSON_AddNumberToObject(line, "total_seconds", profile_total(&job->profile));
    jsonl_count(line, "gemm_calls", job->audit.calls);
    jsonl_count(line, "gemm_calls_audited", job->audit.checked);
}

void readout_log_result(const struct readout_job *job) {
    if (!job->log) return;
    cJSON *line = jsonl_new("readout");
    cJSON_AddStringToObject(line, "part", dataset_reported(&job->data));
    cJSON_AddNumberToObject(line, "accuracy",
                            (double)job->evaluation.correct / (double)job->evaluation.total);
    jsonl_count(line, "correct", job->evaluation.correct);
    jsonl_count(line, "total", job->evaluation.total);
    cJSON_AddNumberToObject(line, "ridge", job->ridges.value[job->ridges.best]);
    cJSON_AddNumberToObject(line, "features_seconds", job->times.features);
    cJSON_AddNumberToObject(line, "qr_seconds", job->times.factor);
    cJSON_AddNumberToObject(line, "ridge_seconds", job->times.ridge);
    cJSON_AddNumberToObject(line, "test_seconds", job->times.test);
    add_time(line, job);
    jsonl_write(job->log, line);
}

static void add_memory(cJSON *line, const struct stream_memory *memory) {
    jsonl_text(line, "name", readout_memory_name(memory).text);
    jsonl_count(line, "window", memory->window); /* 0: all */
    cJSON_AddNumberToObject(line, "forgetting", memory->forgetting);
}

void readout_log_block(const struct readout_job *job, const struct stream_record *record) {
    for (size_t k = 0; k < job->stream.count && job->log; k++) {
        cJSON *line = jsonl_new("readout_step");
        jsonl_count(line, "images", record->images);
        add_memory(line, &job->stream.memory[k]);
        add_score(line, &record->score[k]);
        jsonl_write(job->log, line);
    }
}

void readout_log_stream(const struct readout_job *job) {
    for (size_t k = 0; k < job->stream.count && job->log; k++) {
        cJSON *line = jsonl_new("readout_memory");
        add_memory(line, &job->stream.memory[k]);
        add_score(line, &job->result.score[k]);
        cJSON_AddNumberToObject(line, "ridge", job->result.ridge);
        cJSON_AddBoolToObject(line, "best", k == readout_best(job));
        if (k == 0) add_time(line, job);
        jsonl_write(job->log, line);
    }
}
