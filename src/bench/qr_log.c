#include "src/bench/qr_log.h"

#include <stdio.h>

#include "src/backend/registry.h"

double qr_flops_one_by_one(const struct qr_problem *problem, size_t count) {
    return windows_naive_flops(&(struct windows_shape){.dtype = problem->dtype,
                                                       .n = problem->n,
                                                       .cols = problem->n,
                                                       .window = problem->window,
                                                       .stride = problem->stride,
                                                       .count = count});
}

enum gemm_device qr_device_of(const char *backend) {
    const struct gemm_backend *found;
    return registry_find(backend, &found) ? GEMM_ON_HOST : found->device;
}

static cJSON *line_of(const struct qr_problem *problem, const struct qr_variant *variant) {
    cJSON *line = jsonl_new("qr");
    const bool on_gpu = qr_device_of(variant->backend) == GEMM_ON_CUDA,
               hybrid = on_gpu && variant->host_panels;
    char backend[CONFIG_TEXT + 32];
    snprintf(backend, sizeof backend, "%s%s", variant->backend, hybrid ? " + host panels" : "");
    jsonl_text(line, "method", windows_method_name(variant->method));
    jsonl_text(line, "backend", backend);
    jsonl_text(line, "device", on_gpu ? "cuda" : "host");
    jsonl_text(line, "panel", on_gpu && !hybrid ? "device" : "host");
    jsonl_text(line, "dtype", dtype_name(problem->dtype));
    jsonl_count(line, "rows", problem->window);
    jsonl_count(line, "columns", problem->n);
    jsonl_count(line, "stride", problem->stride);
    jsonl_count(line, "windows", variant->count);
    jsonl_count(line, "nb", variant->nb);
    cJSON_AddNumberToObject(line, "condition", problem->condition);
    jsonl_count(line, "seed", problem->seed);
    return line;
}

static void add_parts(cJSON *line, const double *seconds, double scale) {
    cJSON *parts = cJSON_AddObjectToObject(line, "time");
    for (int part = 0; part < PART_COUNT; part++)
        if (seconds[part] > 0)
            cJSON_AddNumberToObject(parts, profile_part_key((enum profile_part)part), scale * seconds[part]);
}

static void add_seconds(cJSON *line, const struct qr_time *time, double scale) {
    jsonl_count(line, "repeats", time->seconds.count);
    cJSON_AddNumberToObject(line, "median_seconds", scale * time->seconds.median);
    cJSON_AddNumberToObject(line, "min_seconds", scale * time->seconds.min);
    cJSON_AddNumberToObject(line, "max_seconds", scale * time->seconds.max);
    cJSON_AddBoolToObject(line, "noisy", time->seconds.noisy);
    cJSON_AddNumberToObject(line, "window_seconds", time->seconds.median / (double)time->timed);
    cJSON_AddNumberToObject(line, "startup_seconds", time->startup);
    add_parts(line, time->parts, scale);
}

static void add_rate(cJSON *line, const struct qr_time *time, double peak) {
    const double rate = time->flops / time->seconds.median;
    cJSON_AddNumberToObject(line, "gflops", 1e-9 * rate);
    if (!(peak > 0)) return;
    cJSON_AddNumberToObject(line, "peak_gflops", 1e-9 * peak);
    cJSON_AddNumberToObject(line, "share_of_peak", rate / peak);
}

static void add_time(cJSON *line, const struct qr_problem *problem, const struct qr_variant *variant,
                     const struct qr_time *time, double naive) {
    const double scale = (double)variant->count / (double)time->timed;
    jsonl_count(line, "group", time->group);
    jsonl_count(line, "windows_timed", time->timed);
    add_seconds(line, time, scale);
    cJSON_AddNumberToObject(line, "flops", scale * time->flops);
    cJSON_AddNumberToObject(line, "naive_flops", qr_flops_one_by_one(problem, variant->count));
    if (naive > 0 && variant->method != WINDOWS_NAIVE)
        cJSON_AddNumberToObject(line, "speedup", naive * (double)time->timed / time->seconds.median);
}

cJSON *qr_line(const struct qr_problem *problem, const struct qr_variant *variant, const struct qr_time *time,
               const struct rates *rates, double naive) {
    cJSON *line = line_of(problem, variant);
    jsonl_text(line, "gpu", time->gpu);
    if (time->threads) cJSON_AddNumberToObject(line, "threads", time->threads);
    if (time->outcome == OUTCOME_LEFT_OUT || time->outcome == OUTCOME_FAILED) {
        jsonl_text(line, time->outcome == OUTCOME_FAILED ? "failed" : "left_out", time->reason);
        return line;
    }
    cJSON_AddBoolToObject(line, "verified", time->outcome == OUTCOME_RIGHT);
    jsonl_text(line, "reason", time->reason);
    cJSON_AddNumberToObject(line, "backward_error", time->errors.backward);
    cJSON_AddNumberToObject(line, "orthogonality", time->errors.orthogonality);
    if (time->outcome != OUTCOME_RIGHT) return line;
    add_time(line, problem, variant, time, naive);
    add_rate(line, time, rates[qr_device_of(variant->backend)].flops[problem->dtype]);
    return line;
}
