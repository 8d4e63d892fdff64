#include "src/base/jsonl.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

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

void jsonl_text(cJSON *object, const char *key, const char *text) {
    if (text && text[0]) cJSON_AddStringToObject(object, key, text);
}

void jsonl_print(FILE *out, const cJSON *object) {
    char *line = out ? cJSON_PrintUnformatted(object) : NULL;
    if (line) {
        fprintf(out, "%s\n", line);
        fflush(out);
    }
    cJSON_free(line);
}

void jsonl_write(FILE *out, cJSON *object) {
    jsonl_print(out, object);
    cJSON_Delete(object);
}

static enum status cannot_write(const char *path) {
    return status_set(STATUS_FAILED, "cannot write the log '%s': %s", path, strerror(errno));
}

enum status jsonl_open(FILE **log, const char *path) {
    *log = path[0] ? fopen(path, "w") : NULL;
    return *log || !path[0] ? STATUS_OK : cannot_write(path);
}

enum status jsonl_close(FILE *log, const char *path, enum status status) {
    if (!log) return status;
    const bool failed = ferror(log) != 0;
    return (fclose(log) != 0 || failed) && !status ? cannot_write(path) : status;
}
