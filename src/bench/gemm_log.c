#include "src/bench/gemm_log.h"

static const char *device_name(enum gemm_device device) {
    return device == GEMM_ON_HOST ? "host" : "cuda";
}

void gemm_log_peak(struct logfile *log, enum gemm_device device, const char *gpu, int threads,
                   const struct rates *rates) {
    cJSON *line = jsonl_new("peak");
    jsonl_text(line, "device", device_name(device));
    jsonl_text(line, "gpu", gpu);
    cJSON_AddNumberToObject(line, "threads", threads);
    cJSON_AddNumberToObject(line, "f32_gflops", 1e-9 * rates->flops[GEMM_F32]);
    cJSON_AddNumberToObject(line, "f64_gflops", 1e-9 * rates->flops[GEMM_F64]);
    cJSON_AddNumberToObject(line, "copy_gbytes_per_second", 1e-9 * rates->bandwidth);
    jsonl_write(log, line);
}

/* As warnings of the header. */
static void add_left_out(cJSON *header, const struct candidates *candidates) {
    if (!candidates->left_out_count) return;
    cJSON *warnings = cJSON_AddArrayToObject(header, "warnings");
    for (size_t i = 0; i < candidates->left_out_count; i++) {
        const struct left_out *out = &candidates->left_out[i];
        char text[960];
        snprintf(text, sizeof text, "%s %s: %s", out->label,
                 out->outcome == OUTCOME_LEFT_OUT ? "was left out" : outcome_words(out->outcome),
                 out->reason);
        jsonl_append(warnings, cJSON_CreateString(text));
    }
}

void gemm_log_open(struct logfile *log, const char *command, const struct candidates *candidates) {
    cJSON *header = jsonl_header();
    jsonl_text(header, "command", command);
    for (size_t i = 0; i < candidates->count; i++) {
        if (!candidates->list[i].compute.gpu[0]) continue;
        jsonl_text(header, "gpu", candidates->list[i].compute.gpu);
        break;
    }
    add_left_out(header, candidates);
    jsonl_write(log, header);
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *one = &candidates->list[i];
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = candidates->list[j].compute.backend->device == one->compute.backend->device &&
                   candidates->list[j].compute.threads == one->compute.threads;
        if (!seen)
            gemm_log_peak(log, one->compute.backend->device, one->compute.gpu, one->compute.threads,
                          &one->rates);
    }
}

static void add_kernels(cJSON *line, const struct result *result) {
    if (!result->kernels) return;
    cJSON *kernels = cJSON_AddArrayToObject(line, "kernels");
    for (size_t i = 0; i < result->kernels; i++) {
        const struct gemm_kernel *kernel = &result->kernel[i];
        cJSON *object = cJSON_CreateObject();
        jsonl_text(object, "name", kernel->name);
        cJSON_AddNumberToObject(object, "threads", kernel->threads);
        cJSON_AddNumberToObject(object, "registers", kernel->registers);
        jsonl_count(object, "shared_bytes", kernel->shared_bytes);
        cJSON_AddNumberToObject(object, "occupancy", kernel->occupancy);
        jsonl_append(kernels, object);
    }
}

static void add_times(cJSON *line, const struct candidate *candidate, const struct result *result) {
    const struct statistics *seconds = &result->seconds;
    jsonl_count(line, "repeats", seconds->count);
    cJSON_AddNumberToObject(line, "median_seconds", seconds->median);
    cJSON_AddNumberToObject(line, "min_seconds", seconds->min);
    cJSON_AddNumberToObject(line, "max_seconds", seconds->max);
    cJSON_AddBoolToObject(line, "noisy", seconds->noisy);
    cJSON_AddNumberToObject(line, "gflops", 1e-9 * result->flops / seconds->median);
    if (result->peak > 0) {
        cJSON_AddNumberToObject(line, "peak_gflops", 1e-9 * result->peak);
        cJSON_AddNumberToObject(line, "share_of_peak", share_of_peak(result));
    }
    cJSON_AddNumberToObject(line, "bytes", result->bytes);
    cJSON_AddNumberToObject(line, "relative_error", result->relative_error);
    if (candidate->compute.backend->device != GEMM_ON_HOST) {
        cJSON_AddNumberToObject(line, "h2d_seconds", result->h2d);
        cJSON_AddNumberToObject(line, "d2h_seconds", result->d2h);
        jsonl_text(line, "transfer_memory", "pageable");
    }
    add_kernels(line, result);
}

cJSON *gemm_line(const struct candidate *candidate, enum gemm_dtype dtype, const struct gemm_shape *shape,
                 const struct result *result, bool warm) {
    cJSON *line = jsonl_new("gemm");
    jsonl_text(line, "label", candidate->label);
    jsonl_text(line, "backend", candidate->compute.name);
    jsonl_text(line, "path", candidate->path);
    jsonl_text(line, "description", candidate->compute.description);
    jsonl_text(line, "device", device_name(candidate->compute.backend->device));
    jsonl_text(line, "gpu", candidate->compute.gpu);
    jsonl_text(line, "dtype", dtype_name(dtype));
    jsonl_text(line, "precision", compute_precision(&candidate->compute, dtype));
    jsonl_text(line, "op", gemm_op_name(shape->op));
    jsonl_count(line, "m", shape->m);
    jsonl_count(line, "n", shape->n);
    jsonl_count(line, "k", shape->k);
    jsonl_text(line, "what", shape->what);
    jsonl_text(line, "config", shape->config);
    jsonl_text(line, "operands", warm ? "warm" : "cold");
    if (shape->pixels) cJSON_AddTrueToObject(line, "pixels");
    cJSON_AddNumberToObject(line, "threads", candidate->compute.threads);
    if (result->outcome == OUTCOME_LEFT_OUT) {
        jsonl_text(line, "left_out", result->reason);
    } else if (result->outcome == OUTCOME_FAILED) {
        jsonl_text(line, "failed", result->reason);
    } else {
        cJSON_AddBoolToObject(line, "verified", result->outcome == OUTCOME_RIGHT);
        jsonl_text(line, "reason", result->reason);
    }
    if (result->outcome == OUTCOME_RIGHT) {
        add_times(line, candidate, result);
        counters_add(line, &result->counters);
    }
    return line;
}
