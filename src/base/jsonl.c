#include "src/base/jsonl.h"

#include "src/base/platform.h"

cJSON *jsonl_new(const char *type) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "type", type);
    return object;
}

cJSON *jsonl_header(void) {
    cJSON *header = jsonl_new("header");
    cJSON_AddStringToObject(header, "version", TESSERA_VERSION);
    cJSON_AddStringToObject(header, "commit", platform_commit());
    cJSON_AddStringToObject(header, "machine", platform_system());
    cJSON_AddStringToObject(header, "cpu", platform_cpu());
    cJSON_AddStringToObject(header, "compiler", platform_compiler());
    cJSON_AddStringToObject(header, "flags", platform_flags());
    return header;
}

void jsonl_count(cJSON *object, const char *key, uint64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}

void jsonl_write(FILE *out, cJSON *object) {
    char *line = out ? cJSON_PrintUnformatted(object) : NULL;
    if (line) {
        fprintf(out, "%s\n", line);
        fflush(out);
    }
    cJSON_free(line);
    cJSON_Delete(object);
}
