#include "src/report/row.h"

#include <stdio.h>
#include <string.h>

#include "src/base/text.h"

const char *row_precision(const cJSON *line) {
    const char *precision = record_text(line, "precision");
    return precision[0] ? precision : record_text(line, "dtype");
}

struct row_name row_backend(const cJSON *line) {
    const char *backend = record_text(line, "backend"), *precision = row_precision(line);
    const char *dtype = record_text(line, "dtype");
    struct row_name name;
    snprintf(name.text, sizeof name.text, "%.64s", backend[0] ? backend : "unnamed");
    if (precision[0] && dtype[0] && strcmp(precision, dtype) != 0)
        text_append(name.text, sizeof name.text, " %.16s", precision);
    return name;
}

bool row_on_gpu(const cJSON *line) {
    return strcmp(record_text(line, "device"), "cuda") == 0 || record_text(line, "gpu")[0] ||
           strncmp(record_text(line, "residency"), "host", 4) == 0;
}

void row_label(const cJSON *line, char *name, size_t size) {
    const size_t threads = record_count(line, "threads", 1u << 20, 0);
    const bool cuda = row_on_gpu(line);
    const char *engine = record_text(line, "engine");
    snprintf(name, size, "%s", row_backend(line).text);
    if (strcmp(record_text(line, "dtype"), "f64") == 0) text_append(name, size, ", f64");
    if (cuda) text_append(name, size, ", %.32s", record_text(line, "residency"));
    if (engine[0] && strcmp(engine, "eager") != 0) text_append(name, size, ", %.16s", engine);
    if (!cuda && threads) text_append(name, size, ", %zu thread%s", threads, threads == 1 ? "" : "s");
}

/* Of a row that did not run: its label without the backend, "2 threads". */
static const char *rest_of_label(const cJSON *line) {
    const char *label = record_text(line, "label"), *backend = record_text(line, "backend");
    const size_t length = strlen(backend);
    if (record_text(line, "engine")[0] || strncmp(label, backend, length) != 0) return "";
    return label + length + strspn(label + length, ", ");
}

void row_setup(const cJSON *line, size_t part, char *text, size_t size) {
    static const struct {
        const char *key, *before, *after;
    } numbers[] = {{"batch_size", "batch ", ""}, {"epochs", "", " epochs"}, {"seed", "seed ", ""}};
    static const char *const texts[] = {"layers", "data", "description"};
    text[0] = '\0';
    if (part < 3) {
        const size_t value = record_count(line, numbers[part].key, (size_t)1 << 40, 0);
        if (record_has(line, numbers[part].key))
            snprintf(text, size, "%s%zu%s", numbers[part].before, value, numbers[part].after);
    } else {
        snprintf(text, size, "%.200s", record_text(line, texts[part - 3]));
    }
    if (part == ROW_SETUPS - 1 && !text[0]) snprintf(text, size, "%.200s", rest_of_label(line));
}

/* --- parts of time --- */

const struct row_part row_parts[ROW_PARTS] = {
    {"transfers", "transfers", "h2d d2h"},
    {"GEMM NN (forward)", "NN", "gemm_nn"},
    {"GEMM TN (weight gradient)", "TN", "gemm_tn"},
    {"GEMM NT (input gradient)", "NT", "gemm_nt"},
    {"element-wise, optimizer", "element-wise", "elementwise optimizer"},
    {"whole steps, not split", "whole steps", "graph"},
    {"other", "other", "batch augment other"},
};

double row_seconds(const cJSON *line, const char *keys) {
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(line, "time");
    double sum = 0;
    while (*keys) {
        char key[32];
        const size_t length = strcspn(keys, " ");
        snprintf(key, sizeof key, "%.*s", (int)length, keys);
        const double seconds = record_number(time, key);
        if (seconds > 0) sum += seconds;
        keys += length + (keys[length] == ' ');
    }
    return sum;
}

const char *row_held_out_part(const cJSON *line) {
    const bool tested = record_has(line, "test_accuracy");
    return !tested && record_has(line, "validation_accuracy") ? "validation" : "test";
}

double row_held_out(const cJSON *line, const char *quantity) {
    char test[32], validation[32];
    snprintf(test, sizeof test, "test_%s", quantity);
    snprintf(validation, sizeof validation, "validation_%s", quantity);
    return record_number(line, record_has(line, test) ? test : validation);
}

bool row_refused(const cJSON *line, char *why, size_t size) {
    const char *left_out = record_text(line, "left_out"), *reason = record_text(line, "reason");
    const char *failed = record_text(line, "failed");
    const char *verdict = record_has(line, "agrees") ? "agrees" : "verified";
    if (left_out[0]) {
        snprintf(why, size, "left out: %.300s", left_out);
    } else if (failed[0]) {
        snprintf(why, size, "failed: %.300s", failed);
    } else if (!record_true(line, verdict)) {
        const char *what = verdict[0] == 'a' ? "does not agree" : "wrong result";
        snprintf(why, size, "%s%s%.300s", what, reason[0] ? ": " : "", reason);
    } else {
        return false;
    }
    return true;
}
