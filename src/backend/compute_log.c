#include "src/backend/compute_log.h"

void compute_log(cJSON *header, const struct compute *compute, enum gemm_dtype dtype, const char *residency) {
    cJSON_AddNumberToObject(header, "threads", compute->threads);
    cJSON_AddStringToObject(header, "backend", compute->name);
    cJSON_AddStringToObject(header, "backend_description", compute->description);
    cJSON_AddStringToObject(header, "device", compute->device.driver->name);
    cJSON_AddStringToObject(header, "dtype", dtype_name(dtype));
    cJSON_AddStringToObject(header, "precision", compute_precision(compute, dtype));
    cJSON_AddStringToObject(header, "residency", residency);
    jsonl_text(header, "gpu", compute->gpu);
}
