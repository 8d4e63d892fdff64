/* ./train kmeans --log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/compute_log.h"
#include "src/base/jsonl.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/cluster/point_stream.h"
#include "src/cmd/kmeans.h"

enum { MOST_CENTRES = 100, MOST_PIXELS = 128 * 128 /* of an image: 3 MB of log */ };

void kmeans_log_header(const struct kmeans_job *job, const char *engine) {
    const struct points *points = &job->sets.train;
    if (!job->log) return;
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "kmeans");
    compute_log(header, &job->compute, points->dtype, points_residency(points));
    char name[16];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(engine, " "), engine);
    cJSON_AddStringToObject(header, "engine", name);
    cJSON_AddStringToObject(header, "engine_description", engine);
    cJSON_AddStringToObject(header, "data", job->sets.name);
    cJSON_AddNumberToObject(header, "seed", (double)job->config.seed);
    jsonl_count(header, "points", points->count);
    jsonl_count(header, "features", points->features);
    jsonl_count(header, "batch_size", job->options.batch); /* 0: Lloyd */
    if (job->options.start) jsonl_text(header, "resumed", job->config.resume);
    cJSON *recipe = cJSON_AddObjectToObject(header, "config");
    cJSON_AddStringToObject(recipe, "mini-batch",
                            job->options.batch ? text_grouped(job->options.batch).text : "off");
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        char value[CONFIG_TEXT];
        if (!config_key_clusters(key)) continue;
        config_value(&job->config, key, value, sizeof value);
        cJSON_AddStringToObject(recipe, key->name, value);
    }
    jsonl_write(job->log, header);
}

static void add_time(cJSON *line, const struct profile *time) {
    cJSON *parts = cJSON_AddObjectToObject(line, "time");
    for (int part = 0; part < PART_COUNT; part++)
        cJSON_AddNumberToObject(parts, profile_part_key((enum profile_part)part), time->seconds[part]);
}

static void add_counts(cJSON *line, const struct nearest_counts *counts) {
    jsonl_count(line, "ambiguous", counts->ambiguous);
    jsonl_count(line, "decided_exactly", counts->exact);
    jsonl_count(line, "uncertified", counts->uncertified);
}

void kmeans_log_iteration(const struct kmeans_job *job, const struct kmeans_record *record) {
    if (!job->log) return;
    cJSON *line = jsonl_new("kmeans_iteration");
    jsonl_count(line, "restart", record->restart);
    jsonl_count(line, "iteration", record->iteration);
    cJSON_AddNumberToObject(line, "inertia", record->inertia);
    if (!job->options.batch) jsonl_count(line, "changed", record->counts.changed);
    cJSON_AddNumberToObject(line, "shift", record->shift);
    jsonl_count(line, "empty", record->empty);
    add_counts(line, &record->counts);
    cJSON_AddNumberToObject(line, "seconds", profile_total(&record->time));
    add_time(line, &record->time);
    jsonl_write(job->log, line);
}

static void add_part(cJSON *line, const struct kmeans_part *part) {
    cJSON *object = cJSON_AddObjectToObject(line, part->name);
    jsonl_count(object, "points", part->points->count);
    cJSON_AddNumberToObject(object, "inertia", part->inertia);
    if (!part->quality.points) return;
    cJSON_AddNumberToObject(object, "purity", part->quality.purity);
    cJSON_AddNumberToObject(object, "nmi", part->quality.nmi);
    cJSON_AddNumberToObject(object, "ari", part->quality.ari);
    cJSON_AddNumberToObject(object, "accuracy", part->accuracy);
    cJSON_AddNumberToObject(object, "medoid_accuracy", part->medoid_accuracy);
}

void kmeans_log_result(const struct kmeans_job *job) {
    const struct kmeans_result *result = &job->result;
    if (!job->log) return;
    cJSON *line = jsonl_new("kmeans");
    jsonl_count(line, "clusters", job->options.clusters);
    cJSON_AddNumberToObject(line, "inertia", result->inertia);
    jsonl_count(line, "iterations", result->state.iteration);
    jsonl_count(line, "restart", result->state.restart);
    cJSON_AddStringToObject(line, "end", kmeans_end_name(result->end));
    jsonl_count(line, "empty", result->empty);
    cJSON_AddBoolToObject(line, "exact", kmeans_is_exact(job));
    cJSON_AddStringToObject(line, "bounds", result->bounds);
    add_counts(line, &result->counts);
    for (size_t p = 0; p < KMEANS_PARTS; p++)
        if (job->part[p].points) add_part(line, &job->part[p]);
    cJSON_AddNumberToObject(line, "seeding_seconds", result->seeding_seconds);
    cJSON_AddNumberToObject(line, "total_seconds", profile_total(&job->profile));
    cJSON_AddNumberToObject(line, "transfer_ratio", profile_transfer_ratio(&job->profile));
    if (job->sets.train.stream)
        cJSON_AddNumberToObject(line, "streamed_bytes", (double)job->sets.train.stream->uploaded);
    jsonl_count(line, "gemm_calls", job->audit.calls);
    jsonl_count(line, "gemm_calls_audited", job->audit.checked);
    jsonl_count(line, "labels_audited", result->audited);
    cJSON_AddBoolToObject(line, "interrupted", result->end == KMEANS_INTERRUPTED);
    add_time(line, &job->profile);
    jsonl_write(job->log, line);
}

/* The first centres as images, with the row of the nearest training image. */
void kmeans_log_centres(const struct kmeans_job *job) {
    const struct dataset *set = &job->sets.images.train;
    if (!job->log || !set->count || job->sets.train.features > MOST_PIXELS) return;
    uint8_t *pixels = memory_zero(job->sets.train.features, 1);
    for (size_t j = 0; pixels && j < job->options.clusters && j < MOST_CENTRES; j++) {
        cJSON *line = jsonl_new("kmeans_centre");
        jsonl_count(line, "cluster", j);
        jsonl_count(line, "points", job->result.count[j]);
        if (job->medoid[j] != QUALITY_NO_POINT) jsonl_count(line, "medoid", job->medoid[j]);
        if (job->majority)
            cJSON_AddStringToObject(line, "class",
                                    classes_label(&job->sets.images.classes, job->majority[j]).text);
        kmeans_centre_pixels(job, j, pixels);
        jsonl_image(line, pixels, set->height, set->width);
        jsonl_write(job->log, line);
    }
    free(pixels);
}
