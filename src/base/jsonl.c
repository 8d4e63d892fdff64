#include "src/base/jsonl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "src/base/memory.h"
#include "src/base/platform.h"
#include "src/base/text.h"

/* Tells the lines of this process from those of another that writes the same log. */
static const char *run_id(void) {
    static char id[16];
    uint32_t number;
    if (id[0]) return id;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) number = (uint32_t)getpid();
    snprintf(id, sizeof id, "%08" PRIx32, number);
    return id;
}

cJSON *jsonl_new(const char *type) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "type", type);
    cJSON_AddStringToObject(object, "run", run_id());
    return object;
}

cJSON *jsonl_header(void) {
    const struct platform_load load = platform_load();
    cJSON *header = jsonl_new("header");
    cJSON_AddStringToObject(header, "version", TESSERA_VERSION);
    cJSON_AddStringToObject(header, "commit", platform_commit());
    cJSON_AddStringToObject(header, "machine", platform_system());
    cJSON_AddStringToObject(header, "cpu", platform_cpu());
    cJSON_AddNumberToObject(header, "cores", load.cores);
    cJSON_AddNumberToObject(header, "usable_cores", load.usable_cores);
    if (load.known) {
        cJSON_AddNumberToObject(header, "load", load.average);
        cJSON_AddNumberToObject(header, "other_tasks", load.others);
    }
    cJSON_AddStringToObject(header, "compiler", platform_compiler());
    cJSON_AddStringToObject(header, "flags", platform_flags());
    return header;
}

void jsonl_count(cJSON *object, const char *key, uint64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}

void jsonl_image(cJSON *object, const uint8_t *pixels, size_t height, size_t width) {
    static const char digits[] = "0123456789abcdef";
    const size_t count = height * width;
    char *hex = memory_zero(2 * count + 1, 1);
    for (size_t p = 0; hex && p < count; p++) {
        hex[2 * p] = digits[pixels[p] >> 4];
        hex[2 * p + 1] = digits[pixels[p] & 15];
    }
    jsonl_count(object, "height", height);
    jsonl_count(object, "width", width);
    if (hex) cJSON_AddStringToObject(object, "pixels", hex);
    free(hex);
}

void jsonl_text(cJSON *object, const char *key, const char *text) {
    if (text && text[0]) cJSON_AddStringToObject(object, key, text);
}

void jsonl_append(cJSON *array, cJSON *item) {
    if (!cJSON_AddItemToArray(array, item)) cJSON_Delete(item);
}

void jsonl_print(struct logfile *log, const cJSON *object) {
    char *json = log ? cJSON_PrintUnformatted(object) : NULL, *line = json ? text_utf8(json) : NULL;
    if (memory_ran_out() || !line) {
        logfile_fail(log, ENOMEM);
    } else {
        const size_t length = strlen(line);
        line[length] = '\n'; /* instead of the NUL */
        logfile_write(log, line, length + 1);
    }
    free(line);
    cJSON_free(json);
}

void jsonl_write(struct logfile *log, cJSON *object) {
    jsonl_print(log, object);
    cJSON_Delete(object);
}
